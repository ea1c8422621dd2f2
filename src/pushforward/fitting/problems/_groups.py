"""Ragged batches in groups of like sizes, which need little padding."""

from __future__ import annotations

import torch
from torch import Tensor

from ...measures import Measure

PASS = 300
"""What another pass through a network costs, in atoms: many small operations on a CPU."""

SQUARE = 256
"""Atoms from which on the pairs of a measure cost more than the atoms."""


def in_groups(source: Measure, target: Measure) -> tuple[list[tuple[Measure, Measure]], Tensor]:
    """Pairs of a batch in groups of like sizes, and where each pair is found in them.

    On a CPU padding costs as much as atoms do. Other devices compute a batch at once in little
    more time than one measure, and there it stays whole.

    Args:
        source: a batch of measures.
        target: as many.
    """
    count = source.log_weights.shape[0]
    everything = torch.arange(count, device=source.device)
    if source.device.type != "cpu" or source.n < 2:
        return [(source, target)], everything
    mine, theirs = (_sizes(mu) for mu in (source, target))
    order = mine.argsort(stable=True)
    bounds = _bounds(mine[order].tolist())
    if len(bounds) == 2:
        return [(source, target)], everything
    chosen = [order[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    groups = [
        (_cut(source, rows, mine[rows].max()), _cut(target, rows, theirs[rows].max()))
        for rows in chosen
    ]
    return groups, order.argsort()


def _sizes(mu: Measure) -> Tensor:
    """For each measure the number of atoms before those that are only padding."""
    place = torch.arange(1, mu.n + 1)
    return torch.where(mu.log_weights > -torch.inf, place, 1).amax(-1)


def _cut(mu: Measure, rows: Tensor, n: Tensor) -> Measure:
    """Some measures of a batch with their first atoms."""
    first = slice(0, int(n))
    times = None if mu.times is None else mu.times[rows, first]
    return Measure.unchecked(mu.atoms[rows, first], mu.log_weights[rows, first], times)


def _bounds(sizes: list[int]) -> list[int]:
    """Where to cut an increasing list of sizes, so that all groups together cost least."""
    least, before = [0.0], [0]
    for end in range(1, len(sizes) + 1):
        n = sizes[end - 1]  # a group is padded to its last size
        each = n * (1 + n / SQUARE)
        costs = [least[begin] + PASS + (end - begin) * each for begin in range(end)]
        least.append(min(costs))
        before.append(costs.index(least[-1]))
    bounds = [len(sizes)]
    while bounds[-1]:
        bounds.append(before[bounds[-1]])
    return bounds[::-1]
