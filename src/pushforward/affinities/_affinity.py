r"""Affinities $A(x,y)$: how strongly a query and a key are related."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .. import ops
from .._tools.checks import (
    check_broadcast,
    check_finite,
    check_floating,
    check_number,
    check_widths,
)
from .._tools.precision import widen
from ..measures import Measure
from ._points import Features, PointScores
from ._scores import Scores


class Affinity(ABC):
    r"""A way to compare two measures atom by atom: the scores $A_{ij}$ of their atoms.

    To add one, write `scores`. Most affinities are one of those here with other arguments: a
    `Matrix`, a function of `Pairs`, points `Encoded` before they are compared. What attention
    takes, because it compares points that are no atoms too, is a `PointAffinity`.

    Examples:
        Scores that fall with the distance of the barycentres, too:

        >>> class Together(pf.Affinity):
        ...     def scores(self, mu, nu):
        ...         shift = (mu.mean() - nu.mean()).norm()
        ...         function = lambda x, y: -(x - y).abs().sum(-1) - shift
        ...         return pf.affinities.TileScores.from_pairs(function, mu.atoms, nu.atoms)
        >>> mu, nu = pf.Measure(torch.randn(5, 2)), pf.Measure(torch.randn(4, 2))
        >>> pf.relate(mu, nu, affinity=Together())
        Conditional(5 queries, 4 keys)
    """

    @abstractmethod
    def scores(self, mu: Measure, nu: Measure) -> Scores:
        r"""The scores of all pairs of atoms, without forming the matrix.

        Args:
            mu: the measure of the queries.
            nu: the measure of the keys. Batches of measures come first in the batch of the scores,
                heads after them.
        """


class PointAffinity(Affinity, ABC):
    r"""An affinity that is a biased dot product, $A(q,k)=s\,\langle q',k'\rangle+c(q)+c(k)$.

    The change of points $x\mapsto x'$ and the offset $c$ are the same for queries and keys, so
    that all of these affinities run on the same two reductions, in memory linear in the points. To
    add one, write `unit`, `factor`, `origin` and `features`.
    """

    @property
    @abstractmethod
    def unit(self) -> float:
        r"""The factor from scores to costs: a pair of score $A$ costs $-\text{unit}\cdot A$."""

    @abstractmethod
    def factor(self, width: int) -> float:
        r"""The factor $s$, for points in $\mathbb R^k$ of that width."""

    @abstractmethod
    def origin(self, k: Tensor, log_weights: Tensor) -> Tensor | None:
        """A point that the keys choose to measure from, for accuracy; never changes the scores."""

    @abstractmethod
    def features(self, x: Float[Tensor, "*b n k"], origin: Tensor | None) -> Features:
        r"""$x'$ and $c(x)$, for queries and keys alike."""

    def between(
        self, queries: Features, keys: Features, impl: ops.Impl | None = None,
        times: ops.Clock | None = None,
    ) -> PointScores:  # fmt: skip
        """The scores of two clouds, given by their features."""
        scale = self.factor(keys.points.shape[-1])
        return PointScores(queries, keys, scale, self.unit, impl, times)

    def scores(self, mu: Measure, nu: Measure) -> PointScores:
        return encoded_scores(self, mu.atoms, nu.atoms, mu, nu)


@dataclass(frozen=True)
class Dot(PointAffinity):
    r"""The scaled dot product $A(q,k)=s\,\langle q,k\rangle$.

    Args:
        scale: $s$; by default $1/\sqrt k$ for keys in $\mathbb R^k$.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[1.0], [2.0]]))
        >>> pf.Dot(0.5).scores(mu, mu).matrix()
        tensor([[0.5000, 1.0000],
                [1.0000, 2.0000]])
    """

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            fix = "A learned scale multiplies the queries."
            check_finite("scale", self.scale, fix=fix)

    @property
    def unit(self) -> float:
        return 1.0

    def factor(self, width: int) -> float:
        return 1 / math.sqrt(width) if self.scale is None else self.scale

    def origin(self, k: Tensor, log_weights: Tensor) -> None:
        return None  # a dot product depends on the origin

    def features(self, x: Float[Tensor, "*b n k"], origin: Tensor | None) -> Features:
        return Features(x, None)


