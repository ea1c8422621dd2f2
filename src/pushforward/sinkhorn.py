r"""The Sinkhorn iteration, in one place: fixed steps, or to a tolerance.

Potentials $f,g$ of the plan $e^{A+f\oplus g}\,\mu\otimes\nu$ solve

$$f=-\tau_a\log\int e^{A+g}d\nu,\qquad g=-\tau_b\log\int e^{A+f}d\mu,$$

with $\tau=1$ for a marginal that is prescribed and $\tau=\rho/(\rho+\varepsilon)$ for one that is
only pulled towards its target by $\rho\,\mathrm{KL}$. One step is one of each. The loop sees
nothing but a `Kernel`: what integrates $e^A$ over either side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .scores import Kernel, PointScores, Scores, StoredKernel

CYCLE = 10
"""Steps between two looks at the error, each of which waits for the device; also the steps of one
cycle of acceleration."""

STORE = {"cpu": 1 << 30, "cuda": 1 << 33}
"""Bytes a stored kernel may take. Beyond, every step forms its scores again."""

REACH = {torch.float32: 30.0, torch.float64: 300.0}
"""How far potentials may go from those of a stored kernel before its small entries are missed."""

COARSE = 1024
"""Larger clouds start from the potentials of so many of their points."""


@dataclass(frozen=True, eq=False)
class Marginals:
    r"""What a plan is to match.

    Args:
        log_a: log-weights on the side of the queries, normalised.
        log_b: log-weights on the side of the keys, normalised.
        slack: $\rho/\varepsilon$ of both sides, infinite where the marginal is prescribed.
        parts: for each atom, of queries and of keys, the connected part of the pattern of allowed
            pairs it belongs to; None if there is one part.
        symmetric: whether both sides are one measure and the scores symmetric, so that $f=g$ can
            be found by averaging the two: where atoms hardly see each other, alternating would
            take for ever to find out how a constant is shared between $f$ and $g$.
    """

    log_a: Float[Tensor, "*#b m"]
    log_b: Float[Tensor, "*#b n"]
    slack: tuple[float, float] = (math.inf, math.inf)
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None
    symmetric: bool = False

    @property
    def damping(self) -> tuple[float, float]:
        r"""$\tau_a,\tau_b$."""
        a, b = (1.0 if math.isinf(r) else r / (1 + r) for r in self.slack)
        return a, b

    @property
    def balanced(self) -> bool:
        """Whether both marginals are prescribed, so that potentials are free by a constant."""
        return all(map(math.isinf, self.slack))

    def rows(self, kernel: Kernel, g: Tensor) -> Tensor:
        r"""$f=-\tau_a\log\int e^{A+g}d\nu$."""
        return -self.damping[0] * kernel.over_keys(charge(self.log_b, g))

    def columns(self, kernel: Kernel, f: Tensor) -> Tensor:
        r"""$g=-\tau_b\log\int e^{A+f}d\mu$."""
        return -self.damping[1] * kernel.over_queries(charge(self.log_a, f))

    def detach(self) -> Marginals:
        """Without gradients."""
        return replace(self, log_a=self.log_a.detach(), log_b=self.log_b.detach())

    def at_level(self, level: float) -> Marginals:
        r"""For scores divided by `level`: slack is measured in units of $\varepsilon$."""
        a, b = self.slack
        return replace(self, slack=(a / level, b / level))

    def dual(self, f: Tensor, g: Tensor) -> Tensor:
        r"""The concave dual value at $g$ and the $f$ that follows from it.

        $\int f\,d\mu+\int g\,d\nu$ less the mass of the plan; with slack, $f$ becomes
        $\rho(1-e^{-f/\rho})$. Every plain step raises it.
        """
        gain_a, gain_b = (
            p if math.isinf(r) else -r * torch.expm1(-p / r)
            for p, r in zip((f, g), self.slack, strict=True)
        )
        value = integral(gain_a, self.log_a) + integral(gain_b, self.log_b)
        tau = self.damping[0]
        if tau == 1:  # rows are exact, the mass is one
            return value
        return value - integral(((1 - 1 / tau) * f).exp(), self.log_a)  # z = -f / tau


def charge(logs: Tensor, potential: Tensor) -> Tensor:
    """Log-weights plus a potential, which may be infinite where there is no mass."""
    return torch.where(logs == -torch.inf, logs, logs + potential)


def alternate(kernel: Kernel, sides: Marginals, g: Tensor, steps: int) -> Tensor:
    """The potential on the keys after `steps` plain steps."""
    for _ in range(steps):
        f = sides.rows(kernel, g)
        g = (g + f) / 2 if sides.symmetric else sides.columns(kernel, f)
    return g


@dataclass(frozen=True, eq=False)
class Solution:
    """Where a solve ended.

    Args:
        g: the potential on the keys.
        residual: L1 error of the second marginal of the plan it gives, rows being exact; with
            slack, of the fixed point.
        steps: full-size steps taken.
    """

    g: Tensor
    residual: Tensor
    steps: int


@dataclass(frozen=True)
class Settings:
    """How a solve runs.

    Args:
        tol: error at which it stops.
        max_steps: steps after which it gives up.
        anneal: whether it starts at high temperature.
        accelerate: whether steps are mixed by Anderson's method.
    """

    tol: float
    max_steps: int
    anneal: bool = True
    accelerate: bool = True


@torch.no_grad()
def solve(
    scores: Scores, sides: Marginals, settings: Settings, start: Tensor | None = None
) -> Solution:
    """Potentials to a tolerance, from `start` or from high temperature.

    Cycles run on a stored kernel where it fits; convergence is claimed only for what the scores
    themselves confirm.
    """
    g, steps = (start, 0) if start is not None else _start(scores, sides, settings)
    g = g.to(scores.dtype).expand(*scores.shape[:-2], scores.shape[-1])
    if sides.balanced and not sides.symmetric:  # a large constant would cost the others digits
        g = g - integral(g, sides.log_b)[..., None]
    store, best = _Store(scores, sides, settings.tol), None
    while True:
        count = max(1, min(CYCLE, settings.max_steps - steps))
        kernel = store.near(g)
        point, after = _steps(kernel, sides, g, best, count, settings.accelerate)
        if not store.reaches(point):
            point, after = _steps(scores, sides, g, best, count, settings.accelerate)
        best, g, steps = point, after, steps + count
        good, spent = bool((best.residual <= settings.tol).all()), steps >= settings.max_steps
        if not (good or spent):
            continue
        if kernel is not scores:
            best = _visit(scores, sides, best.g)
            if not spent and not (best.residual <= settings.tol).all():
                store.refine()
                continue
        return Solution(best.g, best.residual, steps)


def _steps(
    kernel: Kernel, sides: Marginals, g: Tensor, best: _Point | None, count: int, accelerate: bool
) -> tuple[_Point, Tensor]:
    """Some steps from `g`: the last point kept, and where to go on."""
    if accelerate:
        return _cycle(kernel, sides, g, best, count)
    point = _visit(kernel, sides, alternate(kernel, sides, g, count - 1))
    return point, point.image


class _Point(NamedTuple):
    """A point of the iteration."""

    f: Tensor
    g: Tensor
    image: Tensor
    """What a plain step makes of `g`."""
    residue: Tensor
    """The image less `g`, of mean zero where a constant means nothing."""
    residual: Tensor
    """L1 error of the second marginal."""
    value: Tensor
    """The dual value."""


def _visit(kernel: Kernel, sides: Marginals, g: Tensor) -> _Point:
    """One plain step from `g`.

    If both sides are one, the plan of $(f,g)$ has at most twice the error of that of $(g,g)$.
    """
    dead = sides.log_b == -torch.inf
    g = g.masked_fill(dead, 0)
    f = sides.rows(kernel, g)
    if sides.symmetric:
        image = (g + f).masked_fill(dead, 0) / 2
        residue, error = image - g, 2 * torch.expm1(g - f)
        value = integral(2 * g - torch.expm1(g - f), sides.log_b)
    else:
        image = sides.columns(kernel, f).masked_fill(dead, 0)
        residue = image - g
        error, value = torch.expm1(-residue), sides.dual(f, g)
        if sides.balanced:
            residue = residue - integral(residue, sides.log_b)[..., None]
    return _Point(f, g, image, residue, integral(error.abs(), sides.log_b), value)


def _cycle(
    kernel: Kernel, sides: Marginals, g: Tensor, best: _Point | None, steps: int
) -> tuple[_Point, Tensor]:
    r"""Restarted Anderson mixing from `g`: the last point kept, and where to go on.

    The next point is the combination of all images of the cycle whose combined residues are least
    in $L^2(\nu)$. A point whose dual value is below that of the point before (rounding allowed
    for) is dropped with all the history, and the cycle goes on from the plain image of the latter,
    whose value is higher: so the iteration cannot diverge. Every batch element decides for itself,
    and no step waits for the device.
    """
    weights = sides.log_b.exp()
    noise = 4 * torch.finfo(g.dtype).eps
    rough = 4 * torch.finfo(kernel.matrix.dtype).eps if isinstance(kernel, StoredKernel) else 0.0
    moves: list[Tensor] = []
    turns: list[Tensor] = []
    for _ in range(steps):
        new = _visit(kernel, sides, g)
        if best is None:
            best, g = new, new.image
            continue
        size = integral(new.f.abs(), sides.log_a) + integral(new.g.abs(), sides.log_b)
        worse = ~(new.value >= best.value - noise * size - rough)
        line = worse[..., None]
        moves = [m.masked_fill(line, 0) for m in [*moves, new.image - best.image]]
        turns = [t.masked_fill(line, 0) for t in [*turns, new.residue - best.residue]]
        best = _Point(*map(partial(_unless, worse), best, new))
        g = best.image - _mix(moves, turns, best.residue, weights)
    assert best is not None  # there is at least one step
    return best, g


def _unless(worse: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The new value, of numbers or of lines, in the batch elements that are not worse."""
    return torch.where(worse if new.ndim == worse.ndim else worse[..., None], old, new)


