"""Points with a dot product, whose scores stream through the two reductions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import ops
from .._tools.once import untransformed
from .._tools.precision import HALF, comparable, full_precision, reversed_order, wide
from .._tools.types import Bias, Images, Values
from ._scores import Rows, Scores, linear_by_rows, of_batch
from ._tiles import TileScores

Pair = tuple[Tensor, Tensor]
"""A tensor of the queries and one of the keys."""


class Features(NamedTuple):
    r"""$x'$ and $c(x)$ of an affinity $A(q,k)=s\langle q',k'\rangle+c(q)+c(k)$."""

    points: Tensor
    r"""$x'$, `(*b, n, k)`."""
    offset: Tensor | None
    r"""$c(x)$, `(*b, n)`: what a point adds to all its scores, None for zero."""

    def to(self, dtype: torch.dtype) -> Features:
        """The same features in another dtype."""
        offset = None if self.offset is None else self.offset.to(dtype)
        return Features(self.points.to(dtype), offset)

    def detach(self) -> Features:
        """The same features without gradients."""
        offset = None if self.offset is None else self.offset.detach()
        return Features(self.points.detach(), offset)

    def scaled(self, factor: float) -> Features:
        """The same points, their offsets multiplied."""
        return self if self.offset is None else Features(self.points, factor * self.offset)

    def pick(self, index: Tensor) -> Features:
        """Some of the points: `index` is `(*b, s)`, another choice in each batch element."""
        batch = torch.broadcast_shapes(index.shape[:-1], self.points.shape[:-2])
        index = index.expand(*batch, index.shape[-1])
        each = index[..., None].expand(*index.shape, self.points.shape[-1])
        points = self.points.expand(*batch, *self.points.shape[-2:]).gather(-2, each)
        return Features(points, None if self.offset is None else _picked(self.offset, index))


