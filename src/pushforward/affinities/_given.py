"""Affinities that are given: by encoders, by a matrix, by a function of pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_call,
    check_callable,
    check_floating,
    check_kind,
    check_returned,
    check_shape,
    holds,
)
from ..measures import Measure
from ._affinity import Affinity, Dot, PointAffinity, encoded_scores
from ._points import PointScores
from ._tiles import TileScores

Encoder = Callable[[Measure, Tensor], Tensor]
"""A map of a measure and points, such as an in-context map."""

PairAffinity = Callable[[Measure, Measure, Tensor, Tensor], Tensor]
r"""$A(\mu,\nu,x,y)$ at points `(..., m, 1, d)` and `(..., 1, n, d)`, of values `(..., m, n)`."""


@dataclass(frozen=True, eq=False)
class Encoded(Affinity):
    r"""An affinity of encoded points, $A(q(\mu,x),k(\nu,y))$.

    Two in-context maps with a dot product are the relations of a general attention layer; two
    tensors are queries and keys that were computed elsewhere.

    Args:
        q: queries, one row per atom of $\mu$, or an encoder, called as `q(mu, mu.atoms)`. Heads
            come after the batch of the measure.
        k: keys, one row per atom of $\nu$, or an encoder, called as `k(nu, nu.atoms)`.
        affinity: how queries and keys are compared.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(6, 2)), pf.Measure(torch.randn(5, 3))
        >>> pf.relate(mu, nu, affinity=pf.Encoded(torch.randn(6, 4), torch.randn(5, 4)))
        Conditional(6 queries, 5 keys)
        >>> q, k = pf.Transformer(2, depth=1, out_dim=4), pf.Transformer(3, depth=1, out_dim=4)
        >>> pf.relate(mu, nu, affinity=pf.Encoded(q, k))
        Conditional(6 queries, 5 keys)
    """

    q: Tensor | Encoder
    k: Tensor | Encoder
    affinity: PointAffinity = field(default_factory=lambda: Dot(1.0))

    def __post_init__(self) -> None:
        fix = "Use `pf.Dot(1.0)` or `pf.SquaredDistance(eps)`."
        check_kind("affinity", self.affinity, PointAffinity, fix)
        for name, encoder in (("q", self.q), ("k", self.k)):
            if isinstance(encoder, Tensor):
                check_floating(name, encoder, "(..., n, k)", 2)
            else:
                check_callable(name, encoder, f"a tensor, or an encoder called as {name}(mu, x)")

    def scores(self, mu: Measure, nu: Measure) -> PointScores:
        q, k = _encoded("q", self.q, mu), _encoded("k", self.k, nu)
        return encoded_scores(self.affinity, q, k, mu, nu)


def _encoded(name: str, encoder: Tensor | Encoder, mu: Measure) -> Tensor:
    """Queries or keys, one row per atom."""
    if isinstance(encoder, Tensor):
        return encoder
    check_call(name, encoder, "mu, x", "A module of points is `lambda mu, x: module(x)`.")
    points = encoder(mu, mu.atoms)
    check_returned(name, points, "(..., n, k)")
    return points


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Affinity):
    r"""Scores $A_{ij}$ in a matrix, minus infinity where a pair is forbidden.

    A matrix of costs $c$ is `Matrix(-c / eps)`; the `cost()` of its relations, and the slack of
    `Sinkhorn`, are then measured in units of `eps`.

    Args:
        values: `(*b, m, n)`: batches of measures first, heads after them.

    Examples:
        >>> mu = pf.Measure(torch.zeros(2, 1))
        >>> logits = torch.tensor([[0.0, -torch.inf], [1.0, 1.0]])
        >>> pf.relate(mu, mu, affinity=pf.Matrix(logits)).matrix()
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """

    values: Float[Tensor, "*b m n"]

    def __post_init__(self) -> None:
        check_floating("values", self.values, "(..., m, n)", 2)

    def scores(self, mu: Measure, nu: Measure) -> TileScores:
        values = self.values
        shape = (*values.shape[:-2], mu.n, nu.n)
        check_shape("values", values, shape, "One score per pair of atoms.")
        if not holds(~values.isnan().any() & (values < torch.inf).all()):
            raise ValueError(
                "Scores must be finite, or -inf where a pair is forbidden, got NaN or +inf. "
                "A cost of +inf is a score of -inf."
            )
        if len(mu.batch_shape) > values.ndim - 2:
            batch = torch.broadcast_shapes(mu.batch_shape, nu.batch_shape)
            values = values.expand(*batch, *values.shape[-2:])
        return TileScores.from_matrix(values)

    def __repr__(self) -> str:
        return f"Matrix({tuple(self.values.shape)})"


@dataclass(frozen=True, eq=False)
class Pairs(Affinity):
    r"""A function of pairs of points, $A(\mu,\nu,x,y)$, called a tile at a time.

    Args:
        function: called with both measures, points `(..., m, 1, d)` of queries and
            `(..., 1, n, d)` of keys, which broadcast; its values are `(..., m, n)`.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(6, 2)), pf.Measure(torch.randn(5, 2))
        >>> taxicab = pf.Pairs(lambda mu, nu, x, y: -(x - y).abs().sum(-1))
        >>> pf.relate(mu, nu, affinity=taxicab)
        Conditional(6 queries, 5 keys)
    """

    function: PairAffinity

    def __post_init__(self) -> None:
        check_callable("function", self.function, "a function called as f(mu, nu, x, y)")

    def scores(self, mu: Measure, nu: Measure) -> TileScores:
        fix = "A function of points alone is `lambda mu, nu, x, y: f(x, y)`."
        check_call("function", self.function, "mu, nu, x, y", fix)
        function = lambda x, y: self.function(mu, nu, x, y)
        scores = TileScores.from_pairs(function, mu.atoms, nu.atoms)
        scores.tile(slice(0, 1))  # values of a wrong shape raise here, not at first use
        return scores
