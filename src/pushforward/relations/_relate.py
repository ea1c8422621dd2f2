"""Relate two measures: from points, a matrix, a function of pairs, or an attention layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from .._tools.checks import (
    check_broadcast,
    check_floating,
    check_kind,
    check_shape,
    check_tensor,
    holds,
)
from ..affinities import Affinity, Dot, Scores, TileScores, scores as score_points
from ..measures import Measure
from ._masses import Masses
from ._normalisers import Normaliser, Softmax
from ._probabilities import Coupling
from ._relation import Relation, aligned_weights

Encoder = Callable[[Measure, Tensor], Tensor]
"""A map of a measure and points, such as an in-context map."""

PairAffinity = Callable[[Measure, Measure, Tensor, Tensor], Tensor]
r"""$A(\mu,\nu,x,y)$ at points `(..., m, 1, d)` and `(..., 1, n, d)`, of values `(..., m, n)`."""


@runtime_checkable
class Relating(Protocol):
    """A layer that relates a context and queries, as `Attention` does."""

    def relation(self, mu: Measure, queries: Measure | None = None) -> Relation:
        """The relation between queries and context."""


def relate(
    q: Tensor | Encoder | PairAffinity | Relating,
    k: Tensor | Encoder | Measure,
    mu: Measure | None = None,
    nu: Measure | None = None,
    *,
    normaliser: Normaliser | None = None,
    affinity: Affinity | None = None,
    mask: Bool[Tensor, "*#b m n"] | None = None,
    start: Tensor | Coupling | Masses | None = None,
) -> Relation:
    r"""The relation between two measures that an affinity and a normaliser define.

    Measures are normalised first. What comes back depends on the normaliser: `Softmax` gives a
    `Conditional`, `Sinkhorn` and `Exact` a `Coupling`, all others `Masses`. Potentials are
    computed here, in memory linear in the number of points (a kernel is stored where it takes at
    most a gigabyte); matrices only when asked for.

    There are four ways to say what the affinity is:

    - `relate(q, k, mu, nu)`: queries `q`, one per atom of `mu`, and keys `k`, one per atom of
      `nu`, or encoders $q(\mu,x)$, $k(\nu,y)$ such as two transformers; `affinity` compares them;
    - `relate(matrix, mu, nu)`: scores $A_{ij}$, minus infinity where a pair is forbidden;
    - `relate(function, mu, nu)`: $A(\mu,\nu,x,y)$, called with points that broadcast, in tiles;
    - `relate(layer, mu, nu)`: an `Attention`, `mu` the queries and `nu` the context, heads on the
      last batch axis; it brings its own normaliser.

    Args:
        q: queries, or one of the above.
        k: keys.
        mu: the measure of the queries.
        nu: the measure of the keys.
        normaliser: `Softmax()` by default.
        affinity: of `q` and `k`: the dot product `Dot(1.0)` by default, or `SquaredDistance(eps)`.
        mask: True where a pair is allowed; all scores are then held in memory.
        start: a relation between measures of the same sizes, or its potential on the keys, to
            start from.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> near = pf.SquaredDistance(0.5)
        >>> pi = pf.relate(mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=pf.Sinkhorn())
        >>> moved = mu.push(lambda x: pi.apply(nu.atoms))
        >>> torch.allclose(moved.mean(), nu.mean(), atol=1e-5)
        True
    """
    if isinstance(k, Measure):
        if nu is not None:
            raise TypeError("`relate(what, mu, nu)` takes two measures, got three.")
        return _relate_as_given(q, k, k if mu is None else mu, normaliser, affinity, mask, start)
    mu, nu = _measures(mu, nu)
    affinity = Dot(1.0) if affinity is None else affinity
    check_kind("affinity", affinity, Affinity, "Use `pf.Dot(1.0)` or `pf.SquaredDistance(eps)`.")
    q, k = _encoded("q", q, mu), _encoded("k", k, nu)
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"Queries and keys must have the same width, got q {tuple(q.shape)} and "
            f"k {tuple(k.shape)}."
        )
    more = max(0, k.ndim - 2 - len(nu.batch_shape))
    log_b = nu.log_weights.reshape(*nu.batch_shape, *(1,) * more, nu.n)
    return _normalise(score_points(affinity, q, k, log_b), mu, nu, normaliser, mask, start)


def _relate_as_given(what, mu, nu, normaliser, affinity, mask, start) -> Relation:
    """From a matrix, a function of pairs, or a layer."""
    mu, nu = _measures(mu, nu)
    if affinity is not None:
        raise ValueError("`affinity` compares queries with keys; here scores are given already.")
    if isinstance(what, Relating):
        if normaliser is not None or mask is not None or start is not None:
            raise ValueError(
                "An attention layer brings its own normaliser and mask. Drop these arguments, or "
                "relate `layer.Q(mu.atoms)` and `layer.K(nu.atoms)`."
            )
        return what.relation(nu, mu)
    scores: Scores
    if isinstance(what, Tensor):
        check_floating("matrix", what, "(..., m, n)", 2)
        check_shape("matrix", what, (*what.shape[:-2], mu.n, nu.n), "One score per pair of atoms.")
        if not holds(~what.isnan().any() & (what < torch.inf).all()):
            raise ValueError(
                "Scores must be finite, or -inf where a pair is forbidden, got NaN or +inf. "
                "A cost of +inf is a score of -inf."
            )
        batch = torch.broadcast_shapes(mu.batch_shape, nu.batch_shape)
        if len(mu.batch_shape) > what.ndim - 2:
            what = what.expand(*batch, *what.shape[-2:])
        scores = TileScores.from_matrix(what)
    elif callable(what):
        scores = TileScores.from_pairs(lambda x, y: what(mu, nu, x, y), mu.atoms, nu.atoms)
        scores.tile(slice(0, 1))  # a function of another shape is found here, not at first use
    else:
        raise TypeError(
            "`relate` takes queries and keys with two measures, or a matrix of scores, a function "
            f"A(mu, nu, x, y) or an attention layer with two measures, got {type(what).__name__}."
        )
    return _normalise(scores, mu, nu, normaliser, mask, start)


def _normalise(scores: Scores, mu, nu, normaliser, mask, start) -> Relation:
    normaliser = Softmax() if normaliser is None else normaliser
    check_kind("normaliser", normaliser, Normaliser, "Use `pf.Softmax()` or `pf.Sinkhorn()`.")
    if mask is not None:
        check_tensor("mask", mask)
        if mask.dtype != torch.bool:
            raise TypeError(
                f"`mask` must be boolean, True where allowed, got {mask.dtype}. Convert with "
                "`mask.bool()`; an additive mask of zeros and -inf with `mask == 0`."
            )
        check_shape("mask", mask, (*mask.shape[:-2], *scores.shape[-2:]), "One per pair.")
        scores = scores.forbidding(~mask)
    log_a, log_b = (aligned_weights(name, m, scores) for name, m in (("mu", mu), ("nu", nu)))
    _check_partners(scores, log_a, log_b, normaliser.needs_query_measure)
    if isinstance(start, Coupling | Masses):
        start = start.g
    if start is not None and not normaliser.takes_start:
        raise ValueError(f"Only Sinkhorn has a `start`, got {type(normaliser).__name__}.")
    if start is not None:
        check_shape("start", start, log_b.shape, "It is a potential on the keys.")
        if not holds((start.isfinite() | (log_b == -torch.inf)).all()):
            raise ValueError("`start` must be finite, got NaN or inf. Start from nothing: None.")
    return normaliser.relate(scores, log_a, log_b, start=None if start is None else start.detach())


def _check_partners(scores: Scores, log_a: Tensor, log_b: Tensor, both: bool) -> None:
    """Raise if an atom with mass has no allowed partner with mass."""
    forbidden = scores.forbidden
    if forbidden is None:
        return
    allowed = ~forbidden & (log_b > -torch.inf)[..., None, :]
    alone = ~allowed.any(-1) & (log_a > -torch.inf)
    sides = [("query", alone)]
    if both:
        seen = (allowed & (log_a > -torch.inf)[..., :, None]).any(-2)
        sides.append(("key", ~seen & (log_b > -torch.inf)))
    for what, alone in sides:
        if not holds(~alone.any()):
            raise ValueError(
                f"Every {what} with mass needs an allowed partner, and {int(alone.sum())} have "
                f"none, the first at index {tuple(alone.nonzero()[0].tolist())}. Give it weight "
                "zero, or allow a pair."
            )


def _measures(mu: Measure | None, nu: Measure | None) -> tuple[Measure, Measure]:
    for name, m in (("mu", mu), ("nu", nu)):
        check_kind(name, m, Measure, "Points become one with `pf.Measure(points)`.")
    mu, nu = cast(Measure, mu), cast(Measure, nu)
    check_broadcast("the two measures", mu.batch_shape, nu.batch_shape)
    return mu, nu


def _encoded(name: str, q, mu: Measure) -> Tensor:
    """Points of queries or keys, zero where there is no mass."""
    if not isinstance(q, Tensor) and callable(q):
        q = q(mu, mu.atoms)
    check_floating(name, q, "(..., n, k)", 2)
    if q.shape[-2] != mu.n:
        raise ValueError(
            f"`{name}` must have one row per atom, here (..., {mu.n}, k), got {tuple(q.shape)}."
        )
    more = max(0, q.ndim - 2 - len(mu.batch_shape))  # heads come after the measures
    dead = (mu.log_weights == -torch.inf).reshape(*mu.batch_shape, *(1,) * more, mu.n)
    check_broadcast(f"`{name}` and its measure", q.shape[:-2], dead.shape[:-1])
    q = q.expand(*torch.broadcast_shapes(q.shape[:-2], dead.shape[:-1]), *q.shape[-2:])
    return q.masked_fill(dead[..., None], 0)
