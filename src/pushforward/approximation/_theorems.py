r"""The two universal approximation theorems for relations [B, Thm. S], [B, Thm. K].

If a rule (`_rules`) is weakly continuous, some affinity approximates it in $W_1$, uniformly over
all measures on a box: softmax of the affinity approximates a conditional rule, Sinkhorn a rule of
couplings. Both proofs are constructive: here are the constructions, their errors and their bounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_callable, check_kind, check_range, holds
from ..affinities import Matrix
from ..distances import wasserstein
from ..measures import Measure, check_pair
from ..relations import Conditional, Coupling, Normaliser, Relation, Sinkhorn, Softmax, relate
from ._hats import Hats
from ._rules import Rule

Gap = Float[Tensor, "*b"]


@dataclass(frozen=True, eq=False)
class Approximation(ABC):
    r"""An affinity whose normalisation approximates a rule. It is a rule itself.

    Args:
        rule: the rule to approximate.
        hats: a partition of unity for the keys.
        tau: $\tau\ge0$, a lower bound for the masses of cells that are divided by.
        delta: $\delta\ge0$, a density that all pairs have. For $\tau,\delta>0$ the affinity is
            finite, and continuous in the measures too.
    """

    rule: Rule
    hats: Hats
    _: KW_ONLY
    tau: float = 1e-6
    delta: float = 1e-6
    normaliser: ClassVar[Normaliser]

    def __post_init__(self) -> None:
        check_callable("rule", self.rule, "a function of two measures, `rule(mu, nu)`")
        check_kind("hats", self.hats, Hats, "Make some with `pf.approximation.Hats.around(...)`.")
        check_range("tau", self.tau, 0, 1)
        check_range("delta", self.delta, 0, 1)

    @abstractmethod
    def affinity(self, mu: Measure, nu: Measure, x: Tensor, y: Tensor) -> Tensor:
        r"""$A(\mu,\nu,x,y)$ at points `(..., m, 1, d)`, `(..., 1, n, d)`, as `Pairs` calls it."""

    @abstractmethod
    def bound(self, mu: Measure, nu: Measure) -> Gap:
        """An upper bound of `relation_distance` to the rule, between these two measures."""

    def __call__(self, mu: Measure, nu: Measure) -> Relation:
        """The relation between two measures that the affinity defines."""
        check_pair(mu, nu)
        x, y = mu.atoms[..., :, None, :], nu.atoms[..., None, :, :]
        scores = Matrix(self.affinity(mu, nu, x, y))
        return relate(mu, nu, affinity=scores, normaliser=self.normaliser)

    @property
    def _floor(self) -> float:
        """Lower bound of the divisors; the numerators are 0 wherever it matters for tau = 0."""
        return max(self.tau, torch.finfo(torch.float32).tiny)


@dataclass(frozen=True, eq=False)
class SoftmaxApproximation(Approximation):
    r"""A conditional rule approximated by softmax of an affinity $A=\log k$ [B, Thm. S].

    With the hats $\chi_l$,

    $$k(\nu,x,y)=\delta+\sum_l\frac{\kappa_\nu(x,\chi_l)}{\nu(\chi_l)\vee\tau}\,\chi_l(y).$$

    For $\tau=\delta=0$ softmax distributes the mass of every cell as $\nu$ does, so that
    $W_1\le\rho$. The bound $\tau$ removes the mass
    $e(x)=\sum_l\kappa_\nu(x,\chi_l)\,(1-\nu(\chi_l)/\tau)_+$. The rest, of mass $1-e$, lies below
    the exact density; then $\delta$ is added and rows are normalised. So the total variation is at
    most $\max(e,\delta)$, and

    $$\sup_xW_1\le\rho+\operatorname{diam}\cdot\max\bigl(\sup_xe(x),\delta\bigr).$$

    Uniformly over all measures $e\le N\omega(\tau)$, where
    $\omega(\tau)=\sup\{\kappa_\nu(x,\chi_l):\nu(\chi_l)\le\tau\}$ tends to 0 with $\tau$, because
    the rule is continuous and concentrated on the support of $\nu$.

    Examples:
        >>> mu = pf.Measure(torch.rand(50, 1))
        >>> rule = pf.approximation.SoftNearest(0.1)
        >>> hats = pf.approximation.Hats.around(mu, cells=9)
        >>> near = pf.approximation.SoftmaxApproximation(rule, hats)
        >>> error = pf.approximation.relation_distance(near(mu, mu), rule(mu, mu), mu, mu)
        >>> bool(error < near.bound(mu, mu))
        True
    """

    normaliser = Softmax()

    def affinity(self, mu: Measure, nu: Measure, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of $k$; it depends on `x`, not on `mu`."""
        share, mass = self._cells(x.squeeze(-2), nu)
        density = share / mass.clamp_min(self._floor)[..., None, :]
        return (density @ self.hats(y.squeeze(-3)).mT + self.delta).log()

    def bound(self, mu: Measure, nu: Measure) -> Gap:
        """The second formula above, with the supremum over the atoms of `mu`."""
        check_pair(mu, nu)
        share, mass = self._cells(mu.atoms, nu)
        lost = (share * ((self.tau - mass).clamp_min(0) / self._floor)[..., None, :]).sum(-1)
        worst = lost.masked_fill(mu.log_weights == -torch.inf, 0).amax(-1)
        return self.hats.diameter + self.hats.extent * worst.clamp_min(self.delta)

    def _cells(self, x: Tensor, nu: Measure) -> tuple[Tensor, Tensor]:
        r"""$\kappa_\nu(x,\chi_l)$ and $\nu(\chi_l)$."""
        kappa = self.rule(Measure(x), nu)
        fix = "Make one of a matrix with `pf.Conditional.from_matrix(matrix, nu)`."
        check_kind("rule(mu, nu)", kappa, Conditional, fix)
        return self.hats.integrals(kappa.matrix(), nu), self.hats.masses(nu)


