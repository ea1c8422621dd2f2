r"""Kernels for many Sinkhorn steps, for points of at most four coordinates.

For the plan $e^{s\langle q_i,k_j\rangle+F_i+G_j}\mu\otimes\nu$ a step is

$$F=c_a-\tau_a\log\int e^{s\langle q,k\rangle+G}d\nu,\qquad
  G=c_b-\tau_b\log\int e^{s\langle q,k\rangle+F}d\mu.$$

In one launch each problem has programs that stay on the device for all steps. A program owns some
blocks of rows: queries in one half-step, keys in the next. Between two half-steps the programs of
a problem wait for each other at a barrier; one that is alone with its problem need not. If a
half-step is long, it is a launch of its own: then more programs can run at once.

The log-integral of a row changes little from step to step. So the last one replaces the largest
score as the shift, and a pair costs a multiply-add for each coordinate, an exponential and an
addition; another addition where the shifts of a block differ much. In the first two half-steps the
largest score with a few columns is the shift. If a sum leaves a safe range, the block is done
again with its largest scores.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .parts import LN2, LOG2E, coordinates, numbers, placed, plus_dot, problem

SAFE: tl.constexpr = tl.constexpr(2.0**80)
"""Sums between `1 / SAFE` and `SAFE` lost nothing: terms that vanished are below 2^-126."""

SPREAD: tl.constexpr = tl.constexpr(100.0)
"""Rows whose last log-integrals lie this close take their middle as common shift. That saves one
addition a pair."""

EXTRA: tl.constexpr = tl.constexpr(5)
"""Numbers kept for a point beside its coordinates: bias, last log-integral (infinite where it is
no shift for the next one), log-weight, constant, potential, all in base 2."""


class Side(NamedTuple):
    """One of the two sides of a problem.

    Args:
        numbers: what is kept of each point: coordinates, then `EXTRA` numbers.
        count: how many points there are.
        length: the same, up to a whole number of blocks.
        tau: the damping.
    """

    numbers: Any
    count: Any
    length: Any
    tau: Any


@triton.jit
def copied(
    side, x, logs, constants, start, z, H, factor, sx, sl, sc, ss, part, parts,
    D: tl.constexpr, STARTED: tl.constexpr, SHIFTED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Copy a part of the points and their numbers to where all steps read them.

    Points past the end have no mass. No log-integral is known. Only one side has potentials to
    start from (`STARTED`). If there are no constants they are 0 (`SHIFTED` is false).
    """
    count, length = side.count, side.length
    for first in tl.range(part * STEP, length, parts * STEP):
        at = side.numbers + first + tl.arange(0, STEP)
        if D > 0:
            x0 = problem(x, z, H, sx)
            coordinate = coordinates(x0, first, count, sx, factor, D, STEP, True)
            for d in tl.static_range(D):
                tl.store(at + d * length, coordinate[d])
        log = numbers(problem(logs, z, H, sl), first, count, sl[2], -float("inf"), STEP, True)
        log *= LOG2E
        constant = tl.zeros([STEP], tl.float32)
        if SHIFTED:
            constant = numbers(problem(constants, z, H, sc), first, count, sc[2], 0.0, STEP, True)
            constant *= LOG2E
        bias = log
        if STARTED:
            value = numbers(problem(start, z, H, ss), first, count, ss[2], 0.0, STEP, True)
            value *= LOG2E
            tl.store(at + (D + 4) * length, value)
            bias = tl.where(log == -float("inf"), log, log + value)
        tl.store(at + D * length, bias)
        tl.store(at + (D + 1) * length, tl.full([STEP], -float("inf"), tl.float32))
        tl.store(at + (D + 2) * length, log)
        tl.store(at + (D + 3) * length, constant)


@triton.jit
def met(counter, target, ALONE: tl.constexpr):
    """A barrier for all programs of a problem; what they wrote can be read afterwards.

    Each adds 1 to the counter and waits until it is `target`. The read that acquires also drops
    old lines from the cache of its processor.
    """
    tl.debug_barrier()
    if not ALONE:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
            pass
        tl.debug_barrier()


@triton.jit
def log_and_constant(rows, i, D: tl.constexpr):
    """The log-weights and the constants of some rows."""
    at = rows.numbers + (D + 2) * rows.length + i
    return tl.load(at), tl.load(at + rows.length)


@triton.jit
def renewed(
    rows, columns, i, log, constant, integral, kept, D: tl.constexpr, SYMMETRIC: tl.constexpr
):
    """Compute the new potential of some rows from their log-integral, and store it.

    `kept` is stored as last log-integral: the shift for the next one.
    """
    at = rows.numbers + D * rows.length + i
    value = constant - rows.tau * integral
    if SYMMETRIC:
        value = (tl.load(columns.numbers + (D + 4) * rows.length + i) + value) / 2
        tl.store(at + 4 * rows.length, value)
    tl.store(at, tl.where(log == -float("inf"), log, log + value))
    tl.store(at + rows.length, kept)
    return value


@triton.jit
def base_of(top):
    """A finite shift of scores whose largest is `top`: 0 without mass, or if one is infinite."""
    return tl.where(tl.abs(top) == float("inf"), 0.0, top)


@triton.jit
def extremes(shift, there):
    """The lowest and the highest shift of the rows that are `there`."""
    low = tl.min(tl.where(there, shift, float("inf")), 0)
    return low, tl.max(tl.where(there, shift, -float("inf")), 0)


