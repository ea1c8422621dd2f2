r"""Gradients for wide points, on tensor cores.

One kernel goes over the keys of a block of queries, the other over the queries of a block of keys.
Both form the scores again, from the same halves as the forward pass, so that large scores are
rounded alike. No program adds to what another has written, so results have the same
bits each time. Each has a single loop: with a second one for the last, masked block the compiler
would run products of tensor cores one after another, one quarter slower. `EVEN` says that nothing
needs a mask.

In float32 (`SPLIT`) every product is one of float16 halves, as in `wide`. Weights and gradients in
the scores become halves, too, once they are multiplied by powers of 2 that bring them into the
range of float16. `survey.upstream_halves` says which. Products of a block are added in float32.
"""

import triton
import triton.language as tl

from .parts import (
    LATEST,
    LOG2E,
    block,
    end_of_keys,
    hidden,
    in_halves,
    numbers,
    placed,
    problem,
    product,
    queries_of_keys,
    scale_of_halves,
    share,
)

FROM_INNER: tl.constexpr = tl.constexpr(2.0**-28)
"""What brings dot products of halves of upstream gradients and values to size at most 1."""


@triton.jit
def _plus(total, x, a, a_low, unit, SPLIT: tl.constexpr):
    """A sum of products `x a`; in float32 each product is added in float32, in units."""
    if SPLIT:
        high, low = in_halves(x)
        return total + product(high, low, a, a_low, SPLIT, False) * unit
    return tl.dot(x.to(a.dtype), a, total)


@triton.jit
def _relative(scores, scale, bias, m, SPLIT: tl.constexpr):
    """Scores in base 2 less their offset; in float32 rounded first as the forward pass does."""
    if SPLIT:
        return (scores * scale + bias) - m
    return scores * scale + (bias - m)


