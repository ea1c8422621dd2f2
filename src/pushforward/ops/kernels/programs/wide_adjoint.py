r"""Kernel that goes back through many Sinkhorn steps in one launch, for wide points.

With the weights $P^t,Q^t$ of the half-steps, see `sinkhorn._adjoint`, the adjoint $u^t$ of the
potential of the keys goes back to $u^{t-1}$ by

$$x^t_i=\sum_jQ^t_{ij}(-\tau_bu^t_j),\qquad u^{t-1}_j=\sum_iP^t_{ij}(-\tau_ax^t_i).$$

Both are sums over columns of powers of 2 times a number for each column. A weight is
$2^{S_{ij}+b_i-p_j}/s_j$ with the bias $b_i$ of a row and the shift $p_j$ and the sum $s_j$ of a
column, which the steps have recorded. Units, shares and meetings are those of `wide_steps`.
"""

import triton
import triton.language as tl

from .parts import LOG2E, product, scale_of_halves
from .steps import extremes, met
from .wide_steps import WideSide, halves_of, recorded

NEAR: tl.constexpr = tl.constexpr(40.0)
"""Rows of a block whose biases lie this close share the middle of them. Sums of weights are
between 2^-80 and 2^80, so powers relative to it stay in range."""

KEPT: tl.constexpr = tl.constexpr(2)
"""Numbers for each column: its shift, with the opposite sign, and what multiplies its powers."""


