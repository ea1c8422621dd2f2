r"""Gradients for wide points, on tensor cores.

One kernel goes over the keys of a block of queries, the other over the queries of a block of keys.
Both form the scores again, from the same halves as the forward pass, so that large scores are
rounded alike. No program adds to what another has written, so results have the same
bits each time. Each has a single loop: with a second one for the last, masked block the compiler
would run products of tensor cores one after another, one quarter slower. `EVEN` says that nothing
needs a mask.
"""

import triton
import triton.language as tl

from .parts import (
    LATEST,
    LOG2E,
    block,
    end_of_keys,
    hidden,
    numbers,
    placed,
    problem,
    product,
    queries_of_keys,
    scale_of_halves,
    share,
)


@triton.jit
def _times(a, b, SPLIT: tl.constexpr):
    """A matrix product; in float32 by three products of its parts of 10 bits."""
    if SPLIT:
        return tl.dot(a, b, input_precision="tf32x3")
    return tl.dot(a, b)


@triton.jit
def _plus(total, a, b, one, SPLIT: tl.constexpr):
    """A sum of matrix products; in float32 each product is added in float32, see `wide`."""
    if SPLIT:
        return total * one + _times(a, b, SPLIT)
    return tl.dot(a, b, total)


@triton.jit
def _relative(scores, scale, bias, m, SPLIT: tl.constexpr):
    """Scores in base 2 less their offset; in float32 rounded first as the forward pass does."""
    if SPLIT:
        return (scores * scale + bias) - m
    return scores * scale + (bias - m)


