"""The error of a learned rule at any number of atoms, on measures it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..._tools.checks import (
    check_callable,
    check_kind,
    check_listed_sizes,
    check_seed,
    check_sizes,
)
from ...relations import Conditional
from ..problems import Relating, Rule, drawn, related, relation_error
from ._evaluate import device_of, held_out_seed


@dataclass(frozen=True)
class RuleScore:
    r"""The error of a rule at one number of atoms, as a distance $W_1$.

    Args:
        n: number of atoms of queries and of keys.
        pairs: how many pairs of measures.
        mean: the mean error.
        standard_error: of the mean.
        worst: the largest error.
        independent: the mean error of the relation $\kappa(x,\cdot)=\nu$, which ignores the query.
    """

    n: int
    pairs: int
    mean: float
    standard_error: float
    worst: float
    independent: float


@torch.no_grad()
def evaluate_rule(
    model: Rule,
    task: Relating,
    *,
    sizes: Sequence[int] = (16, 64, 256),
    pairs: int = 8,
    seed: int = 0,
) -> tuple[RuleScore, ...]:
    r"""The error of a learned rule at several numbers of atoms.

    The error is $\sup_xW_1(\kappa(x,\cdot),\hat\kappa(x,\cdot))$ for conditionals, as in
    `relation_distance`. For couplings it is the mean,

    $$\int W_1\bigl(\kappa(x,\cdot),\hat\kappa(x,\cdot)\bigr)\,d\mu(x)\ge W_1(\pi,\hat\pi),$$

    which needs only one small transport for each query. Beyond 32 queries, the first 32 are taken.

    Theorems S and K say that it need not grow with the number of atoms [B, Thm. S], [B, Thm. K].

    Args:
        model: the learned rule, a function of two measures.
        task: the rule that was to be learned, and the laws that measures come from.
        sizes: numbers of atoms of queries and of keys.
        pairs: how many pairs of measures of each size.
        seed: what measures are drawn with; those of training have other ones.

    Examples:
        >>> task = pf.fitting.Relating(pf.approximation.SoftNearest(0.5), pf.fitting.Mixtures(1))
        >>> stay = pf.Pointwise(lambda x: x)
        >>> exact = pf.maps.LearnedRule(stay, stay, affinity=pf.SquaredDistance(0.5))
        >>> pf.fitting.evaluate_rule(exact, task, sizes=[100])[0].worst
        0.0
    """
    check_callable("model", model, "a rule `model(mu, nu)`, such as a `pf.maps.LearnedRule`")
    check_kind("task", task, Relating, "For example `pf.fitting.Relating(rule, law)`.")
    check_listed_sizes("sizes", sizes)
    check_sizes(pairs=pairs)
    check_seed(seed)
    scores = []
    for k, n in enumerate(sizes):
        generator = torch.Generator(device_of(model)).manual_seed(held_out_seed(seed, k))
        errors, ignorant = [], []
        for _ in range(pairs):
            batch = drawn(task, 1, n, n, generator)
            right, (mu, nu) = batch.relation, batch[:2]
            errors.append(relation_error(right, related(model, batch), mu, nu))
            rows = nu.weights[..., None, :].expand(1, n, n)
            flat = Conditional.from_matrix(rows / rows.sum(-1, keepdim=True), nu)
            ignorant.append(relation_error(right, flat, mu, nu))
        found = torch.cat(errors)
        spread = found.std().item() / pairs**0.5 if pairs > 1 else float("nan")
        independent = torch.cat(ignorant).mean().item()
        scores.append(
            RuleScore(n, pairs, found.mean().item(), spread, found.max().item(), independent)
        )
    return tuple(scores)
