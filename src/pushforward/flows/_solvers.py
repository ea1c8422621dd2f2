r"""Solvers of $\dot y=F(t,y)$, where $y$ is a few clouds of points that move together.

A fixed-step solver knows the order of its error; an adaptive one the error it goes for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._tools.checks import check_number, check_sizes

State = tuple[Tensor, ...]
"""Clouds that move together: the context, and queries that ride along."""


class Dynamics(ABC):
    """What moves: a velocity of states, and the manifold they return to."""

    @abstractmethod
    def __call__(self, t: float, state: State, stage: int) -> State:
        """Velocities; `stage` tells evaluations within one step apart."""

    @abstractmethod
    def retract(self, state: State) -> State:
        """Points back on their manifold."""

    @abstractmethod
    def parts(self) -> Sequence[Dynamics]:
        """Dynamics whose velocities sum to these."""


class Solver(ABC):
    """A way to move states from time to time."""

    order: ClassVar[int]
    """The exponent of the step in its error."""

    @abstractmethod
    def grid(self, t0: float, t1: float, save: int | Sequence[float]) -> Grid:
        """The times it passes through, and those to keep a state at."""

    @abstractmethod
    def march(self, dynamics: Dynamics, state: State, grid: Grid, first: int, last: int) -> State:
        """From one time of the grid to a later one, starting afresh."""

    @abstractmethod
    def trace(self, dynamics: Dynamics, state: State, grid: Grid) -> Iterator[State]:
        """States at all times of the grid, the first included."""


@dataclass(frozen=True)
class Grid:
    """Times a solver passes through.

    Args:
        times: all of them.
        saved: indices of those to keep a state at, first and last among them.
    """

    times: tuple[float, ...]
    saved: tuple[int, ...]

    @property
    def step(self) -> float:
        """Of a uniform grid."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


@dataclass(frozen=True)
class FixedStep(Solver, ABC):
    """A solver that takes equal steps.

    Args:
        steps: how many, from beginning to end.
    """

    steps: int

    def __post_init__(self):
        check_sizes(steps=self.steps)

    @abstractmethod
    def step(self, dynamics: Dynamics, state: State, t: float, h: float) -> State:
        """One step from time `t`."""

    def grid(self, t0, t1, save):
        """The ends of all steps."""
        times = tuple(t0 + (t1 - t0) * k / self.steps for k in range(self.steps + 1))
        if not isinstance(save, int):
            return Grid(times, self._indices(times, save))
        if save > self.steps:
            raise ValueError(
                f"`save` asks for {save} measures, but there are {self.steps} steps. Take more "
                "steps, or save fewer."
            )
        return Grid(times, tuple(round(k * self.steps / save) for k in range(save + 1)))

    def march(self, dynamics, state, grid, first, last):
        """Step by step."""
        for k in range(first, last):
            state = self.step(dynamics, state, grid.times[k], grid.step)
        return state

    def trace(self, dynamics, state, grid):
        """Step by step."""
        yield state
        for k in range(len(grid.times) - 1):
            state = self.step(dynamics, state, grid.times[k], grid.step)
            yield state

    def _indices(self, times: Sequence[float], save: Sequence[float]) -> tuple[int, ...]:
        """Of times that must be ends of steps."""
        h, found = (times[-1] - times[0]) / self.steps, []
        for t in save:
            k = round((t - times[0]) / h)
            if not 0 <= k <= self.steps or abs(times[k] - t) > 1e-9 * abs(h):
                raise ValueError(
                    f"`save` must name ends of steps, multiples of {h:g} from {times[0]:g} to "
                    f"{times[-1]:g}, got {t:g}. Choose other steps, or `Dopri5`."
                )
            found.append(k)
        return tuple(sorted({0, self.steps, *found}))