@triton.jit
def _weighted_sums(
    qs, qs_low, columns, bias, shift, first, last, factor,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sums over columns, with the bias of each row in the exponents, or one for all (`EVEN`)."""
    s = tl.zeros([BM], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        ks, ks_low = halves_of(columns, j0, D, BN, SPLIT)
        at = columns.numbers + j0 + tl.arange(0, BN)
        t = product(qs, qs_low, ks.T, ks_low.T, SPLIT, False) * factor
        if EVEN:
            t += (tl.load(at) + shift)[None, :]
        else:
            t += tl.load(at)[None, :] + bias[:, None]
        s += tl.sum(tl.exp2(t) * tl.load(at + columns.length)[None, :], 1)
    return s


@triton.jit
def _as_column(side, i, there, value, peaks, totals):
    """Store what rows are as columns of the next half-step; zeros for those without mass."""
    peak = tl.load(peaks + i, mask=there, other=-float("inf"))
    total = tl.load(totals + i, mask=there, other=1.0)
    seen = peak != -float("inf")
    tl.store(side.numbers + i, tl.where(seen, -peak, -float("inf")))
    tl.store(side.numbers + side.length + i, tl.where(seen & there, value / total, 0.0))


@triton.jit
def _unit(
    rows, columns, unit, biases, shared, factor,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One unit of a half-step: whether it was the last one of its block, and then the sums."""
    place, share = unit // rows.shares, unit % rows.shares
    i = place * BM + tl.arange(0, BM)
    there = i < rows.count
    qs, qs_low = halves_of(rows, place * BM, D, BM, SPLIT)
    width = tl.cdiv(tl.cdiv(columns.length, rows.shares), BN) * BN
    first = tl.minimum(share * width, columns.length)
    last = tl.minimum(first + width, columns.length)
    bias = tl.load(biases + i, mask=there, other=-float("inf")) * LOG2E
    low, high = extremes(bias, bias != -float("inf"))
    if (high - low < NEAR) & (high >= low):
        middle = (low + high) / 2
        s = _weighted_sums(
            qs, qs_low, columns, bias, middle, first, last, factor, D, BM, BN, STAGES, SPLIT, True
        )
        s *= tl.exp2(bias - middle)
    else:  # they lie far apart, or none of them has mass
        s = _weighted_sums(
            qs, qs_low, columns, bias, 0.0, first, last, factor, D, BM, BN, STAGES, SPLIT, False
        )
    complete = rows.shares > 0
    if SHARES > 1 and rows.shares > 1:
        tl.store(shared + share * rows.length + i, s)
        tl.debug_barrier()
        complete = tl.atomic_add(rows.arrivals + place, 1) % rows.shares == rows.shares - 1
        if complete:
            tl.debug_barrier()
            at = tl.arange(0, SHARES)[:, None]
            s = tl.sum(
                tl.load(
                    shared + at * rows.length + i[None, :], mask=at < rows.shares, other=0.0
                ), 0,
            )  # fmt: skip
    return complete, i, there, s


@triton.jit(do_not_specialize=["M", "N", "steps", "problems", "programs", "shares_a", "shares_b"])
def run(
    q, k, q_low, k_low, survey, of_queries, of_keys, x, u, room, shared, counters,
    M, N, factor, tau_a, tau_b, steps, problems, programs, shares_a, shares_b,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr,
    STAGES: tl.constexpr, ALONE: tl.constexpr, SPLIT: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    r"""All half-steps, from the last to the first, by `programs` programs for each problem.

    `u` has $u^0,\dots,u^K$, of which the last is given, and `x` has $x^1,\dots,x^K$. If
    `SYMMETRIC`, a step has one half-step, $u^{t-1}=x^t+\sum_iP^t_{ij}(-\tau_ax^t_i)$ with
    $x^t=u^t/2$, and `x` is not used.
    """
    STEP: tl.constexpr = BM if BM > BN else BN
    OF_QUERIES: tl.constexpr = 2 if SYMMETRIC else 3
    z, part = tl.program_id(0) // programs, tl.program_id(0) % programs
    at = z.to(tl.int64)
    m_room, n_room = tl.cdiv(M, STEP) * STEP, tl.cdiv(N, STEP) * STEP
    room += at * (m_room + n_room) * KEPT
    shared += at * SHARES * tl.maximum(m_room, n_room)
    counter = counters + z * (1 + tl.cdiv(m_room, BM) + tl.cdiv(n_room, BM))
    factor *= LOG2E
    if SPLIT:
        factor *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    queries = WideSide(
        room, M, m_room, tau_a, q + at * m_room * D, q_low + at * m_room * D, counter + 1,
        shares_a,
    )  # fmt: skip
    keys = WideSide(
        room + m_room * KEPT, N, n_room, tau_b, k + at * n_room * D, k_low + at * n_room * D,
        counter + 1 + tl.cdiv(m_room, BM), shares_b,
    )  # fmt: skip
    all_queries, all_keys = problems.to(tl.int64) * M, problems.to(tl.int64) * N
    u, x, of_queries, of_keys = u + at * N, x + at * M, of_queries + at * M, of_keys + at * N
    if SYMMETRIC:
        rows, columns = keys, queries
        peaks = recorded(of_queries, steps - 1, 0, OF_QUERIES, all_queries)
        totals, scale = peaks + all_queries, -tau_a / 2
    else:
        rows, columns = queries, keys
        peaks = recorded(of_keys, steps - 1, 1, 3, all_keys)
        totals, scale = peaks + all_keys, -tau_b
    given = u + steps.to(tl.int64) * all_keys
    for first in tl.range(part * STEP, columns.length, programs * STEP):
        i = first + tl.arange(0, STEP)
        there = i < columns.count
        value = tl.load(given + i, mask=there, other=0.0) * scale
        _as_column(columns, i, there, value, peaks, totals)
    for first in tl.range(part * STEP, rows.length, programs * STEP):
        i = first + tl.arange(0, STEP)
        _as_column(rows, i, i < 0, i * 0.0, peaks, totals)
    target = programs
    met(counter, target, ALONE)
    half_steps = steps if SYMMETRIC else 2 * steps
    for half in tl.range(0, half_steps):
        if SYMMETRIC:
            step = steps - 1 - half
            biases = recorded(of_keys, step, 0, 1, all_keys)
            peaks = recorded(of_queries, tl.maximum(step - 1, 0), 0, OF_QUERIES, all_queries)
            totals, scale, made = peaks + all_queries, -tau_a / 2, u + step * all_keys
        else:
            step = steps - 1 - half // 2
            if half % 2 == 0:
                biases = recorded(of_queries, step, 2, OF_QUERIES, all_queries)
                peaks = recorded(of_queries, step, 0, OF_QUERIES, all_queries)
                totals, scale, made = peaks + all_queries, -tau_a, x + step * all_queries
            else:
                biases = recorded(of_keys, step, 0, 3, all_keys)
                peaks = recorded(of_keys, tl.maximum(step - 1, 0), 1, 3, all_keys)
                totals, scale, made = peaks + all_keys, -tau_b, u + step * all_keys
        for unit in tl.range(part, tl.cdiv(rows.count, BM) * rows.shares, programs):
            complete, i, there, value = _unit(
                rows, columns, unit, biases, shared, factor, D, BM, BN, SHARES, STAGES, SPLIT
            )
            if complete:
                if SYMMETRIC:
                    value += tl.load(made + all_keys + i, mask=there, other=0.0) / 2
                tl.store(made + i, value, mask=there)
                _as_column(rows, i, there, value * scale, peaks, totals)
        target += programs
        met(counter, target, ALONE)
        rows, columns = columns, rows
