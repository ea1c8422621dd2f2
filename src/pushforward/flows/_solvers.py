r"""Solvers of $\dot y=F(t,y)$, where the state $y$ is a few clouds of points that move together.

A solver declares what it can do, and the rest of the chapter reads only that. Fixed-step solvers
declare the order of their error; an adaptive one is given the error it should stay below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._tools.checks import check_number, check_sizes
from ._dynamics import Dynamics, FlowError, State, worst_atom


@dataclass(frozen=True)
class Grid:
    """The times that a solver passes through, in the order of the flow."""

    times: tuple[float, ...]
    saved: tuple[int, ...]
    """The indices of the times at which states are saved, first and last among them."""

    @property
    def step(self) -> float:
        """The step of a uniform grid."""
        return (self.times[-1] - self.times[0]) / self.last

    @property
    def last(self) -> int:
        """The index of the last time."""
        return len(self.times) - 1

    def backwards(self) -> Grid:
        """The same times in the opposite order."""
        return Grid(self.times[::-1], tuple(self.last - k for k in reversed(self.saved)))


class Solver(ABC):
    """A method that moves states from time to time.

    A solver of your own implements `grid` and `solve`, and declares what it can do. If it takes
    equal steps, subclass `FixedStep`; if it has a Butcher tableau, `RungeKutta`.
    """

    order: ClassVar[int]
    """The error is of the order of the step to this power."""
    fixed_grid: ClassVar[bool] = False
    """Whether steps are fixed in advance. If not, they depend on all points of the state, so atoms
    are solved for without the queries first, and the saved times are reached in one solve."""
    splits: ClassVar[bool] = False
    """Whether it moves by the parts of a sum in turn, and so needs a `fields.Sum`. Then it cannot
    solve the continuous adjoint, which has no parts."""
    nodes: ClassVar[tuple[float, ...] | None] = None
    """The times within a step at which it evaluates the velocity, as fractions of the step; None
    if they are not known."""

    @abstractmethod
    def grid(self, t0: float, t1: float, save: int | Sequence[float]) -> Grid:
        """The times it passes through, and which of them are saved."""

    @abstractmethod
    def solve(
        self, dynamics: Dynamics, state: State, grid: Grid, first: int, last: int
    ) -> Iterator[State]:
        """States at the times `first + 1, ..., last` of the grid, from the state at `first`."""


@dataclass(frozen=True)
class FixedStep(Solver, ABC):
    """A solver that takes equal steps; an author writes `step`.

    Args:
        steps: number of steps from beginning to end.
    """

    steps: int
    fixed_grid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_sizes(steps=self.steps)

    @abstractmethod
    def step(self, dynamics: Dynamics, state: State, t: float, h: float) -> State:
        """One step of length `h` from time `t`."""

    def grid(self, t0: float, t1: float, save: int | Sequence[float]) -> Grid:
        times = tuple(t0 + (t1 - t0) * k / self.steps for k in range(self.steps + 1))
        if not isinstance(save, int):
            return Grid(times, self._indices(times, save))
        if save > self.steps:
            raise ValueError(
                f"`save` asks for {save} measures, but there are {self.steps} steps. Take more "
                "steps, or save fewer."
            )
        return Grid(times, tuple(round(k * self.steps / save) for k in range(save + 1)))

    def solve(
        self, dynamics: Dynamics, state: State, grid: Grid, first: int, last: int
    ) -> Iterator[State]:
        for k in range(first, last):
            state = self.step(dynamics, state, grid.times[k], grid.step)
            yield state

    def _indices(self, times: Sequence[float], save: Sequence[float]) -> tuple[int, ...]:
        """The indices of saved times, which must be ends of steps."""
        h, indices = (times[-1] - times[0]) / self.steps, []
        for t in save:
            k = round((t - times[0]) / h)
            if not 0 <= k <= self.steps or abs(times[k] - t) > 1e-9 * abs(h):
                raise ValueError(
                    f"`save` must name ends of steps, multiples of {h:g} from {times[0]:g} to "
                    f"{times[-1]:g}, got {t:g}. Choose other steps, or `Dopri5`."
                )
            indices.append(k)
        return tuple(sorted({0, self.steps, *indices}))


@dataclass(frozen=True)
class RungeKutta(FixedStep, ABC):
    r"""An explicit Runge-Kutta method, given by its Butcher tableau and nothing else.

    $k_i=F\bigl(t+c_ih,\ y+h\sum_{j<i}a_{ij}k_j\bigr)$ and $y'=y+h\sum_ib_ik_i$. Every stage sees
    the context as it is at that stage, and is retracted to the manifold.

    Args:
        steps: number of steps.

    Examples:
        >>> class Ralston(pf.flows.RungeKutta):
        ...     order = 2
        ...     nodes = (0.0, 2 / 3)
        ...     rows = ((), (2 / 3,))
        ...     weights = (1 / 4, 3 / 4)
        >>> mu = pf.Measure(torch.ones(1, 1))
        >>> pf.flow(pf.Pointwise(lambda x: -x), mu, t1=1.0, solver=Ralston(steps=100))[-1].atoms
        tensor([[0.3679]])
    """

    nodes: ClassVar[tuple[float, ...]]
    """$c_i$: the times of the stages, as fractions of the step."""
    rows: ClassVar[tuple[tuple[float, ...], ...]]
    """$a_{ij}$ for $j<i$, a row for each stage."""
    weights: ClassVar[tuple[float, ...]]
    """$b_i$."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Raise unless the tableau of a method is one."""
        super().__init_subclass__(**kwargs)
        if not all(hasattr(cls, name) for name in ("nodes", "rows", "weights")):
            return
        stages = len(cls.weights)
        shape = (len(cls.nodes), tuple(map(len, cls.rows)))
        if not stages or shape != (stages, tuple(range(stages))):
            raise ValueError(
                f"`{cls.__name__}.nodes` and `.weights` must have a number per stage, and `.rows` "
                f"0, 1, 2, ... numbers, got {shape[0]} nodes, {stages} weights and rows of "
                f"{list(shape[1])}."
            )
        if not abs(sum(cls.weights) - 1) <= 1e-9:
            raise ValueError(
                f"`{cls.__name__}.weights` must sum to one, got {sum(cls.weights):g}: a constant "
                "velocity would be wrong."
            )

    def step(self, dynamics: Dynamics, state: State, t: float, h: float) -> State:
        slopes: list[State] = []
        for stage, (node, row) in enumerate(zip(self.nodes, self.rows, strict=True)):
            here = _moved(state, h, row, slopes)
            here = dynamics.retract(here) if row else here
            slopes.append(dynamics(t + node * h, here, stage))
        return dynamics.retract(_moved(state, h, self.weights, slopes))