@triton.jit
def _queries_step(
    total, qs, qs_low, gs, gs_low, delta, fit, m, k, k_low, v, v_low, b, told, seen, scale, one,
    j0, last, sk, sv, sb, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr,
    E_PAD: tl.constexpr, BN: tl.constexpr, TIMED: tl.constexpr, SPLIT: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """One block of keys: scores, weights, gradients in the scores, and their sums of keys."""
    ks = block(k, j0, last, sk, D, D_PAD, BN, MASKED)
    ks_low = ks
    if SPLIT:
        ks_low = block(k_low, j0, last, sk, D, D_PAD, BN, MASKED)
    if E > 0:
        vs = block(v, j0, last, sv, E, E_PAD, BN, MASKED)
        vs_low = vs
        if SPLIT:
            vs_low = block(v_low, j0, last, sv, E, E_PAD, BN, MASKED)
    bias = numbers(b, j0, last, sb[2], -float("inf"), BN, MASKED) * LOG2E
    scores = product(qs, qs_low, ks.T, ks_low.T, SPLIT, False)
    t = _relative(scores, scale, bias[None, :], m[:, None], SPLIT)
    if TIMED:
        t = hidden(t, seen[:, None], numbers(told, j0, last, 1, LATEST, BN, MASKED)[None, :])
    ds = tl.exp2(t)
    if E > 0:
        inner = product(gs, gs_low, vs.T, vs_low.T, SPLIT, False)
        if SPLIT:
            inner *= fit[:, None]
        ds *= inner - delta[:, None]
    else:
        ds *= -delta[:, None]
    return _plus(total, ds, ks, ks_low, one, SPLIT)


@triton.jit
def queries(
    q, k, v, b, q_low, k_low, v_low, survey, times, ends, offset, g, delta, g_low, fit, unit, dq,
    M, N, H, factor, one, sq, sk, sv, sb, sg,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ENDS: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    r"""$q'_i=s\sum_jS'_{ij}k_j$ with $S'_{ij}=P_{ij}(\langle g_i,v_j\rangle-\delta_i)$.

    In float32 $S'_{ij}$ is formed in units of `unit`, one for each query. Rows of numbers for the
    queries, from `offset` to `unit`, are those of `survey.upstream` or `survey.upstream_halves`.
    """
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
    qs = block(problem(q, z, H, sq), i0, M, sq, D, D_PAD, BM, True)
    delta = numbers(delta + row, i0, M, 1, 0.0, BM, True)
    qs_low, fits = qs, delta
    if SPLIT:
        qs_low = block(problem(q_low, z, H, sq), i0, M, sq, D, D_PAD, BM, True)
        scale *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
        fits = numbers(fit + row, i0, M, 1, 0.0, BM, True)
        delta *= fits
        fits *= FROM_INNER
    gs, gs_low = qs, qs_low
    if E > 0:
        gs = block(problem(g, z, H, sg), i0, M, sg, E, E_PAD, BM, True)
        gs_low = gs
        if SPLIT:
            gs_low = block(problem(g_low, z, H, sg), i0, M, sg, E, E_PAD, BM, True)
    m = numbers(offset + row, i0, M, 1, float("inf"), BM, True)
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    k_low, v_low = problem(k_low, z, H, sk), problem(v_low, z, H, sv)
    seen, told = 0, b
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen, told = tl.load(times + i, mask=rows, other=-1), times + M
    total = tl.zeros([BM, D_PAD], tl.float32)
    for j0 in tl.range(first, last, BN, num_stages=STAGES):
        total = _queries_step(
            total, qs, qs_low, gs, gs_low, delta, fits, m, k, k_low, v, v_low, b, told, seen,
            scale, one, j0, last, sk, sv, sb, D, E, D_PAD, E_PAD, BN, ENDS == 2, SPLIT, not EVEN,
        )  # fmt: skip
    if SPLIT:
        total *= scale_of_halves(survey, z, 1)
        total *= numbers(unit + row, i0, M, 1, 0.0, BM, True)[:, None]
    d = tl.arange(0, D_PAD)
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * M + i
    at = dq + row[:, None] * D + d[None, :]
    value = (total * factor).to(dq.dtype.element_ty)
    tl.store(at, value, mask=rows[:, None] & (d < D)[None, :])


@triton.jit
def _keys_step(
    sum_k, sum_v, sum_b, ks, ks_low, vs, vs_low, bias, q, q_low, g, g_low, offset, delta, fit,
    unit, seen, told, scale, i0, last, sq, sg,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, TIMED: tl.constexpr, POINTS: tl.constexpr, VALUES: tl.constexpr,
    BIAS: tl.constexpr, SPLIT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One block of queries: scores, weights, gradients in the scores, and sums of all of them."""
    qs = block(q, i0, last, sq, D, D_PAD, BM, MASKED)
    qs_low = qs
    if SPLIT:
        qs_low = block(q_low, i0, last, sq, D, D_PAD, BM, MASKED)
    if E > 0:
        gs = block(g, i0, last, sg, E, E_PAD, BM, MASKED)
        gs_low = gs
        if SPLIT:
            gs_low = block(g_low, i0, last, sg, E, E_PAD, BM, MASKED)
    m = numbers(offset, i0, last, 1, float("inf"), BM, MASKED)
    delta = numbers(delta, i0, last, 1, 0.0, BM, MASKED)
    units = 1.0
    if SPLIT:
        units = tl.load(unit + i0 // BM)
        fits = numbers(fit, i0, last, 1, 0.0, BM, MASKED)
    scores = product(ks, ks_low, qs.T, qs_low.T, SPLIT, True)
    t = _relative(scores, scale, bias[:, None], m[None, :], SPLIT)
    if TIMED:
        t = hidden(t, numbers(seen, i0, last, 1, -1, BM, MASKED)[None, :], told[:, None])
    p = tl.exp2(t)
    if SPLIT:
        p *= fits[None, :]
    if VALUES:
        sum_v = _plus(sum_v, p, gs, gs_low, units, SPLIT)
    if POINTS or BIAS:
        ds = p * -delta[None, :]
        if E > 0:
            inner = product(vs, vs_low, gs.T, gs_low.T, SPLIT, True)
            if SPLIT:
                inner *= FROM_INNER
            ds = p * (inner - delta[None, :])
        if POINTS:
            sum_k = _plus(sum_k, ds, qs, qs_low, units, SPLIT)
        if BIAS:
            more = tl.sum(ds, 1)
            if SPLIT:
                more *= units
            sum_b += more
    return sum_k, sum_v, sum_b


@triton.jit
def keys(
    q, k, v, b, q_low, k_low, v_low, survey, times, starts, offset, g, delta, g_low, fit, unit,
    dk, dv, db, M, N, H, factor, one, sq, sk, sv, sb, sg,
    D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr, ENDS: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr, POINTS: tl.constexpr, VALUES: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    r"""$k'=s\,S'^\top q$, $v'=P^\top g$, $b'_j=\sum_iS'_{ij}$, for keys, which are rows here.

    $k'$ only with `POINTS`, $v'$ with `VALUES` and $b'$ with `BIAS`. In float32 $P_{ij}$ and
    $S'_{ij}$ are formed in units of `unit`, one for each block of queries.
    """
    z, place, blocks = placed(N, BN)
    part = tl.program_id(1)
    j0 = place * BN
    first, last = queries_of_keys(starts, z, j0, M, ENDS)
    first, _, last = share(first, last, part, tl.num_programs(1), BM)
    j = j0 + tl.arange(0, BN)
    rows = j < N
    scale = factor * LOG2E
    ks = block(problem(k, z, H, sk), j0, N, sk, D, D_PAD, BN, True)
    ks_low = ks
    row = z.to(tl.int64) * M
    if SPLIT:
        ks_low = block(problem(k_low, z, H, sk), j0, N, sk, D, D_PAD, BN, True)
        scale *= scale_of_halves(survey, z, 0) * scale_of_halves(survey, z, 1)
        fit, unit = fit + row, unit + z.to(tl.int64) * tl.cdiv(M, BM)
    vs, vs_low = ks, ks_low
    if E > 0:
        vs = block(problem(v, z, H, sv), j0, N, sv, E, E_PAD, BN, True)
        vs_low = vs
        if SPLIT:
            vs_low = block(problem(v_low, z, H, sv), j0, N, sv, E, E_PAD, BN, True)
    bias = numbers(problem(b, z, H, sb), j0, N, sb[2], -float("inf"), BN, True) * LOG2E
    q, g, offset, delta = problem(q, z, H, sq), problem(g, z, H, sg), offset + row, delta + row
    q_low = problem(q_low, z, H, sq)
    if SPLIT:
        g_low = problem(g_low, z, H, sg)
    seen, told = offset, 0
    if ENDS == 2:
        seen = times + z.to(tl.int64) * (M + N)
        told = tl.load(seen + M + j, mask=rows, other=LATEST)
    sum_k = tl.zeros([BN, D_PAD], tl.float32)
    sum_v = tl.zeros([BN, E_PAD], tl.float32)
    sum_b = tl.zeros([BN], tl.float32)
    for i0 in tl.range(first, last, BM, num_stages=STAGES):
        sum_k, sum_v, sum_b = _keys_step(
            sum_k, sum_v, sum_b, ks, ks_low, vs, vs_low, bias, q, q_low, g, g_low, offset, delta,
            fit, unit, seen, told, scale, i0, last, sq, sg, D, E, D_PAD, E_PAD, BM, ENDS == 2,
            POINTS, VALUES, BIAS, SPLIT, not EVEN,
        )  # fmt: skip
    if SPLIT:
        sum_k *= scale_of_halves(survey, z, 0)
        if E > 0:
            sum_v = sum_v * FROM_INNER / scale_of_halves(survey, z, 2)
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * N + j
    d, e = tl.arange(0, D_PAD), tl.arange(0, E_PAD)
    if POINTS:
        at, mask = dk + row[:, None] * D + d[None, :], rows[:, None] & (d < D)[None, :]
        tl.store(at, (sum_k * factor).to(dk.dtype.element_ty), mask=mask)
    if VALUES:
        at, mask = dv + row[:, None] * E + e[None, :], rows[:, None] & (e < E)[None, :]
        tl.store(at, sum_v.to(dv.dtype.element_ty), mask=mask)
    if BIAS:
        tl.store(db + row, sum_b, mask=rows)
