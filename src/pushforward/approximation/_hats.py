"""A partition of unity by piecewise multilinear functions on a grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_floating,
    check_same,
    check_shape,
    check_sizes,
    check_values_finite,
    holds,
)
from ..measures import Measure, check_measures


@dataclass(frozen=True, eq=False)
class Hats:
    r"""A partition of unity on a box: $\chi_l(x)=\prod_i\bigl(1-|x_i-c_{l,i}|/h_i\bigr)_+$.

    The $c_l$ are the nodes of a grid over the box, corners included. Both constructions of paper B
    write an affinity in these functions.

    Args:
        low: the lowest corner of the box.
        high: the highest.
        cells: nodes on every axis, at least 2, so $h_i$ is the side divided by `cells - 1`.

    Examples:
        >>> hats = pf.approximation.Hats(torch.zeros(1), torch.ones(1), cells=3)
        >>> hats(torch.tensor([[0.1], [0.5]]))
        tensor([[0.8000, 0.2000, 0.0000],
                [0.0000, 1.0000, 0.0000]])
    """

    low: Float[Tensor, " d"]
    high: Float[Tensor, " d"]
    cells: int

    def __post_init__(self) -> None:
        check_sizes(cells=self.cells)
        check_floating("low", self.low, "(d,)", 1)
        check_floating("high", self.high, "(d,)", 1)
        check_shape("high", self.high, self.low.shape, "As many coordinates as `low`.")
        for what in ("dtype", "device"):
            check_same(what, ("low", self.low), ("high", self.high))
        check_values_finite(low=self.low, high=self.high)
        if self.low.ndim != 1 or not self.low.numel():
            raise ValueError(f"`low` must have shape (d,), got {tuple(self.low.shape)}.")
        if self.cells < 2 or not holds((self.low < self.high).all()):
            raise ValueError(
                "`cells` must be at least 2, and `low` below `high` on every axis, got "
                f"{self.cells}, {self.low.tolist()} and {self.high.tolist()}. Widen the box, or "
                "drop a coordinate that never changes."
            )

    @classmethod
    def around(cls, *measures: Measure, cells: int) -> Hats:
        """Hats on the smallest box that contains the measures."""
        for mu in measures:
            check_measures(measures=mu)
        points = torch.cat([mu.atoms.detach().flatten(0, -2) for mu in measures])
        return cls(points.amin(0), points.amax(0), cells)

    @property
    def count(self) -> int:
        """Number of hats."""
        return self.cells ** len(self.low)

    @property
    def diameter(self) -> float:
        r"""$\rho$: the diameter of the support of a hat, of side $2h$."""
        return self.extent * min(1.0, 2 / (self.cells - 1))

    @property
    def extent(self) -> float:
        """The diameter of the box."""
        return (self.high - self.low).norm().item()

    def __call__(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n l"]:
        """All hats at points of the box."""
        check_floating("x", x, "(..., n, d)", 2)
        check_same("device", ("low", self.low), ("x", x))
        if x.shape[-1] != len(self.low):
            raise ValueError(f"`x` must lie in R^{len(self.low)}, got R^{x.shape[-1]}.")
        relative = (x - self.low.to(x)) / (self.high - self.low).to(x)
        if not holds((relative - 0.5).abs().max() <= 0.5 + 1e-6):
            raise ValueError(
                "`x` must lie in the box of the hats, got points outside, or NaN. Take a larger "
                "box: `pf.approximation.Hats.around(mu, nu, cells=...)`."
            )
        position = relative.clamp(0, 1) * (self.cells - 1)
        nodes, product = torch.arange(self.cells).to(x), torch.ones_like(x[..., :1])
        for hats_1d in (1 - (position[..., None] - nodes).abs()).clamp_min(0).unbind(-2):
            product = (product[..., :, None] * hats_1d[..., None, :]).flatten(-2)
        return product

    def integrals(self, matrix: Float[Tensor, "*b m n"], nu: Measure) -> Float[Tensor, "*b m l"]:
        """Integrals of all hats under each row of a matrix of masses on the atoms of `nu`."""
        check_measures(nu=nu)
        check_floating("matrix", matrix, "(..., m, n)", 2)
        check_shape("matrix", matrix, (*matrix.shape[:-1], nu.n), "One column per atom of `nu`.")
        check_same("device", ("matrix", matrix), ("nu", nu.atoms))
        check_values_finite(matrix=matrix)
        values = self(nu.atoms)
        return matrix.to(values.dtype) @ values

    def masses(self, nu: Measure) -> Float[Tensor, "*b l"]:
        r"""$\nu(\chi_l)$ for all hats, with $\nu$ normalised."""
        check_measures(nu=nu)
        return self.integrals(nu.log_weights.softmax(-1)[..., None, :], nu).squeeze(-2)
