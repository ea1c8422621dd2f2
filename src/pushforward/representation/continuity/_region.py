"""Where the draws of a law lie, and what a law is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...flows import Euclidean, Manifold
from ...measures import Measure

Law = Callable[[int, torch.Generator], Measure]
"""`law(n, generator)` draws a measure of `n` atoms."""


@dataclass(frozen=True)
class Region:
    """Where a search stays: the smallest box around points, or a manifold they lie on.

    Args:
        low: the lowest corner of the box.
        high: its highest corner.
        manifold: on which the points lie.
    """

    low: Tensor
    high: Tensor
    manifold: Manifold = Euclidean()

    @classmethod
    def around(cls, points: Tensor, manifold: Manifold = Euclidean()) -> Region:  # noqa: B008
        """The smallest box around points; with the manifold, if they lie on it.

        Args:
            points: `(m, d)`.
            manifold: on which they may lie.
        """
        tol = 1e3 * torch.finfo(points.dtype).eps * (1 + points.abs().max())
        on_it = bool((manifold.retract(points) - points).abs().max() <= tol)
        return cls(points.amin(0), points.amax(0), manifold if on_it else Euclidean())

    @property
    def size(self) -> float:
        """The length of its longest side."""
        return float((self.high - self.low).max())

    @property
    def radius(self) -> float:
        """The radius of the smallest ball around the origin that contains it."""
        return float(torch.maximum(self.low.abs(), self.high.abs()).norm())

    @property
    def noise(self) -> float:
        """Differences of images up to this are rounding."""
        return 64 * torch.finfo(self.low.dtype).eps * max(1.0, self.size)

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest points of the box, or of the manifold if there is one."""
        if self.manifold != Euclidean():
            return self.manifold.retract(x)
        return torch.maximum(torch.minimum(x, self.high), self.low)
