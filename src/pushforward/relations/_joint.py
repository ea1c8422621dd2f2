"""Relations with masses."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._tools.checks import check_sizes
from ..affinities import Scores
from ..sinkhorn import tilted
from ._normaliser import TOL, Found, Normaliser
from ._relation import Relation, draw

Mass = Float[Tensor, "*b"]


@dataclass(frozen=True, eq=False, repr=False)
class Joint(Relation, ABC):
    r"""A relation with masses: $\pi=e^{A+f\oplus g}\mu\otimes\nu$.

    Args:
        log_a: log-weights of the queries, normalised.
        f: the potential on the queries, None for the one that normalises the rows.
        steps: iterations it took.
        tol: the error below which it counts as converged.
        parts: connected parts of the pattern of allowed pairs, None for one.
    """

    log_a: Float[Tensor, "*#b m"]
    f: Float[Tensor, "*#b m"] | None = None
    steps: int = 0
    tol: float = TOL
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None

    @classmethod
    def found(
        cls, normaliser: Normaliser, scores: Scores, log_a: Tensor | None, log_b: Tensor,
        found: Found, **more: Any,
    ):  # fmt: skip
        """What a normaliser found, in the precision it was found in."""
        dtype = scores.dtype
        scores = scores if found.scores is None else found.scores
        log_b = log_b if found.log_b is None else found.log_b
        if found.g is not None and found.g.dtype != scores.dtype:
            scores = scores.to(found.g.dtype)
        if log_a is None:
            log_a = log_b.new_zeros(()).expand(scores.shape[:-1])
        log_a, log_b = (
            logs if logs.dtype == scores.dtype else logs.to(scores.dtype).log_softmax(-1)
            for logs in (log_a, log_b)
        )
        scores, f = normaliser.density(scores, log_b, found)
        return cls(scores, log_b, found.g, log_a, f, found.steps, dtype=dtype, **more)

    @property
    def _f(self) -> Tensor:
        return -self.scores.over_keys(self._bias) if self.f is None else self.f

    @property
    def _g(self) -> Tensor:
        return torch.zeros_like(self.log_b) if self.g is None else self.g

    def matrix(self) -> Float[Tensor, "*b m n"]:
        r"""Joint masses $\pi_{ij}$; rows belong to queries, columns to keys."""
        side = tilted(self.log_a, self._f)[..., :, None]
        return self._out((self.scores.matrix() + side + self._bias[..., None, :]).exp())

    def marginals(self) -> tuple[Float[Tensor, "*b m"], Float[Tensor, "*b n"]]:
        """Masses of the rows and of the columns, as they are."""
        seen = self.scores.over_keys(self._bias)
        over_queries = tilted(self.log_a, -seen if self.f is None else self.f)
        columns = self._bias + self.scores.over_queries(over_queries)
        rows = torch.where(self.log_a == -torch.inf, self.log_a, over_queries + seen)
        return self._out(rows.exp()), self._out(columns.exp())

    def cost(self) -> Mass:
        r"""$\int c\,d\pi$, with $c=-A$ for a dot product, $|q-k|^2$ for a squared distance."""
        return self._out(self._integral(self.scores.cost(self._bias)))

    def entropy(self) -> Mass:
        r"""$-\sum\pi_{ij}\log\pi_{ij}$."""
        zero = lambda logs: logs.masked_fill(logs == -torch.inf, 0)
        pair = zero(tilted(self.log_a, self._f)) + self.scores.mean(self._bias)
        mean = self.scores.average(zero(self._bias)[..., None], self._bias)[..., 0]
        return self._out(-self._integral(pair + mean))

    def sample(
        self, count: int, *, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, "*b s"], Int[Tensor, "*b s"]]:
        """`count` independent pairs, as indices of queries and of keys."""
        check_sizes(count=count)
        with torch.no_grad():
            rows = draw(self._row_mass(), count, generator)
            keys = torch.empty_like(rows)
            bias = self._bias
            for at in product(*map(range, rows.shape[:-1])):
                some, back = rows[at].unique(return_inverse=True)
                tile = self.scores.tile(some).expand(*self.shape[:-2], len(some), self.shape[-1])
                p = (tile[at] + bias.expand(*self.shape[:-2], self.shape[-1])[at]).softmax(-1)
                parts = back.split(max(1, (1 << 22) // p.shape[-1]))
                keys[at] = torch.cat([draw(p[part], 1, generator)[:, 0] for part in parts])
        return rows, keys

    def _row_mass(self) -> Tensor:
        """Masses of the rows: the weights themselves where $f$ normalises them."""
        if self.f is None:
            return self.log_a.exp().expand(self.shape[:-1])
        return (tilted(self.log_a, self.f) + self.scores.over_keys(self._bias)).exp()

    def _integral(self, x: Tensor) -> Tensor:
        r"""$\int x\,d\pi$ for a function of the queries that is a mean over their rows."""
        mass = self._row_mass()
        return (mass * x.masked_fill(mass == 0, 0)).sum(-1)
