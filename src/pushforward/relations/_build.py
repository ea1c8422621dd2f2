"""From scores and a normaliser to a relation."""

from __future__ import annotations

from torch import Tensor

from ..affinities import Scores
from ._masses import Masses, Signed
from ._normaliser import Found, Normaliser
from ._probabilities import Conditional, Coupling
from ._relation import Relation


def build(
    normaliser: Normaliser, scores: Scores, log_a: Tensor | None, log_b: Tensor, found: Found
) -> Relation:
    """The relation a normaliser makes of scores, of the type it deserves.

    Queries without weights, `log_a=None`, are enough for whoever only applies it.
    """
    if normaliser.keeps == "rows":
        return Conditional(normaliser.density(scores, log_b, found)[0], log_b, found.g)
    if normaliser.keeps == "sign":
        log_a = log_b.new_zeros(()).expand(scores.shape[:-1]) if log_a is None else log_a
        return Signed(scores, log_b, None, log_a)
    kind = Coupling if normaliser.keeps == "both" else Masses
    return kind.found(normaliser, scores, log_a, log_b, found)
