r"""The same reductions over tiles: O(m + n) memory, forward and backward, never an (m, n) array.

On a CPU, `average` without times uses PyTorch's fused attention, with the log-weights inside the
keys. Everything else runs through two loops over tiles. They are registered as operators, so that
a graph of `torch.compile` has one node instead of thousands of tiles.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from .._tools.once import check_no_tangent, named_errors, used_once
from .._tools.precision import align
from . import _operators
from ._operators import (
    MaybeTimes,
    Pair,
    Side,
    Three,
    Times,
    fold,
    register_gradients,
)

FUSED = "The streamed average"
TILED = "A streamed reduction"
"""Names in messages."""

IN_BASE = 1.0
"""Natural logarithms times this have the base of `log_integral_parts`, which is $e$ here."""

logarithm = torch.positive
"""The second summand of a log-integral, of what `log_integral_parts` keeps of it: that itself."""

ready = _operators.ready
"""What `log_integral_parts` and `vjp` need of points, found once."""

TILE = {"cpu": (1 << 19, 1024), "cuda": (1 << 26, 1 << 14)}
"""Entries of a tile and its largest width: fits the cache of a CPU, keeps a GPU busy."""


def log_integral(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """Tile by tile, with a running maximum; always guarded, because that costs nothing here."""
    check_no_tangent("The streamed log-integral", q, k, bias)
    q, k, bias = align(q, k, bias)
    batch, (q, k, bias), clock = fold((scale * q, k, bias[..., None]), times)
    _, top, rest = _reduced(q, k, k[..., :0], bias[..., 0], clock)
    return (top + rest).reshape(*batch, q.shape[-2])


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """Fused attention where it applies, tiles elsewhere."""
    check_no_tangent("The streamed average", q, k, v, bias)
    q, k, v, bias = align(q, k, v, bias)
    q = scale * q
    if times is None and q.device.type == "cpu" and min(q.shape[-2], k.shape[-2]) > 0:
        return _fused(q, k, v, bias, guard)
    batch, (q, k, v, bias), clock = fold((q, k, v, bias[..., None]), times)
    out, *_ = _reduced(q, k, v, bias[..., 0], clock)
    return out.reshape(*batch, q.shape[-2], v.shape[-1])


def log_integral_parts(side: Side, bias: Tensor) -> Three:
    """The log-integral, and its two summands: the largest score, and the logarithm of a sum."""
    return _operators.log_integral_parts(reduce_tiles, side, bias)


def vjp(
    side: Side, bias: Tensor, record: Pair, c: Tensor, factors: Pair | None, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients in queries, keys and bias; the arguments are those of `_operators.vjp`."""
    return _operators.vjp(reduce_tiles_backward, side, bias, record, c, factors, wanted)


def _reduced(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, clock: MaybeTimes
) -> tuple[Tensor, Tensor, Tensor]:
    """The loop over tiles."""
    if torch.compiler.is_compiling():
        return reduce_tiles(q, k, v, bias, *clock)
    with named_errors(TILED):
        return reduce_tiles(q, k, v, bias, *clock)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, guard: bool) -> Tensor:
    r"""Fused attention with the bias inside the keys.

    Since $\langle q,k\rangle+b=\langle(q,1),(k,b)\rangle$, the bias gets its gradient from that of
    the keys and no mask is formed. The fused kernel needs one width for queries, keys and values,
    so they are padded with zeros. Keys are shifted by the corner of their bounding box nearest to
    0 and the bias by its maximum. This changes each query's scores by a constant and keeps the
    log-sum-exp that the kernel stores, hence its gradients, accurate. The corner is not larger
    than any key, so no key loses digits, as it would with the mean in place of the corner.

    For few keys the kernel returns 0 where scores are NaN. So one more column is averaged, which
    is 1 at atoms with mass: where its average is 0, the result is NaN, and so are its gradients.
    """
    q, k, v, bias = used_once(FUSED, q, k, v, bias)
    live = (bias != -torch.inf).to(v.dtype)
    if guard:
        dead = bias == -torch.inf
        k, v = (t.masked_fill(dead[..., None], 0) for t in (k, v))
        # Without any mass the values are all 0 by now, hence the average and its gradients too.
        empty = dead.all(-1, keepdim=True)
        bias, live = bias.masked_fill(empty, 0), live.masked_fill(empty, 1)
    low, high = k.detach().amin(-2, keepdim=True), k.detach().amax(-2, keepdim=True)
    k = k - (low.clamp_min(0) + high.clamp_max(0))
    # Finite, because the gradient of the constant 1 is thrown away but should not be 0 * inf.
    lowest = torch.finfo(bias.dtype).min / 4  # below every live score but the most extreme
    bias = (bias - bias.detach().amax(-1, keepdim=True)).clamp_min(lowest)
    batch = torch.broadcast_shapes(v.shape[:-1], live.shape)
    parts = (v.expand(*batch, v.shape[-1]), live.expand(batch)[..., None])
    values = torch.cat(parts, -1)
    batch, (q, k, values, bias), _ = fold((q, k, values, bias[..., None]), None)
    width = max(q.shape[-1] + 1, values.shape[-1])
    q = torch.cat([q, q.new_ones(*q.shape[:-1], 1)], -1)
    k = torch.cat([k, bias], -1)
    wide = lambda t: pad(t, (0, width - t.shape[-1]))[:, None]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = scaled_dot_product_attention(wide(q), wide(k), wide(values), scale=1.0)
    e = v.shape[-1]
    seen = out.detach()[..., e : e + 1] > 0
    out = out[..., :e] * torch.where(seen, 1.0, torch.nan).to(out.dtype)
    return out.reshape(*batch, q.shape[-2], e)


