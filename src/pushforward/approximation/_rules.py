"""Rules: ready ways to relate the points of two measures, to be approximated or learned.

A rule is a callable of two measures whose value is a `Conditional` or a `Coupling` of their atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..affinities import Encoded, SquaredDistance
from ..measures import Measure
from ..relations import Coupling, Relation, Sinkhorn, relate

Rule = Callable[[Measure, Measure], Relation]
"""A rule. A conditional one takes queries and a context: it can be asked at any queries, and what
these weigh must not matter."""


@dataclass(frozen=True)
class QuantileCoupling:
    r"""The monotone coupling $(F_\mu^{-1},F_\nu^{-1})_\sharp\,du$ of two measures on the line.

    Weakly continuous. Its conditionals are not: an atom that comes apart changes them.

    Examples:
        >>> mu, nu = pf.Measure(torch.tensor([[1.0], [0.0]])), pf.Measure(torch.rand(1, 1))
        >>> pf.approximation.QuantileCoupling()(mu, nu).matrix().mT
        tensor([[0.5000, 0.5000]])
    """

    def __call__(self, mu: Measure, nu: Measure) -> Coupling:
        """Masses are overlaps between the levels of two distribution functions."""
        (low, high), (lowest, highest) = _levels(mu), _levels(nu)
        above = torch.maximum(low[..., :, None], lowest[..., None, :])
        overlap = torch.minimum(high[..., :, None], highest[..., None, :]) - above
        return Coupling.from_matrix(overlap.clamp_min(0).to(mu.log_weights.dtype))


@dataclass(frozen=True)
class EntropicCoupling:
    r"""The plan that minimises $\int|x-y|^2d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$.

    Weakly continuous for $\varepsilon>0$. Plans of least cost alone are not, beyond one dimension:
    there may be several.

    Args:
        eps: $\varepsilon$.
    """

    eps: float

    def __call__(self, mu: Measure, nu: Measure) -> Relation:
        """Sinkhorn of the squared distance."""
        near = SquaredDistance(self.eps)
        return relate(mu, nu, affinity=near, normaliser=Sinkhorn())


@dataclass(frozen=True)
class SoftNearest:
    r"""The softened nearest neighbour $\kappa(x,dy)\propto e^{-|x-y|^2/\varepsilon}\,\nu(dy)$.

    Weakly continuous for $\varepsilon>0$. The nearest neighbour itself is not: it jumps where two
    are equally near, and sees atoms however light.

    Args:
        eps: $\varepsilon$.
    """

    eps: float

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

    def __call__(self, mu: Measure, nu: Measure) -> Relation:
        """Softmax of the squared distance in units of the covariance."""
        root = torch.linalg.cholesky(self.cov)
        whiten = lambda z: torch.linalg.solve_triangular(root, z.mT, upper=False).mT
        q, k = whiten(mu.atoms @ self.slope.mT + self.shift), whiten(nu.atoms)
        return relate(mu, nu, affinity=Encoded(q, k, SquaredDistance(2.0)))


def _levels(mu: Measure) -> tuple[Tensor, Tensor]:
    """Values of the distribution function before and at each atom, in float64."""
    if mu.dim != 1:
        raise ValueError(f"Quantiles are those of measures on a line, got one in R^{mu.dim}.")
    order = mu.atoms[..., 0].argsort(dim=-1, stable=True)
    high = mu.log_weights.double().softmax(-1).gather(-1, order).cumsum(-1)
    high = high / high[..., -1:]
    low = torch.cat([torch.zeros_like(high[..., :1]), high[..., :-1]], -1)
    back = order.argsort(dim=-1)
    return low.gather(-1, back), high.gather(-1, back)
