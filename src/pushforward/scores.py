r"""Scores $A(q_i,k_j)$ between two clouds: what can be integrated over either side.

One small interface, several implementations. Points with a dot product stream through the two
reductions; a dense matrix, a function of pairs, or a function of other scores go tile by tile; a
stored kernel is the exponential of any of them, kept in memory. Sinkhorn and all relations see
only the interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from . import ops
from ._precision import full_precision, wide

TILE = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Scores formed at a time where they are not streamed by the reductions."""


class Placed(NamedTuple):
    """Points as an affinity wants them."""

    points: Tensor
    shift: Tensor | None
    """What a point adds to all its scores, None for zero."""

    def to(self, dtype: torch.dtype) -> Placed:
        """In another dtype."""
        return Placed(self.points.to(dtype), None if self.shift is None else self.shift.to(dtype))

    def scaled(self, factor: float) -> Placed:
        """The same points, their shift multiplied."""
        return self if self.shift is None else Placed(self.points, factor * self.shift)

    def pick(self, index: Tensor) -> Placed:
        """Some of the points: `index` is `(*b, s)`, another choice in each batch."""
        batch = torch.broadcast_shapes(index.shape[:-1], self.points.shape[:-2])
        index = index.expand(*batch, index.shape[-1])
        wide = index[..., None].expand(*index.shape, self.points.shape[-1])
        points = self.points.expand(*batch, *self.points.shape[-2:]).gather(-2, wide)
        if self.shift is None:
            return Placed(points, None)
        return Placed(points, self.shift.expand(*batch, self.shift.shape[-1]).gather(-1, index))


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

    def cuts(self) -> Iterator[slice]:
        """Slices of the rows, of at most `TILE` scores each."""
        *batch, m, n = self.shape
        size = TILE["cpu" if self.device.type == "cpu" else "cuda"]
        step = max(1, size // max(1, prod(batch) * n))
        for i in range(0, m, step):
            yield slice(i, i + step)


@dataclass(frozen=True, eq=False)
class PointScores(Scores):
    r"""A biased dot product $A_{ij}=s\langle q_i,k_j\rangle+c_i+c_j$, on the two reductions.

    Args:
        queries: the query side, placed.
        keys: the key side, placed.
        scale: $s$.
        unit: what a unit of score costs.
        impl: implementation of the reductions, None to choose by size.
        times: of queries and keys: pairs whose key is later than its query are forbidden.
    """

    queries: Placed
    keys: Placed
    scale: float
    unit: float = 1.0
    impl: ops.Impl | None = None
    times: ops.Clock | None = None

    @property
    def shape(self):
        """`(*b, m, n)`."""
        q, k = self.queries.points, self.keys.points
        batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2])
        return torch.Size((*batch, q.shape[-2], k.shape[-2]))

    @property
    def dtype(self):
        """Never half precision."""
        return wide(self.keys.points.dtype)

    @property
    def device(self):
        """Of the keys."""
        return self.keys.points.device

    @property
    def T(self):
        """Keys ask, and see the queries that could see them."""
        times = None if self.times is None else (-self.times[1], -self.times[0])
        return PointScores(self.keys, self.queries, self.scale, self.unit, self.impl, times)

    def over_keys(self, bias):
        """One reduction."""
        result = ops.log_integral(
            self.queries.points, self.keys.points, _plus(bias, self.keys.shift),
            scale=self.scale, times=self.times, impl=self.impl, guard=False,
        )  # fmt: skip
        return _plus(result, self.queries.shift)

    def average(self, v, bias):
        """One reduction; the queries' shift cancels."""
        return ops.average(
            self.queries.points, self.keys.points, v, _plus(bias, self.keys.shift),
            scale=self.scale, times=self.times, impl=self.impl, guard=False,
        )  # fmt: skip

    def mean(self, bias):
        r"""$s\langle q_i,\bar k_i\rangle+c_i+\bar c_i$ with the averages of keys and shifts."""
        dtype = self.dtype
        k = self.keys.points.to(dtype)
        parts = [k] if self.keys.shift is None else [k, self.keys.shift.to(dtype)[..., None]]
        means = self.average(torch.cat(parts, -1), bias)
        key, rest = means.split([k.shape[-1], means.shape[-1] - k.shape[-1]], -1)
        result = self.scale * (self.queries.points.to(dtype) * key).sum(-1) + rest.sum(-1)
        return _plus(result, self.queries.shift)

    def cost(self, bias):
        """The mean score, in units of cost."""
        return -self.unit * self.mean(bias)

    def tile(self, rows):
        """A product of points."""
        q = self.queries.points[..., rows, :].to(self.dtype)
        with full_precision(q):
            scores = (self.scale * q) @ self.keys.points.to(self.dtype).mT
        if self.queries.shift is not None and self.keys.shift is not None:
            scores = scores.add_(self.queries.shift[..., rows, None])
            scores = scores.add_(self.keys.shift[..., None, :])
        if self.times is None:
            return scores
        asked, told = self.times
        late = told[..., None, :] > asked[..., rows, None]
        return scores.masked_fill(late, -torch.inf)

    def scaled(self, factor):
        """Scale and shifts multiplied."""
        return PointScores(
            self.queries.scaled(factor), self.keys.scaled(factor),
            factor * self.scale, self.unit / factor, self.impl, self.times,
        )  # fmt: skip

    def to(self, dtype):
        """Points and shifts in another dtype."""
        return PointScores(
            self.queries.to(dtype), self.keys.to(dtype),
            self.scale, self.unit, self.impl, self.times,
        )  # fmt: skip

    def detach(self):
        """Points and shifts detached."""
        free = lambda p: Placed(p.points.detach(), None if p.shift is None else p.shift.detach())
        return PointScores(
            free(self.queries), free(self.keys), self.scale, self.unit, self.impl, self.times
        )

    def size(self):
        r"""$s\max|q|\max|k|+\max|c|+\max|c|$."""
        longest = lambda p: p.points.detach().to(self.dtype).norm(dim=-1).amax()
        shift = lambda p: 0 if p.shift is None else p.shift.detach().abs().amax()
        dots = abs(self.scale) * longest(self.queries) * longest(self.keys)
        return dots + shift(self.queries) + shift(self.keys)

    def at(self, index):
        """Points, shifts and times of some elements."""
        batch = self.shape[:-2]
        some = lambda t, axes: t.expand(*batch, *t.shape[-axes:])[index]
        place = lambda p: Placed(some(p.points, 2), None if p.shift is None else some(p.shift, 1))
        times = None if self.times is None else (some(self.times[0], 1), some(self.times[1], 1))
        return replace(self, queries=place(self.queries), keys=place(self.keys), times=times)

    def pick(self, queries: Tensor, keys: Tensor) -> PointScores:
        """Between some of the points, each `(*b, s)`."""
        return PointScores(
            self.queries.pick(queries), self.keys.pick(keys), self.scale, self.unit, self.impl
        )


