r"""Kernels for narrow points: queries, keys and values of at most four coordinates.

They run on the ordinary arithmetic units, in float32. A program keeps a tile of queries and keys
in registers. It keeps a sum for each element of the tile, and adds these up once, at the end. The
largest score is found once for several tiles. So a pair costs one multiply-add for each coordinate
and little more than one exponential.
"""

import triton
import triton.language as tl

from ._parts import LATEST, LOG2E, coordinates, hidden, problem, share


@triton.jit
def _zeros(COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    sums = ()
    for _ in tl.static_range(COUNT):
        sums = sums + (tl.zeros([ROWS, COLUMNS], tl.float32),)
    return sums


@triton.jit
def _plus_dot(t, points, others, WIDTH: tl.constexpr):
    """`t` plus the dot products of points, along rows, and other points, along columns."""
    for d in tl.static_range(WIDTH):
        t = t + points[d][:, None] * others[d][None, :]
    return t


@triton.jit
def _plus_weighted(sums, p, others, WIDTH: tl.constexpr):
    """Sums of the coordinates of the points along columns, with weights `p`."""
    new = ()
    for e in tl.static_range(WIDTH):
        new = new + (sums[e] + p * others[e][None, :],)
    return new


@triton.jit
def _rescaled(sums, factor, WIDTH: tl.constexpr):
    new = ()
    for e in tl.static_range(WIDTH):
        new = new + (sums[e] * factor,)
    return new


@triton.jit
def forward(
    q, k, v, b, times, ends, survey, out, peak, total, M, N, H, factor, sq, sk, sv, sb,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
    ENDS: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    r"""The average, a shift of the scores in base 2, and the sum of weights relative to it.

    `ENDS` is 1 if each problem has a last key of its own, and 2 if each block of queries has, for
    times. The shift is the largest score, in `MODE` 0. A survey may have found problems whose
    scores are so small that the largest bias serves as well: `MODE` 1 does them, 2 the others.
    """
    z, part = tl.program_id(1), tl.program_id(2)
    shift = 0.0
    if MODE > 0:
        if (tl.load(survey + 2 * z) > 0.0) != (MODE == 1):
            return
    if MODE == 1:
        shift = tl.load(survey + 2 * z + 1)
    last = N
    if ENDS == 1:
        last = tl.load(ends + z)
    if ENDS == 2:
        last = tl.load(ends + z * tl.num_programs(0) + tl.program_id(0))
    first, last = share(0, last, part, tl.num_programs(2), GROUP * BN)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    rows = i < M
    points = coordinates(problem(q, z, H, sq), i.to(tl.int64), rows, sq, factor * LOG2E, D)
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen = tl.load(times + i, mask=rows, other=-1)
    m = tl.full([BM, BN], -float("inf"), tl.float32)
    s = tl.zeros([BM, BN], tl.float32)
    sums = _zeros(E, BM, BN)
    for j0 in tl.range(first, last, GROUP * BN):
        scores = ()
        top = m
        for g in tl.static_range(GROUP):
            j = j0 + g * BN + tl.arange(0, BN)
            live, at = j < last, j.to(tl.int64)
            bias = tl.load(b + at * sb[2], mask=live, other=-float("inf")) * LOG2E - shift
            t = _plus_dot(bias[None, :], points, coordinates(k, at, live, sk, 1.0, D), D)
            if ENDS == 2:
                told = tl.load(times + M + j, mask=live, other=LATEST)
                t = hidden(t, seen[:, None], told[None, :])
            scores = scores + (t,)
            if MODE != 1:
                top = tl.maximum(top, t)
        base = tl.where(top == -float("inf"), 0.0, top)
        if MODE != 1:
            old = tl.exp2(m - base)
            s, sums, m = s * old, _rescaled(sums, old, E), top
        for g in tl.static_range(GROUP):
            j = j0 + g * BN + tl.arange(0, BN)
            if MODE == 1:
                p = tl.exp2(scores[g])
            else:
                p = tl.exp2(scores[g] - base)
            s += p
            if E > 0:
                values = coordinates(v, j.to(tl.int64), j < last, sv, 1.0, E)
                sums = _plus_weighted(sums, p, values, E)
    if MODE == 1:
        top = tl.zeros([BM], tl.float32) + shift
    else:
        top = tl.max(m, 1)
        weight = tl.exp2(m - tl.where(top == -float("inf"), 0.0, top)[:, None])
        s, sums = s * weight, _rescaled(sums, weight, E)
    count = tl.sum(s, 1)
    row = (part.to(tl.int64) * tl.num_programs(1) + z) * M + i
    tl.store(peak + row, tl.where(count == 0.0, -float("inf"), top), mask=rows)
    tl.store(total + row, count, mask=rows)
    count = tl.where(count == 0.0, 1.0, count)
    for e in tl.static_range(E):
        tl.store(out + row * E + e, tl.sum(sums[e], 1) / count, mask=rows)


@triton.jit
def backward_queries(
    q, k, v, b, times, ends, offset, g, slope, dq, M, N, H, factor, sq, sk, sv, sb,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, ENDS: tl.constexpr,
):  # fmt: skip
    r"""$q'_i=s\sum_jS'_{ij}k_j$ with $S'_{ij}=P_{ij}(\langle g_i,v_j\rangle+c_i)$, for queries.

    $P$ is relative to `offset`. What is upstream, `g` and `slope` ($c$), is divided accordingly.
    """
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
    points = coordinates(problem(q, z, H, sq), i.to(tl.int64), rows, sq, factor * LOG2E, D)
    upstream = ()
    for e in tl.static_range(E):
        upstream = upstream + (tl.load(g + row * E + e, mask=rows, other=0.0),)
    c = tl.load(slope + row, mask=rows, other=0.0)
    m = tl.load(offset + row, mask=rows, other=float("inf"))
    k, v, b = problem(k, z, H, sk), problem(v, z, H, sv), problem(b, z, H, sb)
    if ENDS == 2:
        times += z.to(tl.int64) * (M + N)
        seen = tl.load(times + i, mask=rows, other=-1)
    sums = _zeros(D, BM, BN)
    for j0 in tl.range(first, last, BN):
        j = j0 + tl.arange(0, BN)
        live, at = j < last, j.to(tl.int64)
        bias = tl.load(b + at * sb[2], mask=live, other=-float("inf")) * LOG2E
        others = coordinates(k, at, live, sk, 1.0, D)
        t = _plus_dot(bias[None, :], points, others, D)
        if ENDS == 2:
            told = tl.load(times + M + j, mask=live, other=LATEST)
            t = hidden(t, seen[:, None], told[None, :])
        p = tl.exp2(t - m[:, None])
        ds = p * _plus_dot(c[:, None], upstream, coordinates(v, at, live, sv, 1.0, E), E)
        sums = _plus_weighted(sums, ds, others, D)
    row += part.to(tl.int64) * tl.num_programs(1) * M
    for d in tl.static_range(D):
        tl.store(dq + row * D + d, tl.sum(sums[d], 1) * factor, mask=rows)


@triton.jit
def backward_keys(
    q, k, v, b, times, starts, offset, g, slope, dk, dv, db, M, N, H, factor, sq, sk, sv, sb,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, TIMED: tl.constexpr,
):  # fmt: skip
    r"""$k'=s\,S'^\top q$, $v'=P^\top g$, $b'_j=\sum_iS'_{ij}$, for keys, which are rows here."""
    z, part = tl.program_id(1), tl.program_id(2)
    first = 0
    if TIMED:
        first = tl.load(starts + z * tl.num_programs(0) + tl.program_id(0))
    first, last = share(first, M, part, tl.num_programs(2), BM)
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    rows, at = j < N, j.to(tl.int64)
    points = coordinates(problem(k, z, H, sk), at, rows, sk, 1.0, D)
    values = coordinates(problem(v, z, H, sv), at, rows, sv, 1.0, E)
    bias = tl.load(problem(b, z, H, sb) + at * sb[2], mask=rows, other=-float("inf")) * LOG2E
    q = problem(q, z, H, sq)
    if TIMED:
        times += z.to(tl.int64) * (M + N)
        told = tl.load(times + M + j, mask=rows, other=LATEST)
    sum_k, sum_v = _zeros(D, BN, BM), _zeros(E, BN, BM)
    sum_b = tl.zeros([BN, BM], tl.float32)
    for i0 in tl.range(first, last, BM):
        i = i0 + tl.arange(0, BM)
        live = i < last
        row = z.to(tl.int64) * M + i
        # The same factors as in the forward pass, so that large scores are rounded alike.
        others = coordinates(q, i.to(tl.int64), live, sq, factor * LOG2E, D)
        m = tl.load(offset + row, mask=live, other=float("inf"))
        c = tl.load(slope + row, mask=live, other=0.0)
        upstream = ()
        for e in tl.static_range(E):
            upstream = upstream + (tl.load(g + row * E + e, mask=live, other=0.0),)
        t = _plus_dot(bias[:, None], points, others, D)
        if TIMED:
            seen = tl.load(times + i, mask=live, other=-1)
            t = hidden(t, seen[None, :], told[:, None])
        p = tl.exp2(t - m[None, :])
        ds = p * _plus_dot(c[None, :], values, upstream, E)
        sum_k = _plus_weighted(sum_k, ds, others, D)
        sum_v = _plus_weighted(sum_v, p, upstream, E)
        sum_b += ds
    row = (part.to(tl.int64) * tl.num_programs(1) + z) * N + j
    for d in tl.static_range(D):
        tl.store(dk + row * D + d, tl.sum(sum_k[d], 1) / LOG2E, mask=rows)
    for e in tl.static_range(E):
        tl.store(dv + row * E + e, tl.sum(sum_v[e], 1), mask=rows)
    tl.store(db + row, tl.sum(sum_b, 1), mask=rows)
