"""The manifolds that points of a flow lie on: Euclidean space, a sphere, a torus."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from ..._tools.checks import check_kind, check_number, check_optional_sizes, holds


class Manifold(ABC):
    r"""A subset of $\mathbb R^d$ that velocities are tangent to and points stay on."""

    @abstractmethod
    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        r"""The part of $v$ that is tangent at $x$."""

    @abstractmethod
    def retract(self, x: Tensor) -> Tensor:
        """The nearest point of the manifold."""

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """The points in a Euclidean space where points close on the manifold are close."""

    @abstractmethod
    def check(self, name: str, x: Tensor) -> None:
        """Raise unless the points lie on it."""


@dataclass(frozen=True)
class Euclidean(Manifold):
    r"""All of $\mathbb R^d$."""

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def retract(self, x: Tensor) -> Tensor:
        return x

    def embed(self, x: Tensor) -> Tensor:
        return x

    def check(self, name: str, x: Tensor) -> None:
        pass


@dataclass(frozen=True)
class Sphere(Manifold):
    r"""The sphere $|x|=R$ in $\mathbb R^d$.

    The tangent part of $v$ is $v-\langle x,v\rangle x/|x|^2$, the nearest point $Rx/|x|$. The
    origin has none: `retract` gives NaN there, without reading values, and flows refuse it.

    Args:
        radius: $R$.

    Examples:
        >>> x = pf.Sphere().retract(torch.tensor([[3.0, 4.0]]))
        >>> x, pf.Sphere().tangent(x, x)
        (tensor([[0.6000, 0.8000]]), tensor([[0., 0.]]))
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        check_number("radius", self.radius)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        x, _ = _of_size_one(x)
        return v - (x * v).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True) * x

    def retract(self, x: Tensor) -> Tensor:
        x, _ = _of_size_one(x)
        return x * (self.radius / x.norm(dim=-1, keepdim=True))

    def embed(self, x: Tensor) -> Tensor:
        return x  # chords instead of arcs

    def check(self, name: str, x: Tensor) -> None:
        if x.shape[-1] == 1:
            raise ValueError(f"A sphere needs dimension 2 or more, got `{name}` in dimension 1.")
        scaled, factor = _of_size_one(x.detach())
        radii = (scaled.norm(dim=-1) / factor[..., 0]).nan_to_num(0.0)
        allowed = 1e3 * torch.finfo(x.dtype).eps * self.radius
        if not holds(((radii - self.radius).abs() <= allowed).all()):
            if holds(x.isnan().any()):
                raise ValueError(
                    f"`{name}` must lie on the sphere of radius {self.radius:g}, got NaN. That is "
                    "what `retract` gives for the origin, which has no nearest point: drop it."
                )
            off = (radii - self.radius).abs().max().item()
            raise ValueError(
                f"`{name}` must lie on the sphere of radius {self.radius:g} up to {allowed:.0e}, "
                f"got points off by up to {off:.1e}. Put them there with "
                f"`mu.push(pf.{self}.retract)`, tensors with `pf.{self}.retract(x)`."
            )


def _of_size_one(x: Tensor) -> tuple[Tensor, Tensor]:
    """Points times a power of two, so that squares neither overflow nor vanish, and that factor.

    Powers of two do not round. NaN for the origin.
    """
    size = x.detach().abs().amax(-1, keepdim=True)
    tiny = torch.finfo(x.dtype).tiny
    # A number over its mantissa is a power of two, and tiny one that has an inverse.
    factor = (torch.frexp(size).mantissa / size).clamp(tiny, 1 / tiny)
    return x * factor, factor


@dataclass(frozen=True)
class Torus(Manifold):
    r"""Coordinates that are angles: points are kept in $[0,P)$.

    Args:
        period: $P$.
        axes: how many coordinates, the first ones, are angles; all by default.

    Examples:
        >>> pf.Torus(1.0).retract(torch.tensor([[1.25, -0.25]]))
        tensor([[0.2500, 0.7500]])
    """

    period: float = 2 * math.pi
    axes: int | None = None

    def __post_init__(self) -> None:
        check_number("period", self.period)
        check_optional_sizes(axes=self.axes)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def retract(self, x: Tensor) -> Tensor:
        angles, others = self._split(x)
        angles = angles.remainder(self.period)
        # The remainder of a tiny negative angle is rounded up to the period itself.
        angles = angles.masked_fill(angles >= self.period, 0)
        return torch.cat([angles, others], -1)

    def embed(self, x: Tensor) -> Tensor:
        # Every angle becomes a point of a circle of circumference P: chords instead of arcs.
        angles, others = self._split(x)
        radius = self.period / (2 * math.pi)
        radians = angles / radius
        return torch.cat([radius * radians.cos(), radius * radians.sin(), others], -1)

    def check(self, name: str, x: Tensor) -> None:
        pass  # every point stands for an angle

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The angles, and the other coordinates."""
        axes = x.shape[-1] if self.axes is None else min(self.axes, x.shape[-1])
        return x[..., :axes], x[..., axes:]


@singledispatch
def projection_lipschitz(manifold: Manifold, size: float) -> float:
    """A Lipschitz constant, in the point, of the tangent part of a vector.

    Args:
        manifold: the manifold; one of your own gets its constant by
            `projection_lipschitz.register`.
        size: the largest norm of the vector.

    Examples:
        >>> pf.fields.projection_lipschitz(pf.Sphere(2.0), 3.0)
        3.0
    """
    check_kind("manifold", manifold, Manifold, "For example `pf.Sphere()`.")
    raise NotImplementedError(f"No Lipschitz bound on {manifold} is known here.")


@projection_lipschitz.register(Euclidean)
def _(manifold: Euclidean, size: float) -> float:
    return 0.0


@projection_lipschitz.register(Sphere)
def _(manifold: Sphere, size: float) -> float:
    r"""$|(xx^\top-yy^\top)v|/R^2\le2|x-y||v|/R$."""
    return 2 * size / manifold.radius
