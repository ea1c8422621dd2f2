r"""Kernel for many Sinkhorn steps in one launch, for points of at most four coordinates.

For the plan $e^{s\langle q_i,k_j\rangle+F_i+G_j}\mu\otimes\nu$ a step is

$$F=c_a-\tau_a\log\int e^{s\langle q,k\rangle+G}d\nu,\qquad
  G=c_b-\tau_b\log\int e^{s\langle q,k\rangle+F}d\mu.$$

Each problem has programs that stay on the device for all steps. A program owns some blocks of
rows: queries in one half-step, keys in the next. Between two half-steps the programs of a problem
wait for each other; one that is alone with its problem need not.

The log-integral of a row changes little from step to step. So the last one replaces the largest
score, and a pair costs a multiply-add for each coordinate, an exponential and an addition; another
addition where the rows of a block differ much. In the first two half-steps the largest score with
a few columns does. If a sum leaves a safe range, the block is done again with its largest scores.
"""

import triton
import triton.language as tl

from .parts import LN2, LOG2E, coordinates, numbers, plus_dot, problem

SAFE: tl.constexpr = tl.constexpr(2.0**80)
"""Sums between `1 / SAFE` and `SAFE` lost nothing: terms that vanished are below 2^-126."""

SPREAD: tl.constexpr = tl.constexpr(100.0)
"""Rows whose last log-integrals lie this close take their middle as common shift. That saves one
addition a pair."""

EXTRA: tl.constexpr = tl.constexpr(5)
"""Numbers kept for a point beside its coordinates: bias, log-integral, log-weight, constant,
potential, all in base 2."""