def _mix(moves: list[Tensor], turns: list[Tensor], residue: Tensor, weights: Tensor) -> Tensor:
    """The combination of moves whose turns cancel the residue best in the weighted norm."""
    move, turn = torch.stack(moves, -2), torch.stack(turns, -2)
    norm = (weights[..., None, :] * turn * turn).sum(-1, keepdim=True)
    unit = torch.where(norm > 0, norm, 1).rsqrt()
    turn, move = turn * unit, move * unit
    heavy = weights[..., None, :] * turn
    gram = heavy @ turn.mT
    ridge = 1e3 * torch.finfo(gram.dtype).eps * torch.eye(gram.shape[-1]).to(gram)
    share, _ = torch.linalg.solve_ex(gram + ridge, heavy @ residue[..., None])
    return (share * move).sum(-2)


def stored(scores: Scores, sides: Marginals, f: Tensor, g: Tensor) -> Kernel:
    """The kernel at given potentials, in memory if it fits."""
    if not _fits(scores, scores.dtype):
        return scores
    kernel = _absorbed(scores, sides, f, g, scores.dtype)
    # The density of a tiny part of the mass may overflow.
    return kernel if bool(kernel.matrix.isfinite().all()) else scores


def _absorbed(
    scores: Scores, sides: Marginals, f: Tensor, g: Tensor, dtype: torch.dtype
) -> StoredKernel:
    """Stored at the potentials, with nothing where there is no mass."""
    alive = lambda p, logs: p.masked_fill(logs == -torch.inf, -torch.inf)
    return StoredKernel.absorb(scores, alive(f, sides.log_a), alive(g, sides.log_b), dtype)


