"""The kernels for NVIDIA GPUs, with wide float32 points rounded to float16 in products.

A product of tensor cores stands in place of three. Sums, powers, biases and results are in float32
as before. Scores are off by about $2^{-11}|s||q||k|$, and weights by as much relative to their
size. Points of at most four coordinates, and those in half precision, are not rounded.
"""

from torch import Tensor

from ._operators import Times


def log_integral(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """That of the kernels, rounded."""
    from . import kernels

    return kernels.log_integral(q, k, bias, scale, times, guard, rounded=True)


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """That of the kernels, rounded."""
    from . import kernels

    return kernels.average(q, k, v, bias, scale, times, guard, rounded=True)
