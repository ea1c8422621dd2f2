r"""Where the iteration starts: lower the temperature step by step, or solve for a sample first.

Started from zero at a small temperature, Sinkhorn needs a number of steps that grows like the
range of the scores. Both starts bring that down to a few.
"""

import math
from typing import TypeGuard

import torch
from torch import Tensor

from ..affinities import PointScores, Scores
from ._problem import Problem
from ._steps import alternate

WIDE = 512
"""Scores whose range is smaller need no special start."""

SAMPLE = 1024
"""Points of a sample. Clouds of at least twice as many start from the potential of a sample."""


def score_range(scores: Scores) -> float:
    """The largest difference of two scores, at most."""
    return 2 * float(scores.size())


def is_large(scores: Scores) -> TypeGuard[PointScores]:
    """Whether these are points, and a sample of both clouds is much smaller than they are."""
    return isinstance(scores, PointScores) and min(scores.shape[-2:]) >= 2 * SAMPLE


def annealed(scores: Scores, problem: Problem, max_steps: int) -> tuple[Tensor, int]:
    r"""The potential after annealing, and the steps it took.

    The temperature falls by factors of four from the range of the scores to 1, with two plain
    steps each. $\varepsilon g$ is what changes little between two temperatures, so $g$ is scaled
    up by the same factor. Nothing is done if it would take more than half of `max_steps`.
    """
    g, steps = torch.zeros_like(problem.log_b), 0
    temperature = score_range(scores)
    if 2 * math.ceil(math.log(temperature, 4)) > max_steps / 2:
        return g, steps
    while temperature > 1:
        hot = scores.scaled(1 / temperature)
        g = alternate(hot, problem.at_temperature(temperature), g, 2)
        lower = max(temperature / 4, 1.0)
        g, temperature, steps = g * (temperature / lower), lower, steps + 2
    return g, steps


def draw_sample(scores: PointScores, problem: Problem) -> tuple[PointScores, PointScores, Problem]:
    """Scores of sampled queries with sampled keys, and with all keys; the samples' marginals.

    Samples are quantiles of the clouds, the same in every run, and have equal weights.
    """
    queries, keys = (_systematic(logs, SAMPLE) for logs in (problem.log_a, problem.log_b))
    equal = torch.full_like(queries, -math.log(SAMPLE), dtype=problem.log_b.dtype)
    all_keys = torch.arange(scores.shape[-1], device=scores.device)
    marginals = Problem(equal, equal, problem.slack)
    return scores.pick(queries, keys), scores.pick(queries, all_keys), marginals


def _systematic(logs: Tensor, size: int) -> Tensor:
    """Indices of `size` atoms at equally spaced levels of the cumulative weights."""
    levels = (torch.arange(size, device=logs.device, dtype=torch.float64) + 0.5) / size
    cumulative = logs.double().exp().cumsum(-1)
    levels = (levels * cumulative[..., -1:]).contiguous()
    return torch.searchsorted(cumulative.contiguous(), levels).clamp_max(logs.shape[-1] - 1)
