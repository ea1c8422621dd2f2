r"""Gradients for wide points, on tensor cores.

One kernel goes over the keys of a block of queries, the other over the queries of a block of keys.
Both form the scores again, from the same halves as the forward pass, so that large scores are
rounded alike. No program adds to what another has written, so results have the same
bits each time.
"""

import triton
import triton.language as tl

from ._parts import LATEST, LOG2E, block, hidden, problem, product, share


@triton.jit
def _times(a, b, SPLIT: tl.constexpr):
    """A matrix product; in float32 by three products of its parts of 10 bits."""
    if SPLIT:
        return tl.dot(a, b, input_precision="tf32x3")
    return tl.dot(a, b)


@triton.jit
def _plus(total, a, b, one, SPLIT: tl.constexpr):
    """A sum of matrix products; in float32 each product is added in float32, see `_wide`."""
    if SPLIT:
        return total * one + _times(a, b, SPLIT)
    return tl.dot(a, b, total)


@triton.jit
def queries(
    q, k, v, b, q_high, q_low, k_high, k_low, exponents, times, ends, offset, g, slope, dq,
    M, N, H, factor, one, sq, sk, sv, sb, sg, shq, shk,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ENDS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    r"""$q'_i=s\sum_jS'_{ij}k_j$ with $S'_{ij}=P_{ij}(\langle g_i,v_j\rangle+c_i)$, for queries."""
    z, part = tl.program_id(1), tl.program_id(2)
    last = N
    if ENDS == 1:
        last = tl.load(ends + z)
    if ENDS == 2:
        last = tl.load(ends + z * tl.num_programs(0) + tl.program_id(0))
    first, last = share(0, last, part, tl.num_programs(2), BN)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = i < M
    row = z.to(tl.int64) * M + i
    qs = block(problem(q_high, z, H, shq), i.to(tl.int64), rows, shq, D, D_PAD)
    qs_low = qs
    scale = factor * LOG2E
    if SPLIT:
        qs_low = block(problem(q_low, z, H, shq), i.to(tl.int64), rows, shq, D, D_PAD)
        k_high, k_low = problem(k_high, z, H, shk), problem(k_low, z, H, shk)
        scale *= tl.load(exponents + 2 * z)
    if E > 0:
        gs = block(problem(g, z, H, sg), i.to(tl.int64), rows, sg, E, E_PAD)
    c = tl.load(slope + row, mask=rows, other=0.0)
    m = tl.load(offset + row, mask=rows, other=float("inf"))
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen = tl.load(times + i, mask=rows, other=-1)
    total = tl.zeros([BM, D_PAD], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        j = j0 + tl.arange(0, BN)
        live, at = j < last, j.to(tl.int64)
        ks = block(k, at, live, sk, D, D_PAD)
        bias = tl.load(b + at * sb[2], mask=live, other=-float("inf")) * LOG2E
        high, low = ks, ks
        if SPLIT:
            high, low = (
                block(k_high, at, live, shk, D, D_PAD),
                block(k_low, at, live, shk, D, D_PAD),
            )
        t = product(qs, qs_low, high.T, low.T, SPLIT, False) * scale + bias[None, :]
        if ENDS == 2:
            told = tl.load(times + M + j, mask=live, other=LATEST)
            t = hidden(t, seen[:, None], told[None, :])
        ds = tl.exp2(t - m[:, None])
        if E > 0:
            vs = block(v, at, live, sv, E, E_PAD)
            ds *= _times(gs, vs.T, SPLIT) + c[:, None]
        else:
            ds *= c[:, None]
        total = _plus(total, ds.to(ks.dtype), ks, one, SPLIT)
    d = tl.arange(0, D_PAD)
    row += part.to(tl.int64) * tl.num_programs(1) * M
    at = dq + row[:, None] * D + d[None, :]
    value = (total * factor).to(dq.dtype.element_ty)
    tl.store(at, value, mask=rows[:, None] & (d < D)[None, :])


@triton.jit
def keys(
    q, k, v, b, q_high, q_low, k_high, k_low, exponents, times, starts, offset, g, slope,
    dk, dv, db, M, N, H, factor, one, sq, sk, sv, sb, sg, shq, shk,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, TIMED: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    r"""$k'=s\,S'^\top q$, $v'=P^\top g$, $b'_j=\sum_iS'_{ij}$, for keys, which are rows here."""
    z, part = tl.program_id(1), tl.program_id(2)
    first = 0
    if TIMED:
        first = tl.load(starts + z * tl.num_programs(0) + tl.program_id(0))
    first, last = share(first, M, part, tl.num_programs(2), BM)
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    rows, at = j < N, j.to(tl.int64)
    ks = block(problem(k_high, z, H, shk), at, rows, shk, D, D_PAD)
    ks_low = ks
    scale = factor * LOG2E
    if SPLIT:
        ks_low = block(problem(k_low, z, H, shk), at, rows, shk, D, D_PAD)
        q_high, q_low = problem(q_high, z, H, shq), problem(q_low, z, H, shq)
        scale *= tl.load(exponents + 2 * z)
    if E > 0:
        vs = block(problem(v, z, H, sv), at, rows, sv, E, E_PAD)
    bias = tl.load(problem(b, z, H, sb) + at * sb[2], mask=rows, other=-float("inf")) * LOG2E
    q, g = problem(q, z, H, sq), problem(g, z, H, sg)
    if TIMED:
        times += z.to(tl.int64) * (M + N)
        told = tl.load(times + M + j, mask=rows, other=LATEST)
    sum_k = tl.zeros([BN, D_PAD], tl.float32)
    sum_v = tl.zeros([BN, E_PAD], tl.float32)
    sum_b = tl.zeros([BN], tl.float32)
    for i0 in tl.range(first, last, BM, num_stages=STAGES):
        i = i0 + tl.arange(0, BM)
        live = i < last
        row = z.to(tl.int64) * M + i
        qs = block(q, i.to(tl.int64), live, sq, D, D_PAD)
        m = tl.load(offset + row, mask=live, other=float("inf"))
        c = tl.load(slope + row, mask=live, other=0.0)
        high, low = qs, qs
        if SPLIT:
            high = block(q_high, i.to(tl.int64), live, shq, D, D_PAD)
            low = block(q_low, i.to(tl.int64), live, shq, D, D_PAD)
        t = product(ks, ks_low, high.T, low.T, SPLIT, True) * scale + bias[:, None]
        if TIMED:
            seen = tl.load(times + i, mask=live, other=-1)
            t = hidden(t, seen[None, :], told[:, None])
        p = tl.exp2(t - m[None, :])
        if E > 0:
            gs = block(g, i.to(tl.int64), live, sg, E, E_PAD)
            sum_v = _plus(sum_v, p.to(gs.dtype), gs, one, SPLIT)
            ds = p * (_times(vs, gs.T, SPLIT) + c[None, :])
        else:
            ds = p * c[None, :]
        sum_b += tl.sum(ds, 1)
        sum_k = _plus(sum_k, ds.to(qs.dtype), qs, one, SPLIT)
    row = (part.to(tl.int64) * tl.num_programs(1) + z) * N + j
    d, e = tl.arange(0, D_PAD), tl.arange(0, E_PAD)
    at, mask = dk + row[:, None] * D + d[None, :], rows[:, None] & (d < D)[None, :]
    tl.store(at, (sum_k * factor).to(dk.dtype.element_ty), mask=mask)
    if E > 0:
        at, mask = dv + row[:, None] * E + e[None, :], rows[:, None] & (e < E)[None, :]
        tl.store(at, sum_v.to(dv.dtype.element_ty), mask=mask)
    tl.store(db + row, sum_b, mask=rows)
