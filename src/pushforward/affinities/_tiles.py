"""Scores that come tile by tile: a matrix, a function of pairs, a function of other scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .._tools.precision import safe_logsumexp, safe_softmax, wide
from ._scores import Scores, by_rows, linear_by_rows


class TileScores(Scores, ABC):
    """Scores that come tile by tile; their gradients form each tile again."""

    def over_keys(self, bias):
        """Row by row."""
        bias = bias[..., None, :]
        return by_rows(self, lambda rows: safe_logsumexp(self.tile(rows) + bias))

    def average(self, v, bias):
        """Row by row; 0 where nothing is seen."""
        bias = bias[..., None, :]
        v = v.masked_fill((bias == -torch.inf).mT, 0)
        means = by_rows(self, lambda rows: safe_softmax(self.tile(rows) + bias) @ v.to(self.dtype))
        return means.to(v.dtype)

    def mean(self, bias):
        """Row by row, without the forbidden pairs."""
        return self._mean_of(self.tile, bias)

    def cost(self, bias):
        """Row by row, without the forbidden pairs."""
        return self._mean_of(self.cost_tile, bias)

    @abstractmethod
    def cost_tile(self, rows: slice | Tensor) -> Float[Tensor, "*b r n"]:
        """Some rows of the costs."""

    def _mean_of(self, tile: Callable[[slice], Tensor], bias: Tensor) -> Tensor:
        bias = bias[..., None, :]

        def part(rows):
            scores, what = self.tile(rows), tile(rows)
            finite = what.masked_fill(what.isinf(), 0)
            return (safe_softmax(scores + bias) * finite).sum(-1)

        return by_rows(self, part)

    def linear(self, v, weights):
        """Row by row."""
        return linear_by_rows(self, v, weights)

    def size(self):
        """Found by looking at all."""
        with torch.no_grad():
            tiles = (self.tile(rows) for rows in self.cuts())
            return torch.stack(
                [t.masked_fill(t == -torch.inf, 0).abs().amax() for t in tiles]
            ).amax()


@dataclass(frozen=True, eq=False)
class DenseScores(TileScores):
    """A matrix of scores, minus infinity where a pair is forbidden.

    Args:
        values: `(*b, m, n)`.
        unit: what a unit of score costs.
        costs: what pairs cost, if scores do not say it.
    """

    values: Float[Tensor, "*b m n"]
    unit: float = 1.0
    costs: Float[Tensor, "*#b m n"] | None = None

    @property
    def shape(self):
        """Of the matrix."""
        return self.values.shape

    @property
    def dtype(self):
        """Never half precision."""
        return wide(self.values.dtype)

    @property
    def device(self):
        """Of the matrix."""
        return self.values.device

    @property
    def T(self):
        """Transposed."""
        costs = None if self.costs is None else self.costs.mT
        return DenseScores(self.values.mT, self.unit, costs)

    def tile(self, rows):
        """Look it up."""
        return self.values[..., rows, :].to(self.dtype)

    def cost_tile(self, rows):
        """In units of cost."""
        return -self.unit * self.tile(rows) if self.costs is None else self.costs[..., rows, :]

    def scaled(self, factor):
        """Multiplied."""
        return replace(self, values=factor * self.values, unit=self.unit / factor)

    def to(self, dtype):
        """Converted."""
        return replace(self, values=self.values.to(dtype))

    def detach(self):
        """Detached."""
        return replace(self, values=self.values.detach())

    def at(self, index):
        """Some of the matrices."""
        costs = None if self.costs is None else self.costs.expand(self.shape)[index]
        return replace(self, values=self.values[index], costs=costs)

    def forbidding(self, forbidden: Bool[Tensor, "*#b m n"]) -> DenseScores:
        """Without some pairs."""
        return replace(self, values=self.values.masked_fill(forbidden, -torch.inf))


PairFunction = Callable[[Tensor, Tensor], Tensor]
"""A function of points `(..., m, 1, d)` and `(..., 1, n, d)` with values `(..., m, n)`."""


@dataclass(frozen=True, eq=False)
class CalledScores(TileScores):
    """A function of pairs of points, called tile by tile.

    Args:
        function: of points `(..., m, 1, d)` and `(..., 1, n, d)`, with values `(..., m, n)`.
        x: the points on the side of the queries.
        y: the points on the side of the keys.
        factor: of all scores.
        swapped: whether `y` is the function's first argument.
        unit: what a unit of score costs.
        cast: the dtype of the scores, that of the points by default; the function is called with
            the points as they are, whatever parameters it holds.
    """

    function: PairFunction
    x: Float[Tensor, "*#b m d"]
    y: Float[Tensor, "*#b n e"]
    factor: float = 1.0
    swapped: bool = False
    unit: float = 1.0
    cast: torch.dtype | None = None

    @property
    def shape(self):
        """From the points."""
        batch = torch.broadcast_shapes(self.x.shape[:-2], self.y.shape[:-2])
        return torch.Size((*batch, self.x.shape[-2], self.y.shape[-2]))

    @property
    def dtype(self):
        """Never half precision."""
        return wide(self.x.dtype) if self.cast is None else self.cast

    @property
    def device(self):
        """Of the points."""
        return self.x.device

    @property
    def T(self):
        """The two sides exchanged."""
        return replace(self, x=self.y, y=self.x, swapped=not self.swapped)

    def tile(self, rows):
        """Call the function."""
        x, y = self.x[..., rows, None, :], self.y[..., None, :, :]
        if self.swapped:
            x, y = y.transpose(-2, -3), x.transpose(-2, -3)
        values = self.function(x, y)
        expected = torch.Size((*self.shape[:-2], x.shape[-3], y.shape[-2]))
        if not isinstance(values, Tensor) or values.shape != expected:
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"An affinity must give one number per pair, here {tuple(expected)}, got {got}. "
                f"It is called with points of shapes {tuple(x.shape)} "
                f"and {tuple(y.shape)}: let them broadcast and sum over the last axis."
            )
        values = values.mT if self.swapped else values
        return self.factor * values.to(self.dtype)

    def cost_tile(self, rows):
        """In units of cost."""
        return -self.unit * self.tile(rows)

    def scaled(self, factor):
        """The function's values multiplied."""
        return replace(self, factor=factor * self.factor, unit=self.unit / factor)

    def to(self, dtype):
        """The function's values converted."""
        return replace(self, cast=dtype)

    def at(self, index):
        """Some of the matrices, formed: the function knows the whole batch."""
        return DenseScores(self.matrix()[index], self.unit)

    def detach(self):
        """Points and values detached."""
        held = lambda x, y: self.function(x, y).detach()
        return replace(self, function=held, x=self.x.detach(), y=self.y.detach())


