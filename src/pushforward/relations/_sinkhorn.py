"""Couplings: Sinkhorn to a tolerance or for some steps, and what it says when it fails."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from .._tools.checks import check_number, holds
from ..affinities import DenseScores, PointScores, Scores
from ..sinkhorn import (
    Problem,
    Settings,
    alternate,
    diagnose,
    differentiable,
    rebalanced,
    solve,
    tilted,
)
from ._normaliser import TOL, Found, Normaliser


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
    def to_tolerance(self) -> bool:  # type: ignore[override]
        """Whether it runs to a tolerance instead of a number of steps."""
        return self.steps is None

    @property
    def _slacks(self) -> tuple[float, float]:
        return self.slack if isinstance(self.slack, tuple) else (self.slack, self.slack)

    def slack_of(self, scores: Scores) -> tuple[float, float]:
        """The slack of both problem in units of score."""
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
        problem = Problem(log_a, log_b, self.slack_of(scores))
        if self.steps is not None:
            g = torch.zeros_like(log_b) if start is None else start
            return Found(alternate(scores, problem, g, self.steps), self.steps)
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
            problem = replace(problem, log_a=log_a, log_b=log_b)
        scores, problem = _feasible(scores, problem)
        if self.keeps == "both" and _mirrored(scores, problem):
            problem = replace(problem, symmetric=True)
        settings = Settings(self.goal, self.max_steps, self.anneal, self.accelerate)
        end = solve(scores.detach(), problem.detach(), settings, start)
        worst = float(end.residual.max()) if end.residual.numel() else 0.0
        if not worst <= self.goal:
            self._complain(worst, end.steps, scores)
        g = differentiable(scores, problem, end.g)
        return Found(g, end.steps, problem.parts, scores, problem.log_b)

    def density(self, scores, log_b, found):
        """With slack, $f$ is damped; without, rows are normalised."""
        if self.keeps == "both":
            return scores, None
        tau = Problem(log_b, log_b, self.slack_of(scores)).damping[0]
        return scores, -tau * scores.over_keys(tilted(log_b, found.g))

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


def _feasible(scores: Scores, problem: Problem) -> tuple[Scores, Problem]:
    """Scores whose allowed pairs can all carry mass, and the parts they fall into."""
    if not isinstance(scores, DenseScores):
        return scores, problem
    forbidden = scores.values == -torch.inf
    if holds(~forbidden.any()):
        return scores, problem
    if not problem.balanced:
        return scores, problem  # marginals may give way: every pattern is feasible
    pattern = diagnose(~forbidden, problem.log_a, problem.log_b)
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
    problem = replace(problem, parts=pattern.parts)
    return scores, replace(problem, log_b=rebalanced(problem))


def _mirrored(scores: Scores, problem: Problem) -> bool:
    """Whether both problem are one cloud of points with the same weights."""
    if not isinstance(scores, PointScores) or scores.times is not None:
        return False
    pairs = zip((*scores.queries, problem.log_a), (*scores.keys, problem.log_b), strict=True)
    return all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs)