@triton.jit
def copied(
    side, x, logs, constants, start, z, H, M, length, factor, sx, sl, sc, first, stride,
    D: tl.constexpr, STARTED: tl.constexpr, SHIFTED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Copy `STEP` points and their numbers to where all steps read them; no mass past the end."""
    i = tl.arange(0, STEP)
    at = side + first + i
    parts = coordinates(problem(x, z, H, sx), first, M, sx, factor, D, STEP, True)
    for d in tl.static_range(D):
        tl.store(at + d * length, parts[d])
    log = numbers(problem(logs, z, H, sl), first, M, sl[2], -float("inf"), STEP, True) * LOG2E
    tl.store(at + (D + 2) * length, log)
    constant = tl.zeros([STEP], tl.float32)
    if SHIFTED:
        constant = numbers(problem(constants, z, H, sc), first, M, sc[2], 0.0, STEP, True) * LOG2E
    tl.store(at + (D + 3) * length, constant)
    bias = log
    if STARTED:
        value = numbers(problem(start, z, H, stride), first, M, stride[2], 0.0, STEP, True) * LOG2E
        tl.store(at + (D + 4) * length, value)
        bias = tl.where(log == -float("inf"), log, log + value)
    tl.store(at + D * length, bias)


@triton.jit
def met(counter, target, ALONE: tl.constexpr):
    """Wait until all programs of a problem are here; what they wrote can be read afterwards.

    The read that acquires also drops old lines from the cache of its processor.
    """
    tl.debug_barrier()
    if not ALONE:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
            pass
        tl.debug_barrier()


@triton.jit
def renewed(
    rows, columns, i, length, integral, kept, tau, D: tl.constexpr, SYMMETRIC: tl.constexpr
):
    """Compute the new potential of some rows from their log-integral, and store it."""
    at = rows + D * length + i
    log, constant = tl.load(at + 2 * length), tl.load(at + 3 * length)
    value = constant - tau * integral
    if SYMMETRIC:
        value = (tl.load(columns + (D + 4) * length + i) + value) / 2
        tl.store(at + 4 * length, value)
    tl.store(at, tl.where(log == -float("inf"), log, log + value))
    tl.store(at + length, kept)
    return value


@triton.jit
def _columns(columns, length, j0, D: tl.constexpr, BN: tl.constexpr):
    """Load the coordinates and the biases of `BN` columns from `j0` on."""
    at = columns + j0 + tl.arange(0, BN)
    others = ()
    for d in tl.static_range(D):
        others = others + (tl.load(at + d * length),)
    return others, tl.load(at + D * length)


@triton.jit
def _relative_sums(
    points, shift, columns, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Sums of exponentials relative to a shift of each row, or of all of them (`EVEN`)."""
    s = tl.zeros([BM, BN], tl.float32)
    for j0 in tl.range(0, length, GROUP * BN):
        for g in tl.static_range(GROUP):
            others, bias = _columns(columns, length, j0 + g * BN, D, BN)
            if EVEN:
                t = (bias - shift)[None, :]
            else:
                t = bias[None, :] - shift[:, None]
            s += tl.exp2(plus_dot(t, points, others, D))
    return tl.sum(s, 1)


@triton.jit
def _largest(
    points, columns, length, last,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The largest score of each row with columns up to `last`, or 0 if there is none."""
    m = tl.full([BM, BN], -float("inf"), tl.float32)
    for j0 in tl.range(0, last, GROUP * BN):
        for g in tl.static_range(GROUP):
            others, bias = _columns(columns, length, j0 + g * BN, D, BN)
            m = tl.maximum(m, plus_dot(bias[None, :], points, others, D))
    top = tl.max(m, 1)
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit(do_not_specialize=["M", "N", "H", "half_steps", "programs"])
def run(
    q, k, log_a, log_b, constant_a, constant_b, start, out, room, counters,
    M, N, H, factor, tau_a, tau_b, half_steps, programs, sq, sk, sla, slb, sca, scb, ss,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    ALONE: tl.constexpr, SHIFTED: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """All half-steps, by `programs` programs for each problem; `out` has the last potentials.

    `ALONE` if a problem has one program. If `SYMMETRIC`, queries are the keys, and a half-step
    averages the potential with the one it finds; the two sides hold it before and after in turn.
    """
    STEP: tl.constexpr = GROUP * BN
    z, part = tl.program_id(0) // programs, tl.program_id(0) % programs
    m_room, n_room = tl.cdiv(M, STEP) * STEP, tl.cdiv(N, STEP) * STEP
    room += z.to(tl.int64) * (m_room + n_room) * (D + EXTRA)
    rows, columns = room, room + m_room * (D + EXTRA)
    counter = counters + z
    for first in tl.range(part * STEP, m_room, programs * STEP):
        copied(
            rows, q, log_a, constant_a, start, z, H, M, m_room, factor * LOG2E, sq, sla, sca,
            first, ss, D, False, SHIFTED, STEP,
        )  # fmt: skip
    for first in tl.range(part * STEP, n_room, programs * STEP):
        copied(
            columns, k, log_b, constant_b, start, z, H, N, n_room, 1.0, sk, slb, scb,
            first, ss, D, True, SHIFTED, STEP,
        )  # fmt: skip
    count, length, others_length = M, m_room, n_room
    tau, other_tau, other_count = tau_a, tau_b, N
    target = programs
    met(counter, target, ALONE)
    for half in tl.range(0, half_steps):
        for i0 in tl.range(part * BM, count, programs * BM):
            i = i0 + tl.arange(0, BM)
            at = rows + i
            points = ()
            for d in tl.static_range(D):
                points = points + (tl.load(at + d * length),)
            if half < 2:
                shift = _largest(points, columns, others_length, STEP, D, BM, BN, GROUP)
            else:
                shift = tl.load(at + (D + 1) * length)
            low, high = tl.min(shift, 0), tl.max(shift, 0)
            if high - low < SPREAD:
                middle = (low + high) / 2
                shift = tl.zeros([BM], tl.float32) + middle
                total = _relative_sums(
                    points, middle, columns, others_length, D, BM, BN, GROUP, True
                )
            else:
                total = _relative_sums(
                    points, shift, columns, others_length, D, BM, BN, GROUP, False
                )
            near = ((total > 1 / SAFE) & (total < SAFE)) | (i >= count)
            if tl.min(near.to(tl.int32), 0) == 0:
                shift = _largest(points, columns, others_length, others_length, D, BM, BN, GROUP)
                total = _relative_sums(
                    points, shift, columns, others_length, D, BM, BN, GROUP, False
                )
            integral = shift + tl.log2(total)
            value = renewed(rows, columns, i, length, integral, integral, tau, D, SYMMETRIC)
            final = (i < count) & (half == half_steps - 1)
            tl.store(out + z.to(tl.int64) * N + i, value * LN2, mask=final)
        target += programs
        met(counter, target, ALONE)
        rows, columns = columns, rows
        count, other_count = other_count, count
        length, others_length = others_length, length
        tau, other_tau = other_tau, tau
