"""Where points live: Euclidean space, a sphere, a torus."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ._checks import check_number, check_sizes, holds


class Manifold(ABC):
    r"""A part of $\mathbb R^d$ that velocities are tangent to, and that points return to."""

    @abstractmethod
    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        r"""The part of $v$ that is tangent at $x$."""

    @abstractmethod
    def retract(self, x: Tensor) -> Tensor:
        """The nearest point of the manifold."""

    @abstractmethod
    def check(self, name: str, x: Tensor) -> None:
        """Raise unless the points lie on it."""


@dataclass(frozen=True)
class Euclidean(Manifold):
    r"""All of $\mathbb R^d$."""

    def tangent(self, x, v):
        """All of it."""
        return v

    def retract(self, x):
        """The point itself."""
        return x

    def check(self, name, x):
        """Everything lies in it."""


@dataclass(frozen=True)
class Sphere(Manifold):
    r"""The sphere $|x|=R$ in $\mathbb R^d$.

    Args:
        radius: $R$.

    Examples:
        >>> x = pf.Sphere().retract(torch.tensor([[3.0, 4.0]]))
        >>> x, pf.Sphere().tangent(x, x)
        (tensor([[0.6000, 0.8000]]), tensor([[0., 0.]]))
    """

    radius: float = 1.0

    def __post_init__(self):
        check_number("radius", self.radius)

    def tangent(self, x, v):
        r"""$v-\langle x,v\rangle x/|x|^2$."""
        return v - (x * v).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True) * x

    def retract(self, x):
        r"""$Rx/|x|$."""
        return x * (self.radius / x.norm(dim=-1, keepdim=True))

    def check(self, name, x):
        """Up to rounding."""
        radii = x.detach().norm(dim=-1)
        if x.shape[-1] == 1:
            raise ValueError(f"`{name}` lies on a line, where a sphere is two points.")
        allowed = 1e3 * torch.finfo(x.dtype).eps * self.radius
        if not holds(((radii - self.radius).abs() <= allowed).all()):
            off = (radii - self.radius).abs().max().item()
            raise ValueError(
                f"`{name}` must lie on the sphere of radius {self.radius:g} up to {allowed:.0e}, "
                f"got points off by up to {off:.1e}. Put them there with "
                f"`mu.push(pf.{self}.retract)`, tensors with `pf.{self}.retract(x)`."
            )


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

    def __post_init__(self):
        check_number("period", self.period)
        check_sizes(axes=self.axes)

    def tangent(self, x, v):
        """All of it."""
        return v

    def retract(self, x):
        """Modulo the period."""
        if self.axes is None or self.axes >= x.shape[-1]:
            return x.remainder(self.period)
        angles, rest = x.split([self.axes, x.shape[-1] - self.axes], -1)
        return torch.cat([angles.remainder(self.period), rest], -1)

    def check(self, name, x):
        """Every point stands for one."""
