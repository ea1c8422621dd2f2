"""What the operators behind fast reductions share: leading axes made one, and named errors."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

Times = tuple[Tensor, Tensor] | None
"""Times of queries and of keys, if there is a causal mask."""

MaybeTimes = tuple[Tensor | None, Tensor | None]
"""The same inside the operators, which take no optional pairs: twice None without a mask."""


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """An error that helps where a transform of PyTorch cannot enter an operator."""
    try:
        yield
    except RuntimeError as error:
        if "functorch" not in str(error) and "Batching rule" not in str(error):
            raise
        raise NotImplementedError(
            f"{what} has no derivative under `torch.func` or many at once. Use "
            "`torch.autograd.grad`, or `impl='reference'`, which `torch.func` transforms."
        ) from error


def fold(tensors: tuple[Tensor, ...], times: Times) -> tuple[torch.Size, list[Tensor], MaybeTimes]:
    """Broadcast the leading axes against each other and flatten them to one."""
    if times is not None:
        tensors = (*tensors, *(t[..., None] for t in times))
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors))
    count = batch.numel()
    folded = [t.expand(*batch, *t.shape[-2:]).reshape(count, *t.shape[-2:]) for t in tensors]
    if times is None:
        return batch, folded, (None, None)
    *folded, query_times, key_times = folded
    return batch, folded, (query_times[..., 0], key_times[..., 0])
