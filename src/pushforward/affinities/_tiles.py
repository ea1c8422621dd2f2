"""Scores that come tile by tile: a matrix, a function of pairs, a function of other scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .._tools.checks import (
    check_broadcast,
    check_callable,
    check_floating,
    check_kind,
    check_number,
    check_same,
)
from .._tools.precision import full_precision, safe_logsumexp, safe_softmax, wide
from .._tools.types import Bias, Images, Values
from ._scores import Rows, Scores, by_rows, linear_by_rows, mean_of, of_batch

Tiles = Callable[[Rows], Tensor]
"""A function of rows of a matrix, as a slice or as indices, that forms them."""

PairFunction = Callable[[Tensor, Tensor], Tensor]
"""A function of points `(..., m, 1, d)` and `(..., 1, n, d)` with values `(..., m, n)`."""


class Layout(NamedTuple):
    """Where scores are and what they look like."""

    shape: torch.Size
    """`(*b, m, n)`."""
    dtype: torch.dtype
    device: torch.device
    batch: int
    """Elements of the batch that are formed together; more than the batch of `shape` where only
    some of them are kept."""

    @classmethod
    def like(cls, shape: tuple[int, ...], tensor: Tensor) -> Layout:
        """The layout of scores computed from a tensor, in its dtype but never half precision."""
        return cls(torch.Size(shape), wide(tensor.dtype), tensor.device, prod(shape[:-2]))


@dataclass(frozen=True, eq=False)
class TileScores(Scores):
    """Scores that are formed a tile of rows at a time; their gradients form each tile again.

    Made by `from_matrix`, `from_pairs` or `mapped`. Everything is lazy: a change of scale, dtype
    or batch is applied to the tiles as they come.

    Args:
        rows: forms rows of the matrix, `(*b, r, n)`.
        columns: forms columns of the matrix, as rows of its transpose, `(*b, c, m)`.
        layout: shape, dtype and device.
        unit: the cost of a pair is minus this times its score.
        in_memory: whether the tiles are views of a matrix.

    Examples:
        >>> x, y = torch.zeros(3, 1), torch.tensor([[1.0], [2.0]])
        >>> TileScores = pf.affinities.TileScores
        >>> scores = TileScores.from_pairs(lambda x, y: -(x - y).abs().sum(-1), x, y)
        >>> scores.tile(slice(0, 1))
        tensor([[-1., -2.]])
    """

    rows: Tiles
    columns: Tiles
    layout: Layout
    unit: float = 1.0
    in_memory: bool = False

    @classmethod
    def from_matrix(cls, values: Float[Tensor, "*b m n"], unit: float = 1.0) -> TileScores:
        """A matrix of scores, minus infinity where a pair is forbidden."""
        check_floating("values", values, "(..., m, n)", 2)
        check_number("unit", unit)
        rows = lambda index: values[..., index, :]
        columns = lambda index: values.mT[..., index, :]
        return cls(rows, columns, Layout.like(values.shape, values), unit, in_memory=True)

    @classmethod
    def from_pairs(
        cls, function: PairFunction, x: Float[Tensor, "*#b m d"], y: Float[Tensor, "*#b n e"]
    ) -> TileScores:
        """A function of pairs of points, called with points that broadcast.

        It is called with the points as they are, whatever the dtype of its parameters, and with
        autocast switched off.

        Args:
            function: of points `(..., m, 1, d)` and `(..., 1, n, d)`, with values `(..., m, n)`.
            x: the points of the queries.
            y: the points of the keys.
        """
        check_callable("function", function, "a function of points, called as f(x, y)")
        for name, points in (("x", x), ("y", y)):
            check_floating(name, points, "(..., n, d)", 2)
        for what in ("dtype", "device"):
            check_same(what, ("x", x), ("y", y))
        check_broadcast("`x` and `y`", x.shape[:-2], y.shape[:-2])
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        call = lambda i, j: _called(function, x[..., i, None, :], y[..., None, j, :], batch)
        rows = lambda index: call(index, slice(None))
        columns = lambda index: call(slice(None), index).mT
        return cls(rows, columns, Layout.like((*batch, x.shape[-2], y.shape[-2]), x))

    @classmethod
    def mapped(cls, scores: Scores, function: Callable[[Tensor], Tensor]) -> TileScores:
        """A function of other scores, entry by entry, given a tile of them."""
        check_kind("scores", scores, Scores, "An affinity has them: `affinity.scores(mu, nu)`.")
        check_callable("function", function, "a function of a tile of scores")
        return cls._between(scores, lambda tile, rows: function(tile), lambda t, c: function(t))

    @classmethod
    def highest(cls, scores: Scores, allowed: Bool[Tensor, "*#b n"]) -> TileScores:
        """0 where a query's score with the allowed keys is highest, minus infinity elsewhere.

        Scores that differ by the rounding of their products alone count as equal. No gradients.
        """
        scores = scores.detach()

        def least(rows: slice) -> Tensor:
            tile = scores.tile(rows).masked_fill(~allowed[..., None, :], -torch.inf)
            size = tile.masked_fill(tile == -torch.inf, 0).abs().amax(-1)
            return tile.amax(-1) - 16 * torch.finfo(tile.dtype).eps * size

        with torch.no_grad():
            bound = by_rows(scores, least)

        def select(tile: Tensor, bound: Tensor) -> Tensor:
            low = (tile < bound) | (tile == -torch.inf)
            chosen = torch.zeros_like(tile).masked_fill(low, -torch.inf)
            return chosen.masked_fill(bound.isnan(), torch.nan)  # of NaN none is the highest

        return cls._between(
            scores,
            lambda tile, rows: select(tile, bound[..., rows, None]),
            lambda tile, columns: select(tile, bound[..., None, :]),
        )

    @classmethod
    def _between(
        cls,
        scores: Scores,
        of_rows: Callable[[Tensor, Rows], Tensor],
        of_columns: Callable[[Tensor, Rows], Tensor],
    ) -> TileScores:
        """Functions of the tiles of other scores, of rows and of columns."""
        layout = Layout(scores.shape, scores.dtype, scores.device, prod(scores.shape[:-2]))
        rows = lambda index: of_rows(scores.tile(index), index)
        columns = lambda index: of_columns(scores.T.tile(index), index)
        return cls(rows, columns, layout, scores.unit)

    @property
    def shape(self) -> torch.Size:
        return self.layout.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.layout.dtype

    @property
    def device(self) -> torch.device:
        return self.layout.device

    @property
    def T(self) -> TileScores:
        *batch, m, n = self.shape
        layout = self.layout._replace(shape=torch.Size((*batch, n, m)))
        return replace(self, rows=self.columns, columns=self.rows, layout=layout)

    @property
    def forbidden(self) -> Bool[Tensor, "*b m n"] | None:
        return self.matrix() == -torch.inf if self.in_memory else None

    @property
    def self_scores(self) -> bool:
        return False

    @property
    def row_size(self) -> int:
        return self.layout.batch * self.shape[-1]

    def tile(self, rows: Rows) -> Float[Tensor, "*b r n"]:
        return self.rows(rows).to(self.dtype)

    def over_keys(self, bias: Bias) -> Float[Tensor, "*o m"]:
        bias = bias[..., None, :]
        return by_rows(self, lambda rows: safe_logsumexp(self.tile(rows) + bias))

    def average(self, v: Values, bias: Bias) -> Images:
        bias = bias[..., None, :]
        v = v.masked_fill((bias == -torch.inf).mT, 0)
        values = v.to(self.dtype)
        with full_precision(values):
            means = by_rows(self, lambda rows: safe_softmax(self.tile(rows) + bias) @ values)
        return means.to(v.dtype)

    def mean(self, bias: Bias) -> Float[Tensor, "*o m"]:
        return mean_of(self, self, bias)

    def linear(self, v: Values, weights: Bias) -> Images:
        return linear_by_rows(self, v, weights)

    def size(self) -> Tensor:
        if not self.shape.numel():
            return torch.zeros((), dtype=self.dtype, device=self.device)
        with torch.no_grad():
            tiles = (self.tile(rows) for rows in self.cuts())
            sizes = [t.masked_fill(t == -torch.inf, 0).abs().amax() for t in tiles]
            return torch.stack(sizes).amax()

    def scaled(self, factor: float) -> TileScores:
        return replace(self._changed(lambda tile: factor * tile), unit=self.unit / factor)

    def to(self, dtype: torch.dtype) -> TileScores:
        # Tiles are converted last, in `tile`: a function with better values than its points have
        # keeps them.
        return replace(self, layout=self.layout._replace(dtype=dtype))

    def detach(self) -> TileScores:
        return self._changed(Tensor.detach)

    def at(self, index: Any) -> TileScores:
        """Some elements of the batch, picked from every tile: a function knows the whole batch."""
        batch = torch.empty((), device=self.device).expand(self.shape[:-2])[index].shape
        layout = self.layout._replace(shape=torch.Size((*batch, *self.shape[-2:])))
        return replace(self._changed(lambda tile: of_batch(tile, index, 2)), layout=layout)

    def forbidding(self, forbidden: Bool[Tensor, "*#b m n"]) -> TileScores:
        return TileScores.from_matrix(self.matrix().masked_fill(forbidden, -torch.inf), self.unit)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> TileScores:
        """A change of all tiles, in the present dtype."""
        then = lambda tiles: lambda index: change(tiles(index).to(self.dtype))
        return replace(self, rows=then(self.rows), columns=then(self.columns))


def _called(function: PairFunction, x: Tensor, y: Tensor, batch: torch.Size) -> Tensor:
    """The values of a user's function at pairs of points, of the shape that is expected.

    Autocast is off: the same scores are formed again and again, and must not depend on where.
    """
    with full_precision(x):
        values = function(x, y)
    expected = torch.Size((*batch, x.shape[-3], y.shape[-2]))
    if not isinstance(values, Tensor) or values.shape != expected:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"An affinity must give one number per pair, here {tuple(expected)}, got {got}. "
            f"It is called with points of shapes {tuple(x.shape)} "
            f"and {tuple(y.shape)}: let them broadcast and sum over the last axis."
        )
    return values
