r"""Sinkhorn to a tolerance: the outer loop.

A start near the solution (`_starts`), then cycles of Anderson mixing (`_anderson`) on a kernel
that is kept in memory where it fits (`_stored`), until the marginal error is below the tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..affinities import Kernel, Scores
from ._anderson import anderson_cycle
from ._problem import Problem, integral
from ._starts import WIDE, annealed, draw_sample, is_large, score_range
from ._steps import CHECK_EVERY, Point, alternate, step
from ._stored import KernelCache

SAMPLE_TOL = 1e-2
"""Marginal error to which a sample is solved: it is only a start."""


@dataclass(frozen=True)
class Settings:
    """How a solve runs.

    Args:
        tol: marginal error at which it stops.
        max_steps: steps after which it gives up.
        anneal: whether it starts at a high temperature.
        accelerate: whether steps are mixed by Anderson's method.
        memory: bytes that a stored kernel may take; None for the default of the device, 0 to
            form the scores again in every step.
    """

    tol: float
    max_steps: int
    anneal: bool = True
    accelerate: bool = True
    memory: int | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """Where a solve ended.

    Args:
        g: the potential of the keys.
        residual: a bound on the L1 error of the second marginal of its plan, whose rows are exact;
            with slack, the error of the fixed-point equation.
        steps: full-size steps taken.
    """

    g: Tensor
    residual: Tensor
    steps: int


@torch.no_grad()
def solve(
    scores: Scores, problem: Problem, settings: Settings, start: Tensor | None = None
) -> Solution:
    """The potential of the keys to a tolerance, from `start` or from a high temperature.

    Convergence is claimed only after it was verified to the digits of the scores: a kernel in
    memory may be rounded.
    """
    g, steps = (start, 0) if start is not None else _start(scores, problem, settings)
    g = g.to(scores.dtype).expand(*scores.shape[:-2], scores.shape[-1])
    if problem.balanced and not problem.symmetric:
        # A constant does not change the plan, but a large one would cost all values digits.
        g = g - integral(g, problem.log_b)[..., None]
    cache = KernelCache(scores, problem, settings.tol, settings.memory)
    best: Point | None = None
    while True:
        count = max(1, min(_cycle_length(start, steps), settings.max_steps - steps))
        # The first step from a given start is taken on the scores themselves: if the start is
        # good it is also the last, and a stored kernel would not pay.
        first_look = start is not None and best is None
        # No name for the kernel here: it must be released before the next one is stored.
        point, after, taken = _advance(
            cache.exact() if first_look else cache.at(g), cache, g, best, count, settings
        )
        if taken == 0 or not cache.covers(point):
            # The stored kernel is useless this far away: one exact step, then it is stored anew.
            point, after, taken = _advance(cache.exact(), cache, g, best, 1, settings)
        best, g, steps = point, after, steps + taken
        met = bool((best.marginal_error <= cache.inner_tol).all())
        spent = steps >= settings.max_steps
        if not (met or spent):
            continue
        best = cache.verify(best)
        if spent or bool((best.marginal_error <= settings.tol).all()):
            # The image is one step further than the point whose error is known, at no cost.
            return Solution(best.image, best.marginal_error, steps)
        cache.more_precise()


def _cycle_length(start: Tensor | None, steps: int) -> int:
    """Steps before the next check. After a given start, checks come early: it may be good."""
    if start is None:
        return CHECK_EVERY
    return {0: 1, 1: 4}.get(steps, CHECK_EVERY)


def _advance(
    kernel: Kernel,
    cache: KernelCache,
    g: Tensor,
    best: Point | None,
    steps: int,
    settings: Settings,
) -> tuple[Point, Tensor, int]:
    """Some steps from `g`: the best point, the potential to go on from, the steps taken.

    It takes no step at all if the kernel does not cover the first one.
    """
    if settings.accelerate:
        return anderson_cycle(
            kernel, cache.problem, g, best, steps=steps, tol=cache.inner_tol,
            kernel_rounding=cache.rounding, covers=cache.covers,
        )  # fmt: skip
    point = step(kernel, cache.problem, alternate(kernel, cache.problem, g, steps - 1))
    return point, point.image, steps


def _start(scores: Scores, problem: Problem, settings: Settings) -> tuple[Tensor, int]:
    """A potential near the solution, and the full-size steps that it took."""
    zero = torch.zeros_like(problem.log_b)
    if not settings.anneal or not WIDE < score_range(scores) < math.inf:
        return zero, 0
    if is_large(scores):
        sample, to_all_keys, marginals = draw_sample(scores, problem)
        rough = replace(settings, tol=max(settings.tol, SAMPLE_TOL), max_steps=10 * CHECK_EVERY)
        f = marginals.rows(sample, solve(sample, marginals, rough).g)
        return marginals.columns(to_all_keys, f), 0  # half-steps are defined off the sample too
    return annealed(scores, problem, settings.max_steps)
