r"""Scores $A_{ij}$ of queries and keys, and what can be integrated against $e^{A_{ij}}$."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .._tools.precision import full_precision, safe_softmax
from .._tools.tiles import over_tiles, row_tiles
from .._tools.types import Bias, Images, Values

Rows = slice | Tensor
"""A slice of the rows of a matrix, or their indices."""


class Kernel(ABC):
    r"""What Sinkhorn needs of $e^{A_{ij}}$: integrals over the keys and over the queries."""

    @property
    @abstractmethod
    def T(self) -> Kernel:
        """The transpose: keys and queries exchanged."""

    @abstractmethod
    def over_keys(self, bias: Bias) -> Float[Tensor, "*o m"]:
        r"""$\log\sum_je^{A_{ij}+b_j}$, one number per query."""

    @abstractmethod
    def average(self, v: Values, bias: Bias) -> Images:
        r"""The mean of $v_j$ with weights $e^{A_{ij}+b_j}$; 0 for a query without allowed keys."""


class Scores(Kernel, ABC):
    r"""The scores $A_{ij}$ of queries $i$ and keys $j$, minus infinity where a pair is forbidden.

    Leading axes are a batch. Only `matrix` forms all pairs at once; everything else works on a
    tile of rows, or on the points behind the scores.

    To add scores of your own, first see whether `TileScores` can hold them: it needs no more than
    a matrix, a function of pairs of points, or a function of other scores. A new subclass is worth
    its abstract methods only where integrals can be computed without forming tiles, as
    `PointScores` does.
    """

    unit: float
    r"""The factor $\varepsilon$ between scores and costs: a pair with score $A$ costs
    $c=-\varepsilon A$."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """`(*b, m, n)`: batch, queries, keys."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype in which scores are computed, never half precision."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device on which scores are computed."""

    @property
    @abstractmethod
    def T(self) -> Scores:
        """The transpose: keys and queries exchanged."""

    @property
    @abstractmethod
    def forbidden(self) -> Bool[Tensor, "*b m n"] | None:
        """The forbidden pairs, if all scores are in memory and can be looked at; else None."""

    @property
    @abstractmethod
    def self_scores(self) -> bool:
        """Whether queries and keys are known to be the same points, so that scores are symmetric.

        Comparing points waits for the device.
        """

    @property
    @abstractmethod
    def row_size(self) -> int:
        """Entries formed for one row, the whole batch included."""

    @abstractmethod
    def mean(self, bias: Bias) -> Float[Tensor, "*o m"]:
        r"""The mean of $A_{ij}$ itself with weights $e^{A_{ij}+b_j}$."""

    @abstractmethod
    def linear(self, v: Values, weights: Bias) -> Images:
        r"""$\sum_jA_{ij}w_jv_j$ over the allowed pairs: the scores themselves as a density."""

    @abstractmethod
    def tile(self, rows: Rows) -> Float[Tensor, "*b r n"]:
        """Some rows of the matrix, the same ones in every element of the batch."""

    @abstractmethod
    def scaled(self, factor: float) -> Scores:
        """All scores multiplied by a positive number, at the same costs."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Scores:
        """The same scores, computed in another dtype."""

    @abstractmethod
    def detach(self) -> Scores:
        """The same scores without gradients."""

    @abstractmethod
    def forbidding(self, forbidden: Bool[Tensor, "*#b m n"]) -> Scores:
        """The same scores without some pairs; all of them are in memory from then on."""

    @abstractmethod
    def at(self, index: Any) -> Scores:
        """Some elements of the batch, by an index of the batch axes."""

    @abstractmethod
    def size(self) -> Tensor:
        """A bound on the finite scores, one number for the whole batch; NaN if a score is NaN."""

    def matrix(self) -> Float[Tensor, "*b m n"]:
        """All scores."""
        return self.tile(slice(None))

    def over_queries(self, bias: Float[Tensor, "*#b m"]) -> Float[Tensor, "*o n"]:
        r"""$\log\sum_ie^{A_{ij}+b_i}$, one number per key."""
        return self.T.over_keys(bias)

    def cuts(self) -> list[slice]:
        """Slices that cover the rows, one tile each."""
        return row_tiles(self.shape[-2], self.row_size, self.device)


def of_batch(x: Tensor, index: Any, axes: int) -> Tensor:
    """Some elements of a batch: the last `axes` axes of `x` are no batch and are kept."""
    index = index if isinstance(index, tuple) else (index,)
    return x[(*index, *[slice(None)] * axes)]


def by_rows(scores: Scores, part: Callable[[slice], Tensor]) -> Tensor:
    """Concatenate what `part` makes of slices of the rows; gradients form each tile again."""
    parts = list(over_tiles(part, scores.cuts()))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, -1 if parts[0].ndim == len(scores.shape) - 1 else -2)


def linear_by_rows(scores: Scores, v: Tensor, weights: Tensor) -> Tensor:
    """`Scores.linear` tile by tile, without the forbidden pairs."""
    v = weights[..., None].to(scores.dtype) * v.to(scores.dtype)

    def part(rows: slice) -> Tensor:
        tile = scores.tile(rows)
        return tile.masked_fill(tile == -torch.inf, 0) @ v

    with full_precision(v):
        return by_rows(scores, part)


def mean_of(others: Scores, scores: Scores, bias: Bias) -> Float[Tensor, "*b m"]:
    r"""The mean of other scores $B_{ij}$, or of $A_{ij}$ itself, with weights $e^{A_{ij}+b_j}$."""
    bias = bias[..., None, :]

    def part(rows: slice) -> Tensor:
        tile = scores.tile(rows)
        other = tile if others is scores else others.tile(rows)
        return (safe_softmax(tile + bias) * other.masked_fill(other.isinf(), 0)).sum(-1)

    return by_rows(scores, part)