def _moved(
    state: State, h: float, coefficients: Sequence[float], slopes: Sequence[State]
) -> State:
    r"""$y+h\sum_jc_jk_j$.

    Zero coefficients are left out and a coefficient of one does not multiply, so that an Euler
    step is $y+hk$ to the last bit, as a residual layer computes it.
    """
    moved = []
    for cloud, y in enumerate(state):
        total = None
        for c, slope in zip(coefficients, slopes, strict=True):
            if c:
                term = slope[cloud] if c == 1 else c * slope[cloud]
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
    """A full step with the velocity at the end of half an Euler step.

    Args:
        steps: number of steps.
    """

    order: ClassVar[int] = 2
    nodes: ClassVar = (0.0, 0.5)
    rows: ClassVar = ((), (0.5,))
    weights: ClassVar = (0.0, 1.0)


@dataclass(frozen=True)
class RK4(RungeKutta):
    """The classical Runge-Kutta method of order 4.

    Args:
        steps: number of steps.
    """

    order: ClassVar[int] = 4
    nodes: ClassVar = (0.0, 0.5, 0.5, 1.0)
    rows: ClassVar = ((), (0.5,), (0.0, 0.5), (0.0, 0.0, 1.0))
    weights: ClassVar = (1 / 6, 1 / 3, 1 / 3, 1 / 6)


@dataclass(frozen=True)
class LieSplit(FixedStep):
    r"""Lie splitting: an Euler step of each part of a `fields.Sum` in turn.

    So do the layers of a transformer: attention, then MLP, each scaled by $1/L$. As $L\to\infty$
    the steps tend to the flow of the sum $\mathcal A+H$.

    Args:
        steps: number of steps.
    """

    order: ClassVar[int] = 1
    splits: ClassVar[bool] = True
    nodes: ClassVar = (0.0,)

    def step(self, dynamics: Dynamics, state: State, t: float, h: float) -> State:
        for stage, part in enumerate(dynamics.parts()):
            slope = part(t, state, stage)
            state = part.retract(_moved(state, h, (1.0,), [slope]))
        return state


