r"""The same reductions over tiles: O(m + n) memory, forward and backward, never an (m, n) array.

`average` without times goes to PyTorch's fused attention, mass and all. Everything else runs
through two tile loops, which are opaque operators to `torch.compile`: a graph holds one node where
the loop has thousands of tiles.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from .._tools.once import check_no_tangent
from .._tools.precision import align

TILE = {"cpu": (1 << 19, 1024), "cuda": (1 << 26, 1 << 14)}
"""Elements of a tile and its largest width: cache on a CPU, enough parallel work on a GPU."""


def log_integral(q: Tensor, k: Tensor, bias: Tensor, scale: float, times, guard: bool) -> Tensor:
    """Tile by tile, with a running maximum; always guarded, it costs nothing here."""
    check_no_tangent("The streamed log-integral", q, k, bias)
    q, k, bias = align(q, k, bias)
    batch, (q, k, bias), clock = _fold((scale * q, k, bias[..., None]), times)
    _, top, rest = reduce_tiles(q, k, k[..., :0], bias[..., 0], *clock)
    return (top + rest).reshape(*batch, q.shape[-2])


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times, guard: bool
) -> Tensor:
    """Fused attention where it fits, tiles elsewhere."""
    check_no_tangent("The streamed average", q, k, v, bias)
    q, k, v, bias = align(q, k, v, bias)
    q = scale * q
    if times is None and q.device.type == "cpu" and min(q.shape[-2], k.shape[-2]) > 0:
        return _fused(q, k, v, bias, guard)
    batch, (q, k, v, bias), clock = _fold((q, k, v, bias[..., None]), times)
    out, *_ = reduce_tiles(q, k, v, bias[..., 0], *clock)
    return out.reshape(*batch, q.shape[-2], v.shape[-1])


def _fold(tensors, times):
    """Broadcast the leading axes against each other and fold them into one."""
    if times is not None:
        tensors = (*tensors, *(t[..., None] for t in times))
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors))
    count = batch.numel()
    folded = [t.expand(*batch, *t.shape[-2:]).reshape(count, *t.shape[-2:]) for t in tensors]
    if times is None:
        return batch, folded, (None, None)
    *folded, asked, told = folded
    return batch, folded, (asked[..., 0], told[..., 0])


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, guard: bool) -> Tensor:
    r"""Mass rides inside the keys, $\langle q,k\rangle+b=\langle(q,1),(k,b)\rangle$.

    So the weights get their gradient from the keys' and no mask is formed. The fused kernel wants
    one width for queries, keys and values: zeros fill the rest. Keys are measured from the corner
    of their box nearest 0 and the bias from its maximum, which shifts each query's scores by a
    constant and keeps the kernel's stored log-sum-exp, hence its gradients, accurate. No key is
    smaller than that corner, so none loses digits to a far one, as it would to the mean.
    """
    if guard:
        dead = bias == -torch.inf
        k, v = (t.masked_fill(dead[..., None], 0) for t in (k, v))
        # Without any mass the values are all 0 by now, hence the average and its gradients too.
        bias = bias.masked_fill(dead.all(-1, keepdim=True), 0)
    low, high = k.detach().amin(-2, keepdim=True), k.detach().amax(-2, keepdim=True)
    k = k - (low.clamp_min(0) + high.clamp_max(0))
    # Finite, because the gradient of the constant 1 is thrown away but should not be 0 * inf.
    bias = (bias - bias.detach().amax(-1, keepdim=True)).clamp_min(-1e30)
    batch, (q, k, v, bias), _ = _fold((q, k, v, bias[..., None]), None)
    width = max(q.shape[-1] + 1, v.shape[-1])
    q = torch.cat([q, torch.ones_like(q[..., :1])], -1)
    k = torch.cat([k, bias], -1)
    wide = lambda t: pad(t, (0, width - t.shape[-1]))[:, None]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = scaled_dot_product_attention(wide(q), wide(k), wide(v), scale=1.0)
    return out[..., : v.shape[-1]].reshape(*batch, q.shape[-2], v.shape[-1])


def _tiles(q: Tensor, k: Tensor):
    """Slices over batch and queries, and slices over atoms."""
    area, width = TILE["cpu" if q.device.type == "cpu" else "cuda"]
    (b, m), n = q.shape[:2], k.shape[1]
    width = max(1, min(n, width))
    height = max(1, min(m, area // width))
    cut = lambda size, step: [slice(i, i + step) for i in range(0, size, step)]
    rows = [(i, j) for i in cut(b, max(1, area // (height * width))) for j in cut(m, height)]
    return rows, cut(n, width)


def _seen(asked: Tensor | None, told: Tensor | None, i: slice, j: slice, columns):
    """The atoms' slices that the queries of a tile may see, each with its mask or None.

    On a CPU, tiles wholly in the future are skipped; elsewhere reading the times would stall the
    device, so they are masked like the others.
    """
    for c in columns:
        if asked is None or told is None:
            yield c, None
            continue
        hidden = told[i, None, c] > asked[i, j, None]
        if hidden.device.type != "cpu" or not hidden.all():
            yield c, hidden


def _scores(q: Tensor, k: Tensor, bias: Tensor, hidden: Tensor | None) -> Tensor:
    """One tile of scores."""
    scores = (q @ k.mT).add_(bias[:, None, :])
    return scores if hidden is None else scores.masked_fill_(hidden, -torch.inf)


@torch.library.custom_op("pushforward::reduce_tiles", mutates_args=())
def reduce_tiles(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, asked: Tensor | None, told: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Average and log-integral of `[b, m, k]` queries in one pass; `v` may have width 0.

    The log-integral comes as the largest score and the rest, whose sum would be rounded at the
    size of the former and spoil the gradients of large scores.
    """
    dead = (bias == -torch.inf)[..., None]
    k, v = k.masked_fill(dead, 0), v.masked_fill(dead, 0)
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    tops, rests = q.new_empty(q.shape[:2]), q.new_empty(q.shape[:2])
    rows, columns = _tiles(q, k)
    for i, j in rows:
        top = torch.full_like(tops[i, j, None], -torch.inf)
        total, mean = torch.zeros_like(top), torch.zeros_like(out[i, j])
        for c, hidden in _seen(asked, told, i, j, columns):
            scores = _scores(q[i, j], k[i, c], bias[i, c], hidden)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            shift = new.masked_fill(new == -torch.inf, 0)
            p, fade = scores.sub_(shift).exp_(), (top - shift).exp_()
            total = total * fade + p.sum(-1, keepdim=True)
            mean = mean * fade + p @ v[i, c]
            top = new
        total = total.masked_fill(total == 0, 1)
        tops[i, j], rests[i, j] = top[..., 0], total.log()[..., 0]
        out[i, j] = mean / total
    return out, tops, rests


