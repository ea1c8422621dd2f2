r"""Many Sinkhorn steps in one launch, for points of at most four coordinates.

For the plan $e^{s\langle q_i,k_j\rangle+F_i+G_j}\mu\otimes\nu$ a step is

$$F=c_a-\tau_a\log\int e^{s\langle q,k\rangle+G}d\nu,\qquad
  G=c_b-\tau_b\log\int e^{s\langle q,k\rangle+F}d\mu.$$

Each problem has programs that stay on the device for all steps. A program owns some blocks of
rows: queries in one half-step, keys in the next. Between two half-steps the programs of a problem
wait for each other; one that is alone with its problem need not.

The log-integral of a row changes little from step to step. So the last one replaces the largest
score, and a pair costs a multiply-add for each coordinate, two additions and an exponential. If
the sum leaves a safe range, the block is done again with its largest scores.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from ..._tools.once import refuse
from ._narrow import _plus_dot
from ._parts import LOG2E, coordinates, numbers, problem
from ._problem import strides

LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
SAFE: tl.constexpr = tl.constexpr(2.0**60)
"""Sums between `1 / SAFE` and `SAFE` lost nothing: terms that vanished are below 2^-126."""

EXTRA: tl.constexpr = tl.constexpr(5)
"""Numbers kept for a point beside its coordinates: bias, log-integral, log-weight, constant,
potential, all in base 2."""


@triton.jit
def _copied(
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
def _met(counter, target, ALONE: tl.constexpr):
    """Wait until all programs of a problem are here; what they wrote can be read afterwards."""
    tl.debug_barrier()
    if not ALONE:
        tl.atomic_add(counter, 1, sem="release", scope="gpu")
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
            pass
        tl.debug_barrier()


@triton.jit
def _columns(columns, length, j0, D: tl.constexpr, BN: tl.constexpr, ALONE: tl.constexpr):
    """Coordinates and biases of some columns; the cache of a processor may hold old biases."""
    at = columns + j0 + tl.arange(0, BN)
    others = ()
    for d in tl.static_range(D):
        others = others + (tl.load(at + d * length),)
    if ALONE:
        return others, tl.load(at + D * length)
    return others, tl.load(at + D * length, cache_modifier=".cg")


@triton.jit
def _relative_sums(
    points, shift, columns, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Sums of exponentials relative to a given shift of each row."""
    s = tl.zeros([BM, BN], tl.float32)
    for j0 in tl.range(0, length, GROUP * BN):
        for g in tl.static_range(GROUP):
            others, bias = _columns(columns, length, j0 + g * BN, D, BN, ALONE)
            s += tl.exp2(_plus_dot(bias[None, :] - shift[:, None], points, others, D))
    return tl.sum(s, 1)


