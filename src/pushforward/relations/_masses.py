"""Relations with masses; and signed ones, which have none."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._tools.checks import check_generator, check_sizes
from .._tools.precision import wide
from ..affinities import mean_of
from ..sinkhorn import Problem, integral, tilted
from ._relation import TOL, Relation, draw

Mass = Float[Tensor, "*b"]


@dataclass(frozen=True, eq=False, repr=False)
class Joint(Relation, ABC):
    r"""A relation with masses: $\pi=e^{A+f\oplus g}\mu\otimes\nu$.

    Args:
        log_a: log-weights of the queries, normalised.
        f: the potential on the queries, None for the one that normalises the rows.
        steps: iterations it took.
        tol: the error below which it counts as converged.
        parts: for each query and each key, the connected part of the pattern of allowed pairs it
            belongs to; None for one part.
    """

    log_a: Float[Tensor, "*#b m"]
    f: Float[Tensor, "*#b m"] | None = None
    steps: int = 0
    tol: float = TOL
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None

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
        integrals = self.scores.over_keys(self._bias)
        over_queries = tilted(self.log_a, -integrals if self.f is None else self.f)
        columns = self._bias + self.scores.over_queries(over_queries)
        rows = torch.where(self.log_a == -torch.inf, self.log_a, over_queries + integrals)
        return self._out(rows.exp()), self._out(columns.exp())

    def cost(self) -> Mass:
        r"""$\int c\,d\pi$, with $c=-A$ for a dot product, $|q-k|^2$ for a squared distance."""
        if self.costs is None:
            return self._out(self._integral(-self.scores.unit * self.scores.mean(self._bias)))
        means = mean_of(self.costs, self.scores, self._bias)
        return self._out(self._integral(-self.costs.unit * means))

    def entropy(self) -> Mass:
        r"""$-\sum\pi_{ij}\log\pi_{ij}$."""
        zero = lambda logs: logs.masked_fill(logs == -torch.inf, 0)
        pair = zero(tilted(self.log_a, self._f)) + self.scores.mean(self._bias)
        mean = self.scores.average(zero(self._bias)[..., None], self._bias)[..., 0]
        return self._out(-self._integral(pair + mean))

    def sample(
        self, size: int, *, generator: torch.Generator | None = None
    ) -> tuple[Int[Tensor, "*b s"], Int[Tensor, "*b s"]]:
        """`size` independent pairs, as indices of queries and of keys."""
        check_sizes(size=size)
        check_generator(generator)
        with torch.no_grad():
            rows = draw(self._row_mass(), size, generator)
            keys = torch.empty_like(rows)
            bias = self._bias
            for at in product(*map(range, rows.shape[:-1])):
                some, back = rows[at].unique(return_inverse=True)
                tile = self.scores.tile(some).expand(*self.shape[:-2], len(some), self.shape[-1])
                p = (tile[at] + bias.expand(*self.shape[:-2], self.shape[-1])[at]).softmax(-1)
                parts = back.split(max(1, (1 << 22) // p.shape[-1]))
                keys[at] = torch.cat([draw(p[part], 1, generator)[:, 0] for part in parts])
        return rows, keys

    def _order(self, rows: slice) -> Tensor:
        return self.scores.tile(rows) + self._bias[..., None, :]

    def _row_mass(self) -> Tensor:
        """Masses of the rows: the weights themselves where $f$ normalises them."""
        if self.f is None:
            return self.log_a.exp().expand(self.shape[:-1])
        return (tilted(self.log_a, self.f) + self.scores.over_keys(self._bias)).exp()

    def _integral(self, x: Tensor) -> Tensor:
        r"""$\int x\,d\pi$ for a function of the queries that is a mean over their rows."""
        mass = self._row_mass()
        return (mass * x.masked_fill(mass == 0, 0)).sum(-1)


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

    log_masses: tuple[Float[Tensor, "*#b 1"], Float[Tensor, "*#b 1"]] | None = None
    r"""Logarithms of the masses of the two measures of an unbalanced plan, None for one each."""
    slack: tuple[float, float] | None = None
    r"""$\rho/\varepsilon$ of both marginals of an unbalanced plan, None for other masses."""

    def mass(self) -> Mass:
        """The sum of all masses."""
        return self.marginals()[0].sum(-1)

    def integrate(self, values: Float[Tensor, "*#b n e"]) -> Float[Tensor, "*b m e"]:
        integrals = self.scores.over_keys(self._bias)
        # A query without allowed keys has the potential +inf if anything at all. NaN stays NaN.
        density = torch.where(integrals == -torch.inf, 0, (self._f + integrals).exp())
        means = self.scores.average(values, self._bias)
        # In the wider of the two dtypes: half precision is rounded to once, at the end.
        return (density[..., None].to(wide(values.dtype)) * means).to(values.dtype)

    def transpose(self) -> Masses:
        """The same masses with queries and keys exchanged."""
        swap = lambda pair: None if pair is None else (pair[1], pair[0])
        return Masses(
            self.scores.T, self.log_a, self._f, self.log_b, self._g, self.steps, self.tol,
            slack=swap(self.slack), log_masses=swap(self.log_masses), dtype=self.dtype,
            costs=None if self.costs is None else self.costs.T,
        )  # fmt: skip

    @cached_property
    def residual(self) -> Mass:
        r"""How far an unbalanced plan is from its fixed point, in $L^1$ of both measures.

        The relative change of potentials in one step, and by the best constant that is added to
        one and taken from the other. Other masses solve no equation: NaN.
        """
        with torch.no_grad():
            if self.slack is None:
                return torch.full_like(self._f[..., 0], torch.nan)
            problem = Problem(self.log_a, self.log_b, self.slack, log_masses=self.log_masses)
            change = lambda p, q, logs: integral(torch.expm1(p - q).abs(), logs)
            shift = torch.expm1(problem.translation(self._f, self._g))[..., 0].abs()
            in_f = change(self._f, problem.rows(self.scores, self._g), self.log_a)
            in_g = change(self._g, problem.columns(self.scores, self._f), self.log_b)
            return torch.maximum(torch.maximum(in_f, in_g), shift)


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


def weights_or_ones(log_a: Tensor | None, log_b: Tensor, shape: torch.Size) -> Tensor:
    """Log-weights of the queries; weight one each where there are none."""
    return log_b.new_zeros(()).expand(shape[:-1]) if log_a is None else log_a
