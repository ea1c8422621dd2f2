"""Quantities to follow along a flow: of a measure, or of a field and a measure."""

from __future__ import annotations

import math
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._tools.checks import check_floating, check_kind, check_number, check_values_finite
from .._tools.linkage import single_linkage
from .._tools.tiles import distance_matrix
from ..maps import InContextMap
from ..measures import Measure, check_measures
from ..relations import Conditional, Coupling, Relation
from .fields import Euclidean, Manifold, Torus, by_rows

Number = Float[Tensor, "*b"]


def radius(mu: Measure) -> Number:
    r"""The largest $|x|$ on the support.

    Examples:
        >>> pf.flows.radius(pf.Measure(torch.tensor([[3.0, 4.0], [0.0, 1.0]])))
        tensor(5.)
    """
    check_measures(mu=mu)
    # Atoms without mass are copies of atoms with mass, so they do not matter here.
    return mu.atoms.norm(dim=-1).amax(-1)


def diameter(points: Float[Tensor, "*b n d"]) -> Number:
    """The largest distance of two points, computed some rows at a time.

    Examples:
        >>> pf.flows.diameter(torch.tensor([[0.0], [1.0], [5.0]]))
        tensor(5.)
    """
    check_floating("points", points, "(..., n, d)", 2)
    check_values_finite(points=points)
    farthest = lambda rows: distance_matrix(rows, points).amax(-1, keepdim=True)
    return by_rows(farthest, points, points.shape[-2])[..., 0].amax(-1)


def order(mu: Measure, manifold: Manifold = Euclidean()) -> Number:  # noqa: B008
    r"""The order parameter: $|\int e^{i\theta}d\mu|$ of angles, $|\int x/|x|\,d\mu|$ of points.

    It is 1 if all agree, and near 0 if they are spread out. On a torus of several angles it is the
    mean over the angles.

    Args:
        mu: the measure.
        manifold: where the points lie; a `Torus` has angles, all others directions.

    Examples:
        >>> pf.flows.order(pf.Measure(torch.tensor([[0.0], [0.0]])), pf.Torus())
        tensor(1.)
    """
    check_measures(mu=mu)
    check_kind("manifold", manifold, Manifold, "For example `pf.Torus()`.")
    mu = mu.normalise()
    if not isinstance(manifold, Torus):
        size = mu.atoms.norm(dim=-1, keepdim=True)
        return mu.integrate(mu.atoms / torch.where(size > 0, size, 1)).norm(dim=-1)
    angles = mu.atoms[..., : manifold.axes] * (2 * math.pi / manifold.period)
    return torch.hypot(mu.integrate(angles.cos()), mu.integrate(angles.sin())).mean(-1)


def attention_entropy(field: InContextMap, mu: Measure) -> Float[Tensor, "*b layers"]:
    r"""The mean Shannon entropy $\int H(\kappa(x,\cdot))\,d\mu$ of attention rows, heads averaged.

    Args:
        field: a map with attention inside, whose relations are conditionals or couplings.
        mu: the context.
    """
    check_measures(mu=mu)
    weights = mu.log_weights.softmax(-1)[..., None, :]
    rows = [_conditional(relation).entropy() for relation in _relations(field, mu)]
    return torch.stack([(weights * r).sum(-1).mean(-1) for r in rows], -1)


def leaders(field: InContextMap, mu: Measure) -> Int[Tensor, " leaders"]:
    """The atoms to which some atom attends most, in the first head of the first layer.

    Args:
        field: a map with attention inside.
        mu: the context, one measure.
    """
    check_measures(mu=mu)
    if mu.batch_shape:
        raise ValueError("Leaders are of one measure, got a batch: take `mu[k]`.")
    return _relations(field, mu)[0].assignment()[0].unique()


def clusters(mu: Measure, tol: float) -> Int[Tensor, " n"]:
    """The cluster of each atom, by single linkage: chains of steps of at most `tol` join atoms.

    Clusters are numbered by falling mass; atoms without mass get -1.

    Args:
        mu: one measure.
        tol: the length of the longest step.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0], [5.0], [0.1], [0.2]]))
        >>> pf.flows.clusters(mu, tol=0.15)
        tensor([0, 1, 0, 0])
    """
    check_measures(mu=mu)
    check_number("tol", tol)
    if mu.batch_shape:
        raise ValueError("Clusters are of one measure, got a batch: take `mu[k]`.")
    alive = (mu.log_weights > -torch.inf).cpu()
    numbers = torch.full((mu.n,), -1, device="cpu")
    labels = single_linkage(mu.atoms.detach().cpu()[alive].double().numpy(), tol)
    numbers[alive] = torch.from_numpy(labels).long()
    masses = torch.zeros(int(numbers.max()) + 1, dtype=torch.float64, device="cpu")
    masses.index_add_(0, numbers[alive], mu.weights.detach().cpu().double()[alive])
    rank = masses.argsort(descending=True, stable=True).argsort()
    numbers[alive] = rank[numbers[alive]]
    return numbers.to(mu.device)


def _relations(field: InContextMap, mu: Measure) -> list[Relation]:
    """The relations of the attention inside a field; an error if there is none."""
    check_kind("field", field, InContextMap, "For example `pf.Attention(2)`.")
    relations = field.relations(mu)
    if not relations:
        raise TypeError(f"`field` must have attention inside, got {type(field).__name__}.")
    return relations


def _conditional(relation: Relation) -> Conditional:
    """The rows of a relation as probabilities."""
    if isinstance(relation, Coupling):
        return relation.conditional()
    fix = (
        "Entropy needs rows that are probabilities, such as those of `Softmax()` and `Sinkhorn()`."
    )
    check_kind("relation", relation, Conditional, fix)
    return cast(Conditional, relation)
