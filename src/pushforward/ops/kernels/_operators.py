"""The two passes as operators of PyTorch, so that `torch.compile` and `torch.export` keep them."""

from typing import Any

import torch
from torch import Tensor
from triton import knobs

from ..._tools.once import named_errors, no_second_derivative, refuse
from ..._tools.precision import HALF, full_precision
from . import _launch as launch
from ._problem import Clock, without_dead
from ._tiles import NARROW

WHAT = "A reduction with `impl='triton'`"
"""Its name in messages."""


@torch.library.custom_op("pushforward::reduce_triton", mutates_args=())
def reduce(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, factor: float,
    query_times: Tensor | None, key_times: Tensor | None, options: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Average and log-integral of `(b, h, m, k)` queries; `v` may have width 0.

    Then the shift of the scores in base 2 and the sum relative to it, for the gradients.
    With the first of the options, `guard`, keys and values of atoms without mass need not be
    finite. With the second, `rounded`, wide float32 points are rounded to float16 in products.
    """
    guard, rounded = options
    name = "triton_half" if rounded else "triton"
    check_device(f"`impl='{name}'`", q, ", or use `impl='streamed'`")
    clock = clock_of(query_times, key_times)
    known = _rounded(q, k, v, bias, clock) if rounded else None
    found = launch.forward((q, k, v, bias), factor, clock, known, guard=guard)
    return found.out, found.log_z, found.peak, found.total


@reduce.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = q.new_empty(*q.shape[:-1], v.shape[-1])
    rows = lambda: q.new_empty(q.shape[:-1], dtype=torch.float32)
    return out, rows(), rows(), rows()


@torch.library.custom_op("pushforward::reduce_triton_backward", mutates_args=())
def reduce_backward(
    inputs: list[Tensor], factor: float, query_times: Tensor | None, key_times: Tensor | None,
    options: list[bool], outputs: list[Tensor], grads: list[Tensor], wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in `q, k, v, bias`; those that are not wanted may be zeros."""
    q, k, v, bias = inputs
    (d_out, d_log), (guard, rounded) = grads, options
    if guard and q.dtype in HALF:
        k, v = without_dead(k, v, bias)
    clock = clock_of(query_times, key_times)
    known = _rounded(q, k, v, bias, clock) if rounded else None
    found = launch.backward(
        (q, k, v, bias), factor, clock, launch.Reduced(*outputs), (d_out, d_log), wanted, known
    )
    dq, dk, dv, db = (
        x.new_zeros(x.shape) if g is None else g for x, g in zip(inputs, found, strict=True)
    )
    return dq, dk, dv, db


@reduce_backward.register_fake
def _(inputs: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs)


def _rounded(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, clock: Clock | None
) -> launch.Ready | None:
    """What is known of points whose numbers have one half in products; None if none has halves."""
    if q.dtype in HALF or max(q.shape[-1], v.shape[-1]) <= NARROW:
        return None
    known = launch.ready(q, k, v, bias, timed=clock is not None, values=True)
    return known._replace(halves=1)


def check_device(what: str, x: Tensor, other: str = "") -> None:
    """Raise unless a tensor is on a GPU, or kernels are interpreted.

    Args:
        what: what needs it.
        x: the tensor.
        other: what to do instead of moving tensors.
    """
    if x.device.type != "cuda" and not knobs.runtime.interpret:
        raise ValueError(
            f"{what} must have tensors on an NVIDIA GPU, got tensors on {x.device}. "
            f"Move them with `.cuda()`{other}."
        )


def clock_of(query_times: Tensor | None, key_times: Tensor | None) -> Clock | None:
    """Ranks of times, if there are any."""
    if query_times is None or key_times is None:
        return None
    return Clock.of(query_times, key_times)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, bias, ctx.factor, query_times, key_times, ctx.options = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(q, k, v, bias, query_times, key_times, *output)


def _backward(ctx: Any, d_out: Tensor, d_log: Tensor, *_: Any) -> tuple:
    q, k, v, bias, query_times, key_times, *outputs = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:4])
    with full_precision(q), named_errors(WHAT):
        grads = reduce_backward(
            [q, k, v, bias], ctx.factor, query_times, key_times, ctx.options, outputs,
            [d_out, d_log], wanted,
        )  # fmt: skip
    chosen = [g if want else None for g, want in zip(grads, wanted, strict=True)]
    return *chosen, *[None] * 4


def _second_backward(ctx: Any, *_: Any) -> tuple:
    refuse(no_second_derivative(WHAT))


reduce_backward.register_autograd(_second_backward)
reduce.register_autograd(_backward, setup_context=_setup_context)
