"""What all kernels share: where a problem begins, its coordinates, and what a query may see."""

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
"""Scores are in units of log 2, because the hardware has powers of 2."""

LATEST: tl.constexpr = tl.constexpr(2147483647)
"""The time of a key that no query sees."""


@triton.jit
def problem(x, z, heads, stride):
    """Where problem `z` begins: strides are those of batch, head, point and coordinate."""
    return x + (z // heads).to(tl.int64) * stride[0] + (z % heads).to(tl.int64) * stride[1]


@triton.jit
def coordinates(x, i, live, stride, factor, COUNT: tl.constexpr):
    """The coordinates of some points as a tuple of vectors, multiplied by a factor."""
    parts = ()
    for d in tl.static_range(COUNT):
        value = tl.load(x + i * stride[2] + d * stride[3], mask=live, other=0.0)
        parts = parts + (value.to(tl.float32) * factor,)
    return parts


@triton.jit
def block(x, i, live, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Some points as a matrix, with zeros beyond their width."""
    d = tl.arange(0, PADDED)
    mask = live[:, None]
    if WIDTH < PADDED:
        mask = mask & (d < WIDTH)[None, :]
    return tl.load(x + (i * stride[2])[:, None] + (d * stride[3])[None, :], mask=mask, other=0.0)


@triton.jit
def hidden(scores, queries, keys):
    """Scores without those of later keys; ranks of times broadcast like the scores."""
    return tl.where(keys > queries, -float("inf"), scores)


@triton.jit
def share(first, last, part, parts, STEP: tl.constexpr):
    """The range of one of several programs that share a loop from `first` to `last`."""
    step = tl.cdiv(tl.cdiv(tl.maximum(last - first, 0), parts), STEP) * STEP
    first = first + part * step
    return first, tl.minimum(last, first + step)


@triton.jit
def product(a, a_low, b, b_low, SPLIT: tl.constexpr, FLIP: tl.constexpr):
    """A matrix product of half-precision blocks, or of pairs of halves, small terms first.

    Queries come first. With `FLIP` keys do, and the result has the same bits, transposed.
    """
    if SPLIT:
        if FLIP:
            return tl.dot(a, b, tl.dot(a_low, b, tl.dot(a, b_low)))
        return tl.dot(a, b, tl.dot(a, b_low, tl.dot(a_low, b)))
    return tl.dot(a, b)
