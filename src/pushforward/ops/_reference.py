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
    scores, empty = _guarded_scores(q, k, bias, scale, times)
    return scores.logsumexp(-1).masked_fill(empty, -torch.inf)


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """All scores as a matrix, then softmax."""
    q, k, v, bias = align(q, k, v, bias)
    if not guard and times is None:
        return _scores(q, k, bias, scale, times).softmax(-1) @ v
    v = v.masked_fill((bias == -torch.inf)[..., None], 0)
    scores, empty = _guarded_scores(q, k, bias, scale, times)
    return (scores.softmax(-1) @ v).masked_fill(empty[..., None], 0)


def _scores(q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times) -> Tensor:
    r"""$S_{ij}=s\langle q_i,k_j\rangle+b_j$, minus infinity for atoms in a query's future."""
    scores = _products(q, k, bias, scale)
    if times is None:
        return scores
    query_times, key_times = times
    future = key_times[..., None, :] > query_times[..., :, None]
    return scores.masked_fill(future, -torch.inf)


def _products(q: Tensor, k: Tensor, bias: Tensor, scale: float) -> Tensor:
    r"""$s\langle q_i,k_j\rangle+b_j$ in one operation, as small problems pay for each."""
    batch = q.shape[:-2]
    plain = k.shape[:-2] == batch and bias.shape[:-1] in ((), batch)
    if torch.compiler.is_compiling() or not plain:
        return scale * (q @ k.mT) + bias[..., None, :]  # what a compiler fuses with the softmax
    if not batch:
        return torch.addmm(bias[None], q, k.mT, alpha=scale)
    rows = bias.expand(*batch, bias.shape[-1])[..., None, :]
    if len(batch) == 1:
        return torch.baddbmm(rows, q, k.mT, alpha=scale)
    flat = torch.baddbmm(rows.flatten(0, -3), q.flatten(0, -3), k.mT.flatten(0, -3), alpha=scale)
    return flat.unflatten(0, batch)


def _guarded_scores(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times
) -> tuple[Tensor, Tensor]:
    """The scores, and which queries see no mass: their scores are set to something finite.

    This keeps derivatives free of NaN; the caller overwrites the results of these queries. Keys
    of atoms without mass count as 0, whatever they are.
    """
    dead = bias == -torch.inf
    empty = dead.all(-1, keepdim=True)
    k, bias = k.masked_fill(dead[..., None], 0), bias.masked_fill(empty, 0)
    scores = _scores(q, k, bias, scale, times)
    if times is not None:
        empty = empty | (scores == -torch.inf).all(-1)
        scores = scores.masked_fill(empty[..., None], 0)
    return scores, empty
