r"""Kernel for many Sinkhorn steps in one launch, for wide points, on tensor cores.

The steps are those of the kernel for narrow points. A unit of work is a block of rows and a share
of the columns. So few rows still fill the device. Each unit leaves a shift and the sum of
$2^{\text{score}-\text{shift}}$ for each row. The last program to arrive at a block combines the
sums of all shares, in a fixed order, and writes the potentials. So the result does not depend on
which program that is.
"""

import triton
import triton.language as tl

from .parts import LN2, LOG2E, problem, product, scale_of_halves
from .steps import EXTRA, SAFE, SPREAD, copied, met, renewed


@triton.jit
def _scores(
    qs, qs_low, k, k_low, bias, shift, j0, N, factor, stride,
    D: tl.constexpr, D_PAD: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Scores with the biases of some columns less a shift, in base 2."""
    ks = _block(k, j0, N, stride, D, D_PAD, BN)
    ks_low = ks
    if SPLIT:
        ks_low = _block(k_low, j0, N, stride, D, D_PAD, BN)
    b = tl.load(bias + j0 + tl.arange(0, BN)) - shift
    return product(qs, qs_low, ks.T, ks_low.T, SPLIT, False) * factor + b[None, :]


@triton.jit
def _block(x, start, N, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr):
    """`SIZE` points from `start` on; past the end the last one, whose bias there is -inf."""
    i = tl.minimum(start + tl.arange(0, SIZE), N - 1).to(tl.int64)[:, None]
    d = tl.arange(0, PADDED)[None, :]
    at = x + (i * stride + d)
    if WIDTH < PADDED:
        return tl.load(at, mask=d < WIDTH, other=0.0)
    return tl.load(at)


@triton.jit
def _relative_sums(
    qs, qs_low, k, k_low, bias, shift, first, last, N, factor, stride,
    D: tl.constexpr, D_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Sums of exponentials relative to a shift that all rows have in common."""
    s = tl.zeros([BM], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        t = _scores(qs, qs_low, k, k_low, bias, shift, j0, N, factor, stride, D, D_PAD, BN, SPLIT)
        s += tl.sum(tl.exp2(t), 1)
    return s


@triton.jit
def _largest_and_sums(
    qs, qs_low, k, k_low, bias, first, last, N, factor, stride,
    D: tl.constexpr, D_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    STAGES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The largest score of each row, and sums of exponentials relative to it."""
    m = tl.full([BM], -float("inf"), tl.float32)
    s = tl.zeros([BM], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        t = _scores(qs, qs_low, k, k_low, bias, 0.0, j0, N, factor, stride, D, D_PAD, BN, SPLIT)
        top = tl.maximum(m, tl.max(t, 1))
        base = tl.where(top == -float("inf"), 0.0, top)
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
    base = tl.where(top == -float("inf"), 0.0, top)
    return top, tl.sum(total * tl.exp2(peak - base[None, :]), 0)


@triton.jit(do_not_specialize=["M", "N", "H", "half_steps", "programs", "shares_a", "shares_b"])
def run(
    q, k, q_low, k_low, survey, log_a, log_b, constant_a, constant_b, start, out,
    room, shared, counters, M, N, H, factor, tau_a, tau_b, half_steps, programs,
    shares_a, shares_b, sq, sk, sla, slb, sca, scb, ss,
    D: tl.constexpr, D_PAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SHARES: tl.constexpr, STAGES: tl.constexpr, ALONE: tl.constexpr, SPLIT: tl.constexpr,
    SHIFTED: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """All half-steps, by `programs` programs for each problem; `out` has the last potentials.

    The rows of a block share a shift, the middle of their last log-integrals. Where these lie far
    apart, or one is NaN, the largest score of each share is found instead. NaN stands for that in
    the first half-steps, and after a sum that was out of range. The columns have `shares_a` shares
    for the rows of one side and `shares_b` for those of the other, at most `SHARES`.
    """
    STEP: tl.constexpr = BM if BM > BN else BN
    z, part = tl.program_id(0) // programs, tl.program_id(0) % programs
    m_room, n_room = tl.cdiv(M, STEP) * STEP, tl.cdiv(N, STEP) * STEP
    room += z.to(tl.int64) * (m_room + n_room) * EXTRA
    rows, columns = room, room + m_room * EXTRA
    longest = tl.maximum(m_room, n_room)
    peaks = shared + z.to(tl.int64) * 2 * SHARES * longest
    sums = peaks + SHARES * longest
    counter = counters + z * (1 + tl.cdiv(m_room, BM) + tl.cdiv(n_room, BM))
    arrivals = counter + 1
    other_arrivals = arrivals + tl.cdiv(m_room, BM)
    factor *= LOG2E
    if SPLIT:
        factor *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    for first in tl.range(part * STEP, m_room, programs * STEP):
        copied(
            rows, q, log_a, constant_a, start, z, H, M, m_room, 1.0, sq, sla, sca,
            first, ss, 0, False, SHIFTED, STEP,
        )  # fmt: skip
    for first in tl.range(part * STEP, n_room, programs * STEP):
        copied(
            columns, k, log_b, constant_b, start, z, H, N, n_room, 1.0, sk, slb, scb,
            first, ss, 0, True, SHIFTED, STEP,
        )  # fmt: skip
    x, x_low = problem(q, z, H, sq), problem(q_low, z, H, sq)
    y, y_low = problem(k, z, H, sk), problem(k_low, z, H, sk)
    stride, other_stride = sq[2], sk[2]
    count, length, others, others_length = M, m_room, N, n_room
    tau, other_tau, shares, other_shares = tau_a, tau_b, shares_a, shares_b
    target = programs
    met(counter, target, ALONE)
    for half in tl.range(0, half_steps):
        for unit in tl.range(part, tl.cdiv(count, BM) * shares, programs):
            place, share = unit // shares, unit % shares
            i = place * BM + tl.arange(0, BM)
            qs = _block(x, place * BM, count, stride, D, D_PAD, BM)
            qs_low = qs
            if SPLIT:
                qs_low = _block(x_low, place * BM, count, stride, D, D_PAD, BM)
            width = tl.cdiv(tl.cdiv(others_length, shares), BN) * BN
            first = tl.minimum(share * width, others_length)
            last = tl.minimum(first + width, others_length)
            peak = tl.full([BM], float("nan"), tl.float32)
            if half >= 2:
                peak = tl.load(rows + length + i)
            low, high = tl.min(peak, 0), tl.max(peak, 0)
            wide = high - low >= SPREAD
            unknown = tl.maximum(tl.max((peak != peak).to(tl.int32), 0), wide.to(tl.int32))
            if unknown == 0:
                middle = (low + high) / 2
                peak = tl.zeros([BM], tl.float32) + middle
                total = _relative_sums(
                    qs, qs_low, y, y_low, columns, middle, first, last, others, factor,
                    other_stride, D, D_PAD, BM, BN, STAGES, SPLIT,
                )  # fmt: skip
            else:
                peak, total = _largest_and_sums(
                    qs, qs_low, y, y_low, columns, first, last, others, factor,
                    other_stride, D, D_PAD, BM, BN, STAGES, SPLIT,
                )  # fmt: skip
            complete = shares > 0
            if shares > 1:
                tl.store(peaks + share * length + i, peak)
                tl.store(sums + share * length + i, total)
                tl.debug_barrier()
                complete = tl.atomic_add(arrivals + place, 1) % shares == shares - 1
                if complete:
                    tl.debug_barrier()
                    peak, total = _combined(peaks, sums, i, shares, length, SHARES)
            if complete:
                near = (total > 1 / SAFE) & (total < SAFE)
                safe = tl.maximum(tl.min(near.to(tl.int32), 0), unknown)
                if safe == 0:
                    peak, total = _largest_and_sums(
                        qs, qs_low, y, y_low, columns, 0, others_length, others, factor,
                        other_stride, D, D_PAD, BM, BN, STAGES, SPLIT,
                    )  # fmt: skip
                integral = tl.where(total == 0.0, -float("inf"), peak + tl.log2(total))
                kept = tl.where((safe == 1) & (total > 0.0), integral, float("nan"))
                value = renewed(rows, columns, i, length, integral, kept, tau, 0, SYMMETRIC)
                final = (i < count) & (half == half_steps - 1)
                tl.store(out + z.to(tl.int64) * N + i, value * LN2, mask=final)
        target += programs
        met(counter, target, ALONE)
        rows, columns = columns, rows
        x, x_low, y, y_low = y, y_low, x, x_low
        stride, other_stride = other_stride, stride
        count, others = others, count
        length, others_length = others_length, length
        arrivals, other_arrivals = other_arrivals, arrivals
        tau, other_tau = other_tau, tau
        shares, other_shares = other_shares, shares
