"""Dense definitions: the oracle every other implementation is compared with.

Any floating dtype, twice differentiable, and made of operations that `torch.func` transforms.
"""

import torch
from torch import Tensor

from .._tools.precision import align


def log_integral(q: Tensor, k: Tensor, bias: Tensor, scale: float, times, guard: bool) -> Tensor:
    """Materialise the scores, then log-sum-exp."""
    q, k, bias = align(q, k, bias)
    if not guard and times is None:
        return _scores(q, k, bias, scale, times).logsumexp(-1)
    k, bias, empty = _guarded(k, bias)
    scores, empty = _patched(_scores(q, k, bias, scale, times), empty, times)
    return scores.logsumexp(-1).masked_fill(empty, -torch.inf)


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times, guard: bool
) -> Tensor:
    """Materialise the scores, then softmax."""
    q, k, v, bias = align(q, k, v, bias)
    if not guard and times is None:
        return _scores(q, k, bias, scale, times).softmax(-1) @ v
    v = v.masked_fill((bias == -torch.inf)[..., None], 0)
    k, bias, empty = _guarded(k, bias)
    scores, empty = _patched(_scores(q, k, bias, scale, times), empty, times)
    return (scores.softmax(-1) @ v).masked_fill(empty[..., None], 0)


def _scores(q: Tensor, k: Tensor, bias: Tensor, scale: float, times) -> Tensor:
    r"""$S_{ij}=s\langle q_i,k_j\rangle+b_j$, minus infinity for atoms in a query's future."""
    scores = (scale * q) @ k.mT + bias[..., None, :]
    if times is None:
        return scores
    asked, told = times
    return scores.masked_fill(told[..., None, :] > asked[..., :, None], -torch.inf)


def _guarded(k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys emptied where there is no mass, a bias with finite entries, contexts without mass."""
    dead = bias == -torch.inf
    empty = dead.all(-1, keepdim=True)
    return k.masked_fill(dead[..., None], 0), bias.masked_fill(empty, 0), empty


def _patched(scores: Tensor, empty: Tensor, times) -> tuple[Tensor, Tensor]:
    """Finite scores for queries that see nothing, and which queries these are.

    So no derivative is NaN; the caller overwrites their result.
    """
    if times is not None:
        empty = empty | (scores == -torch.inf).all(-1)
        scores = scores.masked_fill(empty[..., None], 0)
    return scores, empty
