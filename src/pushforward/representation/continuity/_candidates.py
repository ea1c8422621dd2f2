"""What a search for a jump varies, and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(eq=False)
class ImageFinder:
    r"""Where a map sends small masses, for many of them at once.

    Args:
        find: `find(atoms, log_weights, x, eta)`, of shapes `(c, n, d)`, `(c, n)`, `(c, d)` and
            `(c,)`: the images `(c, e)` of the mass $\eta$ at each $x$ in each measure, which is
            normalised; NaN where that is not known.
        batched: whether many images take hardly longer than one.
        differentiable: whether images have gradients; set to False where they turn out to have
            none.
    """

    find: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    batched: bool = False
    differentiable: bool = True


@dataclass(frozen=True)
class SearchBudget:
    """How many candidates a search looks at.

    Args:
        starts: new candidates at the first distance.
        fresh: new candidates at each of the next three distances.
        kept: candidates that are kept from one distance to the next.
        each: of every number of atoms at least so many are kept.
        rounds: of improvement at every distance.
        tries: variants of a candidate in one round.
    """

    starts: int = 96
    fresh: int = 32
    kept: int = 32
    each: int = 2
    rounds: int = 3
    tries: int = 8


ONE_BY_ONE = SearchBudget(starts=96, fresh=32, kept=8, rounds=2, tries=4)
"""Where every candidate takes calls of its own."""


@dataclass(eq=False)
class Candidates:
    r"""A batch of (context, point, direction, probe mass) and the gap that each one shows.

    The gap of a candidate at distance $h$ is the distance between the images of the mass $\eta$ at
    $x$ and at $x+hu$. All contexts of a batch have the same number of atoms.

    Args:
        atoms: `(c, n, d)`, of the contexts.
        log_weights: `(c, n)`, normalised.
        x: `(c, d)`, the points.
        u: `(c, d)`, the directions, of length one.
        eta: `(c,)`, the masses of the probes.
        gap: `(c,)`.
        drawn: `(c,)`, whether the context is a draw of the law.
    """

    atoms: Tensor
    log_weights: Tensor
    x: Tensor
    u: Tensor
    eta: Tensor
    gap: Tensor
    drawn: Tensor

    def pick(self, index: Tensor) -> Candidates:
        """The candidates with these indices."""
        return Candidates(*(tensor[index] for tensor in self._tensors()))

    def with_eta(self, eta: float) -> Candidates:
        """The same with probes of another mass."""
        return replace(self, eta=torch.full_like(self.eta, eta))

    def repeated(self, copies: int) -> Candidates:
        """Several copies of the whole batch, one after the other."""
        return Candidates(*(torch.cat([tensor] * copies) for tensor in self._tensors()))

    def joined(self, other: Candidates) -> Candidates:
        """These candidates, then the others."""
        pairs = zip(self._tensors(), other._tensors(), strict=True)
        return Candidates(*(torch.cat(pair) for pair in pairs))

    def better(self, other: Candidates) -> Candidates:
        """Of each pair of candidates the one with the larger gap."""
        larger, chosen = other.gap > self.gap, []
        for mine, its in zip(self._tensors(), other._tensors(), strict=True):
            chosen.append(torch.where(larger.reshape(-1, *[1] * (mine.ndim - 1)), its, mine))
        return Candidates(*chosen)

    def _tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


@dataclass(frozen=True, eq=False)
class WidestGap:
    """The widest gap found at one distance.

    Args:
        h: the distance of the points.
        eta: the mass of the probe.
        gap: the distance of their images.
        candidate: a batch of one, which shows it.
    """

    h: float
    eta: float
    gap: float
    candidate: Candidates