@dataclass(frozen=True, eq=False)
class _DerivedScores(TileScores, ABC):
    """What is made of other scores, and costs what they cost."""

    inner: Scores

    @property
    def unit(self):
        """Of the other scores."""
        return self.inner.unit

    @property
    def shape(self):
        """Of the other scores."""
        return self.inner.shape

    @property
    def dtype(self):
        """Of the other scores."""
        return self.inner.dtype

    @property
    def device(self):
        """Of the other scores."""
        return self.inner.device

    def cost_tile(self, rows):
        """Of the other scores."""
        return -self.inner.unit * self.inner.tile(rows)


@dataclass(frozen=True, eq=False)
class MappedScores(_DerivedScores):
    """A function of other scores, entry by entry.

    Args:
        inner: the other scores.
        function: of a tile of them.
    """

    function: Callable[[Tensor], Tensor]

    @property
    def T(self):
        """The other scores transposed."""
        return MappedScores(self.inner.T, self.function)

    def tile(self, rows):
        """Map a tile."""
        return self.function(self.inner.tile(rows))

    def scaled(self, factor):
        """The function's values multiplied."""
        return MappedScores(self.inner, lambda tile: factor * self.function(tile))

    def to(self, dtype):
        """The other scores in another dtype."""
        return MappedScores(self.inner.to(dtype), self.function)

    def at(self, index):
        """Some elements of the other scores."""
        return MappedScores(self.inner.at(index), self.function)

    def detach(self):
        """The other scores detached."""
        return MappedScores(self.inner.detach(), self.function)


@dataclass(frozen=True, eq=False)
class TopScores(_DerivedScores):
    """0 where a query's score is highest, minus infinity elsewhere, without gradient.

    Args:
        inner: the other scores.
        least: what a score must reach, for each query.
        swapped: whether the queries are on the side of the keys.
    """

    least: Float[Tensor, "*#b m"]
    swapped: bool = False

    @classmethod
    def among(cls, scores: Scores, allowed: Bool[Tensor, "*#b n"]) -> TopScores:
        """The highest scores among allowed keys, up to the rounding of their products."""
        inner, least = scores.detach(), []
        with torch.no_grad():
            for rows in inner.cuts():
                tile = inner.tile(rows).masked_fill(~allowed[..., None, :], -torch.inf)
                size = tile.masked_fill(tile == -torch.inf, 0).abs().amax(-1)
                least.append(tile.amax(-1) - 16 * torch.finfo(tile.dtype).eps * size)
        return cls(inner, torch.cat(least, -1))

    @property
    def T(self):
        """The other scores transposed."""
        return TopScores(self.inner.T, self.least, not self.swapped)

    def tile(self, rows):
        """Compare a tile."""
        tile = self.inner.tile(rows)
        least = self.least[..., None, :] if self.swapped else self.least[..., rows, None]
        low = (tile < least) | (tile == -torch.inf)
        return torch.zeros_like(tile).masked_fill(low, -torch.inf)

    def scaled(self, factor):
        """The same keys are highest."""
        return self

    def to(self, dtype):
        """As they are: zero is zero."""
        return self

    def at(self, index):
        """Some elements of the other scores."""
        m = self.least.shape[-1]
        some = self.least.expand(*self.shape[:-2], m)[index]
        return replace(self, inner=self.inner.at(index), least=some)

    def detach(self):
        """They have no gradient."""
        return self
