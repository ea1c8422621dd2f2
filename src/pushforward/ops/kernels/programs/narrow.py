r"""Kernels for narrow points: queries, keys and values of at most four coordinates.

They run on the ordinary arithmetic units, in float32. A program keeps a tile of queries and keys
in registers. It keeps a sum for each element of the tile, and adds these up once, at the end. The
largest score is found once for several tiles. So a pair costs one multiply-add for each coordinate
and little more than one exponential.
"""

import triton
import triton.language as tl

from .parts import (
    LATEST,
    LN2,
    LOG2E,
    coordinates,
    end_of_keys,
    has_small_scores,
    hidden,
    highest_bias,
    numbers,
    placed,
    plus_dot,
    plus_weighted,
    problem,
    queries_of_keys,
    share,
    zeros,
)


@triton.jit
def _rescaled(sums, factor, WIDTH: tl.constexpr):
    new = ()
    for e in tl.static_range(WIDTH):
        new = new + (sums[e] * factor,)
    return new


@triton.jit
def _forward_step(
    m, s, sums, points, k, v, b, told, seen, shift, j0, last, sk, sv, sb,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    TIMED: tl.constexpr, MODE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Several tiles of keys: their scores, then the new largest score, then their weights."""
    scores = ()
    top = m
    for g in tl.static_range(GROUP):
        j = j0 + g * BN
        bias = numbers(b, j, last, sb[2], -float("inf"), BN, MASKED) * LOG2E - shift
        t = plus_dot(bias[None, :], points, coordinates(k, j, last, sk, 1.0, D, BN, MASKED), D)
        if TIMED:
            t = hidden(t, seen[:, None], numbers(told, j, last, 1, LATEST, BN, MASKED)[None, :])
        scores = scores + (t,)
        if MODE != 1:
            top = tl.maximum(top, t)
    base = shift
    if MODE != 1:
        base = tl.where(top == -float("inf"), 0.0, top)
        old = tl.exp2(m - base)
        s, sums, m = s * old, _rescaled(sums, old, E), top
    for g in tl.static_range(GROUP):
        if MODE == 1:
            p = tl.exp2(scores[g])
        else:
            p = tl.exp2(scores[g] - base)
        s += p
        if E > 0:
            values = coordinates(v, j0 + g * BN, last, sv, 1.0, E, BN, MASKED)
            sums = plus_weighted(sums, p, values, E)
    return m, s, sums


@triton.jit
def forward(
    q, k, v, b, times, ends, survey, out, peak, total, log_z, M, N, H, factor,
    sq, sk, sv, sb, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, ENDS: tl.constexpr, MODE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    r"""The average, a shift of the scores in base 2, and the sum of weights relative to it.

    `ENDS` is 1 if each problem has a last key of its own, and 2 if each block of queries has, for
    times. The shift is the largest score, in `MODE` 0. A survey may have found problems whose
    scores are so small that the highest bias serves as well: `MODE` 1 does them, 2 the others.
    The log-integral follows if one program sees all keys (`WHOLE`).
    """
    z, place, blocks = placed(M, BM)
    part = tl.program_id(1)
    shift = 0.0
    if MODE > 0:
        if has_small_scores(survey, z, factor) != (MODE == 1):
            return
    if MODE == 1:
        shift = highest_bias(survey, z)
    last = end_of_keys(ends, z, N, ENDS)
    first, full, last = share(0, last, part, tl.num_programs(1), GROUP * BN)
    i0 = place * BM
    i = i0 + tl.arange(0, BM)
    rows = i < M
    points = coordinates(problem(q, z, H, sq), i0, M, sq, factor * LOG2E, D, BM, True)
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    seen, told = 0, b
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen, told = tl.load(times + i, mask=rows, other=-1), times + M
    m = tl.full([BM, BN], -float("inf"), tl.float32)
    s = tl.zeros([BM, BN], tl.float32)
    sums = zeros(E, BM, BN)
    for j0 in tl.range(first, full, GROUP * BN):
        m, s, sums = _forward_step(
            m, s, sums, points, k, v, b, told, seen, shift, j0, last, sk, sv, sb,
            D, E, BN, GROUP, ENDS == 2, MODE, False,
        )  # fmt: skip
    for j0 in tl.range(full, last, GROUP * BN):
        m, s, sums = _forward_step(
            m, s, sums, points, k, v, b, told, seen, shift, j0, last, sk, sv, sb,
            D, E, BN, GROUP, ENDS == 2, MODE, True,
        )  # fmt: skip
    if MODE == 1:
        top = tl.zeros([BM], tl.float32) + shift
    else:
        top = tl.max(m, 1)
        weight = tl.exp2(m - tl.where(top == -float("inf"), 0.0, top)[:, None])
        s, sums = s * weight, _rescaled(sums, weight, E)
    count = tl.sum(s, 1)
    top = tl.where(count == 0.0, -float("inf"), top)
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * M + i
    tl.store(peak + row, top, mask=rows)
    tl.store(total + row, count, mask=rows)
    if WHOLE:
        tl.store(log_z + row, (top + tl.log2(count)) * LN2, mask=rows)
    count = tl.where(count == 0.0, 1.0, count)
    for e in tl.static_range(E):
        tl.store(out + row * E + e, tl.sum(sums[e], 1) / count, mask=rows)


@triton.jit
def _queries_step(
    sums, points, upstream, c, m, k, v, b, told, seen, j0, last, sk, sv, sb,
    D: tl.constexpr, E: tl.constexpr, BN: tl.constexpr, TIMED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    bias = numbers(b, j0, last, sb[2], -float("inf"), BN, MASKED) * LOG2E
    others = coordinates(k, j0, last, sk, 1.0, D, BN, MASKED)
    values = coordinates(v, j0, last, sv, 1.0, E, BN, MASKED)
    t = plus_dot(bias[None, :], points, others, D)
    if TIMED:
        t = hidden(t, seen[:, None], numbers(told, j0, last, 1, LATEST, BN, MASKED)[None, :])
    ds = tl.exp2(t - m[:, None]) * plus_dot(c[:, None], upstream, values, E)
    return plus_weighted(sums, ds, others, D)


@triton.jit
def backward_queries(
    q, k, v, b, times, ends, offset, g, slope, dq, M, N, H, factor, sq, sk, sv, sb, sg,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    ENDS: tl.constexpr,
):  # fmt: skip
    r"""$q'_i=s\sum_jS'_{ij}k_j$ with $S'_{ij}=P_{ij}(\langle g_i,v_j\rangle+c_i)$, for queries.

    $P$ is relative to `offset`. What is upstream, `g` and `slope` ($c$), is divided accordingly.
    """
    z, place, blocks = placed(M, BM)
    part = tl.program_id(1)
    last = end_of_keys(ends, z, N, ENDS)
    first, full, last = share(0, last, part, tl.num_programs(1), GROUP * BN)
    i0 = place * BM
    i = i0 + tl.arange(0, BM)
    rows = i < M
    row = z.to(tl.int64) * M
    points = coordinates(problem(q, z, H, sq), i0, M, sq, factor * LOG2E, D, BM, True)
    upstream = coordinates(problem(g, z, H, sg), i0, M, sg, 1.0, E, BM, True)
    c = numbers(slope + row, i0, M, 1, 0.0, BM, True)
    m = numbers(offset + row, i0, M, 1, float("inf"), BM, True)
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    seen, told = 0, b
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen, told = tl.load(times + i, mask=rows, other=-1), times + M
    sums = zeros(D, BM, BN)
    for j0 in tl.range(first, full, GROUP * BN):
        for turn in tl.static_range(GROUP):
            sums = _queries_step(
                sums, points, upstream, c, m, k, v, b, told, seen, j0 + turn * BN, last,
                sk, sv, sb, D, E, BN, ENDS == 2, False,
            )  # fmt: skip
    for j0 in tl.range(full, last, BN):
        sums = _queries_step(
            sums, points, upstream, c, m, k, v, b, told, seen, j0, last, sk, sv, sb,
            D, E, BN, ENDS == 2, True,
        )  # fmt: skip
    row += part.to(tl.int64) * (tl.num_programs(0) // blocks) * M + i
    for d in tl.static_range(D):
        tl.store(dq + row * D + d, tl.sum(sums[d], 1) * factor, mask=rows)


@triton.jit
def _keys_step(
    sum_k, sum_v, sum_b, points, values, bias, q, g, offset, slope, seen, told, i0, last,
    factor, sq, sg, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, TIMED: tl.constexpr,
    POINTS: tl.constexpr, VALUES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    # The same factors as in the forward pass, so that large scores are rounded alike.
    others = coordinates(q, i0, last, sq, factor * LOG2E, D, BM, MASKED)
    upstream = coordinates(g, i0, last, sg, 1.0, E, BM, MASKED)
    m = numbers(offset, i0, last, 1, float("inf"), BM, MASKED)
    c = numbers(slope, i0, last, 1, 0.0, BM, MASKED)
    t = plus_dot(bias[:, None], points, others, D)
    if TIMED:
        t = hidden(t, numbers(seen, i0, last, 1, -1, BM, MASKED)[None, :], told[:, None])
    p = tl.exp2(t - m[None, :])
    ds = p * plus_dot(c[None, :], values, upstream, E)
    if POINTS:
        sum_k = plus_weighted(sum_k, ds, others, D)
    if VALUES:
        sum_v = plus_weighted(sum_v, p, upstream, E)
    return sum_k, sum_v, sum_b + ds


@triton.jit
def backward_keys(
    q, k, v, b, times, starts, offset, g, slope, dk, dv, db,
    M, N, H, factor, sq, sk, sv, sb, sg,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    ENDS: tl.constexpr, POINTS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    r"""$k'=s\,S'^\top q$, $v'=P^\top g$, $b'_j=\sum_iS'_{ij}$, for keys, which are rows here.

    $k'$ only where `POINTS` says so, and $v'$ where `VALUES` does.
    """
    z, place, blocks = placed(N, BN)
    part = tl.program_id(1)
    j0 = place * BN
    first, last = queries_of_keys(starts, z, j0, M, ENDS)
    first, full, last = share(first, last, part, tl.num_programs(1), GROUP * BM)
    j = j0 + tl.arange(0, BN)
    rows = j < N
    points = coordinates(problem(k, z, H, sk), j0, N, sk, 1.0, D, BN, True)
    values = coordinates(problem(v, z, H, sv), j0, N, sv, 1.0, E, BN, True)
    bias = numbers(problem(b, z, H, sb), j0, N, sb[2], -float("inf"), BN, True) * LOG2E
    row = z.to(tl.int64) * M
    q, g, offset, slope = problem(q, z, H, sq), problem(g, z, H, sg), offset + row, slope + row
    seen, told = offset, 0
    if ENDS == 2:
        seen = times + z.to(tl.int64) * (M + N)
        told = tl.load(seen + M + j, mask=rows, other=LATEST)
    sum_k, sum_v = zeros(D, BN, BM), zeros(E, BN, BM)
    sum_b = tl.zeros([BN, BM], tl.float32)
    for i0 in tl.range(first, full, GROUP * BM):
        for turn in tl.static_range(GROUP):
            sum_k, sum_v, sum_b = _keys_step(
                sum_k, sum_v, sum_b, points, values, bias, q, g, offset, slope, seen, told,
                i0 + turn * BM, last, factor, sq, sg, D, E, BM, ENDS == 2, POINTS, VALUES, False,
            )  # fmt: skip
    for i0 in tl.range(full, last, BM):
        sum_k, sum_v, sum_b = _keys_step(
            sum_k, sum_v, sum_b, points, values, bias, q, g, offset, slope, seen, told, i0, last,
            factor, sq, sg, D, E, BM, ENDS == 2, POINTS, VALUES, True,
        )  # fmt: skip
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * N + j
    for d in tl.static_range(D if POINTS else 0):
        tl.store(dk + row * D + d, tl.sum(sum_k[d], 1) / LOG2E, mask=rows)
    for e in tl.static_range(E if VALUES else 0):
        tl.store(dv + row * E + e, tl.sum(sum_v[e], 1), mask=rows)
    tl.store(db + row, tl.sum(sum_b, 1), mask=rows)
