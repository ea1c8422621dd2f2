"""Kernels that read each point once: how large everything is, and halves of numbers."""

import triton
import triton.language as tl

from .parts import block, numbers, placed, problem


@triton.jit
def points(
    x, largest, longest, N, H, sx,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The largest coordinate and the largest squared length of the points of each problem."""
    z, place, _ = placed(N, SIZE * STEPS)
    x = problem(x, z, H, sx)
    most = tl.zeros([SIZE], tl.float32)
    length = tl.zeros([SIZE], tl.float32)
    for step in tl.range(0, STEPS):
        start = (place * STEPS + step) * SIZE
        some = block(x, start, N, sx, WIDTH, PADDED, SIZE, True).to(tl.float32)
        most = tl.maximum(most, tl.max(tl.abs(some), 1))
        length = tl.maximum(length, tl.sum(some * some, 1))
    tl.atomic_max(largest + z, tl.max(most, 0))
    tl.atomic_max(longest + z, tl.max(length, 0))


@triton.jit
def bias(b, highest, ends, N, H, sb, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """The largest bias of each problem, and where its last atom with mass ends."""
    z, place, _ = placed(N, SIZE * STEPS)
    b = problem(b, z, H, sb)
    most = tl.full([SIZE], -float("inf"), tl.float32)
    end = tl.zeros([SIZE], tl.int32)
    for step in tl.range(0, STEPS):
        start = (place * STEPS + step) * SIZE
        some = numbers(b, start, N, sb[2], -float("inf"), SIZE, True)
        most = tl.maximum(most, some)
        after = start + 1 + tl.arange(0, SIZE)
        end = tl.maximum(end, tl.where(some == -float("inf"), 0, after))
    tl.atomic_max(highest + z, tl.max(most, 0))
    tl.atomic_max(ends + z, tl.max(end, 0))


@triton.jit
def halves(
    x, largest, high, low, back, N, H, sx,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    r"""$x=2^{-e}(x_h+x_l)$ in float16, the largest coordinate between 2^14 and 2^15.

    $2^{-e}$ is made from the exponent in the bits of the largest coordinate.
    """
    z, place, _ = placed(N, SIZE)
    exponent = (tl.load(largest + z).to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(141 - exponent, -112), 112)
    start = place * SIZE
    some = block(problem(x, z, H, sx), start, N, sx, WIDTH, PADDED, SIZE, True)
    y = some * ((exponent + 127) << 23).to(tl.float32, bitcast=True)
    h = y.to(tl.float16)
    i = start + tl.arange(0, SIZE)
    at = ((z.to(tl.int64) * N + i) * PADDED)[:, None] + tl.arange(0, PADDED)[None, :]
    tl.store(high + at, h, mask=(i < N)[:, None])
    tl.store(low + at, (y - h.to(tl.float32)).to(tl.float16), mask=(i < N)[:, None])
    tl.store(back + z, ((127 - exponent) << 23).to(tl.float32, bitcast=True))
