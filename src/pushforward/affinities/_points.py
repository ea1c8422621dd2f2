"""Points with a dot product, which stream through the two reductions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from .._tools.precision import full_precision, wide
from ._scores import Scores, linear_by_rows


class Features(NamedTuple):
    """Points as an affinity wants them."""

    points: Tensor
    offset: Tensor | None
    """What a point adds to all its scores, None for zero."""

    def to(self, dtype: torch.dtype) -> Features:
        """In another dtype."""
        return Features(
            self.points.to(dtype), None if self.offset is None else self.offset.to(dtype)
        )

    def scaled(self, factor: float) -> Features:
        """The same points, their offset multiplied."""
        return self if self.offset is None else Features(self.points, factor * self.offset)

    def pick(self, index: Tensor) -> Features:
        """Some of the points: `index` is `(*b, s)`, another choice in each batch."""
        batch = torch.broadcast_shapes(index.shape[:-1], self.points.shape[:-2])
        index = index.expand(*batch, index.shape[-1])
        wide = index[..., None].expand(*index.shape, self.points.shape[-1])
        points = self.points.expand(*batch, *self.points.shape[-2:]).gather(-2, wide)
        if self.offset is None:
            return Features(points, None)
        return Features(
            points, self.offset.expand(*batch, self.offset.shape[-1]).gather(-1, index)
        )


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

    queries: Features
    keys: Features
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
            self.queries.points, self.keys.points, _plus(bias, self.keys.offset),
            scale=self.scale, times=self.times, impl=self.impl, guard=False,
        )  # fmt: skip
        return _plus(result, self.queries.offset)

    def average(self, v, bias):
        """One reduction; the queries' offset cancels."""
        return ops.average(
            self.queries.points, self.keys.points, v, _plus(bias, self.keys.offset),
            scale=self.scale, times=self.times, impl=self.impl, guard=False,
        )  # fmt: skip

    def mean(self, bias):
        r"""$s\langle q_i,\bar k_i\rangle+c_i+\bar c_i$ with the averages of keys and shifts."""
        dtype = self.dtype
        k = self.keys.points.to(dtype)
        parts = [k] if self.keys.offset is None else [k, self.keys.offset.to(dtype)[..., None]]
        means = self.average(torch.cat(parts, -1), bias)
        key, rest = means.split([k.shape[-1], means.shape[-1] - k.shape[-1]], -1)
        result = self.scale * (self.queries.points.to(dtype) * key).sum(-1) + rest.sum(-1)
        return _plus(result, self.queries.offset)

    def cost(self, bias):
        """The mean score, in units of cost."""
        return -self.unit * self.mean(bias)

    def linear(self, v, weights):
        r"""$s\,q_i^\top(\sum_jw_jk_jv_j^\top)$ and the shifts, linear in the numbers of points."""
        if self.times is not None:
            return linear_by_rows(self, v, weights)
        q, k = self.queries.points.to(self.dtype), self.keys.points.to(self.dtype)
        v = weights[..., None].to(self.dtype) * v.to(self.dtype)
        with full_precision(q):
            result = (self.scale * q) @ (k.mT @ v)
        if self.queries.offset is not None and self.keys.offset is not None:
            result = result + self.queries.offset[..., None] * v.sum(-2, keepdim=True)
            result = result + (self.keys.offset[..., None] * v).sum(-2, keepdim=True)
        return result

    def tile(self, rows):
        """A product of points."""
        q = self.queries.points[..., rows, :].to(self.dtype)
        with full_precision(q):
            scores = (self.scale * q) @ self.keys.points.to(self.dtype).mT
        if self.queries.offset is not None and self.keys.offset is not None:
            scores = scores.add_(self.queries.offset[..., rows, None])
            scores = scores.add_(self.keys.offset[..., None, :])
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
        free = lambda p: Features(
            p.points.detach(), None if p.offset is None else p.offset.detach()
        )
        return PointScores(
            free(self.queries), free(self.keys), self.scale, self.unit, self.impl, self.times
        )

    def size(self):
        r"""$s\max|q|\max|k|+\max|c|+\max|c|$."""
        longest = lambda p: p.points.detach().to(self.dtype).norm(dim=-1).amax()
        offset = lambda p: 0 if p.offset is None else p.offset.detach().abs().amax()
        dots = abs(self.scale) * longest(self.queries) * longest(self.keys)
        return dots + offset(self.queries) + offset(self.keys)

    def at(self, index):
        """Points, shifts and times of some elements."""
        batch = self.shape[:-2]
        some = lambda t, axes: t.expand(*batch, *t.shape[-axes:])[index]
        place = lambda p: Features(
            some(p.points, 2), None if p.offset is None else some(p.offset, 1)
        )
        times = None if self.times is None else (some(self.times[0], 1), some(self.times[1], 1))
        return replace(self, queries=place(self.queries), keys=place(self.keys), times=times)

    def pick(self, queries: Tensor, keys: Tensor) -> PointScores:
        """Between some of the points, each `(*b, s)`."""
        return PointScores(
            self.queries.pick(queries), self.keys.pick(keys), self.scale, self.unit, self.impl
        )


def _plus(bias: Tensor, offset: Tensor | None) -> Tensor:
    return bias if offset is None else bias + offset
