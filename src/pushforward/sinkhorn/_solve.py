r"""The Sinkhorn iteration, in one place: fixed steps, or to a tolerance.

Potentials $f,g$ of the plan $e^{A+f\oplus g}\,\mu\otimes\nu$ solve

$$f=-\tau_a\log\int e^{A+g}d\nu,\qquad g=-\tau_b\log\int e^{A+f}d\mu,$$

with $\tau=1$ for a marginal that is prescribed and $\tau=\rho/(\rho+\varepsilon)$ for one that is
only pulled towards its target by $\rho\,\mathrm{KL}$. One step is one of each. The loop sees
nothing but a `Kernel`: what integrates $e^A$ over either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..affinities import Kernel, PointScores, Scores
from ._problem import Problem, integral
from ._stored import StoredKernel

CYCLE = 10
"""Steps between two looks at the error where looking waits for a device; also the most steps of
one cycle of acceleration."""

MEMORY = {"cpu": 1 << 30, "cuda": 1 << 33}
"""Bytes a stored kernel may take by default. Beyond, every step forms its scores again."""

REACH = {torch.float32: 30.0, torch.float64: 300.0}
"""How far potentials may go from those of a stored kernel before its small entries are missed."""

COARSE = 1024
"""Larger clouds start from the potentials of so many of their points."""


def alternate(kernel: Kernel, problem: Problem, g: Tensor, steps: int) -> Tensor:
    """The potential on the keys after `steps` plain steps."""
    for _ in range(steps):
        f = problem.rows(kernel, g)
        g = (g + f) / 2 if problem.symmetric else problem.columns(kernel, f)
    return g


@dataclass(frozen=True, eq=False)
class Solution:
    """Where a solve ended.

    Args:
        g: the potential on the keys.
        residual: at least the L1 error of the second marginal of the plan it gives, rows being
            exact; with slack, of the fixed point.
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
        memory: bytes that a stored kernel may take; None for the default of the device, 0 to
            form the scores again in every step.
    """

    tol: float
    max_steps: int
    anneal: bool = True
    accelerate: bool = True
    memory: int | None = None


@torch.no_grad()
def solve(
    scores: Scores, problem: Problem, settings: Settings, start: Tensor | None = None
) -> Solution:
    """Potentials to a tolerance, from `start` or from high temperature.

    Cycles run on a stored kernel where it fits; where its rounding might matter, convergence is
    claimed only for what a careful look confirms.
    """
    g, steps = (start, 0) if start is not None else _start(scores, problem, settings)
    g = g.to(scores.dtype).expand(*scores.shape[:-2], scores.shape[-1])
    if problem.balanced and not problem.symmetric:  # a large constant would cost the others digits
        g = g - integral(g, problem.log_b)[..., None]
    store, best = _Store(scores, problem, settings), None
    while True:
        at_once = start is not None and best is None
        # A good start is seen after one step, or after a few more.
        most = CYCLE if start is None else {0: 1, 1: 4}.get(steps, CYCLE)
        count = max(1, min(most, settings.max_steps - steps))
        kernel: Kernel = scores  # lets go of the one before, of which there is room for one
        if not at_once:
            kernel = store.near(g)
        goal = store.goal(kernel)
        point, after, taken = _steps(kernel, problem, g, best, count, goal, store.reaches)
        if not (taken and store.reaches(point)):
            kernel, goal = scores, settings
            point, after, taken = _steps(kernel, problem, g, best, 1, goal)
        best, g, steps = point, after, steps + taken
        good, spent = bool((best.residual <= goal.tol).all()), steps >= settings.max_steps
        if not (good or spent):
            continue
        if isinstance(kernel, StoredKernel) and settings.tol < kernel.rounding:
            best = store.confirm(kernel, best.g)
            if not spent and not (best.residual <= settings.tol).all():
                store.refine()
                continue
        return Solution(best.image, best.residual, steps)  # a step on, for free


def _steps(
    kernel: Kernel, problem: Problem, g: Tensor, best: _Point | None, count: int,
    settings: Settings, reaches: Callable[[_Point], bool] = lambda point: True,
) -> tuple[_Point, Tensor, int]:  # fmt: skip
    """Some steps from `g`: the last point kept, where to go on, and how many they were.

    None if the first is out of reach of the kernel.
    """
    if settings.accelerate:
        return _cycle(kernel, problem, g, best, count, settings.tol, reaches)
    point = _visit(kernel, problem, alternate(kernel, problem, g, count - 1))
    return point, point.image, count


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


def _visit(kernel: Kernel, problem: Problem, g: Tensor) -> _Point:
    """One plain step from `g`.

    If both problem are one, the plan of $(f,g)$ has at most twice the error of that of $(g,g)$.
    """
    dead = problem.log_b == -torch.inf
    g = g.masked_fill(dead, 0)
    f = problem.rows(kernel, g)
    if problem.symmetric:
        image = (g + f).masked_fill(dead, 0) / 2
        residue, error = image - g, 2 * torch.expm1(g - f)
        value = integral(2 * g - torch.expm1(g - f), problem.log_b)
    else:
        image = problem.columns(kernel, f).masked_fill(dead, 0)
        residue = image - g
        error, value = torch.expm1(-residue), problem.dual(f, g)
        if problem.balanced:
            residue = residue - integral(residue, problem.log_b)[..., None]
    return _Point(f, g, image, residue, integral(error.abs(), problem.log_b), value)


def _cycle(
    kernel: Kernel, problem: Problem, g: Tensor, best: _Point | None, steps: int, tol: float,
    reaches: Callable[[_Point], bool],
) -> tuple[_Point, Tensor, int]:  # fmt: skip
    r"""Restarted Anderson mixing from `g`: the last point kept, where to go on, the steps taken.

    The next point is the combination of all images of the cycle whose combined residues are least
    in $L^2(\nu)$. A point whose dual value is below that of the point before (rounding allowed
    for) is dropped with all the history, and the cycle goes on from the plain image of the latter,
    whose value is higher: so the iteration cannot diverge. Every batch element decides for itself,
    and no step waits for a device; on a CPU the cycle ends as soon as the error is met, or before
    a step that the kernel does not reach.
    """
    weights = problem.log_b.exp()
    noise = 4 * torch.finfo(g.dtype).eps
    rough = 4 * torch.finfo(kernel.matrix.dtype).eps if isinstance(kernel, StoredKernel) else 0.0
    moves: list[Tensor] = []
    turns: list[Tensor] = []
    taken, looks, met = 0, g.device.type == "cpu", False
    while taken < steps and not met:
        new = _visit(kernel, problem, g)
        if looks and not reaches(new):
            return best if taken and best is not None else new, g, taken
        taken += 1
        if best is None:
            best, g = new, new.image
        else:
            size = integral(new.f.abs(), problem.log_a) + integral(new.g.abs(), problem.log_b)
            worse = ~(new.value >= best.value - noise * size - rough)
            line = worse[..., None]
            moves = [m.masked_fill(line, 0) for m in [*moves, new.image - best.image]]
            turns = [t.masked_fill(line, 0) for t in [*turns, new.residue - best.residue]]
            best = _Point(*map(partial(_unless, worse), best, new))
            g = best.image - _mix(moves, turns, best.residue, weights)
        met = looks and bool((best.residual <= tol).all())
    assert best is not None  # there is at least one step
    return best, g, taken


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
    ridge = (
        1e3
        * torch.finfo(gram.dtype).eps
        * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    )
    share, _ = torch.linalg.solve_ex(gram + ridge, heavy @ residue[..., None])
    return (share * move).sum(-2)


def stored(
    scores: Scores, problem: Problem, f: Tensor, g: Tensor, memory: int | None = None
) -> Kernel:
    """The kernel at given potentials, in memory if it fits."""
    if not _fits(scores, scores.dtype, memory):
        return scores
    alive = lambda p, logs: p.masked_fill(logs == -torch.inf, -torch.inf)
    kernel = StoredKernel.absorb(
        scores, alive(f, problem.log_a), alive(g, problem.log_b), scores.dtype
    )
    # The density of a tiny part of the mass may overflow.
    return kernel if bool(kernel.matrix.isfinite().all()) else scores


def _fits(scores: Scores, dtype: torch.dtype, memory: int | None) -> bool:
    """Whether the kernel takes no more than `memory` bytes."""
    if memory is None:
        memory = MEMORY["cpu" if scores.device.type == "cpu" else "cuda"]
    return scores.shape.numel() * dtype.itemsize <= memory


class _Store:
    """The kernel in memory, where it fits, stored anew when potentials leave its reach."""

    def __init__(self, scores: Scores, problem: Problem, settings: Settings):
        self.scores, self.problem = scores, problem
        # Entries rounded to float32 leave a marginal error of 1.2e-7.
        coarse = settings.tol >= 1e-6 and scores.shape.numel() > 1 << 22
        self.dtype: torch.dtype | None = torch.float32 if coarse else scores.dtype
        self.kernel: StoredKernel | None = None
        self.settings = settings

    def goal(self, kernel: Kernel) -> Settings:
        """What cycles aim at: less by twice what rounding to fewer digits may hide."""
        if not isinstance(kernel, StoredKernel) or kernel.matrix.dtype == self.scores.dtype:
            return self.settings
        hidden = torch.finfo(kernel.matrix.dtype).eps
        return replace(self.settings, tol=self.settings.tol - 2 * hidden)

    def confirm(self, kernel: StoredKernel, g: Tensor) -> _Point:
        """The step from `g` with an error that counts rounding.

        Rounded to fewer digits than the scores have, entries change a row's integral and a
        column's by half a unit of their last place each; products are taken anew. Otherwise the
        scores themselves are asked.
        """
        if kernel.matrix.dtype == self.scores.dtype:
            return _visit(self.scores, self.problem, g)
        kernel = kernel.with_care()
        point = _visit(kernel, self.problem, g)
        return point._replace(residual=point.residual + kernel.rounding)

    def near(self, g: Tensor) -> Kernel:
        """The stored kernel, or the scores themselves."""
        dtype, memory = self.dtype, self.settings.memory
        if self.kernel is None and dtype is not None and _fits(self.scores, dtype, memory):
            self.kernel = StoredKernel.normal(self.scores, self.problem.log_b, g, dtype)
        return self.scores if self.kernel is None else self.kernel

    def reaches(self, point: _Point) -> bool:
        """Whether a point is within reach; if not, the kernel is dropped."""
        if self.kernel is None:
            return True
        far = torch.stack([
            _farthest(point.f, self.kernel.f, self.problem.log_a),
            _farthest(point.g, self.kernel.g, self.problem.log_b),
            _farthest(point.image, self.kernel.g, self.problem.log_b),
        ]).amax()  # fmt: skip
        if bool(far <= REACH[self.kernel.matrix.dtype]):  # not so for NaN either
            return True
        self.kernel = None
        return False

    def refine(self) -> None:
        """Store it more precisely, or not at all."""
        finer = self.scores.dtype
        self.dtype, self.kernel = None if self.dtype == finer else finer, None


def _start(scores: Scores, problem: Problem, settings: Settings) -> tuple[Tensor, int]:
    r"""Potentials near those sought, and the full-size steps they took.

    Large clouds take those of a sample, extended by a half-step. Small ones are cooled:
    $\varepsilon$ falls by factors of four from the range of the scores, two steps each, and each
    level starts from the potentials of the one before.
    """
    zero = torch.zeros_like(problem.log_b)
    if not settings.anneal:
        return zero, 0
    level = 2 * float(scores.size())
    if not 512 < level < math.inf:
        return zero, 0
    if isinstance(scores, PointScores) and min(scores.shape[-2:]) >= 2 * COARSE:
        return _from_sample(scores, problem, settings), 0
    if 2 * math.ceil(math.log(level, 4)) > settings.max_steps / 2:
        return zero, 0
    g, steps = zero, 0
    while level > 1:
        g = alternate(scores.scaled(1 / level), problem.at_level(level), g, 2)
        lower = max(level / 4, 1.0)
        g, level, steps = g * (level / lower), lower, steps + 2
    return g, steps


def _from_sample(scores: PointScores, problem: Problem, settings: Settings) -> Tensor:
    """The potential of a sample of both clouds, at all keys."""
    some, others = (_systematic(logs, COARSE) for logs in (problem.log_a, problem.log_b))
    even = torch.full_like(some, -math.log(COARSE), dtype=problem.log_b.dtype)
    small = Problem(even, even, problem.slack)
    rough = replace(settings, tol=max(settings.tol, 1e-2), max_steps=10 * CYCLE)
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


def _farthest(p: Tensor, q: Tensor, logs: Tensor) -> Tensor:
    return (p - q).masked_fill(logs == -torch.inf, 0).abs().amax()
