r"""Sinkhorn to a tolerance: the outer loop.

A start near the solution, then cycles of Anderson mixing (`_anderson`) on a kernel that is kept in
memory where it fits (`_stored`), until the marginal error is below the tolerance.

Started from zero at a small temperature, Sinkhorn needs a number of steps that grows like the
range of the scores. Two starts bring that down to a few: lower the temperature step by step, or
solve for a sample first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._tools.precision import full_precision
from ..affinities import Kernel, PointScores, Scores
from ._alternate import alternate
from ._anderson import anderson_cycle
from ._problem import CHECK_EVERY, Point, Problem, at_once, integral, step
from ._stored import KernelCache

WIDE = 512
"""Scores whose range is smaller need no special start."""

PLAIN = 6
"""Plain steps with which a solve begins where they are one launch. They cost less than one step
that is mixed, and often they are enough."""

SAMPLE = 1024
"""Points of a sample. Clouds of at least twice as many start from the potential of a sample."""

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
        rounding: a bound on what rounding of the scores adds to the marginal error of the plan.
    """

    tol: float
    max_steps: int
    anneal: bool = True
    accelerate: bool = True
    memory: int | None = None
    rounding: float = 0.0


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


def solve(
    scores: Scores, problem: Problem, settings: Settings, start: Tensor | None = None
) -> Solution:
    """The potential of the keys to a tolerance, from `start` or from a high temperature.

    Convergence is claimed only after it was verified to the digits of the scores: a kernel in
    memory may be rounded. Autocast does not reach in here.
    """
    with torch.no_grad(), full_precision(problem.log_b):
        return _solve(scores, problem, settings, start)


def _solve(scores: Scores, problem: Problem, settings: Settings, start: Tensor | None) -> Solution:
    g, steps = (start, 0) if start is not None else _start(scores, problem, settings)
    g = g.to(scores.dtype).expand(*scores.shape[:-2], scores.shape[-1])
    if problem.balanced and not problem.symmetric:
        # A constant does not change the plan, but a large one would cost all values digits.
        g = g - integral(g, problem.log_b)[..., None]
    cache = KernelCache(scores, problem, settings.tol, settings.memory, settings.rounding)
    near, best = start is not None, None
    if not near and settings.accelerate and settings.max_steps > steps + PLAIN:
        ahead = at_once(scores, problem, g, PLAIN)
        if ahead is not None:
            g, steps, near = ahead, steps + PLAIN, True
    begun = steps
    accelerate = settings.accelerate
    while True:
        length = _cycle_length(steps - begun) if near else CHECK_EVERY
        count = max(1, min(length, settings.max_steps - steps))
        # The first step from a good start is taken on the scores themselves: it may also be the
        # last, and a stored kernel would not pay.
        first_look = near and best is None
        # No name for the kernel here: it must be released before the next one is stored.
        point, after, taken = _advance(
            cache.exact() if first_look else cache.at(g), cache, g, best, count, accelerate
        )
        if taken == 0 or not cache.covers(point):
            # The stored kernel is useless this far away: one exact step, then it is stored anew.
            point, after, taken = _advance(cache.exact(), cache, g, best, 1, accelerate)
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


def _cycle_length(steps: int) -> int:
    """How many steps to take before the next check, after `steps` from a good start."""
    return {0: 1, 1: 4}.get(steps, CHECK_EVERY)


def _advance(
    kernel: Kernel, cache: KernelCache, g: Tensor, best: Point | None, steps: int, accelerate: bool
) -> tuple[Point, Tensor, int]:
    """Some steps from `g`: the best point, the potential to go on from, the steps taken.

    It takes no step at all if the kernel does not cover the first one.
    """
    if accelerate:
        return anderson_cycle(kernel, cache, g, best, steps)
    point = step(kernel, cache.problem, alternate(kernel, cache.problem, g, steps - 1))
    return point, point.image, steps


def _start(scores: Scores, problem: Problem, settings: Settings) -> tuple[Tensor, int]:
    """A potential near the solution, and the full-size steps that it took."""
    zero = torch.zeros_like(problem.log_b)
    if not settings.anneal or not WIDE < _score_range(scores) < math.inf:
        return zero, 0
    if isinstance(scores, PointScores) and min(scores.shape[-2:]) >= 2 * SAMPLE:
        sample, to_all_keys, marginals = _sampled(scores, problem)
        rough = replace(settings, tol=max(settings.tol, SAMPLE_TOL), max_steps=10 * CHECK_EVERY)
        f = marginals.rows(sample, solve(sample, marginals, rough).g)
        return marginals.columns(to_all_keys, f), 0  # half-steps are defined off the sample too
    return _annealed(scores, problem, settings.max_steps)


def _score_range(scores: Scores) -> float:
    """The largest difference of two scores, at most."""
    return 2 * float(scores.size())


def _annealed(scores: Scores, problem: Problem, max_steps: int) -> tuple[Tensor, int]:
    r"""The potential after annealing, and the steps it took.

    The temperature falls by factors of four from the range of the scores to 1, with two plain
    steps each. $\varepsilon g$ is what changes little between two temperatures, so $g$ is scaled
    up by the same factor. Nothing is done if it would take more than half of `max_steps`.
    """
    g, steps = torch.zeros_like(problem.log_b), 0
    temperature = _score_range(scores)
    if 2 * math.ceil(math.log(temperature, 4)) > max_steps / 2:
        return g, steps
    while temperature > 1:
        hot = scores.scaled(1 / temperature)
        g = alternate(hot, problem.at_temperature(temperature), g, 2)
        lower = max(temperature / 4, 1.0)
        g, temperature, steps = g * (temperature / lower), lower, steps + 2
    return g, steps


def _sampled(scores: PointScores, problem: Problem) -> tuple[PointScores, PointScores, Problem]:
    """Scores of sampled queries with sampled keys, and with all keys; the samples' marginals.

    Samples are quantiles of the clouds, the same in every run, and have equal weights.
    """
    queries, keys = (_systematic(logs, SAMPLE) for logs in (problem.log_a, problem.log_b))
    equal = torch.full_like(queries, -math.log(SAMPLE), dtype=problem.log_b.dtype)
    all_keys = torch.arange(scores.shape[-1], device=scores.device)
    marginals = Problem(equal, equal, problem.slack, log_masses=problem.log_masses)
    return scores.pick(queries, keys), scores.pick(queries, all_keys), marginals


def _systematic(logs: Tensor, size: int) -> Tensor:
    """Indices of `size` atoms at equally spaced levels of the cumulative weights."""
    levels = (torch.arange(size, device=logs.device, dtype=torch.float64) + 0.5) / size
    cumulative = logs.double().exp().cumsum(-1)
    levels = (levels * cumulative[..., -1:]).contiguous()
    return torch.searchsorted(cumulative.contiguous(), levels).clamp_max(logs.shape[-1] - 1)
