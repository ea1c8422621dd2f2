r"""Kernels for many Sinkhorn steps in one launch, for wide points, on tensor cores.

The steps are those of the kernels for narrow points, see `steps`. A unit of work is a block of
rows and a share of the columns, so that few rows still fill the device. Each unit leaves a shift
and the sum of $2^{\text{score}-\text{shift}}$ for each row. The program that finishes the last
unit of a block combines the sums of all shares, in a fixed order, and writes the potentials. So
the result does not depend on which program that is.

The points of a problem lie one after another, and others follow up to a whole number of blocks.
Those have no mass, so nothing in a loop needs a mask.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .parts import LN2, LOG2E, block, product, scale_of_halves
from .steps import (
    EXTRA,
    SPREAD,
    base_of,
    copied,
    extremes,
    log_and_constant,
    met,
    out_of_range,
    renewed,
)


class WideSide(NamedTuple):
    """One of the two sides of a problem, a `steps.Side` with more fields.

    Args:
        numbers: the `EXTRA` numbers that are kept of each point.
        count: how many points there are.
        length: the same, up to a whole number of blocks.
        tau: the damping.
        points: the points in half precision, or their high halves.
        low: their low halves.
        arrivals: for each block of rows, how many units of it are done.
        shares: how many shares the columns have for these rows.
    """

    numbers: Any
    count: Any
    length: Any
    tau: Any
    points: Any
    low: Any
    arrivals: Any
    shares: Any


@triton.jit
def sides_of(
    q, k, q_low, k_low, room, counters, z, M, N, tau_a, tau_b, shares_a, shares_b,
    D: tl.constexpr, BM: tl.constexpr, STEP: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """Both sides of problem `z`, queries and keys, and the counter of its barriers.

    For each point `room` has `KEPT` numbers.
    """
    at = z.to(tl.int64)
    m_room, n_room = tl.cdiv(M, STEP) * STEP, tl.cdiv(N, STEP) * STEP
    room += at * (m_room + n_room) * KEPT
    counter = counters + z * (1 + tl.cdiv(m_room, BM) + tl.cdiv(n_room, BM))
    queries = WideSide(
        room, M, m_room, tau_a, q + at * m_room * D, q_low + at * m_room * D, counter + 1,
        shares_a,
    )  # fmt: skip
    keys = WideSide(
        room + m_room * KEPT, N, n_room, tau_b, k + at * n_room * D, k_low + at * n_room * D,
        counter + 1 + tl.cdiv(m_room, BM), shares_b,
    )  # fmt: skip
    return queries, keys, counter


@triton.jit
def in_base_2(factor, survey, z, SPLIT: tl.constexpr):
    """What dot products of points as they are stored are multiplied by for scores in base 2."""
    factor *= LOG2E
    if SPLIT:
        factor *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    return factor


@triton.jit
def halves_of(side, start, D: tl.constexpr, SIZE: tl.constexpr, SPLIT: tl.constexpr):
    """`SIZE` points from `start` on, and their low halves if there are any."""
    high = block(side.points, start, 0, (0, 0, D, 1), D, D, SIZE, False)
    low = high
    if SPLIT:
        low = block(side.low, start, 0, (0, 0, D, 1), D, D, SIZE, False)
    return high, low


@triton.jit
def _scores(
    qs, qs_low, columns, shift, j0, factor,
    D: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Scores with the biases of some columns less a shift, in base 2."""
    ks, ks_low = halves_of(columns, j0, D, BN, SPLIT)
    bias = tl.load(columns.numbers + j0 + tl.arange(0, BN)) - shift
    return product(qs, qs_low, ks.T, ks_low.T, SPLIT, False) * factor + bias[None, :]


