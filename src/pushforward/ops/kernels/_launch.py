"""The two passes: which kernels run, on tiles of which size, in how many programs."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._tools.precision import HALF
from ._problem import LARGE, Clock, Halves, largest, padded_width, strides, survey
from ._split import columns, room, split, summed
from ._tiles import NARROW, Tile, tile_of
from .programs import narrow, wide, wide_backward


class Reduced(NamedTuple):
    """Average, shift of the scores in base 2, and the sum of weights relative to it."""

    out: Tensor
    peak: Tensor
    total: Tensor


class Ready(NamedTuple):
    """What passes over the same points have in common.

    Args:
        operands: queries and keys as tensor cores take them, and the scales of their products;
            None for narrow points.
        limit: a bound on the scores of each problem in base 2; None where it is not needed.
    """

    operands: Any
    limit: Tensor | None


def ready(q: Tensor, k: Tensor, factor: float, *, timed: bool) -> Ready:
    """The same found once, for points of shape `(b, h, n, k)`."""
    (*batch, m, d), n = q.shape, k.shape[-2]
    large = prod(batch) * m * n >= LARGE and not timed
    operands = None if d <= NARROW else _scored(q, k)
    return Ready(operands, largest(q, k, factor) if large else None)


def forward(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, factor: float, clock: Clock | None,
    found: Ready | None = None,
) -> Reduced:  # fmt: skip
    """Averages and sums of weights, for points of shape `(b, h, n, k)`."""
    (*batch, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    problems = prod(batch)
    thin, half = max(d, e) <= NARROW, q.dtype in HALF
    tile = tile_of("forward", d, e, half=half)
    group = 4 if thin else 1
    parts = split(q, problems * -(-m // tile.rows), n, group * tile.columns)
    shape = (*batch, m) if parts == 1 else (parts, *batch, m)
    empty = lambda *tail, dtype=torch.float32: q.new_empty(*shape, *tail, dtype=dtype)
    dtype = q.dtype if half and parts == 1 else torch.float32
    result = Reduced(empty(e, dtype=dtype), empty(), empty())
    if result.peak.numel() == 0:
        return result
    surveyed = None
    if problems * m * n >= LARGE and clock is None:
        limit = None if found is None else found.limit
        surveyed = survey(bias, largest(q, k, factor) if limit is None else limit)
    # float16 cannot hold weights without a maximum: those of values in halves, or of float16.
    bounded = surveyed is not None and (thin or e == 0 or q.dtype == torch.bfloat16)
    ends = None if surveyed is None else surveyed.ends
    if clock is not None:
        ends = clock.ends(tile.rows, group * tile.columns)
    grid = (-(-m // tile.rows) * problems, parts)
    options: dict[str, Any] = dict(
        D=d, E=e, BM=tile.rows, BN=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
        ENDS=0 if ends is None else 1 if clock is None else 2,
    )  # fmt: skip
    ranks, small = None if clock is None else clock.ranks, surveyed.small if surveyed else None
    given: tuple[Any, ...] = (ranks, ends, small)
    sizes: tuple[Any, ...] = (m, n, q.shape[1], factor)
    if thin:
        points = (q, *columns(m * n, k, v), bias)
        options |= dict(GROUP=group)
    else:
        high, low, exponents = _operands(q, k, v, found)
        points, given, sizes = (*high, bias), (*low, exponents, *given), (*sizes, 1.0)
        options |= dict(D_PAD=padded_width(d), E_PAD=padded_width(e))
        options |= dict(STAGES=tile.stages, SPLIT=not half)
    run = narrow.forward if thin else wide.forward
    for mode in (1, 2) if bounded else (0,):
        run[grid](
            *points, *given, *result, *sizes, *map(strides, points), MODE=mode, **options
        )  # fmt: skip
    return result if parts == 1 else _merged(result, q.dtype if half else torch.float32)


def backward(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor], factor: float, clock: Clock | None,
    result: Reduced, upstream: tuple[Tensor, Tensor], wanted: list[bool],
    found: Ready | None = None,
) -> list[Tensor]:  # fmt: skip
    r"""Gradients in `q, k, v, bias`, from those of the average and of the log-integral.

    With $P$ the weights, $o',\ell'$ the upstream gradients and $o$ the average,

    $$c_i=\ell'_i-\langle o'_i,o_i\rangle,\quad S'_{ij}=P_{ij}\,(\langle o'_i,v_j\rangle+c_i),\quad
      q'=s\,S'k,\quad k'=s\,S'^\top q,\quad v'=P^\top o',\quad b'_j=\sum_iS'_{ij}.$$

    In float32 the weights are formed relative to the largest score, and $o'$ and $c$ are divided
    by the total instead. So the gradients of large scores are as accurate as their differences.
    """
    q, k, v, bias = inputs
    (*batch, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    problems, half = prod(batch), q.dtype in HALF
    thin = max(d, e) <= NARROW
    g, slope, offset = _upstream(result, *upstream, divide=thin or not half)
    given: tuple[Any, ...] = inputs
    sizes: tuple[Any, ...] = (m, n, q.shape[1], factor)
    if thin:
        q, k, v, g = columns(m * n, q, k, v, g)
        given = (q, k, v, bias)
        steps = tuple(map(strides, (*given, g)))
    else:
        high, low, exponents = _found(q, k, found)
        given, sizes = (*inputs, high[0], low[0], high[1], low[1], exponents), (*sizes, 1.0)
        steps = tuple(map(strides, (*inputs, g, *high)))
    ranks = None if clock is None else clock.ranks
    widths: dict[str, Any] = dict(D=d, E=e)
    if not thin:
        widths |= dict(D_PAD=padded_width(d), E_PAD=padded_width(e), SPLIT=not half)
    grads: list[Tensor | None] = [None] * 4
    wanted = [want and problems * m * n > 0 for want in wanted]
    dtype = q.dtype if half else torch.float32
    if wanted[0]:
        tile = tile_of("queries", d, e, half=half)
        parts = split(q, problems * -(-m // tile.rows), n, tile.columns)
        made = room(parts, q.shape, dtype, q.device)
        ends = None if clock is None else clock.ends(tile.rows, tile.columns)
        run = narrow.backward_queries if thin else wide_backward.queries
        run[-(-m // tile.rows) * problems, parts](
            *given, ranks, ends, offset, g, slope, made, *sizes, *steps,
            ENDS=0 if clock is None else 2, **widths, **_options(tile, thin),
        )  # fmt: skip
        grads[0] = summed(made, parts, q.dtype)
    if any(wanted[1:]):
        tile = tile_of("keys", d, e, half=half)
        parts = split(q, problems * -(-n // tile.columns), m, tile.rows)
        shapes = [(*batch, n, d), (*batch, n, e), (*batch, n)]
        several = [
            room(parts, shape, t, q.device)
            for shape, t in zip(shapes, (dtype, dtype, torch.float32), strict=True)
        ]
        starts = None if clock is None else clock.starts(tile.rows, tile.columns)
        run = narrow.backward_keys if thin else wide_backward.keys
        run[-(-n // tile.columns) * problems, parts](
            *given, ranks, starts, offset, g, slope, *several, *sizes, *steps,
            TIMED=clock is not None, POINTS=wanted[1], VALUES=wanted[2], **widths,
            **_options(tile, thin),
        )  # fmt: skip
        for i, (x, want) in enumerate(
            zip(several, (wanted[1], wanted[2], True), strict=True), start=1
        ):
            grads[i] = summed(x, parts, inputs[i].dtype) if want else None
    return [x.new_zeros(x.shape) if g is None else g for x, g in zip(inputs, grads, strict=True)]


def _upstream(
    result: Reduced, d_out: Tensor, d_log: Tensor, *, divide: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What each query hands on: a gradient, a summand, and the offset of its scores.

    A query that sees no mass hands on zeros, and its weights relative to infinity are zeros.
    """
    out, peak, total = result
    empty = peak == -torch.inf
    d_out = d_out.masked_fill(empty[..., None], 0)
    slope = d_log.float() - (d_out.float() * out.float()).sum(-1)
    slope = slope.masked_fill(empty, 0)
    if divide:
        total = total.masked_fill(empty, 1)
        offset = peak.masked_fill(empty, torch.inf)
        return (d_out.float() / total[..., None]).contiguous(), slope / total, offset
    return d_out, slope, (peak + total.log2()).masked_fill(empty, torch.inf)


