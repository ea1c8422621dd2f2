"""Couplings: Sinkhorn to a tolerance or for some steps, and the exact plan of least cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .._tools.checks import check_flags, check_number, check_sizes, check_whole, holds
from .._tools.exact import assignment, transport
from .._tools.warn import warn
from ..affinities import Scores, TileScores
from ..sinkhorn import Problem, Settings, alternate, diagnose, differentiable, rebalanced, solve
from ._masses import Masses, weights_or_ones
from ._normalisers import Normaliser
from ._probabilities import Coupling
from ._relation import TOL, precise_scores


@dataclass(frozen=True, kw_only=True)
class Sinkhorn(Normaliser):
    r"""Couplings of $\mu$ and $\nu$, $\pi=e^{A+f\oplus g}\,\mu\otimes\nu$ [B, coupling].

    $\mu$ is the measure of the queries, $\nu$ the context. Among all couplings, $\pi$ minimises
    $\int c\,d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$ with $c=-\varepsilon A$. One step is
    $f=-\log\int e^{A+g}d\nu$, then $g=-\log\int e^{A+f}d\mu$. Rows are normalised last, hence
    exact; the error that remains is that of the columns.

    Either a tolerance or a number of steps is given:

    - `Sinkhorn(tol=1e-6)` runs until the error in L1 is below `tol`, accelerated; its gradients
      are implicit, so memory does not grow with the steps. If it fails, it warns, and `converged`
      is False. In float32, where rounding of the scores leaves an error of about
      $10^{-8}$ times their range, a smaller `tol` makes it compute in float64.
    - `Sinkhorn(steps=20)` takes plain steps and never waits for the device. Gradients go through
      the steps. Zero steps is `Softmax`.

    Args:
        tol: error to reach, 1e-6 unless `steps` is given.
        max_steps: steps after which it gives up.
        steps: number of plain steps instead.
        slack: $\rho$ or a pair $(\rho_\mu,\rho_\nu)$, in units of cost: marginals are not
            prescribed, but $\rho\,\mathrm{KL}(\pi_1|\mu)$ is added to the objective; infinite for
            a prescribed one.
            The result is a plan without certified marginals (unbalanced transport).
        anneal: whether to begin at high temperature.
        accelerate: whether to mix steps by Anderson's method, safeguarded.
        memory: bytes that a kernel stored in memory may take, to a tolerance; by default 1 GiB on
            a CPU, 8 GiB on a GPU. Where it does not fit, or with 0, every step streams through
            the points, in memory linear in their number.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> pi = pf.relate(mu, nu, normaliser=pf.Sinkhorn(tol=1e-5))
        >>> bool(pi.converged)
        True
    """

    tol: float | None = None
    max_steps: int = 10_000
    steps: int | None = None
    slack: float | tuple[float, float] = math.inf
    anneal: bool = True
    accelerate: bool = True
    memory: int | None = None
    needs_query_measure: ClassVar[bool] = True
    takes_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tol is not None and self.steps is not None:
            raise ValueError("Give `tol` or `steps`, not both.")
        if self.steps is not None:
            check_whole("steps", self.steps, least=0)
        if self.tol is not None:
            check_number("tol", self.tol)
        check_sizes(max_steps=self.max_steps)
        check_flags(anneal=self.anneal, accelerate=self.accelerate)
        if len(self._slacks) != 2:
            raise ValueError(f"`slack` must be a number or a pair of numbers, got {self.slack}.")
        for slack in self._slacks:
            check_number("slack", slack)
        if self.memory is not None:  # bytes
            check_whole("memory", self.memory, least=0)

    @property
    def to_tolerance(self) -> bool:  # type: ignore[override]
        """Whether it runs to a tolerance instead of a number of steps."""
        return self.steps is None

    @property
    def _slacks(self) -> tuple[float, float]:
        return self.slack if isinstance(self.slack, tuple) else (self.slack, self.slack)

    @property
    def balanced(self) -> bool:
        """Whether both marginals are prescribed: there is no slack, and it makes couplings."""
        return all(map(math.isinf, self._slacks))

    @property
    def _tol(self) -> float:
        return TOL if self.tol is None else self.tol

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Coupling | Masses:
        if log_a is None:
            raise ValueError("Sinkhorn needs the weights of the queries, got None.")
        a, b = (slack / scores.unit for slack in self._slacks)
        problem, dtype = Problem(log_a, log_b, (a, b)), scores.dtype
        if self.steps is not None:
            g = torch.zeros_like(log_b) if start is None else start
            g = alternate(scores, problem, g, self.steps)
            return self._plan(scores, problem, g, self.steps, dtype)
        scores, problem = self._prepared(scores, problem)
        settings = Settings(self._tol, self.max_steps, self.anneal, self.accelerate, self.memory)
        end = solve(scores.detach(), problem.detach(), settings, start)
        worst = float(end.residual.max()) if end.residual.numel() else 0.0
        if not worst <= self._tol:
            self._warn(worst, end.steps, scores)
        g = differentiable(scores, problem, end.g, self.memory)
        return self._plan(scores, problem, g, end.steps, dtype)

    def _prepared(self, scores: Scores, problem: Problem) -> tuple[Scores, Problem]:
        """A problem that has a solution, in a precision that can show it."""
        with torch.no_grad():
            size = float(scores.size())
        if not size < math.inf:
            raise ValueError(
                "Scores must be finite, or -inf where a pair is forbidden, got NaN or inf from "
                "queries and keys. Check the queries and keys for NaN and infinity."
            )
        scores = precise_scores(scores, size, self._tol)
        if scores.dtype != problem.log_b.dtype:
            # Normalised in float32, masses are off by 1e-7 and no coupling of them exists.
            log_a, log_b = (_as(logs, scores.dtype) for logs in (problem.log_a, problem.log_b))
            problem = replace(problem, log_a=log_a, log_b=log_b)
        scores, problem = _feasible(scores, problem)
        same = self.balanced and scores.self_scores
        if same and torch.equal(problem.log_a, problem.log_b):
            problem = replace(problem, symmetric=True)
        return scores, problem

    def _plan(
        self, scores: Scores, problem: Problem, g: Tensor, steps: int, dtype: torch.dtype
    ) -> Coupling | Masses:
        """The plan of a potential on the keys: $f$ follows by half a step."""
        extension = partial(self._elsewhere, problem=problem, g=g, steps=steps)
        log_a, log_b, parts = problem.log_a, problem.log_b, problem.parts
        if self.balanced:  # f normalises the rows: it need not be kept
            return Coupling(
                scores, log_b, g, log_a, None, steps, self._tol, parts,
                dtype=dtype, extension=extension,
            )  # fmt: skip
        f = problem.rows(scores, g)
        return Masses(
            scores, log_b, g, log_a, f, steps, self._tol, parts,
            slack=problem.slack, dtype=dtype, extension=extension,
        )  # fmt: skip

    def _elsewhere(
        self, scores: Scores, log_a: Tensor | None, problem: Problem, g: Tensor, steps: int
    ) -> Coupling | Masses:
        """The plan of the same potential on the keys, with other queries."""
        log_a = weights_or_ones(log_a, problem.log_b, scores.shape)
        problem = replace(problem, log_a=_as(log_a, g.dtype), parts=None)
        others = scores if scores.dtype == g.dtype else scores.to(g.dtype)
        return self._plan(others, problem, g, steps, scores.dtype)

    def _warn(self, residual: float, steps: int, scores: Scores) -> None:
        hint = "Raise `max_steps`, `tol` or the temperature (`eps`, or a smaller scale)"
        if not self.accelerate:
            hint = "Use `accelerate=True`, or raise `max_steps`, `tol` or the temperature"
        warn(
            f"Sinkhorn stopped after {steps} steps with a marginal error of {residual:.1e}, above "
            f"tol={self._tol:g}; scores are of size {float(scores.size()):.0f}. {hint}."
        )


@dataclass(frozen=True)
class Exact(Normaliser):
    r"""The coupling of least cost $\int c\,d\pi$, $c=-A$: the limit of Sinkhorn as
    $\varepsilon\to0$.

    With equal numbers of atoms of equal weights it is a permutation, a linear sum assignment
    solved by SciPy, else an exact transport plan, solved by POT. It is piecewise constant in the
    points, so its gradients in them are zero, and it relates atoms only.

    Examples:
        >>> mu, nu = (pf.Measure(torch.tensor(x)[:, None]) for x in ([0.0, 1.0], [1.1, 0.2]))
        >>> near, to = pf.SquaredDistance(1.0), pf.relations.Exact()
        >>> pf.relate(mu, nu, affinity=near, normaliser=to).matrix()
        tensor([[0.0000, 0.5000],
                [0.5000, 0.0000]])
    """  # noqa: D205

    needs_query_measure: ClassVar[bool] = True
    any_query: ClassVar[bool] = False

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Coupling:
        if log_a is None:
            raise ValueError("An exact plan needs the weights of the queries, got None.")
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
        log_density = TileScores.from_matrix(density.log().to(log_b.dtype), scores.unit)
        return Coupling(log_density, log_b, None, log_a, dtype=scores.dtype, costs=scores.detach())


def _as(logs: Tensor, dtype: torch.dtype) -> Tensor:
    """Log-weights in a dtype, of mass one in that dtype."""
    return logs if logs.dtype == dtype else logs.to(dtype).log_softmax(-1)


def _feasible(scores: Scores, problem: Problem) -> tuple[Scores, Problem]:
    """Scores whose allowed pairs can all carry mass, and the connected parts of their pattern."""
    forbidden = scores.forbidden
    if forbidden is None or not problem.balanced or holds(~forbidden.any()):
        return scores, problem  # where marginals are not prescribed, every pattern is feasible
    pattern = diagnose(~forbidden, problem.log_a, problem.log_b)
    if pattern.deficit > 0:
        raise ValueError(
            "No coupling with these marginals uses allowed pairs only: at least "
            f"{pattern.deficit:.2g} of the mass cannot be matched (the mask has no support). "
            "Allow more pairs, give other marginals, relax them with `Sinkhorn(slack=...)`, or "
            "use `Softmax()`."
        )
    idle = int(pattern.idle.sum())
    if idle:
        warn(
            f"The mask has support but not total support: {idle} of its allowed pairs carry no "
            "mass in any coupling of these marginals. Plain Sinkhorn would tend, like 1/steps, to "
            "the coupling on the other pairs; that limit is what is returned. (A causal mask with "
            "equal marginals has the identity as its only coupling: use `Softmax()` there, or "
            "give marginals that leave room.)"
        )
        scores = scores.forbidding(pattern.idle)
    problem = replace(problem, parts=pattern.parts)
    return scores, replace(problem, log_b=rebalanced(problem))


def _exact_plan(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> Tensor:
    """A coupling of least cost: an assignment where atoms have equal weights, or a transport."""
    forbidden = np.isposinf(cost)
    finite = cost[np.isfinite(cost)]
    cost = np.where(forbidden, 1 + len(cost) * np.ptp(finite) + finite.max(), cost)
    n = len(a)
    if len(b) == n and all(np.allclose(w, 1 / n, rtol=1e-6, atol=0) for w in (a, b)):
        plan = np.zeros_like(cost)
        plan[np.arange(n), assignment(cost)] = a
    else:
        plan = transport(a, b, cost).masses
    if plan[forbidden].sum() > 1e-12:
        raise ValueError(
            "No coupling with these marginals uses allowed pairs only. Allow more pairs, or give "
            "other marginals."
        )
    return torch.from_numpy(plan)
