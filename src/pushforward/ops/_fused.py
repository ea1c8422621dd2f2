r"""The same reductions as compiled loops on a CPU: every pair is met once, in registers.

The loops (`compiled`) are written for the widths of keys and values, and compiled at the first
call by llvmlite for the processor at hand. Tiles of queries, or of atoms, are shared out among
`torch.get_num_threads()` threads. No sum is split between threads, so results do not depend on
their number. Memory is linear.

With times, atoms are sorted by time, and queries by how many atoms they see: then a query sees the
first atoms up to its number, and whole blocks of later ones are not visited.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .._tools.once import check_no_tangent, named_errors
from .._tools.precision import align
from . import _operators, compiled
from ._operators import (
    MaybeTimes,
    Pair,
    Side,
    Three,
    Times,
    fold,
    register_gradients,
)
from .compiled import Compiled, machine

NAME = "A fused reduction"
"""Its name in messages."""

IN_BASE = 1.0
"""Natural logarithms times this have the base of `log_integral_parts`, which is $e$ here."""

logarithm = torch.positive
"""The second summand of a log-integral, of what `log_integral_parts` keeps of it: that itself."""

ready = _operators.ready
"""What `log_integral_parts` and `vjp` need of points, found once."""

BITS = {torch.float32: 32, torch.float64: 64}

ALONE = 1 << 17
"""Up to this many pairs the calling thread works alone."""

SHARES = 4
"""Shares of the work for each thread, because tiles may differ in work."""


def log_integral(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """One sweep without values; always guarded, because that costs nothing here."""
    check_no_tangent("The fused log-integral", q, k, bias)
    check_cpu(q)
    q, k, bias = align(q, k, bias)
    batch, (q, k, bias), clock = fold((scale * q, k, bias[..., None]), times)
    _, top, rest = _reduced(q, k, k[..., :0], bias[..., 0], clock)
    return (top + rest).reshape(*batch, q.shape[-2])


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """One sweep; always guarded, because that costs nothing here."""
    check_no_tangent("The fused average", q, k, v, bias)
    check_cpu(q)
    q, k, v, bias = align(q, k, v, bias)
    batch, (q, k, v, bias), clock = fold((scale * q, k, v, bias[..., None]), times)
    out, *_ = _reduced(q, k, v, bias[..., 0], clock)
    return out.reshape(*batch, q.shape[-2], v.shape[-1])


def log_integral_parts(side: Side, bias: Tensor) -> Three:
    """The log-integral, and its two summands: the largest score, and the logarithm of a sum."""
    return _operators.log_integral_parts(fused_sweep, side, bias)


def vjp(
    side: Side, bias: Tensor, record: Pair, c: Tensor, factors: Pair | None, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients in queries, keys and bias; the arguments are those of `_operators.vjp`."""
    return _operators.vjp(fused_sweep_backward, side, bias, record, c, factors, wanted)


def check_cpu(q: Tensor) -> None:
    """Raise where the loops cannot run."""
    if q.device.type != "cpu":
        raise ValueError(
            f"`impl='fused'` runs on a CPU, got tensors on {q.device}. Use `impl='streamed'`."
        )
    if not torch.compiler.is_compiling():
        machine()


def _reduced(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, clock: MaybeTimes
) -> tuple[Tensor, Tensor, Tensor]:
    if torch.compiler.is_compiling():
        return fused_sweep(q, k, v, bias, *clock)
    with named_errors(NAME):
        return fused_sweep(q, k, v, bias, *clock)


