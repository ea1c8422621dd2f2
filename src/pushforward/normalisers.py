r"""Normalisers: how an affinity becomes a relation.

A normaliser makes of the scores $A$ a density $e^{A'+f(x)+g(y)}$ against $\mu\otimes\nu$. What it
has to find out about the two measures as wholes is a potential $g$ on the keys; the rest follows
query by query, so that a relation can be evaluated anywhere.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from ._checks import check_number, holds
from .feasibility import diagnose
from .implicit import differentiable
from .marginals import Marginals, charge, rebalanced
from .scores import DenseScores, MappedScores, PointScores, Scores
from .sinkhorn import Settings, alternate, solve

TOL = 1e-6
"""The marginal error `Sinkhorn()` goes for, and below which a relation counts as a coupling."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a normaliser found out about two measures.

    Args:
        g: the potential on the keys, None for zero.
        steps: iterations it took.
        parts: connected parts of the pattern of allowed pairs, None for one.
        scores: those to use from now on, where they changed: other dtype, fewer pairs.
        log_b: the log-weights of the keys to use from now on, where rounding had to be mended.
    """

    g: Float[Tensor, "*#b n"] | None = None
    steps: int = 0
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None
    scores: Scores | None = None
    log_b: Float[Tensor, "*#b n"] | None = None


class Normaliser(ABC):
    """A way to make a relation of scores."""

    two_sided: ClassVar[bool] = False
    """Whether it needs a measure on the side of the queries too."""
    pointwise: ClassVar[bool] = True
    """Whether it can be asked at queries that are no atoms."""
    keeps: Literal["rows", "both", "none"]
    """Which marginals its relations have: a conditional, a coupling, or neither."""

    @abstractmethod
    def find(
        self, scores: Scores, log_a: Tensor, log_b: Tensor, start: Tensor | None = None
    ) -> Found:
        """What depends on both measures as wholes.

        Args:
            scores: between the query measure and the context.
            log_a: log-weights of the query measure, normalised.
            log_b: log-weights of the context, normalised.
            start: a potential on the keys to start from.
        """

    def density(self, scores: Scores, log_b: Tensor, found: Found) -> tuple[Scores, Tensor | None]:
        """At any queries: the scores $A'$, and $f$ unless rows are to be normalised."""
        return scores, None


