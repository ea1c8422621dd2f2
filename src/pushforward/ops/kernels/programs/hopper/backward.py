r"""Gradients in half precision for GPUs of compute capability 9.0, in Gluon.

One warp copies blocks to shared memory; two groups of four warps, with rows of their own, take
them from there. Step $t$ asks tensor cores for the products of block $t$ and for the sums of block
$t-1$ together, and forms powers and slopes (gradients in the scores) while they work. The compiler
may move arithmetic behind the wait for products, where tensor cores are idle, but it moves nothing
across a loop. The wait for a copied block is a loop: so it stands between the two.

`wide_backward` has the same gradients in Triton, for all other devices, widths and times.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..parts import END, FIELDS, LOG2E
from .forward import INF, copy_block


@gluon.jit
def _turned(blocks, stage, SIZE: gl.constexpr, WIDTH: gl.constexpr):
    """The points of a stage as columns."""
    return blocks.index(stage).reshape([SIZE, WIDTH]).permute((1, 0))


@gluon.jit
def _partly(x):
    """Sums of every eighth column, so that each thread adds up only what it has."""
    return gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 8]), 1)


@gluon.jit
def _store(x, value, start, stop, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Store a block of rows of a contiguous matrix of `stop` rows, from row `start` on."""
    i = start + gl.arange(0, value.shape[0], gl.SliceLayout(1, LAYOUT))
    d = gl.arange(0, value.shape[1], gl.SliceLayout(0, LAYOUT))
    at = x + i.to(gl.int64)[:, None] * WIDTH + d[None, :]
    mask = (i < stop)[:, None] & (d < WIDTH)[None, :]
    gl.store(at, value.to(x.dtype.element_ty), mask=mask)