@torch.library.custom_op("pushforward::fused_sweep", mutates_args=(), device_types="cpu")
def fused_sweep(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    query_times: Tensor | None,
    key_times: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Average and log-integral of `[b, m, k]` queries in one pass; `v` may have width 0.

    The log-integral is returned as two summands, the largest score and the rest, because their sum
    would be rounded relative to the largest score, which spoils the gradients of large scores.
    """
    view = _View(q, k, v, bias, (query_times, key_times))
    loop = view.loop("forward")
    out = q.new_empty(*q.shape[:2], v.shape[-1])
    tops, totals = q.new_empty(q.shape[:2]), q.new_empty(q.shape[:2])
    arrays = [*view.inputs, view.bounds(loop.width), view.seen, out, tops, totals]
    run(loop, (*q.shape[:2], k.shape[1]), arrays)
    rests = totals.masked_fill_(totals == 0, 1).log_()
    return view.in_order(out), view.in_order(tops), view.in_order(rests)


@fused_sweep.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    shape = q.shape[:2]
    return q.new_empty(*shape, v.shape[-1]), q.new_empty(shape), q.new_empty(shape)


@torch.library.custom_op("pushforward::fused_sweep_backward", mutates_args=(), device_types="cpu")
def fused_sweep_backward(
    inputs: list[Tensor],
    query_times: Tensor | None,
    key_times: Tensor | None,
    outputs: list[Tensor],
    grads: list[Tensor],
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients in `q, k, v, bias`, in two sweeps that compute the scores anew.

    With the largest scores $t$, $\ell=t+r$ and $P=e^{S-t}$, upstream gradients $o'$ of the average
    $o$ and $\ell'$ of the log-integral, both multiplied by $e^{-r}$ beforehand:

    $$S'_{ij}=P_{ij}\,(\langle o'_i,v_j\rangle-\langle o'_i,o_i\rangle+\ell'_i),\qquad
      v'=P^\top o',\quad q'=S'k,\quad k'=S'^\top q,\quad b'_j=\sum_iS'_{ij}.$$

    Gradients that are not wanted are returned as zeros.
    """
    q, k, v, bias = inputs
    (out, tops, rests), (d_out, d_log_z) = outputs, grads
    empty = tops == -torch.inf
    d_out = d_out.masked_fill(empty[..., None], 0)
    slopes = d_log_z.masked_fill(empty, 0) - (d_out * out).sum(-1)
    weights = (-rests).exp()
    upstream, slopes = d_out * weights[..., None], slopes * weights
    view = _View(q, k, v, bias, (query_times, key_times))
    rows = [view.sort(t) for t in (tops.masked_fill(empty, torch.inf), upstream, slopes)]
    dq, dk, dv, db = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in inputs)
    b, m, n = *q.shape[:2], k.shape[1]
    if wanted[0]:
        loop = view.loop("backward_queries")
        arrays = [*view.inputs, view.bounds(loop.width), view.seen, *rows, dq]
        run(loop, (b, m, n), arrays)
        dq = view.in_order(dq)
    if any(wanted[1:]):
        loop = view.loop("backward_atoms")
        arrays = [*view.inputs, view.askers(loop.width), view.seen, *rows, dk, dv, db]
        run(loop, (b, n, m), arrays, (int(wanted[1]), int(wanted[2])))
        dead = view.dead
        dk, dv = (t.masked_fill_(dead[..., None], 0) for t in (dk, dv))
        dk, dv, db = (view.atoms_in_order(t) for t in (dk, dv, db.masked_fill_(dead, 0)))
    return dq, dk, dv, db


@fused_sweep_backward.register_fake
def _(inputs: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs)


