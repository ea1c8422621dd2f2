"""Relate two measures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .._tools.checks import (
    check_broadcast,
    check_kind,
    check_same,
    check_shape,
    check_tensor,
    holds,
    on_host,
)
from ..affinities import Affinity, Dot, Scores
from ..measures import Measure, check_pair
from ._masses import Masses
from ._normalisers import Normaliser, Softmax
from ._probabilities import Coupling
from ._relation import Relation, aligned_weights, check_finite_scores, check_rounding
from ._sinkhorn import Sinkhorn


def relate(
    mu: Measure,
    nu: Measure,
    *,
    affinity: Affinity | None = None,
    normaliser: Normaliser | None = None,
    mask: Bool[Tensor, "*#b m n"] | None = None,
    start: Float[Tensor, "*#b n"] | Coupling | Masses | None = None,
) -> Relation:
    r"""The relation between two measures that an affinity and a normaliser define.

    Measures are normalised first; only with `Sinkhorn(slack=...)` do their masses count.
    Potentials are computed here, in memory linear in the number of points (but see
    `Sinkhorn(memory=...)`); a matrix is formed only by `matrix()`. Scores that are not finite are
    refused. The normaliser decides what comes back:

    - a `Conditional` from `Softmax` and `Hardmax`: a probability on the keys for every query;
    - a `Coupling` from `Sinkhorn` and `Exact`: a joint probability with both marginals;
    - `Masses` from `Sinkhorn(slack=...)`, `DualSoftmax`, `Sigmoid` and `Exponential`;
    - a `Signed` density from `Bilinear`.

    The relation of an attention layer is `layer.relation(context, queries)`.

    Args:
        mu: the measure of the queries.
        nu: the measure of the keys, the context, of the same dtype and device.
        affinity: what compares the atoms: the dot product `Dot(1.0)` by default,
            `SquaredDistance(eps)`, one of these after encoders, `Encoded(q, k)`, scores in a
            `Matrix(A)`, or a function of `Pairs(function)`.
        normaliser: `Softmax()` by default.
        mask: True where a pair is allowed; all scores are then held in memory.
        start: a relation between measures of the same sizes, or its potential on the keys, from
            which Sinkhorn starts.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> pi = pf.relate(mu, nu, affinity=pf.SquaredDistance(0.5), normaliser=pf.Sinkhorn())
        >>> moved = mu.push(lambda x: pi.apply(nu.atoms))
        >>> torch.allclose(moved.mean(), nu.mean(), atol=1e-5)
        True
    """
    _check_pair(mu, nu)
    check_broadcast("the two measures", mu.batch_shape, nu.batch_shape)
    affinity = Dot(1.0) if affinity is None else affinity
    check_kind("affinity", affinity, Affinity, _how(affinity))
    normaliser = Softmax() if normaliser is None else normaliser
    check_kind("normaliser", normaliser, Normaliser, "Use `pf.Softmax()` or `pf.Sinkhorn()`.")
    scores = affinity.scores(mu, nu)
    fix = "For example `pf.affinities.TileScores.from_matrix(matrix)`."
    check_kind(f"{type(affinity).__name__}.scores", scores, Scores, fix, returned=True)
    if mask is not None:
        scores = _masked(scores, mask)
    counts = normaliser.counts_masses
    log_a, log_b = (
        aligned_weights(name, m, scores, with_mass=counts) for name, m in (("mu", mu), ("nu", nu))
    )
    _check_partners(scores, log_a, log_b, normaliser.needs_query_measure)
    g = _start(start, normaliser, log_b)
    check_values = _check_scores(scores, normaliser)
    relation = normaliser(scores, log_a, log_b, start=g)
    check_values()
    return relation


def _check_scores(scores: Scores, normaliser: Normaliser) -> Callable[[], None]:
    """Raise for scores that cannot be normalised; on a GPU only what is returned raises.

    It is called once the GPU has its work: the host must wait for the size of the scores, and the
    GPU works meanwhile. Layers do not check.
    """
    iterates, nothing = isinstance(normaliser, Sinkhorn), lambda: None
    if iterates and normaliser.to_tolerance:
        return nothing  # it reads the size of the scores itself
    with torch.no_grad():
        size = scores.size()
        fits = size < (1 / torch.finfo(scores.dtype).eps if iterates else torch.inf)
    read = on_host(fits)

    def check() -> None:
        if read is not None and not holds(read()):
            check_finite_scores(scores, float(size))
            if iterates:
                check_rounding(scores, float(size))

    if size.is_cuda:
        return check
    check()
    return nothing


def _check_pair(mu: Measure, nu: Measure) -> None:
    """Raise unless two measures can be related; queries and keys as tensors have a hint."""
    if isinstance(mu, Tensor) and isinstance(nu, Tensor):
        raise TypeError(
            "`mu` and `nu` must be measures, got two tensors. Queries and keys of two measures "
            "are compared by `pf.relate(mu, nu, affinity=pf.Encoded(q, k))`."
        )
    check_pair(mu, nu)


def _how(affinity: object) -> str:
    """How what was given instead becomes an affinity."""
    if isinstance(affinity, Tensor):
        return "A matrix of scores is `pf.Matrix(A)`."
    if callable(affinity):
        return (
            "A function of pairs is `pf.Pairs(function)`, encoders are `pf.Encoded(q, k)`, and a "
            "layer has its own relation, `layer.relation(context, queries)`."
        )
    return "Use `pf.Dot(1.0)` or `pf.SquaredDistance(eps)`."


def _masked(scores: Scores, mask: Tensor) -> Scores:
    """The scores of the allowed pairs."""
    check_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"`mask` must be boolean, True where allowed, got {mask.dtype}. Convert with "
            "`mask.bool()`; an additive mask of zeros and -inf with `mask == 0`."
        )
    if mask.device != scores.device:
        raise ValueError(
            f"`mask` must be on the device of the measures, {scores.device}, got {mask.device}."
        )
    check_shape("mask", mask, (*mask.shape[:-2], *scores.shape[-2:]), "One per pair.")
    return scores.forbidding(~mask)


def _start(
    start: Tensor | Coupling | Masses | None, normaliser: Normaliser, log_b: Tensor
) -> Tensor | None:
    """The potential on the keys to start from, checked."""
    g = start.g if isinstance(start, Coupling | Masses) else start
    if g is None:
        return None
    check_start(g, normaliser)
    check_shape("start", g, log_b.shape, "It is a potential on the keys.")
    check_same("device", ("nu", log_b), ("start", g))
    if not g.is_floating_point():
        raise ValueError(f"`start` must be floating point, got {g.dtype}.")
    if not holds((g.isfinite() | (log_b == -torch.inf)).all()):
        raise ValueError(
            "`start` must be finite, got NaN or inf. Leave `start` out to start from zero."
        )
    return g.detach()


def check_start(start: Tensor, normaliser: Normaliser) -> None:
    """Raise unless `start` is a tensor and the normaliser starts from one."""
    check_tensor("start", start)
    if not normaliser.takes_start:
        raise ValueError(f"Only Sinkhorn has a `start`, got {type(normaliser).__name__}.")


def _check_partners(scores: Scores, log_a: Tensor, log_b: Tensor, both: bool) -> None:
    """Raise if a query with mass, or with `both` a key, has no allowed partner with mass."""
    forbidden = scores.forbidden
    if forbidden is None:
        return
    allowed = ~forbidden & (log_b > -torch.inf)[..., None, :]
    cases = [("query", ~allowed.any(-1) & (log_a > -torch.inf))]
    if both:
        partners = (allowed & (log_a > -torch.inf)[..., :, None]).any(-2)
        cases.append(("key", ~partners & (log_b > -torch.inf)))
    for what, alone in cases:
        if not holds(~alone.any()):
            raise ValueError(
                f"Every {what} with mass needs an allowed partner, and {int(alone.sum())} have "
                f"none, the first at index {tuple(alone.nonzero()[0].tolist())}. Give it weight "
                "zero, or allow a pair."
            )