@triton.jit
def _largest_and_sums(
    points, columns, length,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The largest score of each row, or 0 if there is none, and the sum relative to it."""
    m = tl.full([BM, BN], -float("inf"), tl.float32)
    s = tl.zeros([BM, BN], tl.float32)
    for j0 in tl.range(0, length, BN):
        others, bias = _columns(columns, length, j0, D, BN, ALONE)
        t = _plus_dot(bias[None, :], points, others, D)
        top = tl.maximum(m, t)
        base = tl.where(top == -float("inf"), 0.0, top)
        s = s * tl.exp2(m - base) + tl.exp2(t - base)
        m = top
    top = tl.max(m, 1)
    top = tl.where(top == -float("inf"), 0.0, top)
    weight = tl.exp2(m - top[:, None])
    return top, tl.sum(s * weight, 1)


@triton.jit
def run(
    q, k, log_a, log_b, constant_a, constant_b, start, out, room, counters,
    M, N, H, factor, tau_a, tau_b, halves, sq, sk, sla, slb, sca, scb, ss,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr, SHIFTED: tl.constexpr, SYMMETRIC: tl.constexpr,
):  # fmt: skip
    """All half-steps of `PROGRAMS` programs for each problem; `out` has the last potentials.

    If `SYMMETRIC`, queries are the keys, and each half-step averages the potential before it with
    the one it finds; the two sides then hold the potential before and after in turn.
    """
    STEP: tl.constexpr = GROUP * BN
    ALONE: tl.constexpr = PROGRAMS == 1
    z, part = tl.program_id(0) // PROGRAMS, tl.program_id(0) % PROGRAMS
    m_room, n_room = tl.cdiv(M, STEP) * STEP, tl.cdiv(N, STEP) * STEP
    room += z.to(tl.int64) * (m_room + n_room) * (D + EXTRA)
    rows, columns = room, room + m_room * (D + EXTRA)
    counter = counters + z
    for first in tl.range(part * STEP, m_room, PROGRAMS * STEP):
        _copied(
            rows, q, log_a, constant_a, start, z, H, M, m_room, factor * LOG2E, sq, sla, sca,
            first, ss, D, False, SHIFTED, STEP,
        )  # fmt: skip
    for first in tl.range(part * STEP, n_room, PROGRAMS * STEP):
        _copied(
            columns, k, log_b, constant_b, start, z, H, N, n_room, 1.0, sk, slb, scb,
            first, ss, D, True, SHIFTED, STEP,
        )  # fmt: skip
    count, length, others_length = M, m_room, n_room
    tau, other_tau, other_count = tau_a, tau_b, N
    target = PROGRAMS
    _met(counter, target, ALONE)
    for half in tl.range(0, halves):
        for i0 in tl.range(part * BM, count, PROGRAMS * BM):
            i = i0 + tl.arange(0, BM)
            at = rows + i
            points = ()
            for d in tl.static_range(D):
                points = points + (tl.load(at + d * length),)
            log, constant = tl.load(at + (D + 2) * length), tl.load(at + (D + 3) * length)
            shift = tl.zeros([BM], tl.float32)
            total = tl.zeros([BM], tl.float32)
            again = 1
            if half >= 2:
                shift = tl.load(at + (D + 1) * length)
                total = _relative_sums(
                    points, shift, columns, others_length, D, BM, BN, GROUP, ALONE
                )
                safe = ((total > 1 / SAFE) & (total < SAFE)) | (i >= count)
                again = 1 - tl.min(safe.to(tl.int32), 0)
            if again == 1:
                shift, total = _largest_and_sums(points, columns, others_length, D, BM, BN, ALONE)
            integral = shift + tl.log2(total)
            value = constant - tau * integral
            if SYMMETRIC:
                value = (tl.load(columns + (D + 4) * length + i) + value) / 2
                tl.store(at + (D + 4) * length, value)
            tl.store(at + D * length, tl.where(log == -float("inf"), log, log + value))
            tl.store(at + (D + 1) * length, integral)
            final = (i < count) & (half == halves - 1)
            tl.store(out + z.to(tl.int64) * N + i, value * LN2, mask=final)
        target += PROGRAMS
        _met(counter, target, ALONE)
        rows, columns = columns, rows
        count, other_count = other_count, count
        length, others_length = others_length, length
        tau, other_tau = other_tau, tau


WARPS = 16
"""Warps of one processor that surely fit: each thread takes at most `REGISTERS`."""

REGISTERS = 128
MOST = 1 << 16
"""Steps in one launch, so that meetings can be counted in 32 bits."""

WHAT = "Sinkhorn steps in one launch"
"""Their name in messages."""


class Plan(NamedTuple):
    """Rows of a block, columns that are read at once and how often, warps, programs a problem."""

    rows: int
    columns: int
    group: int
    warps: int
    programs: int


def planned(problems: int, m: int, n: int, processors: int) -> Plan:
    """The plan whose busiest processor has least to do.

    Programs of one problem wait for each other, so all of them must be on the device at once.
    Blocks of 8 rows read their columns twice as often, and few warps hide little of the waiting.
    """
    longest = max(m, n)
    warps = 1 if longest <= 128 else 2 if longest <= 512 else 4

    def load(rows: int, resident: int) -> tuple[float, int, int]:
        blocks = -(-longest // rows)
        programs = max(1, min(blocks, processors * resident // warps // problems))
        busiest = -(-problems * programs // processors)
        cost = busiest * -(-blocks // programs) * rows * (1.1 if rows == 8 else 1.0)
        return cost * (1.2 if busiest * warps <= WARPS // 2 else 1.0), rows, programs

    _, rows, programs = min(load(rows, part) for rows in (16, 8) for part in (16, 12, 8))
    return Plan(rows, 32 * warps, 2, warps, programs)


@torch.library.custom_op("pushforward::sinkhorn_steps", mutates_args=())
def take_steps(
    points: list[Tensor], logs: list[Tensor], constants: list[Tensor], start: Tensor,
    factor: float, damping: list[float], steps: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    r"""The potential $G$ `(b, h, n)` after some steps from `start`.

    Args:
        points: queries `(b, h, m, d)` and keys.
        logs: log-weights of both, `(b, h, m)` and `(b, h, n)`.
        constants: $c_a,c_b$ of the same shapes; empty for zeros.
        start: $G$.
        factor: $s$.
        damping: $\tau_a,\tau_b$.
        steps: at least one.
        symmetric: whether a step is $G\leftarrow(G+F)/2$, for queries that are the keys.
    """
    (q, k), (log_a, log_b) = points, logs
    if q.device.type != "cuda" and not knobs.runtime.interpret:
        raise ValueError(
            f"{WHAT} need tensors on an NVIDIA GPU, got tensors on {q.device}. Move them with "
            "`.cuda()`."
        )
    (*batch, m, d), n = q.shape, k.shape[-2]
    problems, processors = prod(batch), 1
    if q.device.type == "cuda":
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    plan = planned(problems, m, n, processors)
    if q.device.type != "cuda":  # the interpreter runs one program after the other
        plan = plan._replace(programs=1)
    step = plan.columns * plan.group
    length = -(-m // step) * step + -(-n // step) * step
    room = q.new_empty(problems * length * (d + EXTRA.value), dtype=torch.float32)
    done = start
    while steps > 0:
        count = min(steps, MOST)
        out = q.new_empty(*batch, n, dtype=torch.float32)
        counters = q.new_zeros(problems if plan.programs > 1 else 0, dtype=torch.int32)
        a, b = constants or (None, None)
        given = (log_a, log_b, a, b, done)
        run[(problems * plan.programs,)](
            q, k, *given, out, room, counters, m, n, q.shape[1], factor, *damping,
            count if symmetric else 2 * count, strides(q), strides(k),
            *(None if x is None else strides(x) for x in given),
            D=d, BM=plan.rows, BN=plan.columns, GROUP=plan.group, PROGRAMS=plan.programs,
            SHIFTED=bool(constants), SYMMETRIC=symmetric, num_warps=plan.warps,
            maxnreg=REGISTERS, launch_cooperative_grid=plan.programs > 1,
        )  # fmt: skip
        done, steps = out, steps - count
    return done


@take_steps.register_fake
def _(points: list[Tensor], *_: Any) -> Tensor:
    return points[1].new_empty(points[1].shape[:-1], dtype=torch.float32)


def _no_gradient(*_: Any) -> None:
    refuse(f"{WHAT} have no gradient. Take them one by one, with `ops.log_integral`.")


take_steps.register_autograd(_no_gradient)
