r"""A sum over all pairs whose factor decays slowly with the distance.

It is the interaction of Cucker and Smale, $\psi(s)=(1+s)^{-p}$ of squared distances $s$, with
$\psi'(s)=-p(1+s)^{-p-1}$. Both gradients have the form of the sum itself, with the two sides
exchanged, or of one more:

$$v'_j=\sum_i\psi(|x_i-y_j|^2)\,o'_i,\qquad
  x'_i=\sum_j2\psi'(|x_i-y_j|^2)\,\langle o'_i,v_j\rangle\,(x_i-y_j),$$

and $y'$ is $x'$ with the sides exchanged.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from .._tools.checks import (
    check_broadcast,
    check_finite,
    check_floating,
    check_number,
    check_same,
    check_widths,
)
from .._tools.once import no_second_derivative, refuse
from .._tools.precision import align, full_precision
from .._tools.tiles import distance_matrix, over_tiles, row_tiles
from ._fused import BITS, run
from ._operators import fold
from ._reductions import SMALL, fused_runs, kernels_run
from .compiled import machine, radial, radial_gradient as gradient_loop

FEW = 1 << 14
"""Up to this many pairs a CPU forms tiles, which cost no compiling."""

LOOPS = (0.5, 1.0)
"""The powers that compiled loops have; any other would need a logarithm for each pair."""


def decaying_sum(
    x: Float[Tensor, "*#b m d"],
    y: Float[Tensor, "*#b n d"],
    v: Float[Tensor, "*#b n e"],
    *,
    power: float = 0.5,
) -> Float[Tensor, "*b m e"]:
    r"""The sums $\sum_jv_j\,(1+|x_i-y_j|^2)^{-p}$, in linear memory.

    More than $2^{14}$ pairs on a CPU are summed in compiled loops, if there is the extra `fast`
    and $p$ is $1/2$ or $1$. More than $2^{22}$ on an NVIDIA GPU are summed by a kernel, for every
    $p$, if points have at most four coordinates, values at most eight and neither is float64.
    Everything else goes by tiles of rows in PyTorch. There is no second derivative.

    Args:
        x: a point for each sum.
        y: a point for each term.
        v: a vector for each term.
        power: $p>0$.

    Examples:
        >>> x, y = torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> pf.ops.decaying_sum(x, y, torch.ones(2, 1))
        tensor([[1.7071]])
        >>> pf.ops.decaying_sum(x, y, torch.ones(2, 1), power=2.0)
        tensor([[1.2500]])
    """
    for name, tensor in (("x", x), ("y", y), ("v", v)):
        check_floating(name, tensor, "(..., n, k)", 2)
        check_same("device", ("x", x), (name, tensor))
        check_broadcast(f"`x` and `{name}`", x.shape[:-2], tensor.shape[:-2])
    check_widths(x, y)
    if y.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"`y` and `v` must have a row per term, got {y.shape[-2]} and {v.shape[-2]} rows."
        )
    check_number("power", power)
    check_finite("power", power)
    x, y, v = align(x, y, v)
    with full_precision(x):
        return _implementation(x, y, v, power)(x, y, v, float(power))


def _implementation(
    x: Tensor, y: Tensor, v: Tensor, power: float
) -> Callable[[Tensor, Tensor, Tensor, float], Tensor]:
    """The default: tiles for few pairs; for many, compiled code if the device has any."""
    kind, batch = x.device.type, torch.broadcast_shapes(*(t.shape[:-2] for t in (x, y, v)))
    few = FEW if kind == "cpu" else SMALL["cuda"]
    if prod(batch) * x.shape[-2] * y.shape[-2] <= few or not _plain(x, y, v):
        return _by_tiles
    if kind == "cpu" and power in LOOPS and fused_runs():
        return _by_loops
    if kind == "cuda" and kernels_run():
        from . import kernels

        if kernels.has_radial(x, v):
            return kernels.decaying_sum
    return _by_tiles


def _plain(*tensors: Tensor) -> bool:
    """Whether no forward-mode derivative is under way."""
    if torch.compiler.is_compiling():
        return True
    return all(unpack_dual(t).tangent is None for t in tensors)


def _by_tiles(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    """Some rows at a time, which gradients compute again."""

    def part(rows: slice) -> Tensor:
        return _decay(distance_matrix(x[..., rows, :], y), power) @ v

    batch = prod(torch.broadcast_shapes(x.shape[:-2], y.shape[:-2]))
    tiles = row_tiles(x.shape[-2], batch * y.shape[-2], x.device) or [slice(0, 0)]
    images = list(over_tiles(part, tiles))
    return images[0] if len(images) == 1 else torch.cat(images, -2)


def _decay(r: Tensor, power: float) -> Tensor:
    r"""$(1+r^2)^{-p}$ of distances."""
    square = 1 + r.square()
    return square.rsqrt() if power == 0.5 else square.pow(-power)


def _by_loops(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    """Loops compiled for this processor."""
    batch, (x, y, v), _ = fold((x, y, v), None)
    return radial_sum(x, y, v, power).reshape(*batch, x.shape[-2], v.shape[-1])


@torch.library.custom_op("pushforward::radial_sum", mutates_args=(), device_types="cpu")
def radial_sum(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    """The sums, with a batch axis."""
    b, (m, d), (n, e) = len(x), x.shape[1:], v.shape[1:]
    out = x.new_empty(b, m, e)
    arrays = [*(t.contiguous() for t in (x, y, v)), out]
    run(radial(BITS[x.dtype], machine(), d, e, power), (b, m, n), arrays)
    return out


@radial_sum.register_fake
def _(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    return x.new_empty(*x.shape[:2], v.shape[-1])


@torch.library.custom_op("pushforward::radial_gradient", mutates_args=(), device_types="cpu")
def radial_gradient(x: Tensor, y: Tensor, upstream: Tensor, v: Tensor, power: float) -> Tensor:
    """The gradient in the points of the sums."""
    (b, m, d), (n, e) = x.shape, v.shape[1:]
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    arrays = [*(t.contiguous() for t in (x, y, upstream, v)), out]
    run(gradient_loop(BITS[x.dtype], machine(), d, e, power), (b, m, n), arrays)
    return out


@radial_gradient.register_fake
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.power = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y, v = ctx.saved_tensors
    want_x, want_y, want_v, _ = ctx.needs_input_grad
    return (
        radial_gradient(x, y, grad, v, ctx.power) if want_x else None,
        radial_gradient(y, x, v, grad, ctx.power) if want_y else None,
        radial_sum(y, x, grad, ctx.power) if want_v else None,
        None,
    )


def _second_backward(ctx: Any, _: Tensor) -> tuple:
    refuse(no_second_derivative("The gradient of a fused sum over pairs"))


radial_gradient.register_autograd(_second_backward)
radial_sum.register_autograd(_backward, setup_context=_setup_context)