@dataclass(frozen=True)
class Softmax(Normaliser):
    r"""Conditional distributions: $\kappa(x,dy)=e^{A(x,y)}\nu(dy)/\int e^{A(x,z)}\nu(dz)$.

    The joint $\mu\otimes\kappa$ minimises
    $\int c\,d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$ with $c=-\varepsilon A$ among all
    plans whose first marginal is $\mu$.
    """

    keeps = "rows"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing: no constraint on the columns."""
        return Found()


@dataclass(frozen=True, kw_only=True)
class Sinkhorn(Normaliser):
    r"""Couplings of query measure $\mu$ and context $\nu$: $\pi=e^{A+f\oplus g}\mu\otimes\nu$.

    $\pi$ minimises $\int c\,d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$ with
    $c=-\varepsilon A$ among all couplings. One step is $f=-\log\int e^{A+g}d\nu$, then
    $g=-\log\int e^{A+f}d\mu$. Rows are normalised last, hence exact; what is left is the error of
    the columns.

    Either a tolerance or a number of steps is given:

    - `Sinkhorn(tol=1e-6)` runs until the error in L1 is below `tol`, accelerated; its gradients
      are implicit, so memory does not grow with the steps. If it fails, it says so in a warning
      and in `converged`. In float32, where rounding of the scores leaves an error of about
      $10^{-8}$ times their range, a smaller `tol` makes it compute in float64.
    - `Sinkhorn(steps=20)` takes plain steps and never waits for the device. Gradients go through
      the steps. Zero steps is `Softmax`.

    Args:
        tol: error to reach, 1e-6 unless `steps` is given.
        max_steps: steps after which it gives up.
        steps: number of plain steps instead.
        slack: $\rho$ or a pair $(\rho_\mu,\rho_\nu)$, in units of cost: marginals are not
            prescribed but pulled by $\rho\,\mathrm{KL}(\pi_1|\mu)$; infinite for prescribed.
            The result is a plan without certified marginals (unbalanced transport).
        anneal: whether to begin at high temperature.
        accelerate: whether to mix steps by Anderson's method, safeguarded.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> pi = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=pf.Sinkhorn(tol=1e-5))
        >>> bool(pi.converged)
        True
    """

    tol: float | None = None
    max_steps: int = 10_000
    steps: int | None = None
    slack: float | tuple[float, float] = math.inf
    anneal: bool = True
    accelerate: bool = True
    two_sided: ClassVar[bool] = True

    def __post_init__(self):
        if self.tol is not None and self.steps is not None:
            raise ValueError("Give `tol` or `steps`, not both.")
        if self.steps is not None and not (isinstance(self.steps, int) and self.steps >= 0):
            raise ValueError(f"`steps` must be a whole number, not negative, got {self.steps}.")
        if self.tol is not None:
            check_number("tol", self.tol)
        if not (isinstance(self.max_steps, int) and self.max_steps >= 1):
            raise ValueError(f"`max_steps` must be at least 1, got {self.max_steps}.")
        if len(self._slacks) != 2:
            raise ValueError(f"`slack` must be a number or a pair of numbers, got {self.slack}.")
        for slack in self._slacks:
            check_number("slack", slack)

    @property
    def _slacks(self) -> tuple[float, float]:
        return self.slack if isinstance(self.slack, tuple) else (self.slack, self.slack)

    def slack_of(self, scores: Scores) -> tuple[float, float]:
        """The slack of both sides in units of score."""
        a, b = (r / scores.unit for r in self._slacks)
        return a, b

    @property
    def keeps(self) -> Literal["both", "none"]:  # type: ignore[override]
        """Both marginals, unless there is slack."""
        return "both" if all(map(math.isinf, self._slacks)) else "none"

    @property
    def goal(self) -> float:
        """The error below which a relation counts as converged."""
        return TOL if self.tol is None else self.tol

    def find(self, scores, log_a, log_b, start=None):
        """The potential on the keys."""
        sides = Marginals(log_a, log_b, self.slack_of(scores))
        if self.steps is not None:
            g = torch.zeros_like(log_b) if start is None else start
            return Found(alternate(scores, sides, g, self.steps), self.steps)
        with torch.no_grad():
            size = float(scores.size())
        if not size < math.inf:
            raise ValueError(
                "Scores must be finite, or -inf where a pair is forbidden, got NaN or inf from "
                "queries and keys. Look for what made them so upstream."
            )
        if scores.dtype == torch.float32 and self.goal < floor(size):
            scores = scores.to(torch.float64)
            # Normalised in float32, masses are off by 1e-7 and no coupling of them exists.
            log_a, log_b = (t.double().log_softmax(-1) for t in (log_a, log_b))
            sides = replace(sides, log_a=log_a, log_b=log_b)
        scores, sides = _feasible(scores, sides)
        if self.keeps == "both" and _mirrored(scores, sides):
            sides = replace(sides, symmetric=True)
        settings = Settings(self.goal, self.max_steps, self.anneal, self.accelerate)
        end = solve(scores.detach(), sides.detach(), settings, start)
        worst = float(end.residual.max()) if end.residual.numel() else 0.0
        if not worst <= self.goal:
            self._complain(worst, end.steps, scores)
        g = differentiable(scores, sides, end.g)
        return Found(g, end.steps, sides.parts, scores, sides.log_b)

    def density(self, scores, log_b, found):
        """With slack, $f$ is damped; without, rows are normalised."""
        if self.keeps == "both":
            return scores, None
        tau = Marginals(log_b, log_b, self.slack_of(scores)).damping[0]
        return scores, -tau * scores.over_keys(charge(log_b, found.g))

    def _complain(self, residual: float, steps: int, scores: Scores) -> None:
        hint = "Raise `max_steps`, `tol` or the temperature (`eps`, or a smaller scale)"
        if not self.accelerate:
            hint = "Use `accelerate=True`, or raise `max_steps`, `tol` or the temperature"
        warnings.warn(
            f"Sinkhorn stopped after {steps} steps with a marginal error of {residual:.1e}, above "
            f"tol={self.goal:g}; scores are of size {float(scores.size()):.0f}. {hint}.",
            stacklevel=2,
        )


def floor(size: float) -> float:
    """The marginal error that rounding leaves in float32, for scores of that size."""
    return 1e-8 * max(2 * size, 100.0)


def _feasible(scores: Scores, sides: Marginals) -> tuple[Scores, Marginals]:
    """Scores whose allowed pairs can all carry mass, and the parts they fall into."""
    if not isinstance(scores, DenseScores):
        return scores, sides
    forbidden = scores.values == -torch.inf
    if holds(~forbidden.any()):
        return scores, sides
    if not sides.balanced:
        return scores, sides  # marginals may give way: every pattern is feasible
    pattern = diagnose(~forbidden, sides.log_a, sides.log_b)
    if pattern.deficit > 0:
        raise ValueError(
            f"No coupling of these marginals lives on the allowed pairs: at least "
            f"{pattern.deficit:.2g} of the mass has nowhere to go (the mask has no support). "
            "Allow more pairs, give other marginals, relax them with `Sinkhorn(slack=...)`, or "
            "use `Softmax()`."
        )
    idle = int(pattern.idle.sum())
    if idle:
        warnings.warn(
            f"The mask has support but not total support: {idle} of its allowed pairs carry no "
            "mass in any coupling of these marginals. Plain Sinkhorn would tend, like 1/steps, to "
            "the coupling on the other pairs; that limit is what is returned. (A causal mask with "
            "equal marginals has the identity as its only coupling: use `Softmax()` there, or "
            "give marginals that leave room.)",
            stacklevel=3,
        )
        scores = scores.forbidding(pattern.idle)
    sides = replace(sides, parts=pattern.parts)
    return scores, replace(sides, log_b=rebalanced(sides))


def _mirrored(scores: Scores, sides: Marginals) -> bool:
    """Whether both sides are one cloud of points with the same weights."""
    if not isinstance(scores, PointScores) or scores.times is not None:
        return False
    pairs = zip((*scores.queries, sides.log_a), (*scores.keys, sides.log_b), strict=True)
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)


@dataclass(frozen=True)
class DualSoftmax(Normaliser):
    r"""The product of both conditionals, $e^{2A-r(x)-c(y)}$, as keypoint matchers use it.

    $r=\log\int e^Ad\nu$ and $c=\log\int e^Ad\mu$. Neither marginal is kept: masses are
    confidences.
    """

    two_sided: ClassVar[bool] = True
    keeps = "none"

    def find(self, scores, log_a, log_b, start=None):
        """Minus the columns' normalisation."""
        return Found(-scores.over_queries(log_a))

    def density(self, scores, log_b, found):
        """Twice the scores, minus the rows' normalisation."""
        return scores.scaled(2), -scores.over_keys(log_b)


