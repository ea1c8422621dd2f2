"""What the operators behind fast reductions share: leading axes made one, errors, gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .._tools.once import no_second_derivative, refuse
from .._tools.precision import full_precision

Times = tuple[Tensor, Tensor] | None
"""Times of queries and of keys, if there is a causal mask."""

MaybeTimes = tuple[Tensor | None, Tensor | None]
"""The same inside the operators, which take no optional pairs: twice None without a mask."""


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Say which operator a transform of `torch.func` cannot differentiate, and what to use."""
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


def register_gradients(forward: Any, backward: Any, what: str) -> None:
    """Make `backward` the derivative of `forward`, once; `what` names the operator in errors.

    Outputs are the average and two summands of the log-integral. Since only their sum is used,
    both have the same gradient, and one of them is enough.
    """

    def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs, *output)

    def first(ctx: Any, d_out: Tensor, d_log_z: Tensor, _: Tensor) -> tuple:
        q, k, v, bias, query_times, key_times, *outputs = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:4])
        inputs, upstream = [q, k, v, bias], [d_out, d_log_z]
        with full_precision(q), named_errors(what):
            grads = backward(inputs, query_times, key_times, outputs, upstream, wanted)
        return *(g if want else None for g, want in zip(grads, wanted, strict=True)), None, None

    def second(ctx: Any, *_: Any) -> tuple:
        refuse(no_second_derivative(what))

    backward.register_autograd(second)
    forward.register_autograd(first, setup_context=keep)