@triton.jit
def _relative_sums(
    qs, qs_low, columns, shift, first, last, factor,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Sums of exponentials relative to a shift that all rows have in common."""
    s = tl.zeros([BM], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        s += tl.sum(tl.exp2(_scores(qs, qs_low, columns, shift, j0, factor, D, BN, SPLIT)), 1)
    return s


@triton.jit
def _largest_and_sums(
    qs, qs_low, columns, first, last, factor,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """The largest score of each row, and sums of exponentials relative to it."""
    m = tl.full([BM], -float("inf"), tl.float32)
    s = tl.zeros([BM], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        t = _scores(qs, qs_low, columns, 0.0, j0, factor, D, BN, SPLIT)
        top = tl.maximum(m, tl.max(t, 1))
        base = base_of(top)
        s = s * tl.exp2(m - base) + tl.sum(tl.exp2(t - base[:, None]), 1)
        m = top
    return m, s


@triton.jit
def _combined(peaks, sums, i, shares, length, SHARES: tl.constexpr):
    """Add the sums of all shares: the largest of their shifts, and the sum relative to it."""
    share = tl.arange(0, SHARES)[:, None]
    at = share * length + i[None, :]
    peak = tl.load(peaks + at, mask=share < shares, other=-float("inf"))
    total = tl.load(sums + at, mask=share < shares, other=0.0)
    top = tl.max(peak, 0)
    return top, tl.sum(total * tl.exp2(peak - base_of(top)[None, :]), 0)


@triton.jit
def recorded(record, step, kind, kinds, stride):
    """Where a record has the numbers of one kind that a step keeps, for a problem.

    `kinds` is how many numbers a step keeps for a point, `stride` the points of all problems.
    """
    return record + (tl.full([], 1, tl.int64) * step * kinds + kind) * stride


@triton.jit
def _places(of_queries, of_keys, half, all_queries, all_keys, SYMMETRIC: tl.constexpr):
    """Where a half-step records the shifts of its rows, and where their new biases.

    The sums relative to the shifts follow at a distance of `stride`.
    """
    if SYMMETRIC:
        shifts, stride = recorded(of_queries, half, 0, 2, all_queries), all_queries
        biases = recorded(of_keys, half + 1, 0, 1, all_keys)
    else:
        if half % 2 == 0:
            shifts, stride = recorded(of_queries, half // 2, 0, 3, all_queries), all_queries
        else:
            shifts, stride = recorded(of_keys, half // 2, 1, 3, all_keys), all_keys
        biases = shifts + 2 * stride
    return shifts, stride, biases


@triton.jit
def _record(rows, i, there, peak, total, log, value, shifts, stride, biases, largest, final):
    """Record shifts and sums of some rows, and their new biases except after the last half-step.

    Recorded biases are natural logarithms. Those of the next half-step are made of them again, so
    that both are equal to the last bit. `largest` has the largest logarithm so far, in size.
    """
    tl.store(shifts + i, tl.where(total == 0.0, -float("inf"), peak), mask=there)
    tl.store(shifts + stride + i, total, mask=there)
    bias = tl.where(log == -float("inf"), log, (log + value) * LN2)
    tl.store(rows.numbers + i, bias * LOG2E)
    tl.store(biases + i, bias, mask=there & (final == 0))
    size = tl.maximum(tl.abs(bias), tl.abs(peak + tl.log2(total)) * LN2)
    _raise(largest, tl.where(there & (log != -float("inf")), size, 0.0))


@triton.jit
def _raise(largest, size):
    """Raise a number to the largest of some that are not negative; NaN counts as infinite."""
    size = tl.max(tl.where(size == size, size, float("inf")), 0)
    tl.atomic_max(largest, size.to(tl.int32, bitcast=True))


@triton.jit
def _unit(
    rows, columns, unit, shared, longest, factor, out, final, shifts, stride, biases, largest,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr, SYMMETRIC: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """One unit of a half-step; the last one of a block stores the new potentials.

    The rows of a block share a shift, the middle of their last log-integrals. Where these lie far
    apart, the largest score of each share is found instead. Minus infinity asks for that in the
    first half-steps, and after a sum that was out of range. If there is a record, `shifts`,
    `stride` and `biases` say where it has what `_record` writes.
    """
    place, share = unit // rows.shares, unit % rows.shares
    i = place * BM + tl.arange(0, BM)
    there = i < rows.count
    qs, qs_low = halves_of(rows, place * BM, D, BM, SPLIT)
    width = tl.cdiv(tl.cdiv(columns.length, rows.shares), BN) * BN
    first = tl.minimum(share * width, columns.length)
    last = tl.minimum(first + width, columns.length)
    peak = tl.load(rows.numbers + rows.length + i)
    low, high = extremes(peak, there)
    searched = (high - low < SPREAD) == 0
    if searched:
        peak, total = _largest_and_sums(
            qs, qs_low, columns, first, last, factor, D, BM, BN, STAGES, SPLIT
        )
    else:
        middle = (low + high) / 2
        peak = tl.zeros([BM], tl.float32) + middle
        total = _relative_sums(
            qs, qs_low, columns, middle, first, last, factor, D, BM, BN, STAGES, SPLIT
        )
    log, constant = log_and_constant(rows, i, 0)  # loaded before they are needed
    complete = rows.shares > 0
    if rows.shares > 1:
        shared_sums = shared + SHARES * longest
        tl.store(shared + share * rows.length + i, peak)
        tl.store(shared_sums + share * rows.length + i, total)
        tl.debug_barrier()
        complete = tl.atomic_add(rows.arrivals + place, 1) % rows.shares == rows.shares - 1
        if complete:
            tl.debug_barrier()
            peak, total = _combined(shared, shared_sums, i, rows.shares, rows.length, SHARES)
    if complete:
        again = out_of_range(total, there) & (searched == 0)
        if again:
            peak, total = _largest_and_sums(
                qs, qs_low, columns, 0, columns.length, factor, D, BM, BN, STAGES, SPLIT
            )
        integral = peak + tl.log2(total)
        shift = tl.where(again, -float("inf"), integral)
        value = renewed(rows, columns, i, log, constant, integral, shift, 0, SYMMETRIC)
        if RECORD:
            _record(
                rows, i, there, peak, total, log, value, shifts, stride, biases, largest, final
            )
        tl.store(out + i, value * LN2, mask=final & there)


@triton.jit(do_not_specialize=["M", "N", "H", "half_steps", "programs", "shares_a", "shares_b"])
def run(
    q, k, q_low, k_low, survey, log_a, log_b, constant_a, constant_b, start, out,
    of_queries, of_keys, largest, room, shared, counters, M, N, H, factor, tau_a, tau_b,
    half_steps, programs, shares_a, shares_b, sla, slb, sca, scb, ss,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr,
    STAGES: tl.constexpr, ALONE: tl.constexpr, SPLIT: tl.constexpr, SHIFTED: tl.constexpr,
    SYMMETRIC: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    """All half-steps, by `programs` programs for each problem; `out` has the last potentials.

    The columns have `shares_a` shares for the rows of one side and `shares_b` for those of the
    other, at most `SHARES`. Points of width `D` have zeros behind them up to a whole number of
    blocks of both sizes. What gradients need is recorded in `of_queries` and `of_keys` (`RECORD`),
    as `sinkhorn._adjoint.adjoint` describes it; `of_keys` has the first biases.
    """
    STEP: tl.constexpr = BM if BM > BN else BN
    z, part = tl.program_id(0) // programs, tl.program_id(0) % programs
    at = z.to(tl.int64)
    rows, columns, counter = sides_of(
        q, k, q_low, k_low, room, counters, z, M, N, tau_a, tau_b, shares_a, shares_b,
        D, BM, STEP, EXTRA,
    )  # fmt: skip
    longest = tl.maximum(rows.length, columns.length)
    shared += at * 2 * SHARES * longest
    out += at * N
    factor = in_base_2(factor, survey, z, SPLIT)
    copied(
        rows, q, log_a, constant_a, start, z, H, 1.0, None, sla, sca, ss, part, programs,
        0, False, SHIFTED, STEP,
    )  # fmt: skip
    copied(
        columns, k, log_b, constant_b, start, z, H, 1.0, None, slb, scb, ss, part, programs,
        0, True, SHIFTED, STEP,
    )  # fmt: skip
    if RECORD:
        problems = (tl.num_programs(0) // programs).to(tl.int64)
        all_queries, all_keys = problems * M, problems * N
        of_queries, of_keys = of_queries + at * M, of_keys + at * N
        for first in tl.range(part * STEP, columns.length, programs * STEP):
            i = first + tl.arange(0, STEP)
            bias = tl.load(of_keys + i, mask=i < N, other=-float("inf"))
            tl.store(columns.numbers + i, bias * LOG2E)
            _raise(largest, tl.where(bias == -float("inf"), 0.0, tl.abs(bias)))
    target = programs
    met(counter, target, ALONE)
    for half in tl.range(0, half_steps):
        for unit in tl.range(part, tl.cdiv(rows.count, BM) * rows.shares, programs):
            shifts, stride, biases = out, 0, out
            if RECORD:
                shifts, stride, biases = _places(
                    of_queries, of_keys, half, all_queries, all_keys, SYMMETRIC
                )
            _unit(
                rows, columns, unit, shared, longest, factor, out, half == half_steps - 1,
                shifts, stride, biases, largest, D, BM, BN, SHARES, STAGES, SPLIT, SYMMETRIC,
                RECORD,
            )  # fmt: skip
        target += programs
        met(counter, target, ALONE)
        rows, columns = columns, rows
