"""What the operators behind fast reductions share: leading axes made one, errors, gradients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .._tools.once import no_second_derivative, refuse
from .._tools.precision import align, full_precision

Times = tuple[Tensor, Tensor] | None
"""Times of queries and of keys, if there is a causal mask."""

Pair = tuple[Tensor, Tensor]
"""A tensor of the queries and one of the keys."""

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries, keys, values and bias, or their gradients."""

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


def swept(
    forward: Any, points: Pair, bias: Tensor, scale: float, times: Times
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-integral and its two summands, which `pulled` needs, by a forward pass."""
    q, k, bias = align(*points, bias)
    batch, (q, k, bias), clock = fold((scale * q, k, bias[..., None]), times)
    _, top, rest = forward(q, k, k[..., :0], bias[..., 0], *clock)
    found = (top + rest, top, rest)
    return tuple(x.reshape(*batch, x.shape[-1]) for x in found)  # type: ignore[return-value]


def pulled(
    backward: Any, inputs: Inputs, record: Pair, upstream: Pair, scale: float, times: Times,
    wanted: list[bool],
) -> Inputs:  # fmt: skip
    r"""What scores hand on: gradients in queries, keys, values and bias, by a backward pass.

    With weights $P_{ij}=e^{S_{ij}-\ell_i}$, the gradient in the scores is
    $S'_{ij}=P_{ij}\,(\langle x_i,v_j\rangle+c_i)$.

    Args:
        backward: that pass, of a reduction whose average is taken to be 0.
        inputs: $q,k,v,b$.
        record: $\ell$ as two summands. A query whose first is minus infinity is left out.
        upstream: $x,c$.
        scale: $s$.
        times: of queries and keys, if there is a causal mask.
        wanted: which gradients; those that are not wanted may be zeros.
    """
    q, k, v, bias, x, *rows = align(*inputs, upstream[0], *record, upstream[1])
    parts = (scale * q, k, v, bias[..., None], x, *(row[..., None] for row in rows))
    batch, (q, k, v, bias, x, *rows), clock = fold(parts, times)
    top, rest, c = (row[..., 0] for row in rows)
    dq, *others = backward(
        [q, k, v, bias[..., 0]], *clock, [torch.zeros_like(x), top, rest], [x, c], wanted
    )
    grads = (scale * dq, *others)
    return tuple(t.reshape(*batch, *t.shape[1:]) for t in grads)  # type: ignore[return-value]


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