@dataclass(frozen=True)
class SquaredDistance(PointAffinity):
    r"""The squared distance $A(q,k)=-|q-k|^2/\varepsilon$ ("L2 attention").

    The same $\varepsilon$ as in `sinkhorn_divergence`. Points are measured from the barycentre of
    the keys, because $|q-k|^2=|q|^2-2\langle q,k\rangle+|k|^2$ cancels badly far from the origin.
    A score is then good to about $u\,R^2/\varepsilon$, with $R$ the radius of the cloud and $u$
    the rounding unit, $6\cdot10^{-8}$ in float32: for clouds wider than $10^2\sqrt\varepsilon$ use
    float64.

    Args:
        eps: $\varepsilon>0$.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[1.0], [3.0]]))
        >>> pf.SquaredDistance(2.0).scores(mu, mu).matrix()
        tensor([[ 0., -2.],
                [-2.,  0.]])
    """

    eps: float

    def __post_init__(self) -> None:
        check_number("eps", self.eps, fix="A learned temperature divides the points by its root.")

    @property
    def unit(self) -> float:
        return self.eps

    def factor(self, width: int) -> float:
        return 2 / self.eps

    def origin(self, k: Tensor, log_weights: Tensor) -> Tensor:
        """The barycentre of the keys."""
        return (log_weights.softmax(-1)[..., None] * widen(k)).sum(-2, keepdim=True).detach()

    def features(self, x: Float[Tensor, "*b n k"], origin: Tensor | None) -> Features:
        r"""$x-o$ and $-|x-o|^2/\varepsilon$."""
        x = widen(x) if origin is None else widen(x) - origin
        return Features(x, -x.square().sum(-1) / self.eps)


def scores(
    affinity: PointAffinity,
    q: Float[Tensor, "*#b m k"],
    k: Float[Tensor, "*#b n k"],
    log_weights: Float[Tensor, "*#b n"],
) -> PointScores:
    """The scores of every point of `q` with every point of `k`, without forming the matrix."""
    origin = affinity.origin(k, log_weights)
    return affinity.between(affinity.features(q, origin), affinity.features(k, origin))


def encoded_scores(
    affinity: PointAffinity, q: Tensor, k: Tensor, mu: Measure, nu: Measure
) -> PointScores:
    """The scores of queries `q`, one row per atom of `mu`, and of keys `k`, one per atom of `nu`.

    Heads come after the batch of the measure.
    """
    q, k = _zero_without_mass("q", q, mu), _zero_without_mass("k", k, nu)
    check_widths(q, k)
    heads = max(0, k.ndim - 2 - len(nu.batch_shape))
    log_b = nu.log_weights.reshape(*nu.batch_shape, *(1,) * heads, nu.n)
    return scores(affinity, q, k, log_b)


def _zero_without_mass(name: str, q: Tensor, mu: Measure) -> Tensor:
    """Points of queries or keys, zero where there is no mass: padding may be NaN."""
    check_floating(name, q, "(..., n, k)", 2)
    if q.shape[-2] != mu.n:
        raise ValueError(
            f"`{name}` must have one row per atom, here (..., {mu.n}, k), got {tuple(q.shape)}."
        )
    heads = max(0, q.ndim - 2 - len(mu.batch_shape))
    empty = (mu.log_weights == -torch.inf).reshape(*mu.batch_shape, *(1,) * heads, mu.n)
    check_broadcast(f"`{name}` and its measure", q.shape[:-2], empty.shape[:-1])
    q = q.expand(*torch.broadcast_shapes(q.shape[:-2], empty.shape[:-1]), *q.shape[-2:])
    return q.masked_fill(empty[..., None], 0)
