"""Results that can be differentiated once: a second derivative raises an error."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual


class DifferentiableOnce(torch.autograd.Function):
    """The identity, with an error where its gradient would be differentiated again."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, what: str) -> Tensor:
        """The value; `what` names it in the error."""
        ctx.what = what
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        refuse_second_derivative(ctx.what)
        return grad, None


def refuse_second_derivative(what: str, fix: str = "") -> None:
    """Raise inside a `backward` whose graph is recorded for a second derivative.

    `what` says what is differentiated and why only once, `fix` what else helps.
    """
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"{what}, and a second derivative would be wrong. "
            f"Call `backward` without `create_graph`{fix}."
        )


def check_no_tangent(what: str, *tensors: Tensor) -> None:
    """Raise if forward-mode differentiation is under way, where a tangent would be lost."""
    if torch.compiler.is_compiling():
        return
    if any(unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError(
            f"{what} has no forward-mode derivative. Use reverse mode (`backward`, "
            "`torch.autograd.grad`), or `impl='reference'` for the reductions."
        )
