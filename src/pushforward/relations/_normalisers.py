"""What a normaliser is, and those in closed form: one or two reductions, or none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from .._tools.checks import check_finite, check_kind
from ..affinities import Scores, TileScores
from ._masses import Masses, Signed, weights_or_ones
from ._probabilities import Conditional
from ._relation import Relation


class Normaliser(ABC):
    r"""A way to make a relation of scores: $A\mapsto\pi$.

    To add one, write `relate`, and return the type of relation that says what is true of the
    result: a `Conditional` if rows are probabilities, a `Coupling` if both marginals are
    prescribed, `Masses` if it has masses and no more is known, `Signed` if not even that. The
    attributes below say what it needs.

    Examples:
        A temperature of its own, in front of a softmax:

        >>> class Sharp(pf.Normaliser):
        ...     def relate(self, scores, log_a, log_b, *, start=None):
        ...         return pf.Softmax().relate(scores.scaled(2.0), log_a, log_b)
        >>> mu = pf.Measure(torch.randn(5, 2))
        >>> once, twice = pf.relate(mu, mu, normaliser=Sharp()), pf.Dot(2.0)
        >>> torch.allclose(once.matrix(), pf.relate(mu, mu, affinity=twice).matrix())
        True
    """

    needs_query_measure: ClassVar[bool] = False
    """Whether all queries and their weights are needed to relate one of them to the keys. False
    for softmax, which treats each query alone; True for Sinkhorn, whose columns are sums over the
    queries."""
    any_query: ClassVar[bool] = True
    """Whether its relations can be evaluated at new queries, by `Relation.at`."""
    takes_start: ClassVar[bool] = False
    """Whether it iterates, and can start from a given potential."""
    counts_masses: bool = False
    """Whether the masses of the two measures count. `relate` then gives log-weights that are not
    normalised."""
    to_tolerance: bool = False
    """Whether it iterates to a tolerance, so that the result does not depend on the start."""

    def __call__(
        self,
        scores: Scores,
        log_a: Float[Tensor, "*#b m"] | None,
        log_b: Float[Tensor, "*#b n"],
        *,
        start: Float[Tensor, "*#b n"] | None = None,
    ) -> Relation:
        """The relation that `relate` makes, which `Relation.at` evaluates at other queries.

        `relate` may return the relation of another normaliser, whose extension to other queries
        knows nothing of what this one did to the scores. Such an extension is replaced: by another
        call of `relate` if each query is treated alone, else by an error that says what to do.
        """
        relation = self.relate(scores, log_a, log_b, start=start)
        fix = "For example what `pf.Softmax().relate(scores, log_a, log_b)` returns."
        check_kind(f"{type(self).__name__}.relate", relation, Relation, fix, returned=True)
        owner = getattr(getattr(relation.extension, "func", None), "__self__", None)
        if owner is self or not isinstance(owner, Normaliser):
            return relation
        if self.needs_query_measure:
            return replace(relation, extension=partial(_no_extension, type(self).__name__))
        return replace(relation, extension=lambda scores, log_a: self(scores, log_a, log_b))

    @abstractmethod
    def relate(
        self,
        scores: Scores,
        log_a: Float[Tensor, "*#b m"] | None,
        log_b: Float[Tensor, "*#b n"],
        *,
        start: Float[Tensor, "*#b n"] | None = None,
    ) -> Relation:
        """The relation of queries and keys with these scores.

        Args:
            scores: between queries and keys.
            log_a: log-weights of the queries, normalised unless `counts_masses`. None, where
                `needs_query_measure` is False, is enough for a relation that is only applied.
            log_b: log-weights of the keys, likewise.
            start: a potential on the keys to start from, where `takes_start` is True.
        """


@dataclass(frozen=True)
class Softmax(Normaliser):
    r"""Conditionals $\kappa(x,dy)=e^{A(x,y)}\nu(dy)/\int e^{A(x,z)}\nu(dz)$ [B, conditional].

    The joint $\mu\otimes\kappa$ minimises
    $\int c\,d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$ with $c=-\varepsilon A$ among all
    plans whose first marginal is $\mu$.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> pf.relate(mu, mu, normaliser=pf.Softmax()).matrix()
        tensor([[0.5000, 0.5000],
                [0.2689, 0.7311]])
    """

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Conditional:
        return Conditional(scores, log_b, None, extension=partial(self.relate, log_b=log_b))


@dataclass(frozen=True)
class DualSoftmax(Normaliser):
    r"""The product of both conditionals, $e^{2A-r(x)-c(y)}$, as keypoint matchers use it.

    $r=\log\int e^Ad\nu$ and $c=\log\int e^Ad\mu$. Neither marginal is kept: masses are
    confidences.
    """

    needs_query_measure: ClassVar[bool] = True

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Masses:
        if log_a is None:
            raise ValueError("DualSoftmax needs the weights of the queries, got None.")
        return self._masses(scores, log_a, log_b, -scores.over_queries(log_a))

    def _masses(self, scores: Scores, log_a: Tensor | None, log_b: Tensor, g: Tensor) -> Masses:
        f, log_a = -scores.over_keys(log_b), weights_or_ones(log_a, log_b, scores.shape)
        extension = partial(self._masses, log_b=log_b, g=g)
        return Masses(scores.scaled(2), log_b, g, log_a, f, extension=extension)


@dataclass(frozen=True)
class Sigmoid(Normaliser):
    r"""Independent pairs: the density $\sigma(A+\beta)=1/(1+e^{-A-\beta})$.

    Args:
        bias: $\beta$.
    """

    bias: float = 0.0

    def __post_init__(self) -> None:
        check_finite("bias", self.bias, fix="A learned bias is added to the scores.")

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Masses:
        density = TileScores.mapped(scores, lambda tile: logsigmoid(tile + self.bias))
        return _density(self, density, log_a, log_b, costs=scores)


@dataclass(frozen=True)
class Exponential(Normaliser):
    r"""The density $e^{A}$ itself, as in the gradient flow of the interaction energy.

    $\int e^{A(x,y)}\,v(y)\,\nu(dy)$: without a denominator it grows with the scores.
    """

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Masses:
        return _density(self, scores, log_a, log_b)


@dataclass(frozen=True)
class Bilinear(Normaliser):
    r"""The signed density $A$ itself: linear attention, $\int A(x,y)\,v(y)\,\nu(dy)$.

    For dot products and squared distances it takes time linear in the number of atoms.
    """

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Signed:
        log_a = weights_or_ones(log_a, log_b, scores.shape)
        return Signed(scores, log_b, None, log_a, extension=partial(self.relate, log_b=log_b))


@dataclass(frozen=True)
class Hardmax(Normaliser):
    r"""All mass on the keys of the highest score: $\nu$ restricted to
    $\operatorname{argmax}_{y\in\operatorname{supp}\nu}A(x,y)$.

    The limit of `Softmax` as scores grow. Scores that differ by rounding alone count as ties, and
    tied keys share by mass. The chosen keys do not move with the points, so gradients reach the
    values and the costs only.
    """  # noqa: D205

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Conditional:
        highest = TileScores.highest(scores, log_b > -torch.inf)
        extension = partial(self.relate, log_b=log_b)
        return Conditional(highest, log_b, None, costs=scores, extension=extension)


def _no_extension(name: str, scores: Scores, log_a: Tensor | None) -> Relation:
    raise ValueError(
        f"The relation of {name} was made by another normaliser, and at other queries it would "
        f"forget what {name} did to the scores. Let `relate` say what holds there: "
        "`replace(inner, extension=lambda scores, log_a: inner.at(change(scores), log_a))`, with "
        "`replace` from dataclasses and `inner` the relation of the changed scores."
    )


def _density(
    normaliser: Normaliser,
    density: Scores,
    log_a: Tensor | None,
    log_b: Tensor,
    costs: Scores | None = None,
) -> Masses:
    """Masses with a given density, in logarithms: both potentials are zero."""
    f = log_b.new_zeros(()).expand(density.shape[:-1])
    log_a = weights_or_ones(log_a, log_b, density.shape)
    extension = partial(normaliser.relate, log_b=log_b)
    return Masses(density, log_b, None, log_a, f, costs=costs, extension=extension)
