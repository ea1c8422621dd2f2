"""Mean, worst draw and worst measure found, in one report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...maps import InContextMap
from ...measures import MeasureMap
from ..problems import Law
from ._attack import Attack, Supremum, attack
from ._evaluate import ScoreTable, evaluate


@dataclass(frozen=True)
class Report:
    """How good a learned map is: on random measures, and on the worst that were found.

    Args:
        scores: mean errors and the worst draws.
        supremum: the worst measures that an attack found.
    """

    scores: ScoreTable
    supremum: Supremum

    def to_dict(self) -> dict[str, Any]:
        """Everything as data that JSON can hold."""
        return {"scores": self.scores.to_dict(), "supremum": self.supremum.to_dict()}

    def __str__(self) -> str:
        """Two tables."""
        return f"{self.scores}\n\n{self.supremum}"


def report(
    model: nn.Module,
    target: InContextMap | MeasureMap,
    law: Law | Callable,
    *,
    sizes: Sequence[int] = (16, 64, 256, 1024, 4096),
    measures: int = 32,
    exact: int = 0,
    effort: Attack | None = None,
    seed: int = 0,
) -> Report:
    """Mean errors and worst draws by `evaluate`, and the worst measures found by `attack`.

    Args:
        model: the learned map.
        target: the map that was to be learned.
        law: where measures come from, on the box that is attacked.
        sizes: numbers of atoms of random measures; those of the attack are in `effort`.
        measures: how many random measures of each size.
        exact: for how many of them exact $W_1$ is computed as well.
        effort: how hard the attack searches.
        seed: what measures and starts are drawn with.

    Examples:
        >>> shift, nearly = (pf.Pointwise(lambda x, c=c: x + c) for c in (1, 0.99))
        >>> law, effort = pf.fitting.Mixtures(2), pf.fitting.Attack(sizes=(2, 8), steps=3)
        >>> print(pf.fitting.report(nearly, shift, law, sizes=[16, 64], effort=effort))
            atoms  mean error       +- worst draw       W1  measures
               16       1.00%    0.00%      1.00%           32
               64       1.00%    0.00%      1.00%           32
        <BLANKLINE>
            atoms worst start worst found median found
                2       1.00%       1.00%        1.00%
                8       1.00%       1.00%        1.00%
    """
    scores = evaluate(model, target, law, sizes=sizes, measures=measures, exact=exact, seed=seed)
    return Report(scores, attack(model, target, law, effort, seed=seed))