@dataclass(frozen=True)
class RungeKutta(FixedStep, ABC):
    """An explicit Runge-Kutta method, given by its tableau."""

    nodes: ClassVar[tuple[float, ...]]
    """Times of the stages, in steps."""
    rows: ClassVar[tuple[tuple[float, ...], ...]]
    """How each stage begins: shares of the slopes before it."""
    weights: ClassVar[tuple[float, ...]]
    """Shares of the slopes in the step."""

    def step(self, dynamics, state, t, h):
        """All stages, each with the context of its own: nothing is frozen within a step."""
        slopes: list[State] = []
        for stage, (node, row) in enumerate(zip(self.nodes, self.rows, strict=True)):
            here = _moved(state, h, row, slopes)
            here = dynamics.retract(here) if row else here
            slopes.append(dynamics(t + node * h, here, stage))
        return dynamics.retract(_moved(state, h, self.weights, slopes))


def _moved(state: State, h: float, shares: Sequence[float], slopes: Sequence[State]) -> State:
    r"""$y+h\sum_jc_jk_j$; one slope of share one is $y+hk$ to the last bit."""
    moved = []
    for place, y in enumerate(state):
        total = None
        for share, slope in zip(shares, slopes, strict=True):
            if share:
                term = slope[place] if share == 1 else share * slope[place]
                total = term if total is None else total + term
        moved.append(y if total is None else y + h * total)
    return tuple(moved)


@dataclass(frozen=True)
class Euler(RungeKutta):
    r"""$x+h\,V_t[\mu](x)$: a residual network, layer by layer.

    Args:
        steps: number of steps $L$.
    """

    order: ClassVar[int] = 1
    nodes: ClassVar = (0.0,)
    rows: ClassVar = ((),)
    weights: ClassVar = (1.0,)


@dataclass(frozen=True)
class Midpoint(RungeKutta):
    """A half step of Euler, and a step with the velocity found there.

    Args:
        steps: number of steps.
    """

    order: ClassVar[int] = 2
    nodes: ClassVar = (0.0, 0.5)
    rows: ClassVar = ((), (0.5,))
    weights: ClassVar = (0.0, 1.0)


