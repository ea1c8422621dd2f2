r"""Affinities $A(q,k)$: how much a query and a key have to do with each other.

Every affinity here is a biased dot product, $A(q,k)=s\,\langle q',k'\rangle+c(q)+c(k)$, with the
same change of points $x\mapsto x'$ and shift $c$ on both sides, so that all of them run on the
same two reductions.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .. import ops
from .._tools.checks import check_number
from .._tools.precision import widen
from ._points import Features, PointScores


@dataclass(frozen=True)
class Slopes:
    r"""How steep the scores $s(x,y)=A(Qx,Ky)$ of a head are on a ball.

    Args:
        mixed: $\sup|\partial_x\partial_ys|$.
        x: $\sup|\partial_xs|$.
        y: $\sup|\partial_ys|$.
        size: $\sup|s|$.
    """

    mixed: float
    x: float
    y: float
    size: float


class Affinity(ABC):
    r"""A score $A(q,k)$ of a query and a key, as a biased dot product."""

    @property
    def unit(self) -> float:
        r"""What a unit of score costs, so that the cost is $c=-\text{unit}\cdot A$."""
        return 1.0

    @abstractmethod
    def factor(self, width: int) -> float:
        r"""The factor $s$, for points in $\mathbb R^k$ of that width."""

    @abstractmethod
    def origin(self, k: Tensor, log_weights: Tensor) -> Tensor | None:
        """A point the context chooses to measure from, for accuracy; never changes the score."""

    @abstractmethod
    def features(self, x: Float[Tensor, "*b n k"], origin: Tensor | None) -> Features:
        r"""$x'$ and $c(x)$, for queries and keys alike."""

    def slopes(self, q: float, k: float, cross: float, width: int, radius: float) -> Slopes:
        r"""Of the scores $A(Qx,Ky)$ on a ball, from norms of matrices.

        Args:
            q: $\|Q\|$.
            k: $\|K\|$.
            cross: $\|Q^\top K\|$.
            width: number of rows of $Q$ and $K$.
            radius: $R$.
        """
        raise NotImplementedError(f"No bound of the scores of {self} is known here.")

    def between(
        self, queries: Features, keys: Features, impl: ops.Impl | None = None,
        times: ops.Clock | None = None,
    ) -> PointScores:  # fmt: skip
        """The scores of two placed clouds."""
        scale = self.factor(keys.points.shape[-1])
        return PointScores(queries, keys, scale, self.unit, impl, times)


@dataclass(frozen=True)
class Dot(Affinity):
    r"""The scaled dot product $A(q,k)=s\,\langle q,k\rangle$.

    Args:
        scale: $s$; by default $1/\sqrt k$ for keys in $\mathbb R^k$.
    """

    scale: float | None = None

    def __post_init__(self):
        if self.scale is not None:
            fix = "A learned scale multiplies the queries."
            check_number("scale", self.scale, least=-math.inf, fix=fix)

    def factor(self, width):
        r"""$s$."""
        return 1 / math.sqrt(width) if self.scale is None else self.scale

    def slopes(self, q, k, cross, width, radius):
        r"""$b=|s|\,\|Q^\top K\|$, $bR$ and $bR^2$."""
        b = abs(self.factor(width)) * cross
        return Slopes(b, b * radius, b * radius, b * radius**2)

    def origin(self, k, log_weights):
        """The origin is part of a dot product."""
        return None

    def features(self, x, origin):
        """Points stay as they are."""
        return Features(x, None)


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
        check_number("eps", self.eps, fix="A learned temperature divides the points by its root.")

    @property
    def unit(self):
        r"""$\varepsilon$."""
        return self.eps

    def factor(self, width):
        r"""$2/\varepsilon$."""
        return 2 / self.eps

    def slopes(self, q, k, cross, width, radius):
        r"""$\partial_y|Qx-Ky|^2=2K^\top(Ky-Qx)$, and so on."""
        far, c = (q + k) * radius, 2 / self.eps
        return Slopes(c * cross, c * q * far, c * k * far, far**2 / self.eps)

    def origin(self, k, log_weights):
        """The barycentre of the keys."""
        return (log_weights.softmax(-1)[..., None] * widen(k)).sum(-2, keepdim=True).detach()

    def features(self, x, origin):
        r"""$x-o$ and $-|x-o|^2/\varepsilon$."""
        x = widen(x) - origin
        return Features(x, -x.square().sum(-1) / self.eps)


def scores(
    affinity: Affinity,
    q: Float[Tensor, "*#b m k"],
    k: Float[Tensor, "*#b n k"],
    log_weights: Float[Tensor, "*#b n"],
) -> PointScores:
    """Score every point of `q` against every point of `k`, without forming the matrix."""
    origin = affinity.origin(k, log_weights)
    return affinity.between(affinity.features(q, origin), affinity.features(k, origin))
