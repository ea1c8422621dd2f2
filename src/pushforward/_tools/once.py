"""Results that can be differentiated once: a second derivative raises an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

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


class UsedOnce(torch.autograd.Function):
    """The identity on what goes into an operator without second derivatives.

    A second derivative meets the gradient that comes out of it first, and raises our error instead
    of one from inside PyTorch. `torch.func` transforms it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, what: str) -> Tensor:
        """The tensor; `what` names the operator in errors."""
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.what = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _NoGradient.apply(grad, ctx.what), None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Tensor:
        refuse(no_tangent(ctx.what))


class _NoGradient(torch.autograd.Function):
    """The identity, with an error in place of a gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, what: str) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.what = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        refuse(no_second_derivative(ctx.what))

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Tensor:
        refuse(no_second_derivative(ctx.what))


def refuse(message: str) -> NoReturn:
    """Raise where a derivative that does not exist is asked for."""
    raise NotImplementedError(message)


def used_once(what: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, guarded where they have gradients; `torch.compile` takes them as they are."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return tensors
    return tuple(UsedOnce.apply(t, what) if t.requires_grad else t for t in tensors)


def no_second_derivative(what: str) -> str:
    """The message where a streamed operator is differentiated twice."""
    return f"{what} has no second derivative. Use `impl='reference'` for the reductions."


def no_tangent(what: str) -> str:
    """The message where forward-mode differentiation reaches a streamed operator."""
    return (
        f"{what} has no forward-mode derivative. Use reverse mode (`backward`, "
        "`torch.autograd.grad`), or `impl='reference'` for the reductions."
    )


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
        refuse(no_tangent(what))


def untransformed(*tensors: Tensor) -> bool:
    """Whether no `torch.func` transform or forward mode is active; true under `torch.compile`."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(unpack_dual(t).tangent is None for t in tensors)


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
