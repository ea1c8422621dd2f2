r"""Universal approximation of relations, made executable.

A rule says how the points of two measures are related: a callable of two measures whose value is a
`Conditional` or a `Coupling` of their atoms. If it is weakly continuous, some affinity comes near
it on all measures of a box at once, in $W_1$: a conditional rule normalised by softmax, a coupling
system by Sinkhorn. Both proofs are constructive; here are the constructions, with their errors and
bounds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_kind, check_shape, check_sizes, holds
from ..affinities import Matrix
from ..distances import wasserstein
from ..measures import Measure
from ..relations import Conditional, Coupling, Normaliser, Relation, Sinkhorn, Softmax, relate
from ._rules import Rule

Gap = Float[Tensor, "*b"]


@dataclass(frozen=True, eq=False)
class Hats:
    r"""A partition of unity on a box: $\chi_l(x)=\prod_i\bigl(1-|x_i-c_{l,i}|/h_i\bigr)_+$.

    The $c_l$ are the nodes of a grid over the box, corners included.

    Args:
        low: the lowest corner of the box.
        high: the highest.
        cells: nodes on every axis, at least 2, so $h_i$ is the side divided by `cells - 1`.

    Examples:
        >>> hats = pf.approximation.Hats(torch.zeros(1), torch.ones(1), cells=3)
        >>> hats(torch.tensor([[0.1], [0.5]]))
        tensor([[0.8000, 0.2000, 0.0000],
                [0.0000, 1.0000, 0.0000]])
    """

    low: Float[Tensor, " d"]
    high: Float[Tensor, " d"]
    cells: int

    def __post_init__(self):
        check_sizes(cells=self.cells)
        check_shape("high", self.high, self.low.shape, "As many coordinates as `low`.")
        if self.cells < 2 or not holds((self.low < self.high).all()):
            raise ValueError(
                "Hats need 2 cells and a positive side on every axis, got fewer. Widen the box, "
                "or drop a coordinate that never changes."
            )

    @classmethod
    def around(cls, *measures: Measure, cells: int) -> Hats:
        """Hats on the smallest box that contains the measures."""
        points = torch.cat([mu.atoms.detach().flatten(0, -2) for mu in measures])
        return cls(points.amin(0), points.amax(0), cells)

    @property
    def count(self) -> int:
        """How many hats there are."""
        return self.cells ** len(self.low)

    @property
    def diameter(self) -> float:
        r"""$\rho$: the diameter of the support of a hat, of side $2h$."""
        return self.extent * min(1.0, 2 / (self.cells - 1))

    @property
    def extent(self) -> float:
        """The diameter of the box."""
        return (self.high - self.low).norm().item()

    def __call__(self, x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n l"]:
        """All hats at points of the box."""
        place = (x - self.low.to(x)) / (self.high - self.low).to(x)
        if not holds((place - 0.5).abs().max() <= 0.5 + 1e-6):
            raise ValueError(
                "Points must lie in the box of the hats, and some do not. Take a larger box: "
                "`pf.approximation.Hats.around(mu, nu, cells=...)`."
            )
        place = place.clamp(0, 1) * (self.cells - 1)
        nodes, hats = torch.arange(self.cells).to(x), torch.ones_like(x[..., :1])
        for along in (1 - (place[..., None] - nodes).abs()).clamp_min(0).unbind(-2):
            hats = (hats[..., :, None] * along[..., None, :]).flatten(-2)
        return hats


@dataclass(frozen=True, eq=False)
class Approximation(ABC):
    r"""An affinity whose normalisation is near a rule; a rule itself.

    Args:
        rule: what to approximate.
        hats: a partition of unity on the side of the keys.
        tau: $\tau\ge0$, below which the mass of a cell counts as $\tau$.
        delta: $\delta\ge0$, a density that all pairs have. For $\tau,\delta>0$ the affinity is
            finite, and continuous in the measures too.
    """

    rule: Rule
    hats: Hats
    _: KW_ONLY
    tau: float = 1e-6
    delta: float = 1e-6
    normaliser: ClassVar[Normaliser]

    def __post_init__(self):
        if not (0 <= self.tau < 1 and 0 <= self.delta < 1):
            raise ValueError(
                f"`tau` and `delta` must lie in [0, 1), got {self.tau} and {self.delta}."
            )

    @abstractmethod
    def affinity(self, mu: Measure, nu: Measure, x: Tensor, y: Tensor) -> Tensor:
        r"""$A(\mu,\nu,x,y)$ at points `(..., m, 1, d)`, `(..., 1, n, d)`, as `Pairs` calls it."""

    @abstractmethod
    def bound(self, mu: Measure, nu: Measure) -> Gap:
        """What `relation_distance` to the rule is at most, between these two measures."""

    def __call__(self, mu: Measure, nu: Measure) -> Relation:
        """The relation that the affinity defines between two measures."""
        x, y = mu.atoms[..., :, None, :], nu.atoms[..., None, :, :]
        scores = Matrix(self.affinity(mu, nu, x, y))
        return relate(mu, nu, affinity=scores, normaliser=self.normaliser)

    @property
    def _floor(self) -> float:
        """Of masses to divide by; what is divided is 0 where these are."""
        return max(self.tau, torch.finfo(torch.float32).tiny)


@dataclass(frozen=True, eq=False)
class SoftmaxApproximation(Approximation):
    r"""A conditional rule by softmax (Theorem S), $A=\log k$ with $\chi_l$ the hats and

    $$k(\nu,x,y)=\delta+\sum_l\frac{\kappa_\nu(x,\chi_l)}{\nu(\chi_l)\vee\tau}\,\chi_l(y).$$

    For $\tau=\delta=0$ softmax spreads the mass of every cell as $\nu$ does, so that
    $W_1\le\rho$. What $\tau$ takes away is
    $e(x)=\sum_l\kappa_\nu(x,\chi_l)\,(1-\nu(\chi_l)/\tau)_+$. The rest, of mass $1-e$, lies below
    the exact density; $\delta$ is added and rows are normalised: the total variation is at most
    $\max(e,\delta)$, and

    $$\sup_xW_1\le\rho+\operatorname{diam}\cdot\max\bigl(\sup_xe(x),\delta\bigr).$$

    Of all measures at once $e\le N\omega(\tau)$, where
    $\omega(\tau)=\sup\{\kappa_\nu(x,\chi_l):\nu(\chi_l)\le\tau\}$ tends to 0 with $\tau$, because
    the rule is continuous and lives on the support of $\nu$.

    Examples:
        >>> mu = pf.Measure(torch.rand(50, 1))
        >>> rule = pf.approximation.SoftNearest(0.1)
        >>> hats = pf.approximation.Hats.around(mu, cells=9)
        >>> near = pf.approximation.SoftmaxApproximation(rule, hats)
        >>> error = pf.approximation.relation_distance(near(mu, mu), rule(mu, mu), mu, mu)
        >>> bool(error < near.bound(mu, mu))
        True
    """  # noqa: D415

    normaliser = Softmax()

    def affinity(self, mu: Measure, nu: Measure, x: Tensor, y: Tensor) -> Tensor:
        """The rule is asked at `x`; `mu` does not matter."""
        share, mass = self._cells(x.squeeze(-2), nu)
        density = share / mass.clamp_min(self._floor)[..., None, :]
        return (density @ self.hats(y.squeeze(-3)).mT + self.delta).log()

    def bound(self, mu: Measure, nu: Measure) -> Gap:
        """The second formula above, the atoms of `mu` being the $x$."""
        share, mass = self._cells(mu.atoms, nu)
        lost = (share * ((self.tau - mass).clamp_min(0) / self._floor)[..., None, :]).sum(-1)
        worst = lost.masked_fill(mu.log_weights == -torch.inf, 0).amax(-1)
        return self.hats.diameter + self.hats.extent * worst.clamp_min(self.delta)

    def _cells(self, x: Tensor, nu: Measure) -> tuple[Tensor, Tensor]:
        r"""$\kappa_\nu(x,\chi_l)$ and $\nu(\chi_l)$."""
        kappa = self.rule(Measure(x), nu)
        fix = "A matrix becomes one: `pf.Conditional.from_matrix(matrix, nu)`."
        check_kind("rule(mu, nu)", kappa, Conditional, fix)
        return _integrals(self.hats, kappa.matrix(), nu), _masses(self.hats, nu)


@dataclass(frozen=True, eq=False)
class SinkhornApproximation(Approximation):
    r"""A coupling system by Sinkhorn (Theorem K), $A=\log k$ with $\varphi_k$, $\chi_l$ hats and

    $$k=\delta+(1-\delta)\sum_{kl}\frac{\pi(\varphi_k\otimes\chi_l)}
    {(\mu(\varphi_k)\vee\tau)\,(\nu(\chi_l)\vee\tau)}\,\varphi_k(x)\,\chi_l(y).$$

    For $\tau=0$ its marginals are $\mu$ and $\nu$ already, and Sinkhorn leaves it alone; if
    $\delta=0$ too, masses of cells are spread, $W_1\le\sqrt{\rho_X^2+\rho_Y^2}$ in the Euclidean
    distance of pairs. What $\delta$ and $\tau$ change is at most $\delta$ and $\frac12\sqrt J$ in
    total variation, $J$ being the symmetric divergence. It counts times the smaller of the two
    diameters, because couplings of the same measures differ by moves of one coordinate. And

    $$J\le\int\log\frac{k_{0,\delta}}{k_{\tau,\delta}}\,d\pi_{0,\delta}
    \le\sum_k\mu(\varphi_k)\log^+\frac\tau{\mu(\varphi_k)}
    +\sum_l\nu(\chi_l)\log^+\frac\tau{\nu(\chi_l)}\le\frac{(N+M)\,\tau}e,$$

    since $\tau$ lowers the affinity only, by the log-sum inequality, and as $t\log\frac1t\le1/e$:
    the last bound needs nothing of the rule and holds for all measures at once.

    Args:
        queries: hats on the side of the queries, by default `hats` again.

    Examples:
        >>> mu, nu = pf.Measure(torch.rand(30, 1)), pf.Measure(torch.rand(20, 1))
        >>> rule = pf.approximation.QuantileCoupling()
        >>> hats = pf.approximation.Hats.around(mu, nu, cells=9)
        >>> near = pf.approximation.SinkhornApproximation(rule, hats)
        >>> error = pf.approximation.relation_distance(near(mu, nu), rule(mu, nu), mu, nu)
        >>> bool(error < near.bound(mu, nu) <= near.uniform_bound)
        True
    """  # noqa: D415

    # The scores nearly are those of a coupling: no need to come from a high temperature.
    normaliser = Sinkhorn(anneal=False)
    _: KW_ONLY
    queries: Hats | None = None

    def affinity(self, mu: Measure, nu: Measure, x: Tensor, y: Tensor) -> Tensor:
        """The masses of cells between `mu` and `nu`, spread to `x` and `y`."""
        cells = _integrals(self.hats, self._coupled(mu, nu), nu)
        cells = _integrals(self._queries, cells.mT, mu).mT
        a, b = _masses(self._queries, mu), _masses(self.hats, nu)
        for mass in (a[..., :, None], b[..., None, :]):  # in turn: their product may underflow
            cells = cells / mass.clamp_min(self._floor)
        spread = self._queries(x.squeeze(-2)) @ cells @ self.hats(y.squeeze(-3)).mT
        return ((1 - self.delta) * spread + self.delta).log()

    def bound(self, mu: Measure, nu: Measure) -> Gap:
        r"""With $\mu(\varphi_k)$ and $\nu(\chi_l)$ as they are; the tolerance is not counted."""
        tiny = torch.finfo(mu.log_weights.dtype).tiny
        light = lambda mass: mass * (self.tau / mass.clamp_min(tiny)).clamp_min(1).log()
        a, b = _masses(self._queries, mu), _masses(self.hats, nu)
        return self._total(light(a).sum(-1) + light(b).sum(-1))

    @property
    def uniform_bound(self) -> float:
        r"""For all measures on the boxes: $J\le(N+M)\,\tau/e$."""
        count = self.hats.count + self._queries.count
        return self._total(torch.tensor(count * self.tau / math.e)).item()

    def _total(self, divergence: Tensor) -> Tensor:
        spread = math.hypot(self.hats.diameter, self._queries.diameter)
        apart = min(self.hats.extent, self._queries.extent)
        return spread + apart * (self.delta + divergence.sqrt() / 2)

    @property
    def _queries(self) -> Hats:
        return self.hats if self.queries is None else self.queries

    def _coupled(self, mu: Measure, nu: Measure) -> Tensor:
        """The masses the rule gives, if it is a coupling system."""
        fix = "A matrix becomes one: `pf.Coupling.from_matrix(matrix)`."
        pi = cast(Coupling, self.rule(mu, nu))
        check_kind("rule(mu, nu)", pi, Coupling, fix)
        for mass, m in zip(pi.marginals(), (mu, nu), strict=True):
            if not holds((mass - m.log_weights.softmax(-1)).abs().sum(-1).max() < 1e-3):
                raise ValueError(
                    "A coupling system must couple the measures it is given, got other marginals. "
                    "`Conditional.project(mu, nu)` makes a coupling of a conditional."
                )
        return pi.matrix()


@torch.no_grad()
def relation_distance(first: Relation, second: Relation, mu: Measure, nu: Measure) -> Gap:
    r"""How far two relations of the same atoms are apart, in $W_1$.

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
    p, q = (r.matrix().to(mu.log_weights.dtype) for r in (first, second))
    if kind is Conditional:
        atoms = nu.atoms[..., None, :, :].expand(*p.shape, nu.dim)
        gap = wasserstein(Measure(atoms, p).normalise(), Measure(atoms, q).normalise())
        return gap.masked_fill(mu.log_weights == -torch.inf, 0).amax(-1)
    sides = mu.atoms[..., :, None, :], nu.atoms[..., None, :, :]
    pairs = torch.cat([z.expand(*p.shape, z.shape[-1]) for z in sides], -1).flatten(-3, -2)
    # W1 sees the difference alone, so that mass the two share need not be moved
    parts = [(p - q).clamp_min(0).flatten(-2), (q - p).clamp_min(0).flatten(-2)]
    same = torch.minimum(*(part.sum(-1) for part in parts)) == 0
    over, under = (Measure(pairs, part + same[..., None]).normalise() for part in parts)
    return torch.where(same, 0, parts[0].sum(-1) * wasserstein(over, under))


def sup_error(first: Rule, second: Rule, pairs: Iterable[tuple[Measure, Measure]]) -> float:
    r"""The largest `relation_distance` of two rules over pairs of measures $(\mu,\nu)$.

    The supremum over all measures is at least that.

    Args:
        first: a rule, such as an approximation or a trained head.
        second: a rule, such as its target.
        pairs: the measures to look at.
    """
    gaps = (relation_distance(first(mu, nu), second(mu, nu), mu, nu) for mu, nu in pairs)
    return max(gap.max().item() for gap in gaps)


def _integrals(hats: Hats, matrix: Tensor, nu: Measure) -> Tensor:
    """Integrals of the hats under the rows of a matrix, one column per atom."""
    values = hats(nu.atoms)
    return matrix.to(values.dtype) @ values


def _masses(hats: Hats, nu: Measure) -> Tensor:
    r"""$\nu(\chi_l)$."""
    return _integrals(hats, nu.log_weights.softmax(-1)[..., None, :], nu).squeeze(-2)
