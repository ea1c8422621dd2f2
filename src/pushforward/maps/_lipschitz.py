r"""Lipschitz bounds that are certain: derived from formulas, not estimated from samples.

$$|\Gamma(\mu,x)-\Gamma(\nu,y)|\le L_x|x-y|+L_\mu W_1(\mu,\nu),\qquad|\Gamma(\mu,x)|\le\rho$$

for points and measures of equal mass in the ball of radius $R$. Bounds compose: the images of the
first map lie in the ball of radius $\rho$, on which the next map is bounded. The formulas of maps
are in `_bounds`, those of fields in the chapter `flows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor, nn

from .._tools.checks import check_finite, check_kind

ROUNDING = 1 + 1e-12
"""Factor that makes a norm computed in float64 an upper bound in spite of rounding."""


@dataclass(frozen=True)
class Lipschitz:
    r"""A certain bound of an in-context map on a ball.

    Args:
        x: $L_x$, in the query.
        mu: $L_\mu$, in the context, for $W_1$ of measures of equal mass.
        radius: $R$, of the ball that contexts and queries lie in.
        reach: $\rho$, of a ball that the images lie in.

    Examples:
        >>> bound = pf.fields.Linear(-torch.eye(2), torch.eye(2)).lipschitz(radius=3.0)
        >>> round(bound.x, 9), round(bound.mu, 9), round(bound.reach, 9)
        (1.0, 1.0, 6.0)
    """

    x: float
    mu: float
    radius: float
    reach: float

    def __post_init__(self) -> None:
        for name in ("x", "mu", "radius", "reach"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                raise ValueError(f"`{name}` must be a number, not negative, got {value!r}.")

    @property
    def measure(self) -> float:
        r"""The constant of $\mu\mapsto\Gamma(\mu,\cdot)_\sharp\mu$ in $W_1$: $L=L_x+L_\mu$.

        For measures of equal mass. A push-forward keeps masses, so that for unequal ones, where
        $W_1(c_1\mu_1,c_2\mu_2)=|c_1-c_2|+W_1(\mu_1,\mu_2)$, the constant is $\max(1,L)$.
        """
        return self.x + self.mu

    def then(self, after: Lipschitz) -> Lipschitz:
        """The bound of the composition with a map that is applied after this one."""
        check_kind("after", after, Lipschitz, "Such as `gamma.lipschitz(radius)`.")
        mu = _product(after.x, self.mu) + _product(after.mu, self.measure)
        return Lipschitz(_product(after.x, self.x), mu, self.radius, after.reach)

    def scaled(self, factor: float) -> Lipschitz:
        """The bound of a multiple of the map."""
        check_finite("factor", factor)
        x, mu, reach = (_product(abs(factor), v) for v in (self.x, self.mu, self.reach))
        return Lipschitz(x, mu, self.radius, reach)

    def __add__(self, other: Lipschitz) -> Lipschitz:
        """The bound of a sum of maps."""
        reach = self.reach + other.reach
        return Lipschitz(self.x + other.x, self.mu + other.mu, self.radius, reach)


def _product(a: float, b: float) -> float:
    """The product with zero times infinity equal to zero, as for a map that is constant."""
    return a * b if a and b else 0.0


@singledispatch
def lipschitz_bound(gamma: object, radius: float) -> Lipschitz:
    """The bound of a map on the ball of a radius; `gamma.lipschitz(radius)` calls it.

    Args:
        gamma: the map; a kind of map gets its formula by `lipschitz_bound.register`.
        radius: of the ball around the origin that contexts and queries lie in.

    Examples:
        >>> class Halve(pf.InContextMap):
        ...     def evaluate(self, mu, x):
        ...         return x / 2
        >>> @pf.maps.lipschitz_bound.register(Halve)
        ... def halve_bound(gamma, radius):
        ...     return pf.maps.Lipschitz(x=0.5, mu=0.0, radius=radius, reach=radius / 2)
        >>> (Halve() @ Halve()).lipschitz(1.0).x
        0.25
    """
    if not isinstance(gamma, nn.Module):
        raise TypeError(f"`gamma` must be an InContextMap, got {type(gamma).__name__}.")
    raise unknown_bound(gamma, "lipschitz_bound")


def checked_bound(gamma: object, radius: float) -> Lipschitz:
    """`lipschitz_bound`, with an error that names the map if it returns something else."""
    bound = lipschitz_bound(gamma, radius)
    fix = "Return `pf.maps.Lipschitz(x=..., mu=..., radius=..., reach=...)`."
    check_kind(f"lipschitz_bound of {type(gamma).__name__}", bound, Lipschitz, fix, returned=True)
    return bound


def unknown_bound(thing: object, function: str) -> NotImplementedError:
    """The error for a kind of map, affinity or normaliser that has registered no formula."""
    kind = type(thing).__name__
    return NotImplementedError(
        f"No Lipschitz bound of {kind} is known here. Give one with "
        f"`@pf.maps.{function}.register({kind})`."
    )


def norm(matrix: Tensor) -> float:
    """The largest singular value, rounded up."""
    return ROUNDING * float(torch.linalg.matrix_norm(matrix.detach().double(), 2))
