"""What integrates over either side of a pair of clouds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.tiles import over_tiles, row_tiles


class Kernel(ABC):
    r"""What Sinkhorn needs of $e^{A_{ij}}$: to integrate over either side."""

    @property
    @abstractmethod
    def T(self) -> Kernel:
        """Keys as queries."""

    @abstractmethod
    def over_keys(self, bias: Float[Tensor, "*#b n"]) -> Float[Tensor, "*o m"]:
        r"""$\log\sum_je^{A_{ij}+b_j}$, a function of the queries."""

    @abstractmethod
    def average(
        self, v: Float[Tensor, "*#b n e"], bias: Float[Tensor, "*#b n"]
    ) -> Float[Tensor, "*o m e"]:
        r"""The mean of $v_j$ with weights $e^{A_{ij}+b_j}$."""

    def over_queries(self, bias: Float[Tensor, "*#b m"]) -> Float[Tensor, "*o n"]:
        r"""$\log\sum_ie^{A_{ij}+b_i}$, a function of the keys."""
        return self.T.over_keys(bias)


class Scores(Kernel, ABC):
    r"""The scores $A_{ij}$ of queries $i$ and keys $j$, minus infinity where a pair is forbidden.

    Leading axes are a batch. No method but `matrix` forms all pairs at once.
    """

    unit: float
    r"""What a unit of score costs, the $\varepsilon$ in $c=-\varepsilon A$."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """`(*b, m, n)`."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """What scores are computed in."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where they are computed."""

    @property
    @abstractmethod
    def T(self) -> Scores:
        """Keys as queries."""

    @abstractmethod
    def mean(self, bias: Float[Tensor, "*#b n"]) -> Float[Tensor, "*o m"]:
        r"""The mean of $A_{ij}$ itself with weights $e^{A_{ij}+b_j}$."""

    @abstractmethod
    def cost(self, bias: Float[Tensor, "*#b n"]) -> Float[Tensor, "*o m"]:
        r"""The mean of the cost $c_{ij}$ with weights $e^{A_{ij}+b_j}$."""

    @abstractmethod
    def linear(
        self, v: Float[Tensor, "*#b n e"], weights: Float[Tensor, "*#b n"]
    ) -> Float[Tensor, "*o m e"]:
        r"""$\sum_jA_{ij}w_jv_j$: scores themselves as a density."""

    @abstractmethod
    def tile(self, rows: slice | Tensor) -> Float[Tensor, "*b r n"]:
        """Some rows of the matrix; an index must not be batched."""

    @abstractmethod
    def scaled(self, factor: float) -> Scores:
        """All scores multiplied by a positive number."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Scores:
        """Computed in another dtype."""

    @abstractmethod
    def detach(self) -> Scores:
        """Without gradients."""

    @abstractmethod
    def at(self, index) -> Scores:
        """Some elements of the batch."""

    @abstractmethod
    def size(self) -> Tensor:
        """A bound on the finite scores, one number for the whole batch; NaN if there is one."""

    def matrix(self) -> Float[Tensor, "*b m n"]:
        """All scores."""
        return self.tile(slice(None))

    def cuts(self) -> list[slice]:
        """Slices of the rows, a tile of scores each."""
        *batch, m, n = self.shape
        return row_tiles(m, prod(batch) * n, self.device)


def by_rows(scores: Scores, part: Callable[[slice], Tensor]) -> Tensor:
    """Concatenate what `part` makes of slices of the rows; gradients make each again."""
    parts = list(over_tiles(part, scores.cuts()))
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts, -1 if parts[0].ndim == len(scores.shape) - 1 else -2)


def linear_by_rows(scores: Scores, v: Tensor, weights: Tensor) -> Tensor:
    """The integral of `linear` tile by tile, without the forbidden pairs."""
    v = weights[..., None].to(scores.dtype) * v.to(scores.dtype)

    def part(rows):
        tile = scores.tile(rows)
        return tile.masked_fill(tile == -torch.inf, 0) @ v

    return by_rows(scores, part)
