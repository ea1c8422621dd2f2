"""Dense definitions: the reference that every other implementation is compared with.

They work in any floating dtype, are twice differentiable, and consist of operations that
`torch.func` transforms.
"""

import torch
from torch import Tensor

from .._tools.precision import align

Times = tuple[Tensor, Tensor] | None
"""Times of queries and of keys, if there is a causal mask."""


def log_integral(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """All scores as a matrix, then log-sum-exp."""
    q, k, bias = align(q, k, bias)
    if not guard and times is None:
        return _scores(q, k, bias, scale, times).logsumexp(-1)
    k, bias, empty = _guarded(k, bias)
    scores, empty = _patched(_scores(q, k, bias, scale, times), empty, times)
    return scores.logsumexp(-1).masked_fill(empty, -torch.inf)


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """All scores as a matrix, then softmax."""
    q, k, v, bias = align(q, k, v, bias)
    if not guard and times is None:
        return _scores(q, k, bias, scale, times).softmax(-1) @ v
    v = v.masked_fill((bias == -torch.inf)[..., None], 0)
    k, bias, empty = _guarded(k, bias)
    scores, empty = _patched(_scores(q, k, bias, scale, times), empty, times)
    return (scores.softmax(-1) @ v).masked_fill(empty[..., None], 0)


def _scores(q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times) -> Tensor:
    r"""$S_{ij}=s\langle q_i,k_j\rangle+b_j$, minus infinity for atoms in a query's future."""
    scores = (scale * q) @ k.mT + bias[..., None, :]
    if times is None:
        return scores
    query_times, key_times = times
    future = key_times[..., None, :] > query_times[..., :, None]
    return scores.masked_fill(future, -torch.inf)


def _guarded(k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Keys set to 0 at atoms without mass; contexts without mass get bias 0 and are returned."""
    dead = bias == -torch.inf
    empty = dead.all(-1, keepdim=True)
    return k.masked_fill(dead[..., None], 0), bias.masked_fill(empty, 0), empty


def _patched(scores: Tensor, empty: Tensor, times: Times) -> tuple[Tensor, Tensor]:
    """Finite scores for queries that see no mass, and which queries these are.

    This keeps derivatives free of NaN; the caller overwrites the results of these queries.
    """
    if times is not None:
        empty = empty | (scores == -torch.inf).all(-1)
        scores = scores.masked_fill(empty[..., None], 0)
    return scores, empty
