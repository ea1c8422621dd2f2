r"""The forward pass in bfloat16 for GPUs of compute capability 9.0, in Gluon.

One warp copies blocks of keys and values to shared memory; two groups of four warps, with rows of
their own, take them from there. Step $t$ asks tensor cores for the scores of block $t$ and for the
sums of values of block $t-1$ together, so powers are formed beside the second product. Keys of
block $t$ and values of block $t-1$ therefore travel as one stage of the pipeline.

It is `wide.forward` in `MODE` 1. The blocks that must be formed again, by `MODE` 2, are left to
Triton, and so are all other devices, widths and times.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..parts import END, FIELDS, LN2, LOG2E, finite, rows_with_nan

INF: gl.constexpr = gl.constexpr(float("inf"))


@gluon.jit
def copy_block(points, batch, head, start, into, arrived):
    """Have a block of points copied; what lies beyond their width and the end becomes 0."""
    tma.async_copy_global_to_shared(points, [batch, head, start, 0], arrived, into)


@gluon.jit
def _copies(
    q, k, v, qs, ks, vs, queries, full, empty, batch, head, i0, blocks,
    ROWS: gl.constexpr, BN: gl.constexpr, D_PAD: gl.constexpr, E_PAD: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """What the copying warp does: all queries, then keys and values as stages become empty."""
    mbarrier.expect(queries, 2 * ROWS * D_PAD * 2)
    for group in gl.static_range(2):
        copy_block(q, batch, head, i0 + group * ROWS, qs.index(group), queries)
    mbarrier.expect(full.index(0), BN * D_PAD * 2)
    copy_block(k, batch, head, 0, ks.index(0), full.index(0))
    for step in range(1, blocks):
        stage = step % STAGES
        mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), BN * (D_PAD + E_PAD) * 2)
        copy_block(k, batch, head, step * BN, ks.index(stage), full.index(stage))
        copy_block(v, batch, head, (step - 1) * BN, vs.index(stage), full.index(stage))
    stage = blocks % STAGES
    mbarrier.wait(empty.index(stage), ((blocks // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(stage), BN * E_PAD * 2)
    copy_block(v, batch, head, (blocks - 1) * BN, vs.index(stage), full.index(stage))


@gluon.jit
def biases(b, step, last, BN: gl.constexpr, STRIDE: gl.constexpr, LAYOUT: gl.constexpr):
    """The bias of one block, and minus infinity beyond the last key."""
    j = gl.arange(0, BN, LAYOUT)
    at = b + (step * BN + j) * STRIDE
    if (step + 1) * BN <= last:
        some = gl.load(at)
    else:
        some = gl.load(at, mask=j < last - step * BN, other=-INF)
    return some


@gluon.jit
def _sums(
    group, qs, ks, vs, queries, full, empty, b, out, peak, total, log_z, row0, i0, M, last, blocks,
    factor, STRIDE: gl.constexpr, ROWS: gl.constexpr, BN: gl.constexpr, E: gl.constexpr,
    D_PAD: gl.constexpr, E_PAD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What one group does with its rows. The names are those of `wide.forward`."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    MEAN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, E_PAD, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, MEAN, 2)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    zero = gl.zeros([ROWS, BN], gl.float32, SCORES)
    mean = gl.zeros([ROWS, E_PAD], gl.float32, MEAN)
    q = qs.index(group).reshape([ROWS, D_PAD])
    some = biases(b, 0, last, BN, STRIDE, COLUMNS)
    mbarrier.wait(queries, 0)
    mbarrier.wait(full.index(0), 0)
    keys = ks.index(0).reshape([BN, D_PAD]).permute((1, 0))
    t = warpgroup_mma(q, keys, zero, use_acc=False, is_async=True)
    t = warpgroup_mma_wait(0, deps=(t,))
    mbarrier.arrive(empty.index(0), count=1)
    t = t * factor + (some * LOG2E)[None, :]
    # One number for all rows, so that it costs nothing a pair.
    shift = finite(gl.max(gl.max(t, 1), 0))
    p = gl.exp2(t - shift)
    s = gl.sum(p, 1)
    weights = gl.convert_layout(p.to(vs.dtype), WEIGHTS)
    some = biases(b, 1, last, BN, STRIDE, COLUMNS)
    mbarrier.wait(full.index(1 % STAGES), 0)
    for step in range(1, blocks):
        stage = step % STAGES
        keys = ks.index(stage).reshape([BN, D_PAD]).permute((1, 0))
        t = warpgroup_mma(q, keys, zero, use_acc=False, is_async=True)
        mean = warpgroup_mma(weights, vs.index(stage).reshape([BN, E_PAD]), mean, is_async=True)
        bias = some * LOG2E - shift
        some = biases(b, step + 1, last, BN, STRIDE, COLUMNS)
        t = warpgroup_mma_wait(1, deps=(t,))
        p = gl.exp2(t * factor + bias[None, :])
        s += gl.sum(p, 1)
        # The compiler moves powers past the end of products, but not past this wait, a loop.
        mbarrier.wait(full.index((step + 1) % STAGES), ((step + 1) // STAGES) & 1)
        mean = warpgroup_mma_wait(0, deps=(mean,))
        mbarrier.arrive(empty.index(stage), count=1)
        weights = gl.convert_layout(p.to(vs.dtype), WEIGHTS)
    stage = blocks % STAGES
    mean = warpgroup_mma(weights, vs.index(stage).reshape([BN, E_PAD]), mean, is_async=True)
    mean = warpgroup_mma_wait(0, deps=(mean,))
    i = i0 + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    bad = gl.convert_layout(rows_with_nan(mean), gl.SliceLayout(1, SCORES))
    s = gl.where(bad, float("nan"), s)
    m = gl.where(s == 0.0, -INF, shift)
    gl.store(peak + row0 + i, m, mask=i < M)
    gl.store(total + row0 + i, s, mask=i < M)
    gl.store(log_z + row0 + i, (m + gl.log2(s)) * LN2, mask=i < M)
    count = gl.convert_layout(gl.where(s == 0.0, 1.0, s), gl.SliceLayout(1, MEAN))
    i = i0 + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, MEAN))
    e = gl.arange(0, E_PAD, gl.SliceLayout(0, MEAN))
    at = out + (row0 + i)[:, None] * E + e[None, :]
    value = (mean / count[:, None]).to(out.dtype.element_ty)
    gl.store(at, value, mask=(i < M)[:, None] & (e < E)[None, :])


@gluon.jit
def forward(
    q, k, v, b, ends, out, peak, total, log_z, M, N, H, factor, stride,
    STRIDE: gl.constexpr, E: gl.constexpr, D_PAD: gl.constexpr, E_PAD: gl.constexpr,
    ROWS: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """What `wide.forward` stores, for points that descriptors tell the copying unit to find.

    `ROWS` are those of each of the two groups, `STRIDE` is that of the bias.
    """
    blocks = gl.cdiv(M, 2 * ROWS)
    z = gl.program_id(0) // blocks
    i0 = gl.program_id(0) % blocks * (2 * ROWS)
    row0 = z.to(gl.int64) * M
    batch, head = z // H, z % H
    last = N
    if ends is not None:
        last = gl.load(ends + z * FIELDS + END)
    steps = gl.maximum(gl.cdiv(last, BN), 1)
    b += batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1]
    qs = gl.allocate_shared_memory(q.dtype, [2, 1, 1, ROWS, D_PAD], q.layout)
    ks = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BN, D_PAD], k.layout)
    vs = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BN, E_PAD], v.layout)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    queries = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(queries, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    gl.warp_specialize([
        (_sums, (0, qs, ks, vs, queries, full, empty, b, out, peak, total, log_z, row0, i0, M,
            last, steps, factor * LOG2E, STRIDE, ROWS, BN, E, D_PAD, E_PAD, STAGES)),
        (_sums, (1, qs, ks, vs, queries, full, empty, b, out, peak, total, log_z, row0, i0, M,
            last, steps, factor * LOG2E, STRIDE, ROWS, BN, E, D_PAD, E_PAD, STAGES)),
        (_copies, (q, k, v, qs, ks, vs, queries, full, empty, batch, head, i0, steps,
            ROWS, BN, D_PAD, E_PAD, STAGES)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
