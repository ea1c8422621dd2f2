"""What all kernels share: where a problem begins, its coordinates, and what a query may see."""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
"""Scores are in units of log 2, because the hardware has powers of 2."""

LN2: tl.constexpr = tl.constexpr(0.6931471805599453)

FIELDS: tl.constexpr = tl.constexpr(8)
"""Numbers that a survey finds for a problem: the largest coordinates of queries, keys and values,
their largest squared lengths, the highest bias, and where keys with mass end."""

LONGEST: tl.constexpr = tl.constexpr(3)
HIGHEST: tl.constexpr = tl.constexpr(6)
END: tl.constexpr = tl.constexpr(7)

BOUND: tl.constexpr = tl.constexpr(60.0)
"""Up to this size of the scores, in base 2, narrow points need no maximum: sums stay in range."""

LATEST: tl.constexpr = tl.constexpr(2147483647)
"""The time of a key that no query sees."""


@triton.jit
def placed(length, SIZE: tl.constexpr):
    """Which problem and which of its blocks a program has, and how many blocks there are.

    Both are counted along the first axis of the grid, because the others end at 65,535.
    """
    blocks = tl.cdiv(length, SIZE)
    return tl.program_id(0) // blocks, tl.program_id(0) % blocks, blocks


@triton.jit
def problem(x, z, heads, stride):
    """Where problem `z` begins: strides are those of batch, head, point and coordinate."""
    return x + (z // heads).to(tl.int64) * stride[0] + (z % heads).to(tl.int64) * stride[1]


@triton.jit
def _long(x):
    """A number in 64 bits; the interpreter counts loops in plain numbers."""
    return tl.full([], 1, tl.int64) * x


@triton.jit
def coordinates(
    x, start, stop, stride, factor, COUNT: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr
):
    """The coordinates of `SIZE` points from `start` on, as a tuple of vectors, times a factor.

    The start is added to the pointer in 64 bits, so that what varies in a tile fits 32.
    """
    i = tl.arange(0, SIZE)
    x += _long(start) * stride[2]
    parts = ()
    for d in tl.static_range(COUNT):
        at = x + i * stride[2] + d * stride[3]
        if MASKED:
            value = tl.load(at, mask=i < stop - start, other=0.0)
        else:
            value = tl.load(at)
        parts = parts + (value.to(tl.float32) * factor,)
    return parts


@triton.jit
def numbers(x, start, stop, stride, other, SIZE: tl.constexpr, MASKED: tl.constexpr):
    """`SIZE` numbers from `start` on, and `other` beyond the end."""
    i = tl.arange(0, SIZE)
    at = x + _long(start) * stride + i * stride
    if MASKED:
        return tl.load(at, mask=i < stop - start, other=other)
    return tl.load(at)


@triton.jit
def block(
    x, start, stop, stride,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """`SIZE` points from `start` on as a matrix, with zeros beyond their width and the end."""
    i, d = tl.arange(0, SIZE)[:, None], tl.arange(0, PADDED)[None, :]
    at = x + _long(start) * stride[2] + (i * stride[2] + d * stride[3])
    if MASKED:
        mask = i < stop - start
        if WIDTH < PADDED:
            mask = mask & (d < WIDTH)
        return tl.load(at, mask=mask, other=0.0)
    if WIDTH < PADDED:
        return tl.load(at, mask=d < WIDTH, other=0.0)
    return tl.load(at)


@triton.jit
def zeros(COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tuple of tiles of zeros."""
    sums = ()
    for _ in tl.static_range(COUNT):
        sums = sums + (tl.zeros([ROWS, COLUMNS], tl.float32),)
    return sums


@triton.jit
def plus_dot(t, points, others, WIDTH: tl.constexpr):
    """`t` plus the dot products of points, along rows, and other points, along columns."""
    for d in tl.static_range(WIDTH):
        t = t + points[d][:, None] * others[d][None, :]
    return t


@triton.jit
def plus_weighted(sums, p, others, WIDTH: tl.constexpr):
    """Sums of the coordinates of the points along columns, with weights `p`."""
    new = ()
    for e in tl.static_range(WIDTH):
        new = new + (sums[e] + p * others[e][None, :],)
    return new


@triton.jit
def hidden(scores, queries, keys):
    """Scores without those of later keys; ranks of times broadcast like the scores."""
    return tl.where(keys > queries, -float("inf"), scores)


@triton.jit
def finite(top):
    """The shift of scores whose largest is `top`: 0 where there is no mass."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def in_range(sums):
    """Whether all sums of weights lie between 2^-60 and 2^60, so that no maximum was needed.

    A single weight is no larger than its sum, and those below 2^-126 are too small to matter.
    """
    fits = (sums > 8.673617379884035e-19) & (sums < 1.152921504606847e18)
    return tl.min(fits.to(tl.int32), 0) == 1


@triton.jit
def rows_with_nan(mean):
    """Which rows of a matrix have a NaN."""
    return tl.max((mean != mean).to(tl.int32), 1) == 1


@triton.jit
def end_of_keys(ends, z, N, ENDS: tl.constexpr):
    """Where the keys end: for all, by a survey (`ENDS` 1), or for this program (2)."""
    last = N
    if ENDS == 1:
        last = tl.load(ends + z * FIELDS + END)
    if ENDS == 2:
        last = tl.load(ends + tl.program_id(0))
    return last


@triton.jit
def queries_of_keys(starts, z, j0, M, ENDS: tl.constexpr):
    """The range of queries that may see a block of keys from `j0` on; none sees keys at the end.

    `ENDS` is as in `end_of_keys`; for times `starts` holds the first query of each block.
    """
    first, last = 0, M
    if ENDS == 1:
        last = tl.where(j0 < tl.load(starts + z * FIELDS + END), M, 0)
    if ENDS == 2:
        first = tl.load(starts + tl.program_id(0))
    return first, last


@triton.jit
def has_small_scores(survey, z, factor):
    r"""Whether $|s||q_i||k_j|$ is at most `BOUND` in base 2, by the largest lengths."""
    longest = survey + z * FIELDS + LONGEST
    q = tl.sqrt(tl.load(longest).to(tl.float32, bitcast=True))
    k = tl.sqrt(tl.load(longest + 1).to(tl.float32, bitcast=True))
    return tl.abs(factor) * LOG2E * (q * k) <= BOUND


@triton.jit
def highest_bias(survey, z):
    """The highest bias of a problem in base 2, up to its last bit; 0 if there is no mass."""
    kept = tl.load(survey + z * FIELDS + HIGHEST)
    ordered = (kept - 0x40000000) << 1
    bits = tl.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    return tl.where(kept == 0, 0.0, bits.to(tl.float32, bitcast=True) * LOG2E)


@triton.jit
def exponent_of_halves(bits):
    r"""The $e$ such that numbers are multiplied by $2^e$ before they are split into halves.

    `bits` are those of the largest number, which comes to lie between 2^14 and 2^15. Zeros are
    split as if it were 1.
    """
    return tl.where(bits == 0, 14, tl.minimum(tl.maximum(141 - ((bits >> 23) & 255), -112), 112))


@triton.jit
def power(exponent):
    """The power of 2 with this exponent, or with the nearest one that float32 has."""
    exponent = tl.minimum(tl.maximum(exponent, -126), 127)
    return ((127 + exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exponent_above(x):
    """The smallest exponent from -100 to 100 of a power of 2 above numbers that are not negative.

    It is 100 for larger ones, for infinity and for NaN.
    """
    exponent = ((x.to(tl.int32, bitcast=True) >> 23) & 255) - 126
    return tl.minimum(tl.maximum(exponent, -100), 100)


@triton.jit
def scale_of_halves(survey, z, which):
    r"""$2^{-e}$, what halves are multiplied by, of the queries (0), keys (1) or values (2)."""
    return power(-exponent_of_halves(tl.load(survey + z * FIELDS + which)))


@triton.jit
def share(first, last, part, parts, STEP: tl.constexpr):
    """The range of one of several programs that share a loop: first, last full tile, last."""
    step = tl.cdiv(tl.cdiv(tl.maximum(last - first, 0), parts), STEP) * STEP
    first = first + part * step
    last = tl.maximum(first, tl.minimum(last, first + step))
    return first, first + (last - first) // STEP * STEP, last


@triton.jit
def in_halves(x):
    """Two float16 numbers whose sum is nearly `x`, which is at most 65504 in size."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def product(a, a_low, b, b_low, SPLIT: tl.constexpr, FLIP: tl.constexpr):
    """A matrix product of half-precision blocks, or of pairs of halves (`SPLIT` 2).

    Small terms are added first. Queries come first; with `FLIP` keys do, and the result has the
    same bits, transposed.
    """
    if SPLIT == 2:
        if FLIP:
            return tl.dot(a, b, tl.dot(a_low, b, tl.dot(a, b_low)))
        return tl.dot(a, b, tl.dot(a, b_low, tl.dot(a_low, b)))
    return tl.dot(a, b)