def _fits(scores: Scores, dtype: torch.dtype) -> bool:
    room = STORE["cpu" if scores.device.type == "cpu" else "cuda"]
    return scores.shape.numel() * dtype.itemsize <= room


class _Store:
    """The kernel in memory, where it fits, stored anew when potentials leave its reach."""

    def __init__(self, scores: Scores, sides: Marginals, tol: float):
        self.scores, self.sides = scores, sides
        # Entries rounded to float32 leave a marginal error of about 1e-7.
        coarse = tol >= 1e-6 and scores.shape.numel() > 1 << 22
        self.dtype: torch.dtype | None = torch.float32 if coarse else scores.dtype
        self.kernel: StoredKernel | None = None

    def near(self, g: Tensor) -> Kernel:
        """The stored kernel, or the scores themselves."""
        if self.kernel is None and self.dtype is not None and _fits(self.scores, self.dtype):
            f = self.sides.rows(self.scores, g)
            self.kernel = _absorbed(self.scores, self.sides, f, g, self.dtype)
        return self.scores if self.kernel is None else self.kernel

    def reaches(self, point: _Point) -> bool:
        """Whether a point is within reach; if not, the kernel is dropped."""
        if self.kernel is None:
            return True
        far = torch.stack([
            _farthest(point.f, self.kernel.f, self.sides.log_a),
            _farthest(point.g, self.kernel.g, self.sides.log_b),
            _farthest(point.image, self.kernel.g, self.sides.log_b),
        ]).amax()  # fmt: skip
        if bool(far <= REACH[self.kernel.matrix.dtype]):  # not so for NaN either
            return True
        self.kernel = None
        return False

    def refine(self) -> None:
        """Store it more precisely, or not at all."""
        finer = self.scores.dtype
        self.dtype, self.kernel = None if self.dtype == finer else finer, None