def _found(q: Tensor, k: Tensor, found: Ready | None) -> tuple[Any, Any, Tensor | None]:
    """Queries and keys as tensor cores take them, unless they are known already."""
    return _scored(q, k) if found is None or found.operands is None else found.operands


def _operands(
    q: Tensor, k: Tensor, v: Tensor, found: Ready | None
) -> tuple[Any, Any, Tensor | None]:
    """Points as tensor cores take them: as they are, or in halves with their scales."""
    high, low, back = _found(q, k, found)
    if back is None or v.shape[-1] == 0:
        return (*high, v), (*low, v), back
    values = Halves.of(v)
    return (*high, values.high), (*low, values.low), torch.stack([back[:, 0], values.back], -1)


def _scored(q: Tensor, k: Tensor) -> tuple[Any, Any, Tensor | None]:
    """Queries and keys as tensor cores take them, and the scales of their products."""
    if q.dtype in HALF:
        return (q, k), (q, k), None
    x, y = (Halves.of(t) for t in (q, k))
    return (x.high, y.high), (x.low, y.low), torch.stack([x.back * y.back, y.back], -1)


def _merged(parts: Reduced, dtype: torch.dtype) -> Reduced:
    """The result of several programs, each of which has seen some of the keys."""
    peak = parts.peak.amax(0)
    base = peak.masked_fill(peak == -torch.inf, 0)
    weights = parts.total * (parts.peak - base).exp2()
    total = weights.sum(0)
    out = (parts.out * (weights / total.masked_fill(total == 0, 1))[..., None]).sum(0)
    return Reduced(out.to(dtype), peak, total)


def _options(tile: Tile, thin: bool) -> dict[str, Any]:
    """The tile as arguments of a kernel."""
    options: dict[str, Any] = dict(
        BM=tile.rows, BN=tile.columns, num_warps=tile.warps, num_stages=tile.stages
    )
    return options if thin else options | dict(STAGES=tile.stages)