@triton.jit
def out_of_range(total, there):
    """Whether a sum of the rows that are `there` is too small or large to have all its bits."""
    near = ((total > 1 / SAFE) & (total < SAFE)) | (there == 0)
    return tl.min(near.to(tl.int32), 0) == 0


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
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, COMMON: tl.constexpr,
):  # fmt: skip
    """Sums of exponentials relative to a shift of each row, or of all of them (`COMMON`)."""
    s = tl.zeros([BM, BN], tl.float32)
    for j0 in tl.range(0, length, GROUP * BN):
        for g in tl.static_range(GROUP):
            others, bias = _columns(columns, length, j0 + g * BN, D, BN)
            if COMMON:
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
    """A shift of each row: its largest score with columns up to `last`, if that is finite."""
    m = tl.full([BM, BN], -float("inf"), tl.float32)
    for j0 in tl.range(0, last, GROUP * BN):
        for g in tl.static_range(GROUP):
            others, bias = _columns(columns, length, j0 + g * BN, D, BN)
            m = tl.maximum(m, plus_dot(bias[None, :], points, others, D))
    return base_of(tl.max(m, 1))


@triton.jit
def _renew(
    rows, columns, i0, out, final, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """A half-step of the block of rows from `i0` on, with all columns.

    In the last half-step (`final`) the potentials are also written to `out`.
    """
    i = i0 + tl.arange(0, BM)
    at = rows.numbers + i
    numbers, length = columns.numbers, columns.length
    points = ()
    for d in tl.static_range(D):
        points = points + (tl.load(at + d * rows.length),)
    shift = tl.load(at + (D + 1) * rows.length)
    there = i < rows.count
    low, high = extremes(shift, there)
    if (high - low < float("inf")) == 0:
        shift = _largest(points, numbers, length, GROUP * BN, D, BM, BN, GROUP)
        low, high = extremes(shift, there)
    if high - low < SPREAD:
        middle = (low + high) / 2
        shift = tl.zeros([BM], tl.float32) + middle
        total = _relative_sums(points, middle, numbers, length, D, BM, BN, GROUP, True)
    else:
        total = _relative_sums(points, shift, numbers, length, D, BM, BN, GROUP, False)
    if out_of_range(total, there):
        shift = _largest(points, numbers, length, length, D, BM, BN, GROUP)
        total = _relative_sums(points, shift, numbers, length, D, BM, BN, GROUP, False)
    integral = shift + tl.log2(total)
    log, constant = log_and_constant(rows, i, D)
    value = renewed(rows, columns, i, log, constant, integral, integral, D, SYMMETRIC)
    tl.store(out + i, value * LN2, mask=final & there)


@triton.jit
def _sides(room, z, M, N, tau_a, tau_b, D: tl.constexpr, STEP: tl.constexpr):
    """Both sides of problem `z`: queries and keys."""
    m_room, n_room = tl.cdiv(M, STEP) * STEP, tl.cdiv(N, STEP) * STEP
    room += z.to(tl.int64) * (m_room + n_room) * (D + EXTRA)
    rows = Side(room, M, m_room, tau_a)
    return rows, Side(room + m_room * (D + EXTRA), N, n_room, tau_b)


@triton.jit
def _copied_sides(
    rows, columns, q, k, log_a, log_b, constant_a, constant_b, start, z, H, factor,
    sq, sk, sla, slb, sca, scb, ss, part, parts,
    D: tl.constexpr, SHIFTED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Copy a part of the points of both sides."""
    copied(
        rows, q, log_a, constant_a, start, z, H, factor * LOG2E, sq, sla, sca, ss, part, parts,
        D, False, SHIFTED, STEP,
    )  # fmt: skip
    copied(
        columns, k, log_b, constant_b, start, z, H, 1.0, sk, slb, scb, ss, part, parts,
        D, True, SHIFTED, STEP,
    )  # fmt: skip


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
    z, part = tl.program_id(0) // programs, tl.program_id(0) % programs
    rows, columns = _sides(room, z, M, N, tau_a, tau_b, D, GROUP * BN)
    _copied_sides(
        rows, columns, q, k, log_a, log_b, constant_a, constant_b, start, z, H, factor,
        sq, sk, sla, slb, sca, scb, ss, part, programs, D, SHIFTED, GROUP * BN,
    )  # fmt: skip
    out += z.to(tl.int64) * N
    counter, target = counters + z, programs
    met(counter, target, ALONE)
    for half in tl.range(0, half_steps):
        final = half == half_steps - 1
        for i0 in tl.range(part * BM, rows.count, programs * BM):
            _renew(rows, columns, i0, out, final, D, BM, BN, GROUP, SYMMETRIC)
        target += programs
        met(counter, target, ALONE)
        rows, columns = columns, rows


@triton.jit(do_not_specialize=["M", "N", "H"])
def prepare(
    q, k, log_a, log_b, constant_a, constant_b, start, room, M, N, H, factor,
    sq, sk, sla, slb, sca, scb, ss,
    D: tl.constexpr, SHIFTED: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Copy the points of both sides, for half-steps of one launch each."""
    z, part, parts = placed(tl.maximum(M, N), STEP)
    rows, columns = _sides(room, z, M, N, 1.0, 1.0, D, STEP)
    _copied_sides(
        rows, columns, q, k, log_a, log_b, constant_a, constant_b, start, z, H, factor,
        sq, sk, sla, slb, sca, scb, ss, part, parts, D, SHIFTED, STEP,
    )  # fmt: skip


@triton.jit(do_not_specialize=["M", "N", "final"])
def half_step(
    room, out, M, N, tau_a, tau_b, final,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    SYMMETRIC: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """One half-step, by a program for each block: of the queries, or of the keys (`TURNED`)."""
    z, place, _ = placed(N if TURNED else M, BM)
    rows, columns = _sides(room, z, M, N, tau_a, tau_b, D, GROUP * BN)
    if TURNED:
        rows, columns = columns, rows
    out += z.to(tl.int64) * N
    _renew(rows, columns, place * BM, out, final == 1, D, BM, BN, GROUP, SYMMETRIC)