@gluon.jit
def _copies_of_queries(
    k, v, q, g, offset, delta, ks, vs, qs, gs, ms, ds, held, full, empty, batch, head, row0, j0,
    M, blocks, KEYS: gl.constexpr, BM: gl.constexpr, D_PAD: gl.constexpr, E_PAD: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """What the copying warp does: all keys, then queries as stages become empty.

    With queries come their upstream gradients, offsets (infinity past the end) and summands.
    """
    mbarrier.expect(held, 2 * KEYS * (D_PAD + E_PAD) * 2)
    for group in gl.static_range(2):
        copy_block(k, batch, head, j0 + group * KEYS, ks.index(group), held)
        copy_block(v, batch, head, j0 + group * KEYS, vs.index(group), held)
    i = gl.arange(0, BM, gl.BlockedLayout([2], [32], [1], [0]))
    for step in range(blocks):
        stage = step % STAGES
        there = i < M - step * BM
        m = gl.load(offset + row0 + step * BM + i, mask=there, other=INF)
        c = gl.load(delta + row0 + step * BM + i, mask=there, other=0.0)
        mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
        ms.index(stage).store(m)
        ds.index(stage).store(c)
        gl.thread_barrier()
        mbarrier.expect(full.index(stage), BM * (D_PAD + E_PAD) * 2)
        copy_block(q, batch, head, step * BM, qs.index(stage), full.index(stage))
        copy_block(g, batch, head, step * BM, gs.index(stage), full.index(stage))


@gluon.jit
def _sums_over_queries(
    group, ks, vs, qs, gs, ms, ds, held, full, empty, b, dk, dv, db, j0, N, blocks, factor,
    stride, KEYS: gl.constexpr, BM: gl.constexpr, D: gl.constexpr, E: gl.constexpr,
    D_PAD: gl.constexpr, E_PAD: gl.constexpr, STAGES: gl.constexpr, POINTS: gl.constexpr,
    VALUES: gl.constexpr,
):  # fmt: skip
    """What one group does with its keys. The names are those of `wide_backward.keys`."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BM, 16])
    SUM_K: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D_PAD, 16])
    SUM_V: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, E_PAD, 16])
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, SUM_V, 2)
    SLOPES: gl.constexpr = gl.DotOperandLayout(0, SUM_K, 2)
    zero = gl.zeros([KEYS, BM], gl.float32, SCORES)
    sum_k = gl.zeros([KEYS, D_PAD], gl.float32, SUM_K)
    sum_v = gl.zeros([KEYS, E_PAD], gl.float32, SUM_V)
    j = j0 + group * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, SCORES))
    bias = gl.load(b + j.to(gl.int64) * stride, mask=j < N, other=-INF) * LOG2E
    scale = factor * LOG2E
    HELD: gl.constexpr = gl.DotOperandLayout(0, SCORES, 2)
    mbarrier.wait(held, 0)
    k = ks.index(group).reshape([KEYS, D_PAD]).load(HELD)
    v = vs.index(group).reshape([KEYS, E_PAD]).load(HELD)
    mbarrier.wait(full.index(0), 0)
    t = warpgroup_mma(k, _turned(qs, 0, BM, D_PAD), zero, use_acc=False, is_async=True)
    u = warpgroup_mma(v, _turned(gs, 0, BM, E_PAD), zero, use_acc=False, is_async=True)
    shift = bias[:, None] - ms.index(0).load(COLUMNS)[None, :]
    c = ds.index(0).load(COLUMNS)
    t, u = warpgroup_mma_wait(0, deps=(t, u))
    p = gl.exp2(t * scale + shift)
    weights = gl.convert_layout(p.to(gs.dtype), WEIGHTS)
    p = p * (u - c[None, :])
    sum_b = _partly(p)
    slopes = gl.convert_layout(p.to(qs.dtype), SLOPES)
    mbarrier.wait(full.index(1), 0, pred=blocks > 1)
    for step in range(1, blocks):
        before, stage, after = (step - 1) % STAGES, step % STAGES, (step + 1) % STAGES
        t = warpgroup_mma(k, _turned(qs, stage, BM, D_PAD), zero, use_acc=False, is_async=True)
        if VALUES:
            grads = gs.index(before).reshape([BM, E_PAD])
            sum_v = warpgroup_mma(weights, grads, sum_v, is_async=True)
        if POINTS:
            some = qs.index(before).reshape([BM, D_PAD])
            sum_k = warpgroup_mma(slopes, some, sum_k, is_async=True)
        u = warpgroup_mma(v, _turned(gs, stage, BM, E_PAD), zero, use_acc=False, is_async=True)
        shift = bias[:, None] - ms.index(stage).load(COLUMNS)[None, :]
        c = ds.index(stage).load(COLUMNS)
        t = warpgroup_mma_wait(1 + POINTS + VALUES, deps=(t,))
        p = gl.exp2(t * scale + shift)
        mbarrier.wait(full.index(after), ((step + 1) // STAGES) & 1, pred=step + 1 < blocks)
        # Operands in registers must not be formed while tensor cores work.
        sum_k, sum_v, u = warpgroup_mma_wait(0, deps=(sum_k, sum_v, u))
        s = p * (u - c[None, :])
        sum_b += _partly(s)
        mbarrier.arrive(empty.index(before), count=1)
        weights = gl.convert_layout(p.to(gs.dtype), WEIGHTS)
        slopes = gl.convert_layout(s.to(qs.dtype), SLOPES)
    last = (blocks - 1) % STAGES
    sum_v = warpgroup_mma(weights, gs.index(last).reshape([BM, E_PAD]), sum_v, is_async=True)
    sum_k = warpgroup_mma(slopes, qs.index(last).reshape([BM, D_PAD]), sum_k, is_async=True)
    sum_k, sum_v = warpgroup_mma_wait(0, deps=(sum_k, sum_v))
    sum_b = gl.convert_layout(gl.sum(sum_b, 1), gl.SliceLayout(1, SCORES))
    gl.store(db + j, sum_b, mask=j < N)
    if POINTS:
        _store(dk, sum_k * factor, j0 + group * KEYS, N, D, SUM_K)
    if VALUES:
        _store(dv, sum_v, j0 + group * KEYS, N, E, SUM_V)


@gluon.jit
def keys(
    q, k, v, b, ends, offset, g, delta, dk, dv, db, M, N, H, factor, stride,
    D: gl.constexpr, E: gl.constexpr, D_PAD: gl.constexpr, E_PAD: gl.constexpr,
    KEYS: gl.constexpr, BM: gl.constexpr, STAGES: gl.constexpr, POINTS: gl.constexpr,
    VALUES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """What `wide_backward.keys` stores, for points that descriptors tell the copying unit to find.

    `KEYS` are those of each of the two groups, `BM` the queries of a step.
    """
    count = gl.cdiv(N, 2 * KEYS)
    z = gl.program_id(0) // count
    j0 = gl.program_id(0) % count * (2 * KEYS)
    batch, head = z // H, z % H
    blocks = gl.cdiv(M, BM)
    if ends is not None:
        # Keys past the end have a bias of minus infinity, so one block is as good as all of them.
        blocks = gl.where(j0 < gl.load(ends + z * FIELDS + END), blocks, 1)
    row0, row = z.to(gl.int64) * M, z.to(gl.int64) * N
    b += batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1]
    dk, dv, db = dk + row * D, dv + row * E, db + row
    ks = gl.allocate_shared_memory(k.dtype, [2, 1, 1, KEYS, D_PAD], k.layout)
    vs = gl.allocate_shared_memory(v.dtype, [2, 1, 1, KEYS, E_PAD], v.layout)
    qs = gl.allocate_shared_memory(q.dtype, [STAGES, 1, 1, BM, D_PAD], q.layout)
    gs = gl.allocate_shared_memory(g.dtype, [STAGES, 1, 1, BM, E_PAD], g.layout)
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ms = gl.allocate_shared_memory(gl.float32, [STAGES, BM], LINE)
    ds = gl.allocate_shared_memory(gl.float32, [STAGES, BM], LINE)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    held = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(held, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    gl.warp_specialize([
        (_sums_over_queries, (0, ks, vs, qs, gs, ms, ds, held, full, empty, b, dk, dv, db, j0, N,
            blocks, factor, stride[2], KEYS, BM, D, E, D_PAD, E_PAD, STAGES, POINTS, VALUES)),
        (_sums_over_queries, (1, ks, vs, qs, gs, ms, ds, held, full, empty, b, dk, dv, db, j0, N,
            blocks, factor, stride[2], KEYS, BM, D, E, D_PAD, E_PAD, STAGES, POINTS, VALUES)),
        (_copies_of_queries, (k, v, q, g, offset, delta, ks, vs, qs, gs, ms, ds, held, full, empty,
            batch, head, row0, j0, M, blocks, KEYS, BM, D_PAD, E_PAD, STAGES)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip


@gluon.jit
def _copies_of_keys(
    q, g, k, v, b, qs, gs, ks, vs, bs, held, full, empty, batch, head, i0, last, blocks,
    STRIDE: gl.constexpr, ROWS: gl.constexpr, BN: gl.constexpr, D_PAD: gl.constexpr,
    E_PAD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What the copying warp does: all queries, then keys as stages become empty.

    With queries come their upstream gradients, and with keys their values and biases in base 2,
    which are minus infinity past the last key.
    """
    mbarrier.expect(held, 2 * ROWS * (D_PAD + E_PAD) * 2)
    for group in gl.static_range(2):
        copy_block(q, batch, head, i0 + group * ROWS, qs.index(group), held)
        copy_block(g, batch, head, i0 + group * ROWS, gs.index(group), held)
    j = gl.arange(0, BN, gl.BlockedLayout([BN // 32], [32], [1], [0]))
    for step in range(blocks):
        stage = step % STAGES
        some = gl.load(b + (step * BN + j) * STRIDE, mask=j < last - step * BN, other=-INF)
        mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
        bs.index(stage).store(some * LOG2E)
        gl.thread_barrier()
        mbarrier.expect(full.index(stage), BN * (D_PAD + E_PAD) * 2)
        copy_block(k, batch, head, step * BN, ks.index(stage), full.index(stage))
        copy_block(v, batch, head, step * BN, vs.index(stage), full.index(stage))


@gluon.jit
def _sums_over_keys(
    group, qs, gs, ks, vs, bs, held, full, empty, offset, delta, dq, i0, M, blocks, factor,
    ROWS: gl.constexpr, BN: gl.constexpr, D: gl.constexpr, D_PAD: gl.constexpr,
    E_PAD: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """What one group does with its queries. The names are those of `wide_backward.queries`."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    TOTAL: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D_PAD, 16])
    SLOPES: gl.constexpr = gl.DotOperandLayout(0, TOTAL, 2)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    zero = gl.zeros([ROWS, BN], gl.float32, SCORES)
    total = gl.zeros([ROWS, D_PAD], gl.float32, TOTAL)
    i = i0 + group * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, SCORES))
    m = gl.load(offset + i, mask=i < M, other=INF)
    c = gl.load(delta + i, mask=i < M, other=0.0)
    scale = factor * LOG2E
    q = qs.index(group).reshape([ROWS, D_PAD])
    g = gs.index(group).reshape([ROWS, E_PAD])
    mbarrier.wait(held, 0)
    mbarrier.wait(full.index(0), 0)
    t = warpgroup_mma(q, _turned(ks, 0, BN, D_PAD), zero, use_acc=False, is_async=True)
    u = warpgroup_mma(g, _turned(vs, 0, BN, E_PAD), zero, use_acc=False, is_async=True)
    shift = bs.index(0).load(COLUMNS)[None, :] - m[:, None]
    t, u = warpgroup_mma_wait(0, deps=(t, u))
    s = gl.exp2(t * scale + shift) * (u - c[:, None])
    slopes = gl.convert_layout(s.to(ks.dtype), SLOPES)
    mbarrier.wait(full.index(1), 0, pred=blocks > 1)
    for step in range(1, blocks):
        before, stage, after = (step - 1) % STAGES, step % STAGES, (step + 1) % STAGES
        t = warpgroup_mma(q, _turned(ks, stage, BN, D_PAD), zero, use_acc=False, is_async=True)
        u = warpgroup_mma(g, _turned(vs, stage, BN, E_PAD), zero, use_acc=False, is_async=True)
        some = ks.index(before).reshape([BN, D_PAD])
        total = warpgroup_mma(slopes, some, total, is_async=True)
        shift = bs.index(stage).load(COLUMNS)[None, :] - m[:, None]
        t = warpgroup_mma_wait(2, deps=(t,))
        p = gl.exp2(t * scale + shift)
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)  # keeps powers before it
        u = warpgroup_mma_wait(1, deps=(u,))
        s = p * (u - c[:, None])
        mbarrier.wait(full.index(after), ((step + 1) // STAGES) & 1, pred=step + 1 < blocks)
        # Operands in registers must not be formed while tensor cores work.
        total = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(empty.index(before), count=1)
        slopes = gl.convert_layout(s.to(ks.dtype), SLOPES)
    some = ks.index((blocks - 1) % STAGES).reshape([BN, D_PAD])
    total = warpgroup_mma(slopes, some, total, is_async=True)
    total = warpgroup_mma_wait(0, deps=(total,))
    _store(dq, total * factor, i0 + group * ROWS, M, D, TOTAL)


@gluon.jit
def queries(
    q, k, v, b, ends, offset, g, delta, dq, M, N, H, factor, stride,
    STRIDE: gl.constexpr, D: gl.constexpr, D_PAD: gl.constexpr, E_PAD: gl.constexpr,
    ROWS: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """What `wide_backward.queries` stores, see `keys`.

    `ROWS` are those of each of the two groups, `BN` the keys of a step.
    """
    count = gl.cdiv(M, 2 * ROWS)
    z = gl.program_id(0) // count
    i0 = gl.program_id(0) % count * (2 * ROWS)
    batch, head = z // H, z % H
    last = N
    if ends is not None:
        last = gl.load(ends + z * FIELDS + END)
    blocks = gl.maximum(gl.cdiv(last, BN), 1)
    row = z.to(gl.int64) * M
    offset, delta, dq = offset + row, delta + row, dq + row * D
    b += batch.to(gl.int64) * stride[0] + head.to(gl.int64) * stride[1]
    qs = gl.allocate_shared_memory(q.dtype, [2, 1, 1, ROWS, D_PAD], q.layout)
    gs = gl.allocate_shared_memory(g.dtype, [2, 1, 1, ROWS, E_PAD], g.layout)
    ks = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BN, D_PAD], k.layout)
    vs = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BN, E_PAD], v.layout)
    LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    bs = gl.allocate_shared_memory(gl.float32, [STAGES, BN], LINE)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    held = gl.allocate_shared_memory(gl.int64, [1], BARRIER)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    mbarrier.init(held, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    gl.warp_specialize([
        (_sums_over_keys, (0, qs, gs, ks, vs, bs, held, full, empty, offset, delta, dq, i0, M,
            blocks, factor, ROWS, BN, D, D_PAD, E_PAD, STAGES)),
        (_sums_over_keys, (1, qs, gs, ks, vs, bs, held, full, empty, offset, delta, dq, i0, M,
            blocks, factor, ROWS, BN, D, D_PAD, E_PAD, STAGES)),
        (_copies_of_keys, (q, g, k, v, b, qs, gs, ks, vs, bs, held, full, empty, batch, head, i0,
            last, blocks, STRIDE, ROWS, BN, D_PAD, E_PAD, STAGES)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