@dataclass(frozen=True, eq=False)
class PointScores(Scores):
    r"""A biased dot product $A_{ij}=s\langle q_i,k_j\rangle+c_i+c_j$, on the two reductions.

    Args:
        queries: features of the queries.
        keys: features of the keys.
        scale: $s$.
        unit: the cost of a pair is minus this times its score.
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
    def shape(self) -> torch.Size:
        q, k = self.queries.points, self.keys.points
        batch = q.shape[:-2]
        if k.shape[:-2] != batch:  # asked for often, and broadcasting is slow
            batch = torch.broadcast_shapes(batch, k.shape[:-2])
        return torch.Size((*batch, q.shape[-2], k.shape[-2]))

    @property
    def dtype(self) -> torch.dtype:
        return wide(self.keys.points.dtype)

    @property
    def device(self) -> torch.device:
        return self.keys.points.device

    @property
    def T(self) -> PointScores:
        # A key sees the queries that may see it: those of later times.
        times = None if self.times is None else reversed_order(self.times)
        return replace(self, queries=self.keys, keys=self.queries, times=times)

    @property
    def forbidden(self) -> None:
        return None

    @property
    def self_scores(self) -> bool:
        if self.times is not None:
            return False
        equal = lambda x, y: x is y or (x is not None and y is not None and torch.equal(x, y))
        return all(map(equal, self.queries, self.keys))

    @property
    def row_size(self) -> int:
        *batch, _, n = self.shape
        return prod(batch) * n

    def over_keys(self, bias: Bias) -> Float[Tensor, "*o m"]:
        result = ops.log_integral(
            self.queries.points, self.keys.points, _plus(bias, self.keys.offset),
            scale=self.scale, times=self.times, impl=self.impl, guard=False,
        )  # fmt: skip
        return _plus(result, self.queries.offset)

    def alternated(
        self, logs: Pair, g: Tensor, damping: tuple[float, float], log_masses: Pair | None,
        symmetric: bool, steps: int,
    ) -> Tensor | None:  # fmt: skip
        r"""The potential of the keys after Sinkhorn steps from `g`, all in one launch.

        None where that cannot be: it needs an NVIDIA GPU, points that are not too wide, numbers in
        float32, no times and no gradients.

        Args:
            logs: log-weights of queries and keys.
            g: the potential of the keys before.
            damping: $\tau_a,\tau_b$.
            log_masses: logarithms of the masses of both measures; None for masses of one.
            symmetric: whether a step averages $f$ and $g$, for symmetric scores.
            steps: how many, at least one.
        """
        kernels = _kernels(self.device) if self.impl in (None, "triton") else None
        if kernels is None or self.times is not None:
            return None
        points = (self.queries.points, self.keys.points)
        offsets = (self.queries.offset, self.keys.offset)
        if not (self.shape.numel() and kernels.has_steps(*points)):
            return None
        if not _at_once(points, (*offsets, *logs, g, *(log_masses or ()))):
            return None
        constants = _constants(offsets, damping, log_masses)
        # A potential that contains the offset is one of the dot product alone.
        start = _plus(g, self.keys.offset)
        result = kernels.sinkhorn_steps(
            points, logs, constants, start, self.scale, damping, steps, symmetric
        )
        return result if self.keys.offset is None else result - self.keys.offset

    def average(self, v: Values, bias: Bias) -> Images:
        # The offset of a query multiplies all its weights and cancels.
        return ops.average(
            self.queries.points, self.keys.points, v, _plus(bias, self.keys.offset),
            scale=self.scale, times=self.times, impl=self.impl, guard=False,
        )  # fmt: skip

    def mean(self, bias: Bias) -> Float[Tensor, "*o m"]:
        r"""$s\langle q_i,\bar k_i\rangle+c_i+\bar c_i$ with the averages of keys and offsets."""
        dtype = self.dtype
        k = self.keys.points.to(dtype)
        parts = [k] if self.keys.offset is None else [k, self.keys.offset.to(dtype)[..., None]]
        means = self.average(torch.cat(parts, -1), bias)
        key, rest = means.split([k.shape[-1], means.shape[-1] - k.shape[-1]], -1)
        result = self.scale * (self.queries.points.to(dtype) * key).sum(-1) + rest.sum(-1)
        return _plus(result, self.queries.offset)

    def linear(self, v: Values, weights: Bias) -> Images:
        r"""$s\,q_i^\top(\sum_jw_jk_jv_j^\top)$ and the offsets: linear in the number of points."""
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

    def tile(self, rows: Rows) -> Float[Tensor, "*b r n"]:
        q = self.queries.points[..., rows, :].to(self.dtype)
        with full_precision(q):
            scores = (self.scale * q) @ self.keys.points.to(self.dtype).mT
        if self.queries.offset is not None and self.keys.offset is not None:
            scores = scores.add_(self.queries.offset[..., rows, None])
            scores = scores.add_(self.keys.offset[..., None, :])
        if self.times is None:
            return scores
        of_queries, of_keys = comparable(self.times)
        late = of_keys[..., None, :] > of_queries[..., rows, None]
        return scores.masked_fill(late, -torch.inf)

    def scaled(self, factor: float) -> PointScores:
        return replace(
            self, queries=self.queries.scaled(factor), keys=self.keys.scaled(factor),
            scale=factor * self.scale, unit=self.unit / factor,
        )  # fmt: skip

    def to(self, dtype: torch.dtype) -> PointScores:
        return replace(self, queries=self.queries.to(dtype), keys=self.keys.to(dtype))

    def detach(self) -> PointScores:
        return replace(self, queries=self.queries.detach(), keys=self.keys.detach())

    def forbidding(self, forbidden: Bool[Tensor, "*#b m n"]) -> TileScores:
        return TileScores.from_matrix(self.matrix().masked_fill(forbidden, -torch.inf), self.unit)

    def size(self) -> Tensor:
        r"""$|s|\max|q|\max|k|+\max|c(q)|+\max|c(k)|$."""
        if not self.shape.numel():
            return torch.zeros((), dtype=self.dtype, device=self.device)
        longest = lambda p: p.points.detach().to(self.dtype).norm(dim=-1).amax()
        offset = lambda p: 0 if p.offset is None else p.offset.detach().abs().amax()
        dots = abs(self.scale) * longest(self.queries) * longest(self.keys)
        return dots + offset(self.queries) + offset(self.keys)

    def at(self, index: Any) -> PointScores:
        batch = self.shape[:-2]
        some = lambda t, axes: of_batch(t.expand(*batch, *t.shape[-axes:]), index, axes)
        features = lambda p: Features(
            some(p.points, 2), None if p.offset is None else some(p.offset, 1)
        )
        times = None if self.times is None else (some(self.times[0], 1), some(self.times[1], 1))
        return replace(self, queries=features(self.queries), keys=features(self.keys), times=times)

    def pick(self, queries: Tensor, keys: Tensor) -> PointScores:
        """The scores between some of the queries and some of the keys, each `(*b, s)`."""
        times = self.times
        if times is not None:
            times = (_picked(times[0], queries), _picked(times[1], keys))
        return replace(
            self, queries=self.queries.pick(queries), keys=self.keys.pick(keys), times=times
        )


def _plus(bias: Tensor, offset: Tensor | None) -> Tensor:
    return bias if offset is None else bias + offset


def _kernels(device: torch.device) -> Any:
    """The kernels for NVIDIA GPUs; None on other devices, and without Triton."""
    if device.type != "cuda":
        return None
    try:
        return ops.implementation("triton")
    except ImportError:
        return None


def _at_once(points: Pair, numbers: tuple[Tensor | None, ...]) -> bool:
    """Whether tensors are of the right dtype and want no derivatives."""
    tensors = (*points, *(t for t in numbers if t is not None))
    if any(t.dtype != torch.float32 for t in tensors[2:]):
        return False
    if points[0].dtype != points[1].dtype or points[0].dtype not in (torch.float32, *HALF):
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return untransformed(*tensors)


def _constants(
    offsets: tuple[Tensor | None, Tensor | None], damping: tuple[float, float],
    log_masses: Pair | None,
) -> Pair | None:  # fmt: skip
    r"""What is added to $-\tau\log\int e^{s\langle q,k\rangle+G}$, in potentials with offsets.

    That is $(1-\tau)c(x)+\log m$. None for zeros.
    """
    a, b = (
        None if offset is None or tau == 1 else (1 - tau) * offset
        for offset, tau in zip(offsets, damping, strict=True)
    )
    if log_masses is not None:
        return _plus(log_masses[0], a), _plus(log_masses[1], b)
    if a is None and b is None:
        return None
    zero = (a if b is None else b).new_zeros(1)  # type: ignore[union-attr]
    return zero if a is None else a, zero if b is None else b


def _picked(x: Tensor, index: Tensor) -> Tensor:
    """Some numbers `(*b, s)` of `(*b, n)`, the batches broadcast."""
    batch = torch.broadcast_shapes(index.shape[:-1], x.shape[:-1])
    index = index.expand(*batch, index.shape[-1])
    return x.expand(*batch, x.shape[-1]).gather(-1, index)