@dataclass(frozen=True)
class RK4(RungeKutta):
    """The classical Runge-Kutta method, the context moving with every stage.

    Args:
        steps: number of steps.
    """

    order: ClassVar[int] = 4
    nodes: ClassVar = (0.0, 0.5, 0.5, 1.0)
    rows: ClassVar = ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
    weights: ClassVar = (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@dataclass(frozen=True)
class LieSplit(FixedStep):
    r"""An Euler step of each part of a `fields.Sum` in turn, as the layers of a transformer.

    Attention and MLP, each scaled by $1/L$: the limit is the flow of $\mathcal A+H$.

    Args:
        steps: number of steps.
    """

    order: ClassVar[int] = 1

    def step(self, dynamics, state, t, h):
        """Part by part."""
        for stage, part in enumerate(dynamics.parts()):
            slope = part(t, state, stage)
            state = part.retract(_moved(state, h, (1.0,), [slope]))
        return state


@dataclass(frozen=True)
class Dopri5(Solver):
    """Dormand and Prince's method of order 5, its steps chosen for the error, by torchdiffeq.

    The error of a step is measured in its worst point, so that copies and weights of atoms do not
    matter.

    Args:
        rtol: error relative to the coordinates.
        atol: absolute error, `rtol / 100` by default.
        max_steps: steps after which it gives up, between two times of its grid.
    """

    rtol: float = 1e-6
    atol: float | None = None
    max_steps: int = 10_000
    order: ClassVar[int] = 5

    def __post_init__(self):
        check_number("rtol", self.rtol)
        check_sizes(max_steps=self.max_steps)
        if self.atol is not None:
            check_number("atol", self.atol)

    def grid(self, t0, t1, save):
        """The times to save at."""
        if isinstance(save, int):
            save = [t0 + (t1 - t0) * k / save for k in range(save + 1)]
        inside = sorted({t for t in save if t0 < t < t1 or t1 < t < t0}, reverse=t1 < t0)
        if any(not min(t0, t1) <= t <= max(t0, t1) for t in save):
            raise ValueError(f"`save` must name times from {t0:g} to {t1:g}, got {list(save)}.")
        times = (t0, *inside, t1)
        return Grid(times, tuple(range(len(times))))

    def march(self, dynamics, state, grid, first, last):
        """One solve."""
        return list(self._solve(dynamics, state, (grid.times[first], grid.times[last])))[-1]

    def trace(self, dynamics, state, grid):
        """One solve, times between its steps interpolated (dense output)."""
        return self._solve(dynamics, state, grid.times)

    def _solve(self, dynamics: Dynamics, state: State, times: Sequence[float]) -> Iterator[State]:
        """States at the times."""
        odeint, watch = _torchdiffeq(), _Watch(dynamics, times[0], state)
        atol = self.rtol / 100 if self.atol is None else self.atol
        clock = torch.tensor(times, dtype=torch.float64, device=state[0].device)
        # A step ends at the last time; times before it are interpolated.
        options = {"max_num_steps": self.max_steps, "norm": _worst, "step_t": clock[-1:]}
        try:
            found = odeint(
                watch, state, clock, rtol=self.rtol, atol=atol, method="dopri5", options=options
            )
        except AssertionError as error:  # torchdiffeq's way to say that steps became too small
            if watch.raised is not None:
                raise watch.raised from None
            raise watch.failure(times[-1], self.max_steps) from error
        for k in range(len(times)):
            yield state if k == 0 else dynamics.retract(tuple(y[k] for y in found))


class FlowError(ArithmeticError):
    """A flow that left the finite numbers, or could not go on.

    Args:
        message: what happened, and what to do.
        time: the last time at which all was well.
        atom: the index of the atom that went wrong, batch axes first.
        atoms: where all atoms were at that time.
    """

    def __init__(self, message: str, time: float, atom: tuple[int, ...], atoms: Tensor):
        super().__init__(message)
        self.time, self.atom, self.atoms = time, atom, atoms


class _Watch:
    """Dynamics as torchdiffeq calls them; remembers the step it is at."""

    def __init__(self, dynamics: Dynamics, time: float, state: State):
        self.dynamics, self.time, self.state = dynamics, time, state
        self.raised: Exception | None = None
        """What a field raised itself."""

    def __call__(self, t: Tensor, state: State) -> State:
        try:
            return self.dynamics(float(t.detach()), self.dynamics.retract(state), 0)
        except Exception as error:
            self.raised = error
            raise

    def callback_step(self, t: Tensor, state: State, dt: Tensor) -> None:
        """Called by torchdiffeq before every step."""
        self.time, self.state = float(t.detach()), state

    def failure(self, end: float, max_steps: int) -> FlowError:
        """What is known about the step that failed."""
        with torch.no_grad():
            speed = self(torch.tensor(self.time), self.state)[0].norm(dim=-1)
        return located(
            f"The flow could not be continued beyond t = {self.time:.6g} (of {end:g}) within "
            f"{max_steps} steps: it blows up there, or is stiff.",
            self.time, self.state[0], speed.nan_to_num(torch.inf),
            "End before, raise `rtol` or `max_steps`, or take fixed steps.",
        )  # fmt: skip


def located(what: str, time: float, atoms: Tensor, badness: Tensor, fix: str) -> FlowError:
    """An error that names the worst atom."""
    atoms = atoms.detach()
    atom = tuple(int(i) for i in torch.unravel_index(badness.argmax(), badness.shape))
    where = ", ".join(f"{c:.4g}" for c in atoms[atom].tolist()[:4])
    more = ", ..." if atoms.shape[-1] > 4 else ""
    index = atom[0] if len(atom) == 1 else atom
    message = f"{what} Worst is atom {index}, at ({where}{more}) at t = {time:.6g}. {fix}"
    return FlowError(message, time, atom, atoms)


def _torchdiffeq() -> Callable:
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError(
            "Adaptive steps need torchdiffeq. Install it: `pip install torchdiffeq`, or use "
            "`pf.RK4(steps=...)`."
        ) from error
    return odeint


def _worst(error: Tensor | State) -> Tensor:
    """The root mean square of each point's coordinates, in the worst point."""
    clouds = error if isinstance(error, tuple) else (error,)
    return torch.stack([e.square().mean(-1).amax().sqrt() for e in clouds if e.numel()]).amax()