@dataclass(frozen=True)
class Sigmoid(Normaliser):
    r"""Independent pairs: the density $\sigma(A+\beta)=1/(1+e^{-A-\beta})$.

    Args:
        bias: $\beta$.
    """

    bias: float = 0.0
    keeps = "none"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing."""
        return Found()

    def density(self, scores, log_b, found):
        r"""$\log\sigma(A+\beta)$ as scores."""
        mapped = MappedScores(scores, lambda tile: logsigmoid(tile + self.bias))
        return mapped, torch.zeros_like(scores.over_keys(log_b))


@dataclass(frozen=True)
class Hard(Normaliser):
    r"""The coupling of least cost $\int c\,d\pi$, $c=-A$: what Sinkhorn tends to as
    $\varepsilon\to0$.

    With equal numbers of atoms of equal weights it is a permutation, found as a linear sum
    assignment by SciPy, else an exact transport plan, found by POT. It is piecewise constant in
    the points, so its gradients in them are zero, and it relates atoms only.
    """  # noqa: D205

    two_sided: ClassVar[bool] = True
    pointwise: ClassVar[bool] = False
    keeps = "both"

    @property
    def goal(self) -> float:
        """Exact up to rounding."""
        return TOL

    def find(self, scores, log_a, log_b, start=None):
        """The plan, as scores of its own."""
        with torch.no_grad():
            a, b = (logs.double().exp() for logs in (log_a, log_b))
            *batch, m, n = scores.shape
            fold = lambda t, *shape: t.expand(*batch, *shape).reshape(-1, *shape).cpu().numpy()
            costs = -scores.unit * scores.matrix()
            each = zip(fold(costs.double(), m, n), fold(a, m), fold(b, n), strict=True)
            plans = torch.stack([_exact_plan(*problem) for problem in each])
            plan = plans.reshape(*batch, m, n).to(log_b.device)
            product = a[..., :, None] * b[..., None, :]
            density = torch.where(plan > 0, plan / torch.where(product > 0, product, 1), 0)
        return Found(scores=DenseScores(density.log().to(log_b.dtype), scores.unit, costs))


def _exact_plan(cost, a, b) -> Tensor:
    """A coupling of least cost, of NumPy arrays."""
    import numpy as np

    forbidden = np.isposinf(cost)
    finite = cost[np.isfinite(cost)]
    cost = np.where(forbidden, 1 + len(cost) * np.ptp(finite) + finite.max(), cost)
    plan = _least_cost(cost, a, b)
    if plan[forbidden].sum() > 1e-12:
        raise ValueError(
            "No coupling of these marginals lives on the allowed pairs. Allow more pairs, or give "
            "other marginals."
        )
    return torch.from_numpy(plan)


def _least_cost(cost, a, b):
    """By assignment where atoms are equal, by a transport problem elsewhere."""
    import numpy as np

    if (
        len(a) == len(b)
        and np.allclose(a, 1 / len(a), rtol=1e-6, atol=0)
        and np.allclose(a, b, 1e-6, 0)
    ):
        from scipy.optimize import linear_sum_assignment

        plan = np.zeros_like(cost)
        rows, columns = linear_sum_assignment(cost)
        plan[rows, columns] = a[rows]
        return plan
    try:
        import ot
    except ImportError as error:
        raise ImportError("Exact plans need POT. Install it: `pip install POT`.") from error
    return ot.emd(a / a.sum(), b / b.sum(), cost, numItermax=10_000_000)
