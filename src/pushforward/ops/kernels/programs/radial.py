r"""Kernels for sums over pairs with a factor $\psi(s)=(1+s)^{-p}$ of the squared distance.

They are like those for narrow points: a tile of points and terms is in registers, with a sum for
each of its elements. Distances come from differences of coordinates. In two dimensions with three
values a pair costs two differences, five multiply-adds and a root.
"""

import triton
import triton.language as tl

from .parts import coordinates, placed, plus_dot, plus_weighted, problem, share, zeros


@triton.jit
def _squares(points, others, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Coordinates of the differences of all pairs, and one plus their squared distances."""
    square = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
    differences = ()
    for d in tl.static_range(D):
        t = points[d][:, None] - others[d][None, :]
        differences = differences + (t,)
        square = t * t + square
    return differences, square


@triton.jit
def _decay(square, rest, HALVES: tl.constexpr, WHOLE: tl.constexpr):
    """The factor of a pair, and the inverse of `square`, which is one plus the squared distance.

    Inverse roots are multiplied, `HALVES` of them. What is left of the power is an exponential.
    A division would cost more than twice as much as a root and a product.
    """
    root = tl.rsqrt(square)
    inverse = root * root
    near = tl.full(square.shape, 1.0, tl.float32)
    if HALVES % 2 == 1:
        near = root
    for _ in tl.static_range(HALVES // 2):
        near = near * inverse
    if not WHOLE:
        near = near * tl.exp2(-rest * tl.log2(square))
    return near, inverse


@triton.jit
def _sums_step(
    sums, points, y, v, j0, last, rest, sy, sv,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    for g in tl.static_range(GROUP):
        others = coordinates(y, j0 + g * BN, last, sy, 1.0, D, BN, MASKED)
        values = coordinates(v, j0 + g * BN, last, sv, 1.0, E, BN, MASKED)
        _, square = _squares(points, others, D, BM, BN)
        near, _ = _decay(square, rest, HALVES, WHOLE)
        sums = plus_weighted(sums, near, values, E)
    return sums


@triton.jit
def sums(
    x, y, v, out, M, N, H, rest, sx, sy, sv,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    r"""The sums $\sum_j\psi(|x_i-y_j|^2)\,v_j$ for a block of points."""
    z, place, blocks = placed(M, BM)
    part = tl.program_id(1)
    first, full, last = share(0, N, part, tl.num_programs(1), GROUP * BN)
    i0 = place * BM
    i = i0 + tl.arange(0, BM)
    points = coordinates(problem(x, z, H, sx), i0, M, sx, 1.0, D, BM, True)
    y, v = problem(y, z, H, sy), problem(v, z, H, sv)
    sums = zeros(E, BM, BN)
    for j0 in tl.range(first, full, GROUP * BN):
        sums = _sums_step(
            sums, points, y, v, j0, last, rest, sy, sv,
            D, E, BM, BN, GROUP, HALVES, WHOLE, False,
        )  # fmt: skip
    for j0 in tl.range(full, last, BN):
        sums = _sums_step(
            sums, points, y, v, j0, last, rest, sy, sv, D, E, BM, BN, 1, HALVES, WHOLE, True
        )
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * M + i
    for e in tl.static_range(E):
        tl.store(out + row * E + e, tl.sum(sums[e], 1), mask=i < M)


@triton.jit
def _plus_scaled(sums, factor, tiles, WIDTH: tl.constexpr):
    new = ()
    for d in tl.static_range(WIDTH):
        new = new + (sums[d] + factor * tiles[d],)
    return new


@triton.jit
def _gradient_step(
    slopes, sums, points, given, y, v, j0, last, rest, sy, sv,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr, SUMS: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    for g in tl.static_range(GROUP):
        others = coordinates(y, j0 + g * BN, last, sy, 1.0, D, BN, MASKED)
        values = coordinates(v, j0 + g * BN, last, sv, 1.0, E, BN, MASKED)
        differences, square = _squares(points, others, D, BM, BN)
        near, inverse = _decay(square, rest, HALVES, WHOLE)
        slope = near * inverse * plus_dot(tl.zeros([BM, BN], tl.float32), given, values, E)
        slopes = _plus_scaled(slopes, slope, differences, D)
        if SUMS:
            sums = plus_weighted(sums, near, values, E)
    return slopes, sums


@triton.jit
def gradient(
    x, u, y, v, dx, out, M, N, H, rest, factor, sx, su, sy, sv,
    D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, WHOLE: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    r"""$x'_i=-2p\sum_j(1+|x_i-y_j|^2)^{-p-1}\langle u_i,v_j\rangle(x_i-y_j)$, and the sums."""
    z, place, blocks = placed(M, BM)
    part = tl.program_id(1)
    first, full, last = share(0, N, part, tl.num_programs(1), GROUP * BN)
    i0 = place * BM
    i = i0 + tl.arange(0, BM)
    points = coordinates(problem(x, z, H, sx), i0, M, sx, 1.0, D, BM, True)
    given = coordinates(problem(u, z, H, su), i0, M, su, 1.0, E, BM, True)
    y, v = problem(y, z, H, sy), problem(v, z, H, sv)
    slopes, sums = zeros(D, BM, BN), zeros(E if SUMS else 0, BM, BN)
    for j0 in tl.range(first, full, GROUP * BN):
        slopes, sums = _gradient_step(
            slopes, sums, points, given, y, v, j0, last, rest, sy, sv,
            D, E, BM, BN, GROUP, HALVES, WHOLE, SUMS, False,
        )  # fmt: skip
    for j0 in tl.range(full, last, BN):
        slopes, sums = _gradient_step(
            slopes, sums, points, given, y, v, j0, last, rest, sy, sv,
            D, E, BM, BN, 1, HALVES, WHOLE, SUMS, True,
        )  # fmt: skip
    row = (part.to(tl.int64) * (tl.num_programs(0) // blocks) + z) * M + i
    for d in tl.static_range(D):
        tl.store(dx + row * D + d, tl.sum(slopes[d], 1) * factor, mask=i < M)
    if SUMS:
        for e in tl.static_range(E):
            tl.store(out + row * E + e, tl.sum(sums[e], 1), mask=i < M)
