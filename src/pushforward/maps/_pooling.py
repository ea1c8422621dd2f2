"""Pooling: from a measure to one vector, by an integral or at learned queries."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .._tools.checks import check_callable, check_flags, check_kind, check_parameters, check_sizes
from ..measures import Measure, check_measures
from ._in_context import InContextMap

Features = Callable[[Tensor], Tensor] | InContextMap
"""A feature map: a function of points, or an in-context map."""

Pooled = Float[Tensor, "*b e"]
"""One vector per measure."""


class Pool(nn.Module):
    r"""The mean of features over a measure, $\int\varphi\,d\mu\,/\,\mu(\mathbb R^d)$.

    It takes a measure to one vector, a ragged batch to one vector each. Splitting atoms and
    padding change nothing. With an in-context map as features the points' images depend on the
    whole measure: $\int\Gamma(\mu,x)\,\mu(dx)/\mu(\mathbb R^d)$. So
    `nn.Sequential(pf.Pool(encoder), head)` is a classifier of sets.

    Args:
        features: $\varphi$, a module or function of points `(..., n, d)`, or an in-context map
            such as a `Transformer`; the points themselves by default.
        normalise: whether to divide by the mass. If not, it is
            $\int\varphi\,d\mu=\sum_ia_i\varphi(x_i)$. The sums of DeepSets are those of atoms of
            weight 1, `pf.Measure(x, torch.ones(len(x)))`.
        mass: whether $\log\mu(\mathbb R^d)$ comes as one more feature, the last: if atoms have
            weight 1, the logarithm of their number.

    Examples:
        >>> encoder = pf.Transformer(3, depth=2, heads=4, width=16, out_dim=16)
        >>> model = torch.nn.Sequential(pf.Pool(encoder), torch.nn.Linear(16, 10))
        >>> sets = pf.Measure.stack([pf.Measure(torch.randn(n, 3)) for n in (5, 8)])
        >>> model(sets).shape
        torch.Size([2, 10])
        >>> pf.Pool(normalise=False)(pf.Measure(torch.ones(4, 1), torch.ones(4)))
        tensor([4.])
    """

    def __init__(
        self, features: Features | None = None, *, normalise: bool = True, mass: bool = False
    ) -> None:
        super().__init__()
        _check_features(features)
        check_flags(normalise=normalise, mass=mass)
        self.features, self.normalise, self.mass = features, normalise, mass

    def forward(self, mu: Measure) -> Pooled:
        """The vector of a measure, or those of a batch.

        Args:
            mu: the measure.
        """
        image = _image(self.features, mu)
        total = (image.normalise() if self.normalise else image).integrate(image.atoms)
        total = total.to(image.dtype)
        if not self.mass:
            return total
        log_mass = image.log_weights.logsumexp(-1, keepdim=True).to(image.dtype)
        return torch.cat([total, log_mass], -1)

    def extra_repr(self) -> str:
        return f"normalise={self.normalise}, mass={self.mass}"


class AttentionPool(nn.Module):
    r"""Attention at learned queries, $\Gamma(\mu,s_1),\dots,\Gamma(\mu,s_k)$ side by side.

    The pooling of the Set Transformer. A learned query $s_i$ is what a class token is to other
    transformers, except that it has no mass, so the set does not see it. Splitting atoms and
    padding change nothing; the total mass is not seen. Queries have equal weights, so with
    Sinkhorn every query receives the same share of the mass.

    Args:
        gamma: the in-context map that is evaluated at the queries, such as `pf.Attention(dim)`;
            not a causal one.
        queries: number $k$ of queries.
        features: a function of points or an in-context map that the measure is pushed by first;
            the queries are not.

    Examples:
        >>> encoder = pf.Transformer(3, depth=2, heads=4, width=16, out_dim=16)
        >>> pool = pf.maps.AttentionPool(pf.Attention(16, heads=4), queries=2, features=encoder)
        >>> pool(pf.Measure(torch.randn(5, 3))).shape
        torch.Size([32])
    """

    def __init__(
        self, gamma: InContextMap, *, queries: int = 1, features: Features | None = None
    ) -> None:
        super().__init__()
        check_kind("gamma", gamma, InContextMap, "For example `pf.Attention(dim, heads=4)`.")
        check_sizes(queries=queries)
        _check_features(features)
        if gamma.dim is None:
            raise ValueError(
                f"Learned queries need a dimension, and {type(gamma).__name__} has none. Use a "
                "map with `dim`, such as `pf.Attention(dim)`."
            )
        if gamma.causal:
            raise ValueError(
                "Learned queries have no times, got a causal map. Use one without a mask; the "
                "features may be causal."
            )
        self.gamma, self.features = gamma, features
        self.queries = nn.Parameter(torch.randn(queries, gamma.dim))

    def forward(self, mu: Measure) -> Pooled:
        """The vector of a measure, or those of a batch.

        Args:
            mu: the measure.
        """
        image = _image(self.features, mu)
        k = len(self.queries)
        equal = image.log_weights.new_full((k,), -math.log(k))
        queries = self.queries.to(image.dtype)  # under autocast, features are in half precision
        return self.gamma(image, Measure.unchecked(queries, equal)).flatten(-2)


def _check_features(features: Features | None) -> None:
    """Raise unless `features` can be pushed by."""
    if features is not None and not isinstance(features, InContextMap):
        check_callable("features", features, "a function of points or an in-context map")


def _image(features: Features | None, mu: Measure) -> Measure:
    """The measure pushed by a feature map."""
    check_measures(mu=mu)
    if isinstance(features, InContextMap):
        return features.push(mu)
    if isinstance(features, nn.Module):
        check_parameters(features, mu.atoms)
    return mu if features is None else mu.push(features)
