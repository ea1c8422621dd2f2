"""Where points live: Euclidean space, a sphere, a torus."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from .._tools.checks import check_number, check_sizes, holds


class Manifold(ABC):
    r"""A part of $\mathbb R^d$ that velocities are tangent to, and that points return to."""

    @abstractmethod
    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        r"""The part of $v$ that is tangent at $x$."""

    @abstractmethod
    def retract(self, x: Tensor) -> Tensor:
        """The nearest point of the manifold."""

    def turn(self, size: float) -> float:
        """How fast the tangent part of a vector of that size turns on the manifold, at most."""
        raise NotImplementedError(f"No Lipschitz bound on {self} is known here.")

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """The points in a space where near and far are what they are on the manifold."""

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

    def turn(self, size):
        """Not at all."""
        return 0.0

    def embed(self, x):
        """The points themselves."""
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

    def turn(self, size):
        r"""$|(xx^\top-yy^\top)v|/R^2\le2|x-y||v|/R$."""
        return 2 * size / self.radius

    def embed(self, x):
        """The points themselves, chords for arcs."""
        return x

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
        angles, rest = self._split(x)
        angles = angles.remainder(self.period)
        angles = angles.masked_fill(angles >= self.period, 0)  # a tiny negative one is rounded up
        return torch.cat([angles, rest], -1)

    def embed(self, x):
        """Every angle on a circle of that circumference, chords for arcs."""
        angles, rest = self._split(x)
        radius = self.period / (2 * math.pi)
        turns = angles / radius
        return torch.cat([radius * turns.cos(), radius * turns.sin(), rest], -1)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Angles and the rest."""
        axes = x.shape[-1] if self.axes is None else min(self.axes, x.shape[-1])
        return x[..., :axes], x[..., axes:]

    def check(self, name, x):
        """Every point stands for one."""