class TileScores(Scores, ABC):
    """Scores that come tile by tile; their gradients form each tile again."""

    def over_keys(self, bias):
        """Row by row."""
        bias = bias[..., None, :]
        return self._rows(lambda rows: _logsumexp(self.tile(rows) + bias))

    def average(self, v, bias):
        """Row by row; 0 where nothing is seen."""
        bias = bias[..., None, :]
        v = v.masked_fill((bias == -torch.inf).mT, 0)
        means = self._rows(lambda rows: softmax(self.tile(rows) + bias) @ v.to(self.dtype))
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
            return (softmax(scores + bias) * finite).sum(-1)

        return self._rows(part)

    def size(self):
        """Found by looking at all."""
        with torch.no_grad():
            tiles = (self.tile(rows) for rows in self.cuts())
            return torch.stack(
                [t.masked_fill(t == -torch.inf, 0).abs().amax() for t in tiles]
            ).amax()

    def _rows(self, part: Callable[[slice], Tensor]) -> Tensor:
        """Concatenate what `part` makes of slices of the rows."""
        cuts = list(self.cuts())
        if len(cuts) == 1:
            return part(cuts[0])
        again = torch.is_grad_enabled()
        run = lambda rows: checkpoint(part, rows, use_reentrant=False) if again else part(rows)
        parts = [run(rows) for rows in cuts]
        return torch.cat(parts, -1 if parts[0].ndim == len(self.shape) - 1 else -2)


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
class MappedScores(TileScores):
    """A function of other scores, entry by entry.

    Args:
        inner: the other scores.
        function: of a tile of them.
    """

    inner: Scores
    function: Callable[[Tensor], Tensor]

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

    @property
    def T(self):
        """The other scores transposed."""
        return MappedScores(self.inner.T, self.function)

    def tile(self, rows):
        """Map a tile."""
        return self.function(self.inner.tile(rows))

    def cost_tile(self, rows):
        """Costs are those of the other scores."""
        return -self.inner.unit * self.inner.tile(rows)

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