@dataclass(frozen=True)
class Dopri5(Solver):
    """Dormand and Prince's adaptive method of order 5, by torchdiffeq.

    The error of a step is that of its worst point, so repeating or reweighting atoms does not
    change the steps.

    Args:
        rtol: error relative to the coordinates.
        atol: absolute error, `rtol / 100` by default.
        max_steps: most steps between two times of its grid.
    """

    rtol: float = 1e-6
    atol: float | None = None
    max_steps: int = 10_000
    order: ClassVar[int] = 5

    def __post_init__(self) -> None:
        check_number("rtol", self.rtol)
        check_sizes(max_steps=self.max_steps)
        if self.atol is not None:
            check_number("atol", self.atol)

    def grid(self, t0: float, t1: float, save: int | Sequence[float]) -> Grid:
        if isinstance(save, int):
            save = [t0 + (t1 - t0) * k / save for k in range(save + 1)]
        inside = sorted({t for t in save if t0 < t < t1 or t1 < t < t0}, reverse=t1 < t0)
        if any(not min(t0, t1) <= t <= max(t0, t1) for t in save):
            raise ValueError(f"`save` must name times from {t0:g} to {t1:g}, got {list(save)}.")
        times = (t0, *inside, t1)
        return Grid(times, tuple(range(len(times))))

    def solve(
        self, dynamics: Dynamics, state: State, grid: Grid, first: int, last: int
    ) -> Iterator[State]:
        times = grid.times[first : last + 1]
        odeint, velocity = _torchdiffeq(), _Velocity(dynamics, times[0], state)
        atol = self.rtol / 100 if self.atol is None else self.atol
        clock = torch.tensor(times, dtype=torch.float64, device=state[0].device)
        # `step_t` makes a step end at the last time; times before it are interpolated.
        options = {"max_num_steps": self.max_steps, "norm": _worst_point, "step_t": clock[-1:]}
        try:
            states = odeint(
                velocity, state, clock, rtol=self.rtol, atol=atol, method="dopri5", options=options
            )
        except AssertionError as error:  # torchdiffeq raises it when steps become too small
            if velocity.raised is not None:
                raise velocity.raised from None
            raise velocity.failure(times[-1], self.max_steps) from error
        for k in range(1, len(times)):
            yield dynamics.retract(tuple(y[k] for y in states))


class _Velocity:
    """Dynamics in the form that torchdiffeq calls; remembers where the last step began."""

    def __init__(self, dynamics: Dynamics, time: float, state: State) -> None:
        self.dynamics, self.time, self.state = dynamics, time, state
        self.raised: Exception | None = None
        """An exception of the field itself, to be told from torchdiffeq's assertions."""

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
        """The error of the step that failed, with the fastest atom as the culprit."""
        with torch.no_grad():
            speed = self(torch.tensor(self.time), self.state)[0].norm(dim=-1)
        return worst_atom(
            f"The flow could not be continued beyond t = {self.time:.6g} (of {end:g}) within "
            f"{max_steps} steps: it blows up there, or is stiff.",
            self.time, self.state[0], speed.nan_to_num(torch.inf),
            "Choose an earlier `t1`, raise `rtol` or `max_steps`, or take fixed steps.",
        )  # fmt: skip


def _torchdiffeq() -> Callable:
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError(
            "Adaptive steps need torchdiffeq. Install it: `pip install torchdiffeq`, or use "
            "`pf.RK4(steps=...)`."
        ) from error
    return odeint


@torch.no_grad()
def _worst_point(error: Tensor | State) -> Tensor:
    """The root mean square of each point's coordinates, at the worst point.

    Without gradients, because torchdiffeq derives the length of the first step from it, and times
    reach the field as numbers: the gradient of a length whose stages are at times without one is
    not that of the solution.
    """
    clouds = error if isinstance(error, tuple) else (error,)
    return torch.stack([e.square().mean(-1).amax().sqrt() for e in clouds if e.numel()]).amax()
