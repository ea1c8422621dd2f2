r"""Kernels that read each point once: surveys, copies, halves, what queries hand on, merged parts.

A survey finds, for each problem, `FIELDS` whole numbers. They grow with what they stand for, so
their largest can be found by atomic operations, in any order, and 0 means that nothing was there.
"""

import triton
import triton.language as tl

from .parts import (
    END,
    FIELDS,
    HIGHEST,
    LN2,
    LOG2E,
    LONGEST,
    block,
    exponent_above,
    exponent_of_halves,
    highest_bias,
    in_halves,
    numbers,
    placed,
    power,
    problem,
    scale_of_halves,
)


@triton.jit
def _live(b, start, length, stride, some, SIZE: tl.constexpr):
    """Some points, with zeros for those without mass, whatever their coordinates are."""
    bias = numbers(b, start, length, stride, -float("inf"), SIZE, True)
    return tl.where((bias == -float("inf"))[:, None], 0.0, some)


@triton.jit
def _surveyed(
    x, b, largest, longest, first, length, stride, stride_b,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Raise the largest coordinate and squared length found so far by those of some points.

    Those without mass do not count; without `b` all points do.
    """
    most = tl.zeros([SIZE], tl.float32)
    square = tl.zeros([SIZE], tl.float32)
    for step in tl.static_range(STEPS):
        start = first + step * SIZE
        some = block(x, start, length, stride, WIDTH, PADDED, SIZE, True).to(tl.float32)
        if b is not None:
            some = _live(b, start, length, stride_b, some, SIZE)
        most = tl.maximum(most, tl.max(tl.abs(some), 1))
        square = tl.maximum(square, tl.sum(some * some, 1))
    tl.atomic_max(largest, tl.max(most, 0).to(tl.int32, bitcast=True))
    tl.atomic_max(longest, tl.max(square, 0).to(tl.int32, bitcast=True))


@triton.jit
def _surveyed_biases(b, found, first, length, stride, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """Raise the highest bias and the end of the keys found so far by those of some keys."""
    most = tl.full([SIZE], -float("inf"), tl.float32)
    end = tl.zeros([SIZE], tl.int32)
    for step in tl.static_range(STEPS):
        start = first + step * SIZE
        some = numbers(b, start, length, stride, -float("inf"), SIZE, True)
        most = tl.maximum(most, some)
        end = tl.maximum(end, tl.where(some == -float("inf"), 0, start + 1 + tl.arange(0, SIZE)))
    bits = tl.max(most, 0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    last = tl.max(end, 0)
    tl.atomic_max(found + HIGHEST, tl.where(last > 0, (ordered >> 1) + 0x40000000, 0))
    tl.atomic_max(found + END, last)


@triton.jit
def survey(
    q, k, v, b, found, M, N, H, sq, sk, sv, sb, D: tl.constexpr, E: tl.constexpr,
    D_PAD: tl.constexpr, E_PAD: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """How large queries, keys and values are, the highest bias, and where keys with mass end.

    Keys and values without mass do not count; without biases all of them do. The bits of a
    positive number grow with it. Those of a bias are put in order, lose the last one and become
    positive.
    """
    z, place, _ = placed(tl.maximum(M, N), SIZE * STEPS)
    found += z * FIELDS
    first = place * SIZE * STEPS
    if D > 0 and first < M:
        _surveyed(
            problem(q, z, H, sq), None, found, found + LONGEST, first, M, sq, 0, D, D_PAD,
            SIZE, STEPS,
        )  # fmt: skip
    if first < N:
        stride_b = 0
        if b is not None:
            b, stride_b = problem(b, z, H, sb), sb[2]
        if D > 0:
            _surveyed(
                problem(k, z, H, sk), b, found + 1, found + LONGEST + 1, first, N, sk, stride_b,
                D, D_PAD, SIZE, STEPS,
            )  # fmt: skip
        if E > 0:
            _surveyed(
                problem(v, z, H, sv), b, found + 2, found + LONGEST + 2, first, N, sv, stride_b,
                E, E_PAD, SIZE, STEPS,
            )  # fmt: skip
        if b is not None:
            _surveyed_biases(b, found, first, N, stride_b, SIZE, STEPS)


@triton.jit
def _halved(
    x, b, high, low, bits, z, start, N, length, H, sx, sb,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the float16 halves of `SIZE` points from `start` on; from `N` to `length` zeros.

    Zeros are written for points without mass, too.
    """
    some = block(problem(x, z, H, sx), start, N, sx, WIDTH, PADDED, SIZE, True)
    if b is not None:
        some = _live(problem(b, z, H, sb), start, N, sb[2], some, SIZE)
    i = start + tl.arange(0, SIZE)
    rows = z.to(tl.int64) * length + i
    _store_halves(some * power(exponent_of_halves(bits)), high, low, rows, i < length)


@triton.jit
def _store_halves(x, high, low, rows, there):
    """Write the halves of some rows."""
    at = rows[:, None] * x.shape[1] + tl.arange(0, x.shape[1])[None, :]
    some, rest = in_halves(x)
    tl.store(high + at, some, mask=there[:, None])
    tl.store(low + at, rest, mask=there[:, None])


@triton.jit
def halves(
    q, k, v, b, q_high, q_low, k_high, k_low, v_high, v_low, found, M, N, m_length, n_length, H,
    sq, sk, sv, sb, D: tl.constexpr, E: tl.constexpr, D_PAD: tl.constexpr, E_PAD: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    r"""Write points as float16 halves, $x=2^{-e}(x_h+x_l)$, and zeros behind them.

    The power of 2 brings the largest coordinate between 2^14 and 2^15. With the zeros there are
    `m_length` queries and `n_length` keys and values.
    """
    z, place, _ = placed(tl.maximum(m_length, n_length), SIZE)
    start = place * SIZE
    found += z * FIELDS
    if start < m_length:
        bits = tl.load(found)
        _halved(q, None, q_high, q_low, bits, z, start, M, m_length, H, sq, sb, D, D_PAD, SIZE)
    if start < n_length:
        bits = tl.load(found + 1)
        _halved(k, b, k_high, k_low, bits, z, start, N, n_length, H, sk, sb, D, D_PAD, SIZE)
        if E > 0:
            bits = tl.load(found + 2)
            _halved(v, b, v_high, v_low, bits, z, start, N, n_length, H, sv, sb, E, E_PAD, SIZE)


@triton.jit
def columns(
    x, y, b, x_columns, y_columns, N, H, length, sx, sy, sb,
    D: tl.constexpr, E: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Copy points `x` and `y` so that each coordinate is a row of its own.

    Where a bias `b` is minus infinity, zeros are written.
    """
    z, place, _ = placed(N, SIZE)
    i = place * SIZE + tl.arange(0, SIZE)
    live = i < N
    if b is not None:
        bias = numbers(problem(b, z, H, sb), place * SIZE, N, sb[2], -float("inf"), SIZE, True)
        live = bias != -float("inf")
    x, y = problem(x, z, H, sx), problem(y, z, H, sy)
    x_columns += z.to(tl.int64) * length * D
    y_columns += z.to(tl.int64) * length * E
    at = i.to(tl.int64)
    for d in tl.static_range(D):
        value = tl.load(x + at * sx[2] + d * sx[3], mask=live, other=0.0)
        tl.store(x_columns + d * tl.cast(length, tl.int64) + i, value, mask=i < N)
    for e in tl.static_range(E):
        value = tl.load(y + at * sy[2] + e * sy[3], mask=live, other=0.0)
        tl.store(y_columns + e * tl.cast(length, tl.int64) + i, value, mask=i < N)


@triton.jit
def _copied(
    x, into, b, z, start, N, H, sx, sb,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Copy `SIZE` points from `start` on, with zeros for those without mass."""
    some = block(problem(x, z, H, sx), start, N, sx, WIDTH, PADDED, SIZE, True)
    some = _live(problem(b, z, H, sb), start, N, sb[2], some, SIZE).to(into.dtype.element_ty)
    i, d = start + tl.arange(0, SIZE), tl.arange(0, PADDED)
    at = ((z.to(tl.int64) * N + i) * WIDTH)[:, None] + d[None, :]
    tl.store(into + at, some, mask=(i < N)[:, None] & (d < WIDTH)[None, :])


@triton.jit
def without_dead(
    k, v, b, k_live, v_live, N, H, sk, sv, sb, D: tl.constexpr, E: tl.constexpr,
    D_PAD: tl.constexpr, E_PAD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Copy keys and values, with zeros where the bias `b` is minus infinity."""
    z, place, _ = placed(N, SIZE)
    start = place * SIZE
    if D > 0:
        _copied(k, k_live, b, z, start, N, H, sk, sb, D, D_PAD, SIZE)
    if E > 0:
        _copied(v, v_live, b, z, start, N, H, sv, sb, E, E_PAD, SIZE)


@triton.jit
def _handed_on(
    out, peak, total, d_out, d_log, z, place, M, H, so, sl,
    E: tl.constexpr, E_PAD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    r"""$o'$ and $c=\ell'-\langle o',o\rangle$ of some queries, zeros where no mass is seen.

    Then the offset of the scores, infinite there, and the sum of weights relative to it, 1 there.
    """
    i = place * SIZE + tl.arange(0, SIZE)
    there = i < M
    row = z.to(tl.int64) * M + i
    top = tl.load(peak + row, mask=there, other=-float("inf"))
    sums = tl.load(total + row, mask=there, other=1.0)
    seen = top != -float("inf")
    sums = tl.where(seen, sums, 1.0)
    c = tl.load(problem(d_log, z, H, sl) + i.to(tl.int64) * sl[2], mask=there, other=0.0)
    c = c.to(tl.float32)
    wide = c
    if E > 0:
        mine = block(problem(d_out, z, H, so), place * SIZE, M, so, E, E_PAD, SIZE, True)
        wide = tl.where(seen[:, None], mine, 0.0).to(tl.float32)
        e = tl.arange(0, E_PAD)
        at, mask = row[:, None] * E + e[None, :], there[:, None] & (e < E)[None, :]
        mean = tl.load(out + at, mask=mask, other=0.0).to(tl.float32)
        c -= tl.sum(wide * mean, 1)
    return wide, tl.where(seen, c, 0.0), tl.where(seen, top, float("inf")), sums


@triton.jit
def upstream(
    out, peak, total, d_out, d_log, g, slope, offset, M, H, so, sl,
    E: tl.constexpr, E_PAD: tl.constexpr, SIZE: tl.constexpr, DIVIDE: tl.constexpr,
):  # fmt: skip
    r"""What each query hands on in the backward pass: a gradient, a summand, an offset of scores.

    With $c=\ell'-\langle o',o\rangle$ they are $o'$, $-c$ and the log-integral; or, with `DIVIDE`,
    $o'$ and $c$ over the total, and the shift of the scores. A query that sees no mass hands on
    zeros, and its weights relative to infinity are zeros.
    """
    z, place, _ = placed(M, SIZE)
    wide, c, top, sums = _handed_on(
        out, peak, total, d_out, d_log, z, place, M, H, so, sl, E, E_PAD, SIZE
    )
    i = place * SIZE + tl.arange(0, SIZE)
    there = i < M
    row = z.to(tl.int64) * M + i
    if DIVIDE:
        c = c / sums
    else:
        c, top = -c, top + tl.log2(sums)
    if E > 0:
        if DIVIDE:
            wide = wide / sums[:, None]
        e = tl.arange(0, E_PAD)
        mask = there[:, None] & (e < E)[None, :]
        tl.store(g + row[:, None] * E + e[None, :], wide.to(g.dtype.element_ty), mask=mask)
    tl.store(slope + row, c, mask=there)
    tl.store(offset + row, top, mask=there)


@triton.jit
def upstream_halves(
    out, peak, total, d_out, d_log, survey, high, low, rows, block_units, M, H, factor, so, sl,
    E: tl.constexpr, E_PAD: tl.constexpr, SIZE: tl.constexpr, LARGEST: tl.constexpr,
    BIASES: tl.constexpr,
):  # fmt: skip
    r"""What each query hands on in the backward pass if all products are those of float16 halves.

    With $g_i$ and $\delta_i$ the upstream gradient and $-c_i$ over the total, and with weights
    $p_{ij}$ relative to the shift, the gradient in a score is
    $p_{ij}(\langle g_i,v_j\rangle-\delta_i)$. Its factors have bounds that are powers of 2:
    $2^{x_i}$ is above $|g_i|\max_j|v_j|+|\delta_i|$, and $2^{y_i}$ is at least $p_{ij}$: it
    is 1 if the shift is the largest score (`LARGEST`). Else it is above the total. If the survey
    is one of these very biases (`BIASES`), it is above the largest weight that the lengths of
    points and the highest bias allow, where that is less.

    So $2^{15-x_i-y_i}$ times the gradient is at most $2^{15}$ in size, and halves of it
    lose only what is below $2^{-25}$. In sums over queries all terms need the same power,
    here the one of the largest $x_i+y_i=w$ in a block of `SIZE` queries. Written are

    - the halves of $2^{28-x_i-e}g_i$, at most $2^{14}$, with the $e$ of the halves of values,
    - the rows $2^{-x_i}\delta_i$, the shift, $2^{x_i+y_i-15}$, $2^{15-y_i}$ and $2^{x_i+15-w}$,
    - and $2^{w-15}$ for each block.

    A query that sees no mass hands on zeros, and its weights relative to infinity are zeros.
    """
    z, place, blocks = placed(M, SIZE)
    wide, c, top, sums = _handed_on(
        out, peak, total, d_out, d_log, z, place, M, H, so, sl, E, E_PAD, SIZE
    )
    i = place * SIZE + tl.arange(0, SIZE)
    there = i < M
    row = z.to(tl.int64) * M + i
    delta = -c / sums
    bound = tl.abs(delta)
    back = 1.0
    if E > 0:
        wide = wide / sums[:, None]
        back = scale_of_halves(survey, z, 2)
        most = tl.load(survey + z * FIELDS + 2).to(tl.float32, bitcast=True)
        square = tl.load(survey + z * FIELDS + LONGEST + 2).to(tl.float32, bitcast=True)
        # Where the squared length leaves float32: at most 256 coordinates, none above `most`.
        fits = (square > 1e-30) & (square < 1e38)
        longest = tl.where(fits, tl.sqrt(square), most * 16.0)
        size = exponent_above(tl.max(tl.abs(wide), 1))
        scaled = wide * power(-size)[:, None]
        length = tl.sqrt(tl.sum(scaled * scaled, 1)) * power(size)
        # Halves of values that are all zeros have the $e$ of a largest coordinate of 1.
        bound += length * tl.maximum(longest, back * 16384.0)
    x = exponent_above(bound)
    y = tl.zeros([SIZE], tl.int32)
    if not LARGEST:
        # Scores as large as the shift are rounded, not always as they were in the forward pass.
        rounding = tl.minimum(tl.where(top == float("inf"), 0.0, tl.abs(top) * 2.0**-21), 100.0)
        y = exponent_above(sums) + (rounding + 0.5).to(tl.int32)
        if BIASES:
            longest = survey + z * FIELDS + LONGEST
            square = tl.load(longest).to(tl.float32, bitcast=True)
            others = tl.load(longest + 1).to(tl.float32, bitcast=True)
            score = tl.abs(factor) * LOG2E * tl.sqrt(square) * tl.sqrt(others)
            # A product that overflowed says nothing.
            most = score + highest_bias(survey, z) - top + 1.0 + rounding
            most = tl.where(score < 1e4, most, 100.0)
            y = tl.minimum(y, tl.ceil(tl.maximum(tl.minimum(most, 100.0), -100.0)).to(tl.int32))
    highest = tl.max(tl.where(there, x + y, -200), 0)
    if E > 0:
        scaled = wide * power(-x)[:, None] * back * 268435456.0  # 2^28
        _store_halves(scaled, high, low, row, there)
    count = M * (tl.num_programs(0) // blocks).to(tl.int64)
    tl.store(rows + row, delta * power(-x), mask=there)
    tl.store(rows + count + row, top, mask=there)
    tl.store(rows + 2 * count + row, power(x + y - 15), mask=there)
    tl.store(rows + 3 * count + row, power(15 - y), mask=there)
    tl.store(rows + 4 * count + row, power(x + 15 - highest), mask=there)
    tl.store(block_units + tl.program_id(0), power(highest - 15))


@triton.jit
def merge(
    parts_out, parts_peak, parts_total, out, peak, total, log_z, rows, parts,
    E: tl.constexpr, E_PAD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Merge the results of several programs, each of which has read a part of the keys."""
    i = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    there = i < rows
    top = tl.full([SIZE], -float("inf"), tl.float32)
    for part in tl.range(0, parts):
        at = part * rows + i
        top = tl.maximum(top, tl.load(parts_peak + at, mask=there, other=-float("inf")))
    base = tl.where(top == -float("inf"), 0.0, top)
    e = tl.arange(0, E_PAD)
    inside = there[:, None] & (e < E)[None, :]
    sums = tl.zeros([SIZE], tl.float32)
    mean = tl.zeros([SIZE, E_PAD], tl.float32)
    for part in tl.range(0, parts):
        at = part * rows + i
        shift = tl.load(parts_peak + at, mask=there, other=-float("inf")) - base
        weight = tl.load(parts_total + at, mask=there, other=0.0) * tl.exp2(shift)
        sums += weight
        if E > 0:
            values = tl.load(parts_out + at[:, None] * E + e[None, :], mask=inside, other=0.0)
            mean += weight[:, None] * values
    tl.store(peak + i, top, mask=there)
    tl.store(total + i, sums, mask=there)
    tl.store(log_z + i, (top + tl.log2(sums)) * LN2, mask=there)
    if E > 0:
        mean = mean / tl.where(sums == 0.0, 1.0, sums)[:, None]
        tl.store(out + i[:, None] * E + e[None, :], mean.to(out.dtype.element_ty), mask=inside)