class StoredKernel(Kernel):
    r"""The matrix $e^{A_{ij}+f_i+g_j}$ in memory: integrals become products with it.

    Near the potentials of a coupling it is its density, neither large nor small where there is
    mass, and an integral costs a pass over memory instead of an exponential per pair. Results are
    those of the scores themselves as long as biases stay near $g$, those of the other side near
    $f$. No gradients.

    Args:
        matrix: $e^{A+f+g}$.
        f: the potential on the queries.
        g: the potential on the keys.
    """

    def __init__(self, matrix: Tensor, f: Tensor, g: Tensor):
        self.matrix, self.f, self.g = matrix, f, g

    @classmethod
    def absorb(cls, scores: Scores, f: Tensor, g: Tensor, dtype: torch.dtype) -> StoredKernel:
        """Exponentiate scores and potentials, minus infinity for none, tile by tile."""
        matrix = torch.empty(scores.shape, dtype=dtype, device=scores.device)
        for rows in scores.cuts():
            tile = (scores.tile(rows) + f[..., rows, None]).add_(g[..., None, :])
            matrix[..., rows, :] = tile.exp_()
        return cls(matrix, *(p.masked_fill(p == -torch.inf, 0) for p in (f, g)))

    @property
    def T(self):
        """Transposed."""
        return StoredKernel(self.matrix.mT, self.g, self.f)

    def over_keys(self, bias):
        """One product."""
        weights, top = self._weights(bias)
        return self._times(weights).log() + top - self.f

    def average(self, v, bias):
        """A product for each column; 0 where nothing is seen."""
        weights, _ = self._weights(bias)
        mass = self._times(weights)
        total = torch.stack([self._times(weights * column) for column in v.unbind(-1)], -1)
        return torch.where(mass > 0, 1 / torch.where(mass > 0, mass, 1), 0)[..., None] * total

    def _weights(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        bias = bias - self.g
        top = bias.amax(-1, keepdim=True)
        return (bias - top).exp(), top

    def _times(self, x: Tensor) -> Tensor:
        """The product with a vector.

        In float32 it is summed in pieces: in one go, thousands of positive terms on a CPU lose
        10^-6 of their sum, always downwards.
        """
        matrix, y = self.matrix, x.to(self.matrix.dtype)
        if matrix.ndim > 2:
            return (matrix @ y[..., None])[..., 0].to(x.dtype)
        if matrix.dtype == torch.float64 or matrix.device.type != "cpu":
            return torch.mv(matrix, y).to(x.dtype)
        piece = 1024 if matrix.stride(-1) == 1 else 256
        cuts = [slice(i, i + piece) for i in range(0, len(y), piece)]
        return torch.stack([torch.mv(matrix[:, c], y[c]).to(x.dtype) for c in cuts]).sum(0)


def _plus(bias: Tensor, shift: Tensor | None) -> Tensor:
    return bias if shift is None else bias + shift


def _logsumexp(scores: Tensor) -> Tensor:
    """Minus infinity, without gradient, where all scores are."""
    empty = (scores == -torch.inf).all(-1)
    return scores.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """Zero, without gradient, where all scores are minus infinity."""
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
