"""Rules: ways to relate the points of two measures, as targets to approximate or learn.

A rule is a function of two measures that returns a `Conditional` or a `Coupling` of their atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_floating,
    check_number,
    check_same,
    check_shape,
    check_values_finite,
    holds,
)
from ..affinities import Encoded, SquaredDistance
from ..measures import Measure, check_pair
from ..relations import Coupling, Relation, relate

Rule = Callable[[Measure, Measure], Relation]
"""A rule `rule(mu, nu)`: queries `mu`, context `nu`. The value of a conditional rule at a query
must not depend on the other queries or on the weights of `mu`."""


@dataclass(frozen=True)
class QuantileCoupling:
    r"""The monotone coupling $(F_\mu^{-1},F_\nu^{-1})_\sharp\,du$ of two measures on the line.

    The coupling is weakly continuous in the measures. Its conditionals are not: they jump when an
    atom splits into two.

    Examples:
        >>> mu, nu = pf.Measure(torch.tensor([[1.0], [0.0]])), pf.Measure(torch.rand(1, 1))
        >>> pf.approximation.QuantileCoupling()(mu, nu).matrix().mT
        tensor([[0.5000, 0.5000]])
    """

    def __call__(self, mu: Measure, nu: Measure) -> Coupling:
        """The mass of a pair is the overlap of its two intervals of quantile levels."""
        check_pair(mu, nu)
        (x_low, x_high), (y_low, y_high) = _levels(mu), _levels(nu)
        low = torch.maximum(x_low[..., :, None], y_low[..., None, :])
        overlap = torch.minimum(x_high[..., :, None], y_high[..., None, :]) - low
        return Coupling.from_matrix(overlap.clamp_min(0).to(mu.log_weights.dtype))


@dataclass(frozen=True)
class SoftNearest:
    r"""The softened nearest neighbour $\kappa(x,dy)\propto e^{-|x-y|^2/\varepsilon}\,\nu(dy)$.

    Weakly continuous for $\varepsilon>0$. The nearest neighbour itself is not: it jumps where two
    neighbours are equally near, and it may be an atom of arbitrarily small mass.

    Args:
        eps: $\varepsilon$.
    """

    eps: float

    def __post_init__(self) -> None:
        check_number("eps", self.eps)

    def __call__(self, mu: Measure, nu: Measure) -> Relation:
        """Softmax of the squared distance."""
        return relate(mu, nu, affinity=SquaredDistance(self.eps))


@dataclass(frozen=True, eq=False)
class GaussianConditional:
    r"""Bayes' rule with prior $\nu$: $\kappa(x,dy)\propto\mathcal N(y;Mx+c,S)\,\nu(dy)$.

    Weakly continuous on bounded sets.

    Args:
        slope: $M$.
        shift: $c$.
        cov: $S$, positive definite.
    """

    slope: Float[Tensor, "e d"]
    shift: Float[Tensor, " e"]
    cov: Float[Tensor, "e e"]

    def __post_init__(self) -> None:
        check_floating("slope", self.slope, "(e, d)", 2)
        e = len(self.slope)
        check_shape("slope", self.slope, (e, *self.slope.shape[1:2]), "A matrix.")
        check_shape("shift", self.shift, (e,), "One number per row of `slope`.")
        check_shape("cov", self.cov, (e, e), "One row and column per row of `slope`.")
        for name, tensor in (("shift", self.shift), ("cov", self.cov)):
            for what in ("dtype", "device"):
                check_same(what, ("slope", self.slope), (name, tensor))
        check_values_finite(slope=self.slope, shift=self.shift, cov=self.cov)
        if not holds(torch.linalg.cholesky_ex(self.cov).info == 0):
            raise ValueError("`cov` must be positive definite, got a matrix that is not.")

    def __call__(self, mu: Measure, nu: Measure) -> Relation:
        """Softmax of the squared distance after whitening by the covariance."""
        check_pair(mu, nu)
        check_same("dtype", ("mu", mu.atoms), ("slope", self.slope))
        root = torch.linalg.cholesky(self.cov)
        whiten = lambda z: torch.linalg.solve_triangular(root, z.mT, upper=False).mT
        q, k = whiten(mu.atoms @ self.slope.mT + self.shift), whiten(nu.atoms)
        return relate(mu, nu, affinity=Encoded(q, k, SquaredDistance(2.0)))


def _levels(mu: Measure) -> tuple[Tensor, Tensor]:
    """Values of the distribution function before and at each atom, in float64."""
    if mu.dim != 1:
        raise ValueError(f"`mu` and `nu` must be measures on the line, got one in R^{mu.dim}.")
    order = mu.atoms[..., 0].argsort(dim=-1, stable=True)
    high = mu.log_weights.double().softmax(-1).gather(-1, order).cumsum(-1)
    high = high / high[..., -1:]
    low = torch.cat([torch.zeros_like(high[..., :1]), high[..., :-1]], -1)
    back = order.argsort(dim=-1)
    return low.gather(-1, back), high.gather(-1, back)
