"""The task to learn a contextual rule: which points of two measures belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._tools.checks import check_callable, check_kind
from ...distances import wasserstein
from ...measures import Measure
from ...relations import Conditional, Coupling, Relation
from ._laws import Law, as_law
from ._losses import PerMeasure
from ._tasks import Batches, Task, check_step, words

ROWS = 32
"""Queries of a pair of measures whose error is computed: each is a transport problem."""


Rule = Callable[[Measure, Measure], Relation]
"""A function of two batches of measures with values in relations."""


class Meeting(NamedTuple):
    """Two measures, or a batch of each, and their relation."""

    mu: Measure
    nu: Measure
    relation: Conditional | Coupling


class Relating(Task):
    r"""A contextual rule to be learned: every step draws new pairs of measures.

    The model is called on two measures and returns their relation, as `pf.maps.LearnedRule` does.
    The loss is the divergence of the model's relation from the right one,

    $$\int\mathrm{KL}\bigl(\kappa(x,\cdot)\,|\,\hat\kappa(x,\cdot)\bigr)\,d\mu(x).$$

    For couplings $\pi=\mu\otimes\kappa$ it is $\mathrm{KL}(\pi|\hat\pi)$, because both have the
    first marginal $\mu$. By Pinsker's inequality it bounds the total variation, and so $W_1$. What
    remains of $W_1$ at any number of atoms is found by `pf.fitting.evaluate_rule`.

    Args:
        rule: a function of two batches of measures with values in relations, conditionals or
            couplings, such as those of `pf.approximation`.
        queries: the law of the measures of queries.
        keys: the law of the measures of keys, drawn independently; that of the queries by default.
        batches: their sizes; queries and keys have a number of atoms each.

    Examples:
        >>> rule = pf.approximation.SoftNearest(0.5)
        >>> task = pf.fitting.Relating(rule, pf.fitting.Mixtures(2))
        >>> q, k = (pf.Transformer(2, depth=1, width=8, out_dim=4) for _ in range(2))
        >>> result = pf.fit(pf.maps.LearnedRule(q, k), task, steps=3)
        >>> mu = pf.Measure(torch.randn(9, 2))
        >>> result.model(mu, mu)
        Conditional(9 queries, 9 keys)
    """

    def __init__(
        self,
        rule: Rule,
        queries: Law | Callable,
        keys: Law | Callable | None = None,
        batches: Batches | None = None,
    ) -> None:
        check_callable("rule", rule, "a function of two measures, `rule(mu, nu)`")
        self.rule, self.queries = rule, as_law(queries, "queries")
        self.keys = self.queries if keys is None else as_law(keys, "keys")
        self.batches = Batches((8, 64)) if batches is None else batches
        check_kind("batches", self.batches, Batches, "For example `pf.fitting.Batches((8, 64))`.")

    def batch(self, generator: torch.Generator, index: int) -> Meeting:
        """New pairs of measures, and their right relations."""
        check_step(generator, index)
        dice = Random(index)
        m, n = (dice.randint(*self.batches.sizes) for _ in range(2))
        return drawn(self, max(1, self.batches.atoms // max(m, n)), m, n, generator)

    def losses(self, model: nn.Module, batch: Meeting) -> PerMeasure:
        """The divergence for each pair of measures."""
        check_callable("model", model, "a rule `model(mu, nu)`, such as a `pf.maps.LearnedRule`")
        check_kind("batch", batch, Meeting, "Draw one with `task.batch(generator, 0)`.")
        right, logs = _rows(batch.relation), _rows(related(model, batch))
        p = right.exp()
        gaps = torch.where(p > 0, p * (right - logs), 0).sum(-1)
        return batch.mu.normalise().integrate(gaps.to(batch.mu.log_weights))

    def describe(self) -> dict[str, Any]:
        """The words of rule, laws and sizes."""
        return {
            "rule": words(self.rule), "queries": words(self.queries), "keys": words(self.keys),
            "batches": repr(self.batches),
        }  # fmt: skip


def drawn(task: Relating, count: int, m: int, n: int, generator: torch.Generator) -> Meeting:
    """Pairs of measures of `m` and `n` atoms, and their right relations."""
    mu, nu = task.queries.draw(count, m, generator), task.keys.draw(count, n, generator)
    with torch.no_grad():
        return Meeting(mu, nu, _checked("rule", task.rule(mu, nu), (count, m, n)))


def related(model: Rule, batch: Meeting) -> Relation:
    """The relations of a model, of the same kind as the right ones."""
    relation = _checked("model", model(batch.mu, batch.nu), batch.relation.shape)
    if isinstance(relation, Coupling) != isinstance(batch.relation, Coupling):
        kinds = type(batch.relation).__name__, type(relation).__name__
        raise ValueError(
            f"The rule makes a {kinds[0]} and the model a {kinds[1]}. Give the model "
            "`normaliser=pf.Softmax()` for conditionals, `pf.Sinkhorn(steps=20)` for couplings."
        )
    return relation


def relation_error(right: Relation, other: Relation, mu: Measure, nu: Measure) -> PerMeasure:
    """The largest $W_1$ of rows for conditionals, their mean for couplings, up to `ROWS` rows."""
    p, q = (_rows(relation)[..., :ROWS, :].exp().double() for relation in (right, other))
    atoms = nu.atoms[..., None, :, :].expand(*p.shape, nu.dim).double()
    gaps = wasserstein(Measure(atoms, p).normalise(), Measure(atoms, q).normalise())
    logs = mu.log_weights[..., :ROWS]
    if isinstance(right, Conditional):
        return gaps.masked_fill(logs == -torch.inf, 0).amax(-1)
    return (logs.double().softmax(-1) * gaps).sum(-1)


def _rows(relation: Relation) -> Tensor:
    r"""The logarithms of $\kappa(x_i,\{y_j\})$, exact where the masses themselves underflow."""
    bias = relation.log_b if relation.g is None else relation.log_b + relation.g
    return (relation.scores.matrix() + bias[..., None, :]).log_softmax(-1)


def _checked(name: str, relation: object, shape: Sequence[int]) -> Conditional | Coupling:
    """Raise unless it is a conditional or a coupling of the right measures."""
    if not isinstance(relation, Conditional | Coupling):
        raise TypeError(
            f"`{name}` must return a Conditional or a Coupling, got {type(relation).__name__}. "
            "Make one of a matrix with `pf.Conditional.from_matrix(matrix, nu)`."
        )
    if tuple(relation.shape) != tuple(shape):
        raise ValueError(
            f"`{name}` must relate the measures it is given, in shape {tuple(shape)} with queries "
            f"and keys last, got {relation}."
        )
    return relation
