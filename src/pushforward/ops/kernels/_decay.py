"""Decaying sums on a GPU: their launches, and the operator with its gradients."""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._tools.once import no_second_derivative, refuse
from ._operators import check_device
from ._problem import strides
from ._split import columns, room, split, summed
from ._tiles import GROUP, radial_tile
from .programs import radial

WHAT = "A decaying sum on a GPU"
"""Its name in messages."""

MOST_FACTORS = 8
"""Up to this many roots are multiplied. The rest of a large power is an exponential."""


class Power(NamedTuple):
    """A power as factors of the inverse root, and the rest as an exponential."""

    halves: int
    rest: float

    @staticmethod
    def of(power: float) -> "Power":
        """As many factors as there are in it, up to 8."""
        halves = min(int(2 * power), MOST_FACTORS)
        return Power(halves, power - halves / 2)

    def options(self) -> dict[str, Any]:
        """The power as arguments of a kernel."""
        return dict(HALVES=self.halves, WHOLE=self.rest == 0)


def radial_sums(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    """The sums for points of shape `(b, h, n, k)`."""
    (*batch, m, d), n, e = x.shape, y.shape[-2], v.shape[-1]
    tile, problems, p = radial_tile("sums", e), prod(batch), Power.of(power)
    programs = -(-m // tile.rows) * problems
    parts = split(x, programs, n, GROUP * tile.columns)
    out = room(parts, (*batch, m, e), x.dtype, x.device)
    if out.numel():
        points = (x, *columns(m * n, y, v))
        radial.sums[programs, parts](
            *points, out, m, n, x.shape[1], p.rest, *map(strides, points), D=d, E=e,
            BM=tile.rows, BN=tile.columns, GROUP=GROUP, num_warps=tile.warps, **p.options(),
        )  # fmt: skip
    return summed(out, parts, x.dtype)


def radial_gradient(
    x: Tensor, u: Tensor, y: Tensor, v: Tensor, power: float, *, with_sums: bool
) -> tuple[Tensor, Tensor]:
    """The gradient in points `x` with upstream gradient, or value, `u`; and sums of `v`."""
    (*batch, m, d), n, e = x.shape, y.shape[-2], v.shape[-1]
    tile = radial_tile("both" if with_sums else "gradient", e)
    problems, p = prod(batch), Power.of(power)
    programs = -(-m // tile.rows) * problems
    parts = split(x, programs, n, GROUP * tile.columns)
    dx, out = (
        room(parts, (*batch, m, width), x.dtype, x.device) for width in (d, e if with_sums else 0)
    )
    if dx.numel() + out.numel():
        points = (x, u, *columns(m * n, y, v))
        radial.gradient[programs, parts](
            *points, dx, out, m, n, x.shape[1], p.rest, -2.0 * power, *map(strides, points),
            D=d, E=e, BM=tile.rows, BN=tile.columns, GROUP=GROUP, num_warps=tile.warps,
            SUMS=with_sums, **p.options(),
        )  # fmt: skip
    return summed(dx, parts, x.dtype), summed(out, parts, x.dtype)


@torch.library.custom_op("pushforward::radial_triton", mutates_args=())
def decaying_sum(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    """The sums for points of shape `(b, h, n, k)`."""
    check_device(WHAT, x)
    return radial_sums(x, y, v, power)


@decaying_sum.register_fake
def _(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    return x.new_empty(*x.shape[:-1], v.shape[-1])


@torch.library.custom_op("pushforward::radial_triton_backward", mutates_args=())
def radial_backward(
    x: Tensor, y: Tensor, v: Tensor, upstream: Tensor, power: float, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in `x, y, v`; those that are not wanted are zeros."""
    dx, dy, dv = (x.new_zeros(t.shape) if not want else None
                  for t, want in zip((x, y, v), wanted, strict=True))  # fmt: skip
    if dx is None:
        dx, _ = radial_gradient(x, upstream, y, v, power, with_sums=False)
    if dy is None:
        dy, found = radial_gradient(y, v, x, upstream, power, with_sums=dv is None)
        dv = found if dv is None else dv
    if dv is None:
        dv = radial_sums(y, x, upstream, power)
    return dx, dy, dv


@radial_backward.register_fake
def _(x: Tensor, y: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (x, y, v))


def _radial_setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.power = inputs
    ctx.save_for_backward(*tensors)


def _radial_backward(ctx: Any, upstream: Tensor) -> tuple:
    wanted = list(ctx.needs_input_grad[:3])
    grads = radial_backward(*ctx.saved_tensors, upstream, ctx.power, wanted)
    return *(g if want else None for g, want in zip(grads, wanted, strict=True)), None


def _radial_second_backward(ctx: Any, *_: Any) -> tuple:
    refuse(no_second_derivative(WHAT))


radial_backward.register_autograd(_radial_second_backward)
decaying_sum.register_autograd(_radial_backward, setup_context=_radial_setup_context)
