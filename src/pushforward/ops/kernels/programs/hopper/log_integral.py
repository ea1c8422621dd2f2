r"""Log-integrals of wide float32 points for GPUs of compute capability 9.0, in Gluon.

As in `hopper.forward`, one warp copies blocks of keys to shared memory, and two groups of four
warps take them from there. The groups take turns: one forms powers while tensor cores work for the
other. Without turns both would wait for tensor cores together, and form powers together. Points
are float16 halves, as in `wide`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..parts import END, FIELDS, LN2, LOG2E, finite, scale_of_halves
from .forward import INF, copy_block


@gluon.jit
def _copies(
    q, q_low, k, k_low, b, qs, qs_low, ks, ks_low, bs, queries, full, empty, batch, head, i0,
    last, blocks, STRIDE: gl.constexpr, ROWS: gl.constexpr, BN: gl.constexpr, D_PAD: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """What the copying warp does: both halves of all queries, then of keys.

    With keys come their biases in base 2, which are minus infinity past the last key.
    """
    mbarrier.expect(queries, 2 * ROWS * D_PAD * 4)
    for group in gl.static_range(2):
        copy_block(q, batch, head, i0 + group * ROWS, qs.index(group), queries)
        copy_block(q_low, batch, head, i0 + group * ROWS, qs_low.index(group), queries)
    j = gl.arange(0, BN, gl.BlockedLayout([BN // 32], [32], [1], [0]))
    for step in range(0, blocks):
        stage = step % STAGES
        some = gl.load(b + (step * BN + j) * STRIDE, mask=j < last - step * BN, other=-INF)
        mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
        bs.index(stage).store(some * LOG2E)
        gl.thread_barrier()
        mbarrier.expect(full.index(stage), BN * D_PAD * 4)
        copy_block(k, batch, head, step * BN, ks.index(stage), full.index(stage))
        copy_block(k_low, batch, head, step * BN, ks_low.index(stage), full.index(stage))


@gluon.jit
def _scores(
    group, q, q_low, ks, ks_low, bs, full, empty, turns, step, shift, zero, factor,
    BN: gl.constexpr, D_PAD: gl.constexpr, STAGES: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Scores of a block of keys less a shift, in base 2, when it is the group's turn."""
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    k = ks.index(stage).reshape([BN, D_PAD]).permute((1, 0))
    k_low = ks_low.index(stage).reshape([BN, D_PAD]).permute((1, 0))
    mbarrier.wait(turns.index(group), (step & 1) ^ (1 - group))
    # Small terms first.
    t = warpgroup_mma(q_low, k, zero, use_acc=False, is_async=True)
    t = warpgroup_mma(q, k_low, t, is_async=True)
    t = warpgroup_mma(q, k, t, is_async=True)
    bias = bs.index(stage).load(COLUMNS) - shift
    t = warpgroup_mma_wait(1, deps=(t,))
    mbarrier.arrive(turns.index(1 - group), count=1)
    t = warpgroup_mma_wait(0, deps=(t,))
    mbarrier.arrive(empty.index(stage), count=1)
    return t * factor + bias[None, :]


@gluon.jit
def _sums(
    group, qs, qs_low, ks, ks_low, bs, queries, full, empty, turns, peak, total, log_z, row0, i0,
    M, blocks, factor, ROWS: gl.constexpr, BN: gl.constexpr, D_PAD: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """What one group does with its rows. The names are those of `wide.forward`."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    zero = gl.zeros([ROWS, BN], gl.float32, SCORES)
    q, q_low = qs.index(group).reshape([ROWS, D_PAD]), qs_low.index(group).reshape([ROWS, D_PAD])
    mbarrier.wait(queries, 0)
    t = _scores(
        group, q, q_low, ks, ks_low, bs, full, empty, turns, 0, 0.0, zero, factor,
        BN, D_PAD, STAGES, COLUMNS,
    )  # fmt: skip
    # One number for all rows, so that it costs nothing a pair.
    shift = finite(gl.max(gl.max(t, 1), 0))
    s = gl.sum(gl.exp2(t - shift), 1)
    for step in range(1, blocks):
        t = _scores(
            group, q, q_low, ks, ks_low, bs, full, empty, turns, step, shift, zero, factor,
            BN, D_PAD, STAGES, COLUMNS,
        )  # fmt: skip
        s += gl.sum(gl.exp2(t), 1)
    i = i0 + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    m = gl.where(s == 0.0, -INF, shift)
    gl.store(peak + row0 + i, m, mask=i < M)
    gl.store(total + row0 + i, s, mask=i < M)
    gl.store(log_z + row0 + i, (m + gl.log2(s)) * LN2, mask=i < M)


@gluon.jit
def log_integral(
    q, q_low, k, k_low, b, survey, peak, total, log_z, M, N, H, factor, stride,
    STRIDE: gl.constexpr, D_PAD: gl.constexpr, ROWS: gl.constexpr, BN: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """What `wide.forward` stores in `MODE` 1 without values, for halves found by descriptors.

    `ROWS` are those of each of the two groups, `STRIDE` is that of the bias.
    """
    blocks = gl.cdiv(M, 2 * ROWS)
    z = gl.program_id(0) // blocks
    i0 = gl.program_id(0) % blocks * (2 * ROWS)
    row0 = z.to(gl.int64) * M
    batch, head = z // H, z % H
    last = gl.load(survey + z * FIELDS + END)
    steps = gl.maximum(gl.cdiv(last, BN), 1)
    factor *= LOG2E * scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    b += batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1]
    qs = gl.allocate_shared_memory(q.dtype, [2, 1, 1, ROWS, D_PAD], q.layout)
    qs_low = gl.allocate_shared_memory(q.dtype, [2, 1, 1, ROWS, D_PAD], q.layout)
    ks = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BN, D_PAD], k.layout)
    ks_low = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BN, D_PAD], k.layout)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    queries = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    bs = gl.allocate_shared_memory(gl.float32, [STAGES, BN], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], BARRIER)
    mbarrier.init(queries, count=1)
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    gl.warp_specialize([
        (_sums, (0, qs, qs_low, ks, ks_low, bs, queries, full, empty, turns, peak, total, log_z,
            row0, i0, M, steps, factor, ROWS, BN, D_PAD, STAGES)),
        (_sums, (1, qs, qs_low, ks, ks_low, bs, queries, full, empty, turns, peak, total, log_z,
            row0, i0, M, steps, factor, ROWS, BN, D_PAD, STAGES)),
        (_copies, (q, q_low, k, k_low, b, qs, qs_low, ks, ks_low, bs, queries, full, empty, batch,
            head, i0, last, steps, STRIDE, ROWS, BN, D_PAD, STAGES)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