class _View:
    """The arguments as the loops read them: contiguous, and sorted if there are times."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, clock: MaybeTimes) -> None:
        query_times, key_times = clock
        dead = bias == -torch.inf
        self.masked = query_times is not None and key_times is not None
        self.bits, self.widths = BITS[q.dtype], (k.shape[-1], v.shape[-1])
        self.m, self.n = q.shape[1], k.shape[1]
        self.order: Tensor | None = None
        self.atoms: Tensor | None = None
        place = torch.arange(1, self.n + 1, device=q.device)
        self.ends = place.masked_fill(dead, 0).amax(-1) if self.n else dead.new_zeros(
            len(q), dtype=torch.long)  # fmt: skip
        self.seen = place[:0]
        if query_times is not None and key_times is not None:
            dead = self._sorted_by_time(query_times, key_times, dead)
            q = self.sort(q)
            k, v, bias = (_taken(t, self.atoms) for t in (k, v, bias))
        self.dead = dead
        if bool(dead.any()):
            k, v = (t.masked_fill(dead[..., None], 0) for t in (k, v))
        self.inputs = [t.contiguous() for t in (q, k, v, bias)]

    def _sorted_by_time(self, asked: Tensor, told: Tensor, dead: Tensor) -> Tensor:
        """Sort atoms by time, those without mass last, and queries by how many atoms they see.

        The query that sees most comes first.

        A time that is NaN is neither before nor after another, so it hides nothing.
        """
        blind = torch.zeros_like(asked, dtype=torch.bool)
        if told.is_floating_point():
            told, blind = told.masked_fill(told.isnan(), -torch.inf), asked.isnan()
        by_time = told.sort(dim=-1, stable=True).indices
        late = dead.gather(-1, by_time).sort(dim=-1, stable=True).indices
        self.atoms = by_time.gather(-1, late)
        dead, told = dead.gather(-1, self.atoms), told.gather(-1, self.atoms)
        if self.n:
            told = torch.where(dead, told.amax(-1, keepdim=True), told)  # keeps them sorted
        live = (~dead).sum(-1, keepdim=True)
        seen = torch.searchsorted(told, asked.contiguous(), right=True)
        seen = seen.masked_fill(blind, self.n).minimum(live)
        seen, self.order = seen.sort(dim=-1, descending=True, stable=True)
        self.seen = seen.to(torch.int32 if self.bits == 32 else torch.int64)
        return dead

    def loop(self, name: str) -> Compiled:
        """The loop for these widths."""
        return getattr(compiled, name)(self.bits, machine(), *self.widths, self.masked)

    def sort(self, rows: Tensor) -> Tensor:
        """One row per query, put into the order in which the loops visit queries."""
        return _taken(rows, self.order).contiguous()

    def in_order(self, rows: Tensor) -> Tensor:
        """One row per query, put back into the order in which the caller gave them."""
        return _put_back(rows, self.order)

    def atoms_in_order(self, rows: Tensor) -> Tensor:
        """One row per atom, put back into the order in which the caller gave them."""
        return _put_back(rows, self.atoms)

    def bounds(self, width: int) -> Tensor:
        """How many atoms each tile of queries sees: those of its first query, which sees most."""
        if self.masked:
            return self.seen[:, ::width].long().contiguous()
        return self.ends[:, None].expand(-1, -(-self.m // width)).contiguous()

    def askers(self, width: int) -> Tensor:
        """How many queries see the atoms of each tile."""
        first = torch.arange(0, self.n, width, device=self.ends.device).expand(len(self.ends), -1)
        if not self.masked:
            return torch.where(first < self.ends[:, None], self.m, 0)
        rising = self.seen.long().flip(-1).contiguous()
        return self.m - torch.searchsorted(rising, first.contiguous(), right=True)


def _index(rows: Tensor, order: Tensor) -> Tensor:
    return order if rows.ndim == 2 else order[..., None].expand_as(rows)


def _taken(rows: Tensor, order: Tensor | None) -> Tensor:
    """The rows at the indices `order`; all rows as they are if it is None."""
    return rows if order is None else rows.gather(1, _index(rows, order))


def _put_back(rows: Tensor, order: Tensor | None) -> Tensor:
    """The inverse of `_taken`: each row back at its own index."""
    if order is None:
        return rows
    return torch.empty_like(rows).scatter_(1, _index(rows, order), rows)


def run(loop: Compiled, sizes: tuple[int, int, int], arrays: list[Tensor],
         flags: tuple[int, ...] = ()) -> None:  # fmt: skip
    """Run a loop over all tiles of all batches, its tiles shared out among threads."""
    batch, rows, columns = sizes
    tiles = -(-rows // loop.width)
    items, threads = batch * tiles, torch.get_num_threads()
    alone = threads == 1 or batch * rows * columns <= ALONE
    shares = 1 if alone else min(items, SHARES * threads)
    helpers = 0 if alone else min(threads, shares) - 1
    room = torch.empty(
        helpers + 1, -(-loop.scratch // 64) * 64, dtype=arrays[0].dtype, device="cpu"
    )
    addresses = [t.data_ptr() for t in arrays]
    cuts = iter([(items * i // shares, items * (i + 1) // shares) for i in range(shares)])

    def work(thread: int) -> None:
        place = room[thread].data_ptr()
        for start, stop in cuts:  # each share goes to the thread that asks first
            table = (start, stop, tiles, rows, columns, place, *addresses, *flags)
            held = (ctypes.c_int64 * len(table))(*table)
            loop.run(ctypes.addressof(held))

    if helpers == 0:
        work(0)
        return
    others = [_pool(os.getpid(), helpers).submit(work, i + 1) for i in range(helpers)]
    work(0)
    for other in others:
        other.result()


@cache
def _pool(process: int, helpers: int) -> ThreadPoolExecutor:
    """Threads of this process; a fork has none of its parent's."""
    return ThreadPoolExecutor(helpers, thread_name_prefix="pushforward")


register_gradients(fused_sweep, fused_sweep_backward, NAME)
