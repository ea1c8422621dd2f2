r"""Lipschitz bounds that are certain: derived from formulas, not estimated from samples.

$$|\Gamma(\mu,x)-\Gamma(\nu,y)|\le L_x|x-y|+L_\mu W_1(\mu,\nu),\qquad|\Gamma(\mu,x)|\le\rho$$

for points and measures in the ball of radius $R$. Bounds compose: the images of the first map lie
in the ball of radius $\rho$, on which the next map is bounded. The formulas of maps are in
`_bounds`, those of fields in the chapter `flows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, singledispatch
from operator import mul

import torch
from torch import Tensor, nn

ROUNDING = 1 + 1e-12
"""Factor that makes a norm computed in float64 an upper bound in spite of rounding."""

ACTIVATIONS: dict[object, float] = {
    nn.Identity: 1.0, nn.ReLU: 1.0, torch.relu: 1.0, nn.functional.relu: 1.0,
    nn.Tanh: 1.0, torch.tanh: 1.0, nn.Sigmoid: 0.25, torch.sigmoid: 0.25,
    nn.GELU: 1.13, nn.functional.gelu: 1.13, nn.SiLU: 1.1, nn.functional.silu: 1.1,
    torch.sin: 1.0, torch.cos: 1.0,
}  # fmt: skip
"""Lipschitz constants of activations; that of GELU is 1.129, of SiLU 1.0999, rounded up."""


@dataclass(frozen=True)
class Lipschitz:
    r"""A certain bound of an in-context map on a ball.

    Args:
        x: $L_x$, in the query.
        mu: $L_\mu$, in the context, for $W_1$.
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

    @property
    def measure(self) -> float:
        r"""The constant of $\mu\mapsto\Gamma(\mu,\cdot)_\sharp\mu$ in $W_1$: $L_x+L_\mu$."""
        return self.x + self.mu

    def then(self, after: Lipschitz) -> Lipschitz:
        """The bound of the composition with a map that is applied after this one."""
        mu = _product(after.x, self.mu) + _product(after.mu, self.measure)
        return Lipschitz(_product(after.x, self.x), mu, self.radius, after.reach)

    def scaled(self, factor: float) -> Lipschitz:
        """The bound of a multiple of the map."""
        x, mu, reach = (_product(abs(factor), v) for v in (self.x, self.mu, self.reach))
        return Lipschitz(x, mu, self.radius, reach)

    def __add__(self, other: Lipschitz) -> Lipschitz:
        """The bound of a sum of maps."""
        return Lipschitz(
            self.x + other.x, self.mu + other.mu, self.radius, self.reach + other.reach
        )


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
    raise unknown_bound(gamma, "lipschitz_bound")


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


def function_lipschitz(f: Callable[[Tensor], Tensor]) -> float:
    """A Lipschitz constant of a function of points: a layer, an activation or a sequence."""
    if isinstance(f, nn.Linear):
        return norm(f.weight)
    if isinstance(f, nn.Sequential):
        return reduce(mul, map(function_lipschitz, f), 1.0)
    if isinstance(f, nn.LayerNorm) and f.eps > 0:
        scale = 1.0 if f.weight is None else float(f.weight.detach().abs().max())
        return ROUNDING * scale / f.eps**0.5
    if isinstance(f, nn.LeakyReLU):
        return max(1.0, abs(f.negative_slope))
    if isinstance(f, nn.ELU):
        return max(1.0, abs(f.alpha))
    known = ACTIVATIONS.get(type(f)) if isinstance(f, nn.Module) else ACTIVATIONS.get(f)
    if known is None:
        raise NotImplementedError(
            f"No Lipschitz constant of {f} is known here. Linear layers, LayerNorm, the usual "
            "activations and sequences of them have one."
        )
    return known


def pointwise_lipschitz(
    f: Callable[[Tensor], Tensor], constant: float, radius: float, zero: Tensor
) -> Lipschitz:
    r"""The bound of a map of points alone: $|F(x)|\le|F(0)|+LR$.

    Args:
        f: the map $F$.
        constant: its Lipschitz constant $L$.
        radius: $R$.
        zero: the origin, `(1, d)`, in the dtype and on the device of the map.
    """
    with torch.no_grad():
        start = ROUNDING * float(f(zero).norm())
    return Lipschitz(constant, 0.0, radius, start + constant * radius)