def _start(scores: Scores, sides: Marginals, settings: Settings) -> tuple[Tensor, int]:
    r"""Potentials near those sought, and the full-size steps they took.

    Large clouds take those of a sample, extended by a half-step. Small ones are cooled:
    $\varepsilon$ falls by factors of four from the range of the scores, two steps each, and each
    level starts from the potentials of the one before.
    """
    zero = torch.zeros_like(sides.log_b)
    if not settings.anneal:
        return zero, 0
    level = 2 * float(scores.size())
    if not 512 < level < math.inf:
        return zero, 0
    if isinstance(scores, PointScores) and min(scores.shape[-2:]) >= 2 * COARSE:
        return _from_sample(scores, sides, settings), 0
    if 2 * math.ceil(math.log(level, 4)) > settings.max_steps / 2:
        return zero, 0
    g, steps = zero, 0
    while level > 1:
        g = alternate(scores.scaled(1 / level), sides.at_level(level), g, 2)
        lower = max(level / 4, 1.0)
        g, level, steps = g * (level / lower), lower, steps + 2
    return g, steps


def _from_sample(scores: PointScores, sides: Marginals, settings: Settings) -> Tensor:
    """The potential of a sample of both clouds, at all keys."""
    some, others = (_systematic(logs, COARSE) for logs in (sides.log_a, sides.log_b))
    even = torch.full_like(some, -math.log(COARSE), dtype=sides.log_b.dtype)
    small = Marginals(even, even, sides.slack)
    rough = Settings(max(settings.tol, 1e-2), 10 * CYCLE, accelerate=settings.accelerate)
    pairs = scores.pick(some, others)
    f = small.rows(pairs, solve(pairs, small, rough).g)
    everyone = torch.arange(scores.shape[-1], device=scores.device)
    return small.columns(scores.pick(some, everyone), f)


def _systematic(logs: Tensor, count: int) -> Tensor:
    """Indices of a sample of equal masses: quantiles of the cumulative weights."""
    steps = (torch.arange(count, device=logs.device, dtype=torch.float64) + 0.5) / count
    total = logs.double().exp().cumsum(-1)
    steps = (steps * total[..., -1:]).contiguous()
    return torch.searchsorted(total.contiguous(), steps).clamp_max(logs.shape[-1] - 1)


def integral(x: Tensor, logs: Tensor) -> Tensor:
    """The integral of `x`, which may be anything where there is no mass."""
    return (logs.exp() * x.masked_fill(logs == -torch.inf, 0)).sum(-1)


def _farthest(p: Tensor, q: Tensor, logs: Tensor) -> Tensor:
    return (p - q).masked_fill(logs == -torch.inf, 0).abs().amax()


def centre(f: Tensor, g: Tensor, sides: Marginals) -> tuple[Tensor, Tensor]:
    r"""Potentials in the gauge $\int f\,d\mu=\int g\,d\nu$ on every connected part.

    Only without slack is there a constant to choose.
    """
    if not sides.balanced:
        return f, g
    if sides.parts is None:
        shift = (integral(f, sides.log_a) - integral(g, sides.log_b))[..., None] / 2
        return f - shift, g + shift
    rows, columns = sides.parts
    excess = by_part(f, sides.log_a, rows) - by_part(g, sides.log_b, columns)
    mass = by_part(torch.ones_like(f), sides.log_a, rows)
    shift = excess / (2 * torch.where(mass > 0, mass, 1))
    return f - shift.gather(-1, rows), g + shift.gather(-1, columns)


def rebalanced(sides: Marginals) -> Tensor:
    """Log-weights of the keys such that every part has one mass on both sides.

    On a pattern of allowed pairs only such marginals have a coupling, and rounding breaks it.
    """
    assert sides.parts is not None
    rows, columns = sides.parts
    one = lambda logs: torch.ones_like(logs)
    here = by_part(one(sides.log_a), sides.log_a, rows)
    there = by_part(one(sides.log_b), sides.log_b, columns)
    ratio = torch.where(there > 0, here / torch.where(there > 0, there, 1), 1)
    return sides.log_b + ratio.gather(-1, columns.expand(sides.log_b.shape)).log()


def by_part(x: Tensor, logs: Tensor, parts: Tensor) -> Tensor:
    """Integrals of `x` over every part; there are at most as many as atoms on either side."""
    mass = logs.exp() * x.masked_fill(logs == -torch.inf, 0)
    batch = torch.broadcast_shapes(mass.shape, parts.shape)
    count = int(parts.max()) + 1
    total = mass.new_zeros(*batch[:-1], count)
    return total.scatter_add(-1, parts.expand(batch), mass.expand(batch))
