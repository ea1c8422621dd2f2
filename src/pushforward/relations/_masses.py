"""Masses that are neither conditional nor coupling, and signed ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..sinkhorn import Problem, integral
from ._joint import Joint, Mass
from ._relation import Relation


@dataclass(frozen=True, eq=False, repr=False)
class Masses(Joint):
    r"""Masses $\pi_{ij}\ge0$ that are neither conditional nor coupling.

    Dual softmax, sigmoid and unbalanced plans are of this kind: sums of rows and columns are not
    prescribed, and only the equation of an unbalanced plan can be checked.

    Examples:
        >>> mu = pf.Measure(torch.randn(5, 2))
        >>> pf.relate(mu, mu, normaliser=pf.relations.DualSoftmax())
        Masses(5 queries, 5 keys)
    """

    slack: tuple[float, float] | None = None
    r"""$\rho/\varepsilon$ of both marginals of an unbalanced plan, None for other masses."""

    def mass(self) -> Mass:
        """The sum of all masses."""
        return self.marginals()[0].sum(-1)

    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        density = (self._f + self.scores.over_keys(self._bias)).exp().nan_to_num(0)
        return density[..., None].to(values.dtype) * self.scores.average(values, self._bias)

    def transpose(self) -> Masses:
        """The same masses with queries and keys exchanged."""
        slack = None if self.slack is None else (self.slack[1], self.slack[0])
        return Masses(
            self.scores.T, self.log_a, self._f, self.log_b, self._g, self.steps, self.tol,
            slack=slack, dtype=self.dtype, costs=None if self.costs is None else self.costs.T,
        )  # fmt: skip

    @cached_property
    def residual(self) -> Mass:
        r"""How far an unbalanced plan is from its fixed point, in $L^1$ of both measures.

        The relative change of potentials in one step. Other masses solve no equation: NaN.
        """
        with torch.no_grad():
            if self.slack is None:
                return torch.full_like(self._f[..., 0], torch.nan)
            problem = Problem(self.log_a, self.log_b, self.slack)
            change = lambda p, q, logs: integral(torch.expm1(p - q).abs(), logs)
            return torch.maximum(
                change(self._f, problem.rows(self.scores, self._g), self.log_a),
                change(self._g, problem.columns(self.scores, self._f), self.log_b),
            )


@dataclass(frozen=True, eq=False, repr=False)
class Signed(Relation):
    r"""A signed density $A(x,y)$ against $\mu\otimes\nu$, as linear attention has it.

    No masses: rows sum to anything, entries may be negative.

    Args:
        log_a: log-weights of the queries, normalised.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[-1.0], [1.0]]))
        >>> pf.relate(mu, mu, normaliser=pf.relations.Bilinear()).matrix()
        tensor([[ 0.2500, -0.2500],
                [-0.2500,  0.2500]])
    """

    log_a: Float[Tensor, "*#b m"]

    def matrix(self) -> Float[Tensor, "*b m n"]:
        r"""$A_{ij}\,a_ib_j$, 0 where a pair is forbidden."""
        scores = self.scores.matrix()
        density = scores.masked_fill(scores == -torch.inf, 0)
        return self._out(self.log_a.exp()[..., :, None] * density * self.log_b.exp()[..., None, :])

    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        # For dot products this is linear in the number of atoms.
        return self.scores.linear(values, self.log_b.exp()).to(values.dtype)

    def transpose(self) -> Signed:
        """The same density with queries and keys exchanged."""
        return Signed(self.scores.T, self.log_a, None, self.log_b, dtype=self.dtype)

    def _order(self, rows: slice) -> Tensor:
        weights = self.log_b.exp()[..., None, :]
        return (self.scores.tile(rows) * weights).masked_fill(weights == 0, -torch.inf)