def _tiles(q: Tensor, k: Tensor) -> tuple[list[tuple[slice, slice]], list[slice]]:
    """Slices over batch and queries, and slices over atoms."""
    area, width = TILE["cpu" if q.device.type == "cpu" else "cuda"]
    (b, m), n = q.shape[:2], k.shape[1]
    width = max(1, min(n, width))
    height = max(1, min(m, area // width))
    cut = lambda size, step: [slice(i, i + step) for i in range(0, size, step)]
    rows = [(i, j) for i in cut(b, max(1, area // (height * width))) for j in cut(m, height)]
    return rows, cut(n, width)


def _visible(
    times: MaybeTimes, i: slice, j: slice, columns: list[slice]
) -> Iterator[tuple[slice, Tensor | None]]:
    """Slices of atoms that the queries of a tile may see, each with its mask or None.

    On a CPU, tiles wholly in the future are skipped; elsewhere reading the times would stall the
    device, so they are masked like the others.
    """
    query_times, key_times = times
    for c in columns:
        if query_times is None or key_times is None:
            yield c, None
            continue
        hidden = key_times[i, None, c] > query_times[i, j, None]
        if hidden.device.type != "cpu" or not hidden.all():
            yield c, hidden


def _scores(q: Tensor, k: Tensor, bias: Tensor, hidden: Tensor | None) -> Tensor:
    """One tile of scores."""
    scores = (q @ k.mT).add_(bias[:, None, :])
    return scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)


@torch.library.custom_op("pushforward::reduce_tiles", mutates_args=())
def reduce_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    query_times: Tensor | None,
    key_times: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Average and log-integral of `[b, m, k]` queries in one pass; `v` may have width 0.

    The log-integral is returned as two summands, the largest score and the rest. Their sum would
    be rounded relative to the largest score, which spoils the gradients of large scores.
    """
    dead = (bias == -torch.inf)[..., None]
    k, v = k.masked_fill(dead, 0), v.masked_fill(dead, 0)
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    tops, rests = q.new_empty(q.shape[:2]), q.new_empty(q.shape[:2])
    rows, columns = _tiles(q, k)
    for i, j in rows:
        top = torch.full_like(tops[i, j, None], -torch.inf)
        total, mean = torch.zeros_like(top), torch.zeros_like(out[i, j])
        for c, hidden in _visible((query_times, key_times), i, j, columns):
            scores = _scores(q[i, j], k[i, c], bias[i, c], hidden)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            shift = new.masked_fill(new == -torch.inf, 0)
            p, rescale = scores.sub_(shift).exp_(), (top - shift).exp_()
            total = total * rescale + p.sum(-1, keepdim=True)
            mean = mean * rescale + p @ v[i, c]
            top = new
        total = total.masked_fill(total == 0, 1)
        tops[i, j], rests[i, j] = top[..., 0], total.log()[..., 0]
        out[i, j] = mean / total
    return out, tops, rests


@reduce_tiles.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    shape = q.shape[:2]
    return q.new_empty(*shape, v.shape[-1]), q.new_empty(shape), q.new_empty(shape)


@torch.library.custom_op("pushforward::reduce_tiles_backward", mutates_args=())
def reduce_tiles_backward(
    inputs: list[Tensor],
    query_times: Tensor | None,
    key_times: Tensor | None,
    outputs: list[Tensor],
    grads: list[Tensor],
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients in `q, k, v, bias`; the scores are recomputed tile by tile.

    With $P=e^{S-\ell}$, upstream gradients $o'$ of the average $o$ and $\ell'$ of the
    log-integral $\ell$:

    $$S'_{ij}=P_{ij}\,(\langle o'_i,v_j\rangle-\langle o'_i,o_i\rangle+\ell'_i),\qquad
      v'=P^\top o',\quad q'=S'k,\quad k'=S'^\top q,\quad b'_j=\sum_iS'_{ij}.$$

    A query that sees no mass has $\ell=-\infty$, and its row of $P$ is 0. Gradients that are not
    wanted are returned as zeros.
    """
    (q, k, v, bias), (out, top, rest), (d_out, d_log_z) = inputs, outputs, grads
    dead, empty = (bias == -torch.inf)[..., None], top == -torch.inf
    k, v = k.masked_fill(dead, 0), v.masked_fill(dead, 0)
    top = top.masked_fill(empty, torch.inf)
    d_out = d_out.masked_fill(empty[..., None], 0)
    slope = d_log_z.masked_fill(empty, 0) - (d_out * out).sum(-1)
    dq, dk, dv, db = (torch.zeros_like(t) for t in inputs)
    rows, columns = _tiles(q, k)
    for i, j in rows:
        for c, hidden in _visible((query_times, key_times), i, j, columns):
            p = _scores(q[i, j], k[i, c], bias[i, c], hidden)
            p = p.sub_(top[i, j, None]).sub_(rest[i, j, None]).exp_()
            if wanted[2]:
                dv[i, c] += p.mT @ d_out[i, j]
            ds = p.mul_((d_out[i, j] @ v[i, c].mT).add_(slope[i, j, None]))
            if wanted[0]:
                dq[i, j] += ds @ k[i, c]
            if wanted[1]:
                dk[i, c] += ds.mT @ q[i, j]
            if wanted[3]:
                db[i, c] += ds.sum(1)
    return dq, dk, dv, db


@reduce_tiles_backward.register_fake
def _(inputs: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t) for t in inputs)


register_gradients(reduce_tiles, reduce_tiles_backward, TILED)
