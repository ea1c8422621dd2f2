r"""The steepest pair of contexts: a lower bound of a Lipschitz constant in $W_1$, by search.

$$\sup_{\mu,\nu}\frac{\text{change of the output}}{W_1(\mu,\nu)}$$

is approached by moving one atom of $\mu$ a little: distances add up by mass, so no other small
change of the atoms does better. From every start:

1. Choose an atom $j$ and a direction $u$, the steepest of a few random ones; $\nu$ is $\mu$ with
   atom $j$ moved by a short step along $u$.
2. Change $\mu$, $j$ and $u$ (also the weights, and the point where the output is taken, if they
   may change): in odd rounds by a step along the gradient of the quotient, if there is one;
   otherwise at random. Steps become shorter from round to round.
3. Keep the change if the quotient has grown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...distances import wasserstein
from ...measures import Measure
from .._errors import BlackBoxError
from ._region import Region

Response = Callable[[Measure, Measure, Tensor | None], Tensor]
"""`response(mu, nu, x)`: the distance of the outputs in two contexts, as a tensor of no axes, with
a gradient if there is one. The outputs are those at the point `x`, or all of them if None."""

STEP = {torch.float32: 1e-2, torch.float64: 1e-5}
"""How far the atom moves, in units of the box."""

FIRST = 8
"""Atoms and directions to choose the first from."""


@dataclass(frozen=True)
class Moves:
    """What the search does beside moving atoms.

    Args:
        weights: whether weights may change.
        point: whether the point may move.
        rounds: how many changes are tried from each start.
    """

    weights: bool = False
    point: bool = False
    rounds: int = 60


@dataclass(frozen=True, eq=False)
class Pair:
    """Two contexts and the response to the change of one into the other.

    Args:
        mu: a context.
        nu: another.
        x: the point whose images are compared, None for the images of the contexts themselves.
        distance: $W_1$ of the contexts.
        response: the distance of the outputs.
    """

    mu: Measure
    nu: Measure
    x: Tensor | None
    distance: float
    response: float

    @property
    def ratio(self) -> float:
        """The response to a unit of change."""
        return self.response / self.distance if self.distance > 0 else 0.0


def measured(
    response: Response, mu: Measure, nu: Measure, x: Tensor | None = None, share: float = 1.0
) -> Pair:
    """Two contexts with their distance and the response.

    Args:
        response: of the map.
        mu: a context.
        nu: another.
        x: a point, if the response is that of one.
        share: of the mass that the contexts have; the rest is the same in both.
    """
    changed = float(response(mu, nu, x))  # first: it raises a clear error if the map fails
    return Pair(mu, nu, x, share * float(wasserstein(mu, nu)), changed)


def steepest(
    response: Response,
    starts: Sequence[tuple[Measure, Tensor | None]],
    region: Region,
    generator: torch.Generator,
    *,
    moves: Moves,
    share: float = 1.0,
    tick: Callable[[], None] = lambda: None,
) -> list[Pair]:
    """The steepest pair that is reached from each start; none where the map fails.

    Args:
        response: of the map, see `Response`.
        starts: contexts and points to begin with.
        region: where atoms may be.
        generator: of all random numbers.
        moves: what may change.
        share: of the mass that the contexts have; the rest is the same in both.
        tick: called after every start.

    Examples:
        >>> response = lambda mu, nu, x: 3 * (mu.mean() - nu.mean()).norm()
        >>> mu = pf.Measure(torch.rand(5, 2).double())
        >>> region = pf.representation.continuity.Region.around(mu.atoms)
        >>> moves = pf.representation.continuity.Moves()
        >>> generator = torch.Generator().manual_seed(0)
        >>> (pair,) = pf.representation.continuity.steepest(
        ...     response, [(mu, None)], region, generator, moves=moves
        ... )
        >>> round(pair.ratio, 6)
        3.0
    """
    found = []
    for mu, x in starts:
        pair = _Climb(response, region, generator, moves, share).from_start(mu, x)
        tick()
        if pair is not None and pair.ratio > 0:
            found.append(pair)
    return found


@dataclass(frozen=True, eq=False)
class _State:
    """A context, the atom that moves, its direction, and the point.

    Args:
        atoms: of the context.
        log_weights: of the context.
        which: the atom that moves.
        u: its direction, of length one.
        x: the point, if there is one.
    """

    atoms: Tensor
    log_weights: Tensor
    which: int
    u: Tensor
    x: Tensor | None


@dataclass(frozen=True, eq=False)
class _Climb:
    """The search from one start."""

    response: Response
    region: Region
    generator: torch.Generator
    moves: Moves
    share: float

    def from_start(self, mu: Measure, x: Tensor | None) -> Pair | None:
        """The steepest pair that is reached."""
        best, state = None, self._at_random(mu, x)
        for _ in range(FIRST):
            best, state = self._steeper(best, state, self._at_random(mu, x))
        smooth = True
        for k in range(self.moves.rounds):
            length = 10.0 ** (-0.5 - 2.5 * k / self.moves.rounds)
            other = None
            if smooth and k % 2:
                other = self._ascended(state, length)
                smooth = other is not None  # without a gradient once, there is none later
            other = self._moved(state, length) if other is None else other
            best, state = self._steeper(best, state, other)
        return best

    def _at_random(self, mu: Measure, x: Tensor | None) -> _State:
        which = int(torch.randint(mu.n, (), generator=self.generator))
        return _State(mu.atoms, mu.log_weights, which, _unit(self._randn(1)[0]), x)

    def _steeper(
        self, best: Pair | None, state: _State, other: _State
    ) -> tuple[Pair | None, _State]:
        """The other state with its pair, if that is steeper than the best so far."""
        pair = self._pair(other)
        if pair is not None and (best is None or pair.ratio > best.ratio):
            return pair, other
        return best, state

    def _step(self, dtype: torch.dtype) -> float:
        return STEP.get(dtype, STEP[torch.float32]) * self.region.size

    def _pair(self, state: _State) -> Pair | None:
        """The context and the one with an atom moved, within the region; None if the map fails."""
        atoms = state.atoms.clone()
        step = self._step(atoms.dtype)
        atoms[state.which] = self.region.clamp(atoms[state.which] + step * state.u)
        mu, nu = (Measure.unchecked(a, state.log_weights) for a in (state.atoms, atoms))
        try:
            return measured(self.response, mu, nu, state.x, self.share)
        except BlackBoxError:
            return None

    def _moved(self, state: _State, length: float) -> _State:
        """A random change of the direction, and of one or two other things."""
        kind = int(torch.randint(4, (), generator=self.generator))
        which, atoms, log_weights, x = state.which, state.atoms, state.log_weights, state.x
        if kind == 0:
            which = int(torch.randint(len(atoms), (), generator=self.generator))
        if kind in (1, 2):
            atoms = self.region.clamp(atoms + length * self._randn(len(atoms)))
        if kind in (2, 3) and self.moves.weights:
            noise = torch.randn(len(atoms), generator=self.generator, dtype=torch.float64)
            log_weights = (log_weights + 10 * length * noise.to(atoms)).log_softmax(-1)
        if kind in (2, 3) and self.moves.point and x is not None:
            x = self.region.clamp(x + length * self._randn(1)[0])
        turned = state.u + 3 * length * self._randn(1)[0] / self.region.size
        return _State(atoms, log_weights, which, _unit(turned), x)

    def _ascended(self, state: _State, length: float) -> _State | None:
        """A step along the gradient of the quotient; None if there is no gradient."""
        given = [state.atoms, state.log_weights, state.u]
        if self.moves.point and state.x is not None:
            given.append(state.x)
        free = [t.detach().clone().requires_grad_() for t in given]
        atoms, u = free[0], free[2]
        step = self._step(atoms.dtype)
        moving = torch.arange(len(atoms), device=atoms.device)[:, None] == state.which
        try:
            with torch.enable_grad():
                log_weights = free[1].log_softmax(-1)
                moved = torch.where(moving, atoms + step * u / u.norm(), atoms)
                mu, nu = (Measure.unchecked(a, log_weights) for a in (atoms, moved))
                changed = self.response(mu, nu, free[3] if len(free) == 4 else state.x)
                quotient = changed / log_weights[state.which].exp()
                gradients = torch.autograd.grad(quotient, free, allow_unused=True)
        except Exception:  # the map or its backward pass may raise anything
            return None
        up = [
            torch.zeros_like(t) if g is None else _unit(g.nan_to_num(0, 0, 0))
            for t, g in zip(free, gradients, strict=True)
        ]
        log_weights, x = state.log_weights, state.x
        if self.moves.weights:
            log_weights = (log_weights + 10 * length * up[1]).log_softmax(-1)
        if self.moves.point and x is not None:
            x = self.region.clamp(x + length * self.region.size * up[3])
        atoms = self.region.clamp(state.atoms + length * self.region.size * up[0])
        return _State(atoms, log_weights, state.which, _unit(state.u + 3 * length * up[2]), x)

    def _randn(self, count: int) -> Tensor:
        """Random vectors, in every coordinate as long as the box is wide."""
        sides = self.region.high - self.region.low
        shape = (count, len(sides))
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(sides) * sides


def _unit(vector: Tensor) -> Tensor:
    """Scaled to length one; zero stays zero."""
    size = float(vector.norm())
    return vector / size if size > 0 else vector
