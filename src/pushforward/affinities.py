r"""Affinities $A(q,k)$: how much a query and a key have to do with each other.

Every affinity here is a biased dot product, $A(q,k)=s\,\langle q',k'\rangle+c(q)+c(k)$, with the
same change of points $x\mapsto x'$ and shift $c$ on both sides, so that all of them run on the
same two reductions.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from . import ops
from ._precision import widen


class Placed(NamedTuple):
    """Points as an affinity wants them."""

    points: Tensor
    shift: Tensor | None
    """What a point adds to all its scores, None for zero."""


class Affinity(ABC):
    r"""A score $A(q,k)$ of a query and a key, as a biased dot product."""

    @abstractmethod
    def factor(self, width: int) -> float:
        r"""The factor $s$, for points in $\mathbb R^k$ of that width."""

    @abstractmethod
    def origin(self, k: Tensor, log_weights: Tensor) -> Tensor | None:
        """A point the context chooses to measure from, for accuracy; never changes the score."""

    @abstractmethod
    def place(self, x: Float[Tensor, "*b n k"], origin: Tensor | None) -> Placed:
        r"""$x'$ and $c(x)$, for queries and keys alike."""


@dataclass(frozen=True)
class Dot(Affinity):
    r"""The scaled dot product $A(q,k)=s\,\langle q,k\rangle$.

    Args:
        scale: $s$; by default $1/\sqrt k$ for keys in $\mathbb R^k$.
    """

    scale: float | None = None

    def factor(self, width):
        r"""$s$."""
        return 1 / sqrt(width) if self.scale is None else self.scale

    def origin(self, k, log_weights):
        """The origin is part of a dot product."""
        return None

    def place(self, x, origin):
        """Points stay as they are."""
        return Placed(x, None)


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

    def factor(self, width):
        r"""$2/\varepsilon$."""
        return 2 / self.eps

    def origin(self, k, log_weights):
        """The barycentre of the keys."""
        return (log_weights.softmax(-1)[..., None] * widen(k)).sum(-2, keepdim=True).detach()

    def place(self, x, origin):
        r"""$x-o$ and $-|x-o|^2/\varepsilon$."""
        x = widen(x) - origin
        return Placed(x, -x.square().sum(-1) / self.eps)


@dataclass(frozen=True)
class Scores:
    r"""An affinity between two clouds: what can be integrated over either side.

    Args:
        queries: the query side, placed.
        keys: the key side, placed.
        scale: $s$.
        impl: implementation of the reductions, None to choose by size.
    """

    queries: Placed
    keys: Placed
    scale: float
    impl: ops.Impl | None = None

    def over_keys(self, bias: Float[Tensor, "*#b n"]) -> Float[Tensor, "*o m"]:
        r"""$\log\sum_je^{A(q_i,k_j)+b_j}$, a function of the queries."""
        return self._log_integral(self.queries, self.keys, bias)

    def over_queries(self, bias: Float[Tensor, "*#b m"]) -> Float[Tensor, "*o n"]:
        r"""$\log\sum_ie^{A(q_i,k_j)+b_i}$, a function of the keys."""
        return self._log_integral(self.keys, self.queries, bias)

    def average(
        self, v: Tensor, bias: Float[Tensor, "*#b n"], times: ops.Clock | None = None
    ) -> Tensor:
        r"""The mean of $v_j$ with weights $e^{A(q_i,k_j)+b_j}$; the queries' shift cancels."""
        bias = _shifted(bias, self.keys.shift)
        q, k = self.queries.points, self.keys.points
        return ops.average(
            q, k, v, bias, scale=self.scale, times=times, impl=self.impl, guard=False
        )

    def _log_integral(self, asked: Placed, summed: Placed, bias: Tensor) -> Tensor:
        bias = _shifted(bias, summed.shift)
        result = ops.log_integral(
            asked.points, summed.points, bias, scale=self.scale, impl=self.impl, guard=False
        )
        return _shifted(result, asked.shift)


def scores(
    affinity: Affinity,
    q: Float[Tensor, "*#b m k"],
    k: Float[Tensor, "*#b n k"],
    log_weights: Float[Tensor, "*#b n"],
) -> Scores:
    """Score every point of `q` against every point of `k`, without forming the matrix."""
    origin = affinity.origin(k, log_weights)
    return Scores(
        affinity.place(q, origin), affinity.place(k, origin), affinity.factor(k.shape[-1])
    )


def _shifted(bias: Tensor, shift: Tensor | None) -> Tensor:
    return bias if shift is None else bias + shift
