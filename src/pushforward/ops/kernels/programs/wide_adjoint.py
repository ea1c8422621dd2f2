r"""Kernels that go back through many Sinkhorn steps, for wide points.

`run` goes through all steps in one launch. `factors` prepares the gradient in the points.

With the weights $P^t,Q^t$ of the half-steps, see `sinkhorn._adjoint`, the adjoint $u^t$ of the
potential of the keys goes back to $u^{t-1}$ by

$$x^t_i=\sum_jQ^t_{ij}(-\tau_bu^t_j),\qquad u^{t-1}_j=\sum_iP^t_{ij}(-\tau_ax^t_i).$$

Both are sums over columns of powers of 2 times a number for each column. A weight is
$2^{S_{ij}+b_i-p_j}/s_j$ with the bias $b_i$ of a row and the shift $p_j$ and the sum $s_j$ of a
column, which the steps have recorded. Units, shares and barriers are those of `wide_steps`.
"""

import triton
import triton.language as tl

from .parts import LOG2E, placed, product
from .steps import extremes, met
from .wide_steps import halves_of, in_base_2, recorded, sides_of

NEAR: tl.constexpr = tl.constexpr(40.0)
"""Rows of a block whose biases lie this close share the middle of them. Sums of weights are
between 2^-80 and 2^80, so powers relative to it stay in range."""

KEPT: tl.constexpr = tl.constexpr(2)
"""Numbers for each column: its shift, with the opposite sign, and what multiplies its powers."""


@triton.jit
def _weighted_sums(
    qs, qs_low, columns, bias, shift, first, last, factor,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr, COMMON: tl.constexpr,
):  # fmt: skip
    """Sums over columns of the numbers of columns times powers of 2.

    In the exponents is the bias of each row, or a shift that all rows have in common (`COMMON`).
    """
    s = tl.zeros([BM], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        ks, ks_low = halves_of(columns, j0, D, BN, SPLIT)
        at = columns.numbers + j0 + tl.arange(0, BN)
        t = product(qs, qs_low, ks.T, ks_low.T, SPLIT, False) * factor
        if COMMON:
            t += (tl.load(at) + shift)[None, :]
        else:
            t += tl.load(at)[None, :] + bias[:, None]
        s += tl.sum(tl.exp2(t) * tl.load(at + columns.length)[None, :], 1)
    return s


@triton.jit
def _as_column(side, i, there, value, peaks, totals):
    """Store the numbers that rows have as columns of the next half-step; see `KEPT`.

    Rows without mass get minus infinity and zero.
    """
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
    """One unit of a half-step: whether it was the last one of its block, rows, and their sums.

    The sums are complete if it was the last.
    """
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
    queries, keys, counter = sides_of(
        q, k, q_low, k_low, room, counters, z, M, N, tau_a, tau_b, shares_a, shares_b,
        D, BM, STEP, KEPT,
    )  # fmt: skip
    shared += at * SHARES * tl.maximum(queries.length, keys.length)
    factor = in_base_2(factor, survey, z, SPLIT)
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


@triton.jit
def _potential(
    base, term, stride, there, steps, EACH: tl.constexpr, KINDS: tl.constexpr,
    HIGH: tl.constexpr, BIAS: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """The potential of a term at some points, in base 2 and float64, and which step it is from."""
    weighted = term % EACH == WEIGHTED
    step = steps - 1 - term // EACH
    at = base + step.to(tl.int64) * KINDS * stride
    high = tl.load(at + HIGH * stride, mask=there & weighted, other=0.0).to(tl.float64)
    low = tl.load(at + (HIGH + 1) * stride, mask=there & weighted, other=1.0).to(tl.float64)
    bias = tl.load(at + BIAS * stride, mask=there & (weighted == 0), other=0.0)
    bias = (bias * LOG2E).to(tl.float64)
    return tl.where(weighted, -high - tl.log2(low), bias), step, weighted


@triton.jit(do_not_specialize=["N", "steps", "first", "count"])
def factors(
    record, adjoints, made, N, steps, first, count, tau,
    EACH: tl.constexpr, KINDS: tl.constexpr, HIGH: tl.constexpr, BIAS: tl.constexpr,
    WEIGHTED: tl.constexpr, TERMS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    r"""$A^t_ie^{\varphi^t_i-\varphi_i}$ of one side, for terms from `first` on, see `adjoint`.

    A step has `EACH` terms. Those that are `WEIGHTED` have the negative log-integral of a
    half-step as potential, and its adjoint times $-\tau$ as factor. The others have a bias, and 1.
    Of the `KINDS` numbers that a step keeps for a point, `HIGH` and the next are the two summands
    of the log-integral, and `BIAS` is the bias. Differences of potentials are formed in float64,
    because terms may nearly cancel.
    """
    z, place, blocks = placed(N, SIZE)
    i = (place * SIZE + tl.arange(0, SIZE))[:, None]
    term = first + tl.arange(0, TERMS)[None, :]
    there = (i < N) & (term < first + count)
    stride = (tl.num_programs(0) // blocks).to(tl.int64) * N
    row = z.to(tl.int64) * N + i
    phi, step, weighted = _potential(
        record + row, term, stride, there, steps, EACH, KINDS, HIGH, BIAS, WEIGHTED
    )
    begin, first_step, first_weighted = _potential(
        record + row, first + 0 * term, stride, there, steps, EACH, KINDS, HIGH, BIAS, WEIGHTED
    )
    upstream = tl.load(
        adjoints + step.to(tl.int64) * stride + row, mask=there & weighted, other=0.0
    )
    factor = tl.where(weighted, -tau * upstream, 1.0)
    value = tl.exp2(phi - begin).to(tl.float32) * factor
    nothing = (factor == 0.0) | (tl.abs(begin) == float("inf"))
    column = term - first
    tl.store(made + row * count + column, tl.where(nothing, 0.0, value), mask=there)
