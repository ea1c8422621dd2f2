r"""Affinities $A(q,k)$: how much a query and a key have to do with each other.

Every affinity here is a biased dot product, $A(q_i,k_j)=\langle q'_i,k'_j\rangle+r_i+c_j$, so that
all of them run on the same two reductions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt

from jaxtyping import Float
from torch import Tensor

from . import ops
from ._precision import widen

Side = tuple[Tensor, Tensor | None]
"""Transformed points and their shift of the score, None for zero."""


class Affinity(ABC):
    r"""A score $A(q,k)$ of a query and a key, as a biased dot product."""

    def origin(self, k: Tensor, log_weights: Tensor) -> Tensor | None:
        """A point the context chooses to measure from, for accuracy; never changes the score."""
        return None

    @abstractmethod
    def queries(self, q: Float[Tensor, "*b m k"], origin: Tensor | None) -> Side:
        r"""$q'$ and $r$."""

    @abstractmethod
    def keys(self, k: Float[Tensor, "*b n k"], origin: Tensor | None) -> Side:
        r"""$k'$ and $c$."""


@dataclass(frozen=True)
class Dot(Affinity):
    r"""The scaled dot product $A(q,k)=s\,\langle q,k\rangle$.

    Args:
        scale: $s$; by default $1/\sqrt k$ for keys in $\mathbb R^k$.
    """

    scale: float | None = None

    def queries(self, q, origin):
        """The scale goes into the queries."""
        return widen(q) * (1 / sqrt(q.shape[-1]) if self.scale is None else self.scale), None

    def keys(self, k, origin):
        """Keys stay as they are."""
        return k, None


@dataclass(frozen=True)
class SquaredDistance(Affinity):
    r"""The squared distance $A(q,k)=-|q-k|^2/\varepsilon$ ("L2 attention").

    The same $\varepsilon$ as in `sinkhorn_divergence`. Points are measured from the barycentre of
    the keys, because $|q-k|^2=|q|^2-2\langle q,k\rangle+|k|^2$ cancels badly far from the origin.
    A score is then good to about $u\,R^2/\varepsilon$, with $R$ the radius of the cloud and $u$
    the rounding unit, $6\cdot10^{-8}$ in float32: for clouds wider than $10^2\sqrt\varepsilon$ use
    float64.

    Args:
        eps: $\varepsilon>0$.
    """

    eps: float

    def __post_init__(self):
        if not self.eps > 0:
            raise ValueError(f"`eps` must be positive, got {self.eps}.")

    def origin(self, k, log_weights):
        """The barycentre of the keys."""
        return (log_weights.softmax(-1)[..., None] * widen(k)).sum(-2, keepdim=True).detach()

    def queries(self, q, origin):
        r"""$\frac2\varepsilon(q-o)$ and $-|q-o|^2/\varepsilon$."""
        q = widen(q) - origin
        return q * (2 / self.eps), -q.square().sum(-1) / self.eps

    def keys(self, k, origin):
        r"""$k-o$ and $-|k-o|^2/\varepsilon$."""
        k = widen(k) - origin
        return k, -k.square().sum(-1) / self.eps


@dataclass(frozen=True)
class Scores:
    r"""An affinity between two clouds: what can be integrated over either side.

    Args:
        rows: $q'$ and $r$.
        columns: $k'$ and $c$.
        impl: implementation of the reductions, None to choose by size.
    """

    rows: Side
    columns: Side
    impl: ops.Impl | None

    @classmethod
    def between(
        cls,
        affinity: Affinity,
        q: Float[Tensor, "*#b m k"],
        k: Float[Tensor, "*#b n k"],
        log_weights: Float[Tensor, "*#b n"],
        impl: ops.Impl | None = None,
    ) -> Scores:
        """Score every point of `q` against every point of `k`, without forming the matrix."""
        origin = affinity.origin(k, log_weights)
        return cls(affinity.queries(q, origin), affinity.keys(k, origin), impl)

    def over_keys(self, bias: Float[Tensor, "*#b n"]) -> Float[Tensor, "*o m"]:
        r"""$\log\sum_je^{A(q_i,k_j)+b_j}$, a function of the queries."""
        return _log_integral(self.rows, self.columns, bias, self.impl)

    def over_queries(self, bias: Float[Tensor, "*#b m"]) -> Float[Tensor, "*o n"]:
        r"""$\log\sum_ie^{A(q_i,k_j)+b_i}$, a function of the keys."""
        return _log_integral(self.columns, self.rows, bias, self.impl)


def shifted(bias: Tensor, shift: Tensor | None) -> Tensor:
    """Add a shift of the score to a bias, at the bias's precision."""
    return bias if shift is None else bias + shift


def _log_integral(asked: Side, summed: Side, bias: Tensor, impl: ops.Impl | None) -> Tensor:
    result = ops.log_integral(
        asked[0], summed[0], shifted(bias, summed[1]), impl=impl, guard=False
    )
    return shifted(result, asked[1])