@reduce_tiles.register_fake
def _(q, k, v, bias, asked, told):
    line = q.shape[:2]
    return q.new_empty(*line, v.shape[-1]), q.new_empty(line), q.new_empty(line)


@torch.library.custom_op("pushforward::reduce_tiles_backward", mutates_args=())
def reduce_tiles_backward(
    inputs: list[Tensor],
    asked: Tensor | None,
    told: Tensor | None,
    outputs: list[Tensor],
    grads: list[Tensor],
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients in `q, k, v, bias`, the scores formed again tile by tile.

    With $P=e^{S-\ell}$, upstream gradients $o'$ of the average $o$ and $\ell'$ of the
    log-integral $\ell$:

    $$S'_{ij}=P_{ij}\,(\langle o'_i,v_j\rangle-\langle o'_i,o_i\rangle+\ell'_i),\qquad
      v'=P^\top o',\quad q'=S'k,\quad k'=S'^\top q,\quad b'_j=\sum_iS'_{ij}.$$
    A query that sees nothing has $\ell=-\infty$, and its row of $P$ is 0. What is not wanted
    comes back as zeros.
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
        for c, hidden in _seen(asked, told, i, j, columns):
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
def _(inputs, asked, told, outputs, grads, wanted):
    return tuple(torch.empty_like(t) for t in inputs)


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)


def _differentiate(ctx, d_out, d_log_z, _):  # the log-integral is top + rest: one gradient
    q, k, v, bias, asked, told, *outputs = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:4])
    grads = reduce_tiles_backward([q, k, v, bias], asked, told, outputs, [d_out, d_log_z], wanted)
    return *(g if want else None for g, want in zip(grads, wanted, strict=True)), None, None


reduce_tiles.register_autograd(_differentiate, setup_context=_remember)
