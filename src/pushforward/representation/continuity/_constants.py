r"""A lower bound of a Lipschitz constant in $W_1$, by search.

$$\sup\frac{W_1(f(\mu),f(\nu))}{W_1(\mu,\nu)}$$

is approached by moving one atom a little: no other small change of atoms does better, because the
distances add up by mass. The measure, its weights, the atom and the direction are looked for,
along gradients where there are any and by random moves, from draws of the law and from
configurations in which attention is known to be steep: one leader far out and all others half way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...distances import wasserstein
from ...measures import Measure, MeasureMap
from .._black_box import BlackBoxError, called
from ._search import Box, Law, Ticker

ROUNDS = 60
"""Moves that are tried from each start."""

STEP = {torch.float32: 1e-2, torch.float64: 1e-4}
"""How far the atom moves, in units of the box."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two measures that show how steep a map is.

    Args:
        ratio: of the distances of their images and of themselves.
        mu: one of them.
        nu: the other.
    """

    ratio: float
    mu: Measure
    nu: Measure


def steepest(
    f: MeasureMap, law: Law, box: Box, generator: torch.Generator, tick: Ticker
) -> Pair | None:
    """The steepest pair found.

    Args:
        f: the black box.
        law: what measures are like.
        box: where they may be moved.
        generator: of all that is random.
        tick: told after every start.
    """
    best = None
    for mu in _starts(law, box, generator):
        pair = _climb(f, mu, box, generator)
        tick()
        if pair is not None and (best is None or pair.ratio > best.ratio):
            best = pair
    return best


def _starts(law: Law, box: Box, generator: torch.Generator) -> list[Measure]:
    """Draws, and leaders with their followers."""
    drawn = [law(generator).strip().normalise() for _ in range(4)]
    n, d, dtype = drawn[0].n, drawn[0].dim, drawn[0].dtype
    leaders = []
    for _ in range(2):
        u = torch.randn(d, generator=generator, dtype=torch.float64)
        far = (box.high - box.low) / 2 * (u / u.abs().max()).to(box.low)
        atoms = (box.low + box.high) / 2 + far * torch.cat(
            [torch.ones(1, 1), torch.full((max(1, n - 1), 1), 0.5)]
        ).to(far)
        leaders.append(Measure(atoms.to(dtype)))
    return drawn + leaders


def _climb(f: MeasureMap, mu: Measure, box: Box, generator: torch.Generator) -> Pair | None:
    """Moves of atoms, weights, atom and direction, kept where they are steeper.

    Along the gradient in turn with random ones, as long as the map has gradients that lead up.
    """
    unit = STEP.get(mu.dtype, 1e-2) * box.size
    state = _State(
        mu.atoms, mu.log_weights, int(torch.randint(mu.n, (), generator=generator)),
        _direction(mu, generator),
    )  # fmt: skip
    best, smooth = _ratio(f, state, box, unit), True
    for k in range(ROUNDS):
        size = 10.0 ** (-1 - 2 * k / ROUNDS)
        other = state.ascended(f, box, unit, size) if smooth and k % 2 else None
        smooth = smooth and (other is not None or not k % 2)
        other = state.moved(box, generator, size) if other is None else other
        pair = _ratio(f, other, box, unit)
        if pair is not None and (best is None or pair.ratio > best.ratio):
            best, state = pair, other
    return best


@dataclass(frozen=True, eq=False)
class _State:
    atoms: Tensor
    logs: Tensor
    which: int
    u: Tensor

    def moved(self, box: Box, generator: torch.Generator, size: float) -> _State:
        """A random neighbour."""
        rand = lambda t: torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
        n, kind = len(self.atoms), int(torch.randint(4, (), generator=generator))
        which = int(torch.randint(n, (), generator=generator)) if kind == 0 else self.which
        atoms, logs, u = self.atoms, self.logs, self.u
        if kind in (1, 2):
            atoms = box.clamp(atoms + size * box.size * rand(atoms)).to(atoms)
        if kind in (2, 3):
            logs = (logs + 10 * size * rand(logs)).log_softmax(-1)
        u = u + 3 * size * rand(u)
        return _State(atoms, logs, which, u / u.norm())

    def ascended(self, f: MeasureMap, box: Box, step: float, size: float) -> _State | None:
        r"""A step up $\sum_ia_i|y_i(\mu)-y_i(\nu)|/W_1(\mu,\nu)$.

        It is the quotient if images come in the order of their atoms. None where the map has no
        gradients, or images are not as many.
        """
        free = [t.detach().clone().requires_grad_() for t in (self.atoms, self.logs, self.u)]
        try:
            with torch.enable_grad():
                atoms, logs, u = free
                logs = logs.log_softmax(-1)
                at = torch.arange(len(atoms), device=atoms.device)[:, None] == self.which
                ends = atoms, torch.where(at, atoms + step * u / u.norm(), atoms)
                a, b = (f(Measure.unchecked(x, logs)) for x in ends)
                gaps = ((a.atoms - b.atoms).square().sum(-1) + 1e-200).sqrt()
                total = (a.weights * gaps).sum() / logs[self.which].exp()
                slopes = torch.autograd.grad(total, free, allow_unused=True)
        except Exception:  # whatever a map that was not made for this raises
            return None
        up = [torch.zeros_like(t) if s is None else s.nan_to_num(0, 0, 0)
              for t, s in zip(free, slopes, strict=True)]  # fmt: skip
        up = [s / s.norm() if float(s.norm()) > 0 else s for s in up]
        u = self.u + 3 * size * up[2]
        return _State(
            box.clamp(self.atoms + size * box.size * up[0]),
            (self.logs + 10 * size * up[1]).log_softmax(-1), self.which, u / u.norm(),
        )  # fmt: skip


def _direction(mu: Measure, generator: torch.Generator) -> Tensor:
    u = torch.randn(mu.dim, generator=generator, dtype=torch.float64).to(mu.atoms)
    return u / u.norm()


def _ratio(f: MeasureMap, state: _State, box: Box, step: float) -> Pair | None:
    """Of a measure and the one with an atom moved."""
    atoms = state.atoms.clone()
    atoms[state.which] = box.clamp(atoms[state.which] + step * state.u)
    return quotient(f, *(Measure.unchecked(a, state.logs) for a in (state.atoms, atoms)))


def quotient(f: MeasureMap, mu: Measure, nu: Measure) -> Pair | None:
    """Two measures with the quotient of exact distances, None where the map fails.

    What rounding of the images may add is taken off.
    """
    try:
        images = called(f, mu), called(f, nu)
    except BlackBoxError:
        return None
    apart, between = float(wasserstein(mu, nu)), float(wasserstein(*images))
    sizes = (float(m.atoms.abs().max()) for m in (mu, *images))
    between -= 64 * torch.finfo(mu.dtype).eps * max(sizes)
    return Pair(between / apart, mu, nu) if apart > 0 and between > 0 else None