@dataclass(frozen=True, eq=False)
class SinkhornApproximation(Approximation):
    r"""A rule of couplings approximated by Sinkhorn of an affinity $A=\log k$ [B, Thm. K].

    With the hats $\varphi_k$ for queries and $\chi_l$ for keys,

    $$k=\delta+(1-\delta)\sum_{kl}\frac{\pi(\varphi_k\otimes\chi_l)}
    {(\mu(\varphi_k)\vee\tau)\,(\nu(\chi_l)\vee\tau)}\,\varphi_k(x)\,\chi_l(y).$$

    For $\tau=0$ the density $k$ has marginals $\mu$ and $\nu$, so that Sinkhorn does not change
    it. If $\delta=0$ too, only the masses inside cells are redistributed:
    $W_1\le\sqrt{\rho_X^2+\rho_Y^2}$ in the Euclidean distance of pairs. In total variation
    $\delta$ changes the coupling by at most $\delta$ and $\tau$ by at most $\frac12\sqrt J$, where
    $J$ is the symmetric divergence. To bound $W_1$ this is multiplied by the smaller of the two
    diameters, because couplings of the same measures differ by moving one coordinate only. And

    $$J\le\int\log\frac{k_{0,\delta}}{k_{\tau,\delta}}\,d\pi_{0,\delta}
    \le\sum_k\mu(\varphi_k)\log^+\frac\tau{\mu(\varphi_k)}
    +\sum_l\nu(\chi_l)\log^+\frac\tau{\nu(\chi_l)}\le\frac{(N+M)\,\tau}e,$$

    since $\tau$ can only lower the affinity, by the log-sum inequality, and because
    $t\log\frac1t\le1/e$. The last bound does not depend on the rule or the measures.

    Args:
        queries: hats for the queries, by default `hats`.

    Examples:
        >>> mu, nu = pf.Measure(torch.rand(30, 1)), pf.Measure(torch.rand(20, 1))
        >>> rule = pf.approximation.QuantileCoupling()
        >>> hats = pf.approximation.Hats.around(mu, nu, cells=9)
        >>> near = pf.approximation.SinkhornApproximation(rule, hats)
        >>> error = pf.approximation.relation_distance(near(mu, nu), rule(mu, nu), mu, nu)
        >>> bool(error < near.bound(mu, nu) <= near.uniform_bound)
        True
    """

    # The scores are almost those of a coupling already, so annealing would only cost time.
    normaliser = Sinkhorn(anneal=False)
    _: KW_ONLY
    queries: Hats | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queries is not None:
            check_kind("queries", self.queries, Hats, "They default to `hats`.")

    def affinity(self, mu: Measure, nu: Measure, x: Tensor, y: Tensor) -> Tensor:
        """The logarithm of $k$, from the masses that the rule gives to pairs of cells."""
        cells = self.hats.integrals(self._coupled(mu, nu), nu)
        cells = self._query_hats.integrals(cells.mT, mu).mT
        a, b = self._query_hats.masses(mu), self.hats.masses(nu)
        for mass in (a[..., :, None], b[..., None, :]):  # one by one: their product may underflow
            cells = cells / mass.clamp_min(self._floor)
        spread = self._query_hats(x.squeeze(-2)) @ cells @ self.hats(y.squeeze(-3)).mT
        return ((1 - self.delta) * spread + self.delta).log()

    def bound(self, mu: Measure, nu: Measure) -> Gap:
        r"""The bound with the sums over cells; Sinkhorn's own tolerance is not included."""
        check_pair(mu, nu)
        tiny = torch.finfo(mu.log_weights.dtype).tiny
        light = lambda mass: mass * (self.tau / mass.clamp_min(tiny)).clamp_min(1).log()
        a, b = self._query_hats.masses(mu), self.hats.masses(nu)
        return self._total(light(a).sum(-1) + light(b).sum(-1))

    @property
    def uniform_bound(self) -> float:
        r"""The bound for all measures on the boxes, from $J\le(N+M)\,\tau/e$.

        Rounded up to float32, so that no bound in that dtype exceeds it.
        """
        count = self.hats.count + self._query_hats.count
        exact = self._total(torch.tensor(count * self.tau / math.e, dtype=torch.float64))
        infinity = torch.tensor(math.inf, dtype=torch.float32)
        return torch.nextafter(exact.float().cpu(), infinity.cpu()).item()

    def _total(self, divergence: Tensor) -> Tensor:
        r"""The bound of $W_1$ for a bound of $J$."""
        cells = math.hypot(self.hats.diameter, self._query_hats.diameter)
        extent = min(self.hats.extent, self._query_hats.extent)
        return cells + extent * (self.delta + divergence.sqrt() / 2)

    @property
    def _query_hats(self) -> Hats:
        return self.hats if self.queries is None else self.queries

    def _coupled(self, mu: Measure, nu: Measure) -> Tensor:
        """The masses of pairs that the rule gives, checked to have the right marginals."""
        fix = "Make one of a matrix with `pf.Coupling.from_matrix(matrix)`."
        pi = cast(Coupling, self.rule(mu, nu))
        check_kind("rule(mu, nu)", pi, Coupling, fix)
        for mass, m in zip(pi.marginals(), (mu, nu), strict=True):
            if not holds((mass - m.log_weights.softmax(-1)).abs().sum(-1).max() < 1e-3):
                raise ValueError(
                    "A rule of couplings must couple the measures it is given, got other "
                    "marginals. `Conditional.project(mu, nu)` makes a coupling of a conditional."
                )
        return pi.matrix()


