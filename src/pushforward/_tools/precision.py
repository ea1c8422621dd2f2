"""Safe numbers: which dtype computes what, and logarithms of masses that may be zero.

Log-weights and scores are never in half precision. The logarithm of 0 is minus infinity, without
NaN in gradients. Times are compared in a dtype that holds them all.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
_UNCHANGED = nullcontext()

TimesOfBoth = tuple[Tensor, Tensor]
"""Times of queries and of atoms."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype itself, or float32 instead of half precision."""
    return torch.float32 if dtype in HALF else dtype


def widen(x: Tensor) -> Tensor:
    """The tensor itself, or in float32 instead of half precision."""
    return x.float() if x.dtype in HALF else x


def full_precision(x: Tensor) -> AbstractContextManager:
    """Switch autocast off: products in half precision would round weights and positions."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _UNCHANGED


def align(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All tensors in the widest of their dtypes, at least float32."""
    dtype = tensors[0].dtype
    if dtype not in HALF and all(t.dtype == dtype for t in tensors):
        return tensors
    for t in tensors:
        dtype = torch.promote_types(dtype, t.dtype)
    return tuple(t.to(wide(dtype)) for t in tensors)


def exp_or_inf(x: float) -> float:
    """The exponential of a number; infinite, rather than an error, where it nearly overflows."""
    return math.exp(x) if x < 700 else math.inf


def safe_log(x: Tensor) -> Tensor:
    r"""The logarithm with $\log0=-\infty$ and gradient 0 there, not NaN."""
    zero = x == 0
    return x.masked_fill(zero, 1).log().masked_fill(zero, -torch.inf)


def safe_logsumexp(scores: Tensor) -> Tensor:
    """Log-sum-exp over the last axis; minus infinity, without gradient, if all scores are."""
    empty = (scores == -torch.inf).all(-1)
    return scores.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)


def safe_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis; zero, without gradient, if all scores are minus infinity."""
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)


def comparable(times: TimesOfBoth) -> TimesOfBoth:
    """Both times in one signed dtype in which no time is rounded.

    Integers stay integers. Beside floating point they become float64, because float32 has no odd
    numbers above 2^24.
    """
    first, second = map(signed_times, times)
    if first.dtype == second.dtype:
        return first, second
    if first.is_floating_point() or second.is_floating_point():
        return first.double(), second.double()
    return first.long(), second.long()


def reversed_order(times: TimesOfBoth) -> TimesOfBoth:
    """Times of atoms and of queries in the opposite order: late becomes early.

    Integers are complemented, -t - 1, because -t leaves the dtype at its lowest number.
    """
    queries, atoms = comparable(times)
    back = torch.neg if queries.is_floating_point() else torch.bitwise_not
    return back(atoms), back(queries)


def signed_times(times: Tensor) -> Tensor:
    """Unsigned and boolean times as int64."""
    if times.dtype == torch.uint64:
        raise TypeError(
            "Times must be signed integers or floating point, got torch.uint64, which int64 does "
            "not hold. Convert with `times.to(torch.int64)`."
        )
    if times.dtype in (torch.bool, torch.uint8, torch.uint16, torch.uint32):
        return times.long()
    return times
