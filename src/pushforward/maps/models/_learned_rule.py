"""A contextual rule with encoders that can be trained: a relation of any two measures."""

from __future__ import annotations

from torch import nn

from ..._tools.checks import check_kind
from ...affinities import Dot, Encoded, PointAffinity
from ...measures import Measure
from ...relations import Normaliser, Relation, Softmax, relate
from .._in_context import InContextMap


class LearnedRule(nn.Module):
    r"""The relation of two measures by encoders, of scores $\langle q(\mu,x),k(\nu,y)\rangle$.

    With softmax, rules of this form approximate any continuous conditional rule [B, Thm. S], with
    Sinkhorn any continuous rule of couplings [B, Thm. K]. `pf.fitting.Relating` is the task to
    train one.

    Args:
        q: encoder of the queries, an in-context map.
        k: encoder of the keys, with images in the same space.
        affinity: compares encoded points, `Dot(1.0)` by default.
        normaliser: makes a relation of the scores, `Softmax()` by default.

    Examples:
        >>> q, k = pf.Transformer(2, depth=1, out_dim=4), pf.Transformer(3, depth=1, out_dim=4)
        >>> rule = pf.maps.LearnedRule(q, k, normaliser=pf.Sinkhorn(steps=10))
        >>> rule(pf.Measure(torch.randn(6, 2)), pf.Measure(torch.randn(5, 3)))
        Coupling(6 queries, 5 keys)
    """

    def __init__(
        self,
        q: InContextMap,
        k: InContextMap,
        *,
        affinity: PointAffinity | None = None,
        normaliser: Normaliser | None = None,
    ) -> None:
        super().__init__()
        for name, encoder in (("q", q), ("k", k)):
            fix = "For example `pf.Transformer(dim, depth=2, out_dim=8)`."
            check_kind(name, encoder, InContextMap, fix)
        if None not in (q.out_dim, k.out_dim) and q.out_dim != k.out_dim:
            raise ValueError(
                f"Queries and keys must be encoded in one space, got R^{q.out_dim} and "
                f"R^{k.out_dim}."
            )
        affinity = Dot(1.0) if affinity is None else affinity
        normaliser = Softmax() if normaliser is None else normaliser
        check_kind("affinity", affinity, PointAffinity, "For example `pf.Dot(1.0)`.")
        check_kind("normaliser", normaliser, Normaliser, "For example `pf.Sinkhorn(steps=10)`.")
        self.q, self.k, self.affinity, self.normaliser = q, k, affinity, normaliser

    def forward(self, mu: Measure, nu: Measure) -> Relation:
        """The relation of two measures.

        Args:
            mu: the measure of the queries.
            nu: the measure of the keys.
        """
        encoded = Encoded(self.q, self.k, self.affinity)
        return relate(mu, nu, affinity=encoded, normaliser=self.normaliser)

    def extra_repr(self) -> str:
        return f"{self.affinity}, {self.normaliser}"