@torch.no_grad()
def relation_distance(first: Relation, second: Relation, mu: Measure, nu: Measure) -> Gap:
    r"""The $W_1$ distance of two relations between the same atoms.

    Conditionals: $\sup_xW_1(\kappa(x,\cdot),\kappa'(x,\cdot))$ over the atoms of `mu`. Couplings:
    $W_1(\pi,\pi')$ as measures on pairs, with the Euclidean distance of $(x,y)$.

    Args:
        first: a conditional or a coupling.
        second: another of the same kind.
        mu: the measure of the queries.
        nu: the measure of the keys.

    Examples:
        >>> mu, same = pf.Measure(torch.tensor([[0.0], [1.0]])), torch.eye(2) / 2
        >>> straight, crossed = map(pf.Coupling.from_matrix, (same, same.flip(0)))
        >>> pf.approximation.relation_distance(straight, crossed, mu, mu)
        tensor(1.)
    """
    kind = Coupling if isinstance(first, Coupling) else Conditional
    for name, relation in (("first", first), ("second", second)):
        check_kind(name, relation, kind, "Compare conditionals, or couplings.")
        check_pair(mu, nu)
        if tuple(relation.shape[-2:]) != (mu.n, nu.n):
            raise ValueError(
                f"`{name}` must relate the atoms of `mu` and `nu`, {mu.n} and {nu.n}, got "
                f"{relation}."
            )
    p, q = (r.matrix().to(mu.log_weights.dtype) for r in (first, second))
    if kind is Conditional:
        atoms = nu.atoms[..., None, :, :].expand(*p.shape, nu.dim)
        gap = wasserstein(Measure(atoms, p).normalise(), Measure(atoms, q).normalise())
        return gap.masked_fill(mu.log_weights == -torch.inf, 0).amax(-1)
    x, y = mu.atoms[..., :, None, :], nu.atoms[..., None, :, :]
    pairs = torch.cat([z.expand(*p.shape, z.shape[-1]) for z in (x, y)], -1).flatten(-3, -2)
    # W1 depends on the difference alone: mass that both share need not be moved.
    excess = [(p - q).clamp_min(0).flatten(-2), (q - p).clamp_min(0).flatten(-2)]
    equal = torch.minimum(*(part.sum(-1) for part in excess)) == 0
    over, under = (Measure(pairs, part + equal[..., None]).normalise() for part in excess)
    return torch.where(equal, 0, excess[0].sum(-1) * wasserstein(over, under))