@triton.jit
def _queries_step(
    total, qs, qs_low, gs, delta, m, k, k_high, k_low, v, b, told, seen, scale, one, j0, last,
    sk, sv, sb, shk, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BN: tl.constexpr, TIMED: tl.constexpr, SPLIT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    ks = block(k, j0, last, sk, D, D_PAD, BN, MASKED)
    high, low = ks, ks
    if SPLIT:
        high = block(k_high, j0, last, shk, D, D_PAD, BN, MASKED)
        low = block(k_low, j0, last, shk, D, D_PAD, BN, MASKED)
    if E > 0:
        vs = block(v, j0, last, sv, E, E_PAD, BN, MASKED)
    bias = numbers(b, j0, last, sb[2], -float("inf"), BN, MASKED) * LOG2E
    scores = product(qs, qs_low, high.T, low.T, SPLIT, False)
    t = _relative(scores, scale, bias[None, :], m[:, None], SPLIT)
    if TIMED:
        t = hidden(t, seen[:, None], numbers(told, j0, last, 1, LATEST, BN, MASKED)[None, :])
    ds = tl.exp2(t)
    if E > 0:
        ds *= _times(gs, vs.T, SPLIT) - delta[:, None]
    else:
        ds *= -delta[:, None]
    return _plus(total, ds.to(ks.dtype), ks, one, SPLIT)


@triton.jit
def queries(
    q, k, v, b, q_high, q_low, k_high, k_low, survey, times, ends, offset, g, delta, dq,
    M, N, H, factor, one, sq, sk, sv, sb, sg, shq, shk,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ENDS: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    r"""$q'_i=s\sum_jS'_{ij}k_j$ with $S'_{ij}=P_{ij}(\langle g_i,v_j\rangle-\delta_i)$."""
    z, place, blocks = placed(M, BM)
    part = tl.program_id(1)
    last = end_of_keys(ends, z, N, ENDS)
    if EVEN:
        last = tl.cdiv(last, BN) * BN
    first, _, last = share(0, last, part, tl.num_programs(1), BN)
    i0 = place * BM
    i = i0 + tl.arange(0, BM)
    rows = i < M
    row = z.to(tl.int64) * M
    scale = factor * LOG2E
    qs = block(problem(q_high, z, H, shq), i0, M, shq, D, D_PAD, BM, True)
    qs_low = qs
    if SPLIT:
        qs_low = block(problem(q_low, z, H, shq), i0, M, shq, D, D_PAD, BM, True)
        k_high, k_low = problem(k_high, z, H, shk), problem(k_low, z, H, shk)
        scale *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    gs = qs
    if E > 0:
        gs = block(problem(g, z, H, sg), i0, M, sg, E, E_PAD, BM, True)
    delta = numbers(delta + row, i0, M, 1, 0.0, BM, True)
    m = numbers(offset + row, i0, M, 1, float("inf"), BM, True)
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    seen, told = 0, b
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen, told = tl.load(times + i, mask=rows, other=-1), times + M
    total = tl.zeros([BM, D_PAD], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        total = _queries_step(
            total, qs, qs_low, gs, delta, m, k, k_high, k_low, v, b, told, seen, scale, one, j0,
            last, sk, sv, sb, shk, D, E, D_PAD, E_PAD, BN, ENDS == 2, SPLIT, not EVEN,
        )  # fmt: skip
    d = tl.arange(0, D_PAD)
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * M + i
    at = dq + row[:, None] * D + d[None, :]
    value = (total * factor).to(dq.dtype.element_ty)
    tl.store(at, value, mask=rows[:, None] & (d < D)[None, :])


@triton.jit
def _keys_step(
    sum_k, sum_v, sum_b, ks, ks_low, vs, bias, q, q_high, q_low, g, offset, delta, seen, told,
    scale, one, i0, last, sq, sg, shq,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, TIMED: tl.constexpr, POINTS: tl.constexpr, VALUES: tl.constexpr,
    SPLIT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    qs = block(q, i0, last, sq, D, D_PAD, BM, MASKED)
    high, low = qs, qs
    if SPLIT:
        high = block(q_high, i0, last, shq, D, D_PAD, BM, MASKED)
        low = block(q_low, i0, last, shq, D, D_PAD, BM, MASKED)
    if E > 0:
        gs = block(g, i0, last, sg, E, E_PAD, BM, MASKED)
    m = numbers(offset, i0, last, 1, float("inf"), BM, MASKED)
    delta = numbers(delta, i0, last, 1, 0.0, BM, MASKED)
    scores = product(ks, ks_low, high.T, low.T, SPLIT, True)
    t = _relative(scores, scale, bias[:, None], m[None, :], SPLIT)
    if TIMED:
        t = hidden(t, numbers(seen, i0, last, 1, -1, BM, MASKED)[None, :], told[:, None])
    p = tl.exp2(t)
    if VALUES:
        sum_v = _plus(sum_v, p.to(gs.dtype), gs, one, SPLIT)
    if E > 0:
        ds = p * (_times(vs, gs.T, SPLIT) - delta[None, :])
    else:
        ds = p * -delta[None, :]
    if POINTS:
        sum_k = _plus(sum_k, ds.to(qs.dtype), qs, one, SPLIT)
    return sum_k, sum_v, sum_b + tl.sum(ds, 1)


@triton.jit
def keys(
    q, k, v, b, q_high, q_low, k_high, k_low, survey, times, starts, offset, g, delta,
    dk, dv, db, M, N, H, factor, one, sq, sk, sv, sb, sg, shq, shk,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ENDS: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, POINTS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    r"""$k'=s\,S'^\top q$, $v'=P^\top g$, $b'_j=\sum_iS'_{ij}$, for keys, which are rows here.

    $k'$ only where `POINTS` says so, and $v'$ where `VALUES` does.
    """
    z, place, blocks = placed(N, BN)
    part = tl.program_id(1)
    j0 = place * BN
    first, last = queries_of_keys(starts, z, j0, M, ENDS)
    first, _, last = share(first, last, part, tl.num_programs(1), BM)
    j = j0 + tl.arange(0, BN)
    rows = j < N
    scale = factor * LOG2E
    ks = block(problem(k_high, z, H, shk), j0, N, shk, D, D_PAD, BN, True)
    ks_low = ks
    if SPLIT:
        ks_low = block(problem(k_low, z, H, shk), j0, N, shk, D, D_PAD, BN, True)
        q_high, q_low = problem(q_high, z, H, shq), problem(q_low, z, H, shq)
        scale *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
    vs = ks
    if E > 0:
        vs = block(problem(v, z, H, sv), j0, N, sv, E, E_PAD, BN, True)
    bias = numbers(problem(b, z, H, sb), j0, N, sb[2], -float("inf"), BN, True) * LOG2E
    row = z.to(tl.int64) * M
    q, g, offset, delta = problem(q, z, H, sq), problem(g, z, H, sg), offset + row, delta + row
    seen, told = offset, 0
    if ENDS == 2:
        seen = times + z.to(tl.int64) * (M + N)
        told = tl.load(seen + M + j, mask=rows, other=LATEST)
    sum_k = tl.zeros([BN, D_PAD], tl.float32)
    sum_v = tl.zeros([BN, E_PAD], tl.float32)
    sum_b = tl.zeros([BN], tl.float32)
    for i0 in tl.range(first, last, BM, num_stages=STAGES):
        sum_k, sum_v, sum_b = _keys_step(
            sum_k, sum_v, sum_b, ks, ks_low, vs, bias, q, q_high, q_low, g, offset, delta, seen,
            told, scale, one, i0, last, sq, sg, shq, D, E, D_PAD, E_PAD, BM, ENDS == 2,
            POINTS, VALUES, SPLIT, not EVEN,
        )  # fmt: skip
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * N + j
    d, e = tl.arange(0, D_PAD), tl.arange(0, E_PAD)
    if POINTS:
        at, mask = dk + row[:, None] * D + d[None, :], rows[:, None] & (d < D)[None, :]
        tl.store(at, (sum_k * factor).to(dk.dtype.element_ty), mask=mask)
    if VALUES:
        at, mask = dv + row[:, None] * E + e[None, :], rows[:, None] & (e < E)[None, :]
        tl.store(at, sum_v.to(dv.dtype.element_ty), mask=mask)
    tl.store(db + row, sum_b, mask=rows)
