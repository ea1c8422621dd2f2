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
from .._tools.exact import matching, transport
from .._tools.once import DifferentiableOnce
from .._tools.precision import full_precision
from .._tools.warn import warn
from ..affinities import Layout, Scores, TileScores
from ..sinkhorn import Problem, Settings, alternate, diagnose, differentiable, rebalanced, solve
from ._masses import Masses, weights_or_ones
from ._normalisers import Normaliser
from ._probabilities import Coupling
from ._relation import TOL, check_finite_scores, check_rounding, precise_scores

ROUNDING = 4
"""Units in the last place of the largest score by which the error of a plan may exceed the one
that the solver saw. Both compute a score and its sums with two potentials. These are eight
roundings by at most half a unit."""

ONCE = "An exact plan is differentiable once: its gradient holds the plan fixed"
"""Why a second derivative is refused."""


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
      is False. Scores so large that their rounding exceeds 1 are refused. In float32, where
      rounding of the scores leaves an error of about $10^{-8}$ times their range, a smaller `tol`
      makes it compute in float64.
    - `Sinkhorn(steps=20)` takes plain steps and never waits for the device. Gradients go through
      the steps; in linear memory they wait once, on the way back. Zero steps is `Softmax`. It
      promises no tolerance, so it never warns: `residual` is the error that is left.

    Args:
        tol: error to reach, 1e-6 unless `steps` is given.
        max_steps: steps after which it gives up.
        steps: number of plain steps instead.
        slack: $\rho$ or a pair $(\rho_\mu,\rho_\nu)$, in units of cost: marginals are not
            prescribed, but $\rho\,\mathrm{KL}(\pi_1|\mu)$ is added to the objective; infinite for
            a prescribed one (unbalanced transport). Here $\mu$ and $\nu$ have the masses they are
            given, in $\mu\otimes\nu$ too, and
            $\mathrm{KL}(\pi|\mu)=\int\log\frac{d\pi}{d\mu}\,d\pi-\pi(1)+\mu(1)$; attention layers
            normalise their measures first. The result is of type `Masses`.
        anneal: whether to begin at high temperature.
        accelerate: whether to mix steps by Anderson's method, safeguarded.
        memory: bytes that a kernel stored in memory may take, to a tolerance; by default 1 GiB on
            a CPU, 8 GiB on a GPU. Where it does not fit, or with 0, every step streams through
            the points, in memory linear in their number. That is the default, too, for at least
            $2^{23}$ pairs in float32 where it is faster: on an NVIDIA GPU with Triton, and, for
            points of at most 16 coordinates, on a CPU with compiled loops (the extra `fast`).

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
        if len(self.slacks) != 2:
            raise ValueError(f"`slack` must be a number or a pair of numbers, got {self.slack}.")
        for slack in self.slacks:
            check_number("slack", slack)
        if self.memory is not None:  # bytes
            check_whole("memory", self.memory, least=0)

    @property
    def to_tolerance(self) -> bool:  # type: ignore[override]
        """Whether it runs to a tolerance instead of a number of steps."""
        return self.steps is None

    @property
    def slacks(self) -> tuple[float, float]:
        """The slack of both marginals."""
        return self.slack if isinstance(self.slack, tuple) else (self.slack, self.slack)

    @property
    def balanced(self) -> bool:
        """Whether both marginals are prescribed: there is no slack, and it makes couplings."""
        return all(map(math.isinf, self.slacks))

    @property
    def counts_masses(self) -> bool:  # type: ignore[override]
        """Whether the masses of the measures count: with slack."""
        return not self.balanced

    @property
    def _tol(self) -> float:
        return TOL if self.tol is None else self.tol

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Coupling | Masses:
        if log_a is None:
            raise ValueError("Sinkhorn needs the weights of the queries, got None.")
        with full_precision(log_b):
            return self._relate(scores, self._problem(scores, log_a, log_b), start)

    def _problem(self, scores: Scores, log_a: Tensor, log_b: Tensor) -> Problem:
        """The marginals, normalised, and their masses where these count."""
        a, b = (slack / scores.unit for slack in self.slacks)
        if self.balanced:
            return Problem(log_a, log_b, (a, b))
        mass_a, mass_b = (logs.logsumexp(-1, keepdim=True) for logs in (log_a, log_b))
        log_a, log_b = (logs.log_softmax(-1) for logs in (log_a, log_b))
        return Problem(log_a, log_b, (a, b), log_masses=(mass_a, mass_b))

    def _relate(self, scores: Scores, problem: Problem, start: Tensor | None) -> Coupling | Masses:
        dtype, log_b = scores.dtype, problem.log_b
        if not scores.shape.numel():  # an empty batch: nothing to solve
            batch = scores.shape[:-2]
            g = log_b.new_zeros(*batch, scores.shape[-1])
            return self._plan(scores, problem, g, 0, dtype)
        if self.steps is not None:
            g = torch.zeros_like(log_b) if start is None else start
            g = alternate(scores, problem, g, self.steps)
            return self._plan(scores, problem, g, self.steps, dtype)
        with torch.no_grad():
            size = float(scores.size())
        scores, problem = self._prepared(scores, problem, size)
        rounding = ROUNDING * torch.finfo(scores.dtype).eps * max(size, 1.0)
        settings = Settings(
            self._tol, self.max_steps, self.anneal, self.accelerate, self.memory, rounding
        )
        end = solve(scores.detach(), problem.detach(), settings, start)
        g = differentiable(scores, problem, end.g, self.memory)
        plan = self._plan(scores, problem, g, end.steps, dtype)
        worst = float(end.residual.max())
        # The solver's own error leaves out what rounding does to sums of large scores and
        # potentials. Where that could matter, the error is measured on the plan.
        if worst <= self._tol < worst + rounding:
            worst = float(plan.residual.max())
        if not worst <= self._tol:
            self._warn(worst, end.steps, size)
        return plan

    def _prepared(self, scores: Scores, problem: Problem, size: float) -> tuple[Scores, Problem]:
        """A problem that has a solution, in a precision that can show it.

        `size` is a bound on the finite scores.
        """
        check_finite_scores(scores, size)
        scores = precise_scores(scores, size, self._tol)
        check_rounding(scores, size)
        if scores.dtype != problem.log_b.dtype:
            # Normalised in float32, masses are off by 1e-7 and no coupling of them exists.
            log_a, log_b = (_as(logs, scores.dtype) for logs in (problem.log_a, problem.log_b))
            masses = problem.log_masses
            if masses is not None:
                masses = masses[0].to(scores.dtype), masses[1].to(scores.dtype)
            problem = replace(problem, log_a=log_a, log_b=log_b, log_masses=masses)
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
            slack=problem.slack, log_masses=problem.log_masses, dtype=dtype, extension=extension,
        )  # fmt: skip

    def _elsewhere(
        self, scores: Scores, log_a: Tensor | None, problem: Problem, g: Tensor, steps: int
    ) -> Coupling | Masses:
        """The plan of the same potential on the keys, with other queries."""
        log_a = weights_or_ones(log_a, problem.log_b, scores.shape)
        problem = replace(problem, log_a=_as(log_a, g.dtype), parts=None)
        others = scores if scores.dtype == g.dtype else scores.to(g.dtype)
        return self._plan(others, problem, g, steps, scores.dtype)

    def _warn(self, residual: float, steps: int, size: float) -> None:
        hint = "Raise `max_steps`, `tol` or the temperature (`eps`, or a smaller scale)"
        if not self.accelerate:
            hint = "Use `accelerate=True`, or raise `max_steps`, `tol` or the temperature"
        warn(
            f"Sinkhorn stopped after {steps} steps with a marginal error of {residual:.1e}, above "
            f"tol={self._tol:g}; scores are of size {size:.4g}. {hint}."
        )


@dataclass(frozen=True)
class Exact(Normaliser):
    r"""The coupling of least cost $\int c\,d\pi$, $c=-A$: the limit of Sinkhorn as
    $\varepsilon\to0$.

    It is solved by POT, and with equal numbers of atoms of equal weights it is a permutation. The
    plan is piecewise constant in the points, and it relates atoms only. Its `cost()` is
    differentiable once, in points and weights, as `wasserstein` is: the gradient holds the plan
    fixed, and that in the weights is the dual potential.

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
            found = [_exact_plan(*problem) for problem in each]
            shapes = ((m, n), (m,), (n,))
            plan, u, v = (
                torch.stack([p[k] for p in found]).reshape(*batch, *shape).to(log_b.device)
                if found
                else a.new_zeros(*batch, *shape)
                for k, shape in enumerate(shapes)
            )
            product = a[..., :, None] * b[..., None, :]
            density = torch.where(plan > 0, plan / torch.where(product > 0, product, 1), 0)
        log_density = TileScores.from_matrix(density.log().to(log_b.dtype), scores.unit)
        return Coupling(
            log_density, log_b.detach(), None, log_a.detach(),
            dtype=scores.dtype, costs=_held_fixed(scores, (u, log_a), (v, log_b)),
        )  # fmt: skip


def _held_fixed(
    scores: Scores, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]
) -> TileScores:
    r"""Scores whose integral against an optimal plan has the gradients of the least cost.

    With the plan $\pi$ held fixed, the least cost has the derivatives $\langle\pi,dc\rangle$ in
    the costs and $\langle u,da\rangle+\langle v,db\rangle$ in the weights. So to the cost of a
    pair is added $u_i(a_i/\bar a_i-1)+v_j(b_j/\bar b_j-1)$, bars for constants, which is 0.

    Args:
        scores: the affinity.
        rows: the dual potential of the queries, and their log-weights.
        columns: those of the keys.
    """

    def term(dual: Tensor, logs: Tensor) -> Tensor:
        change = torch.expm1(logs - logs.detach()).masked_fill(logs == -torch.inf, 0)
        return (dual.to(logs.dtype) * change / scores.unit).to(scores.dtype)

    once = lambda tile: DifferentiableOnce.apply(tile, ONCE)
    of_rows, of_columns = term(*rows), term(*columns)
    return TileScores(
        lambda i: once(scores.tile(i) - of_rows[..., i, None] - of_columns[..., None, :]),
        lambda j: once(scores.T.tile(j) - of_columns[..., j, None] - of_rows[..., None, :]),
        Layout(scores.shape, scores.dtype, scores.device, math.prod(scores.shape[:-2])),
        scores.unit,
    )


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


def _exact_plan(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """A coupling of least cost, a permutation where atoms have equal weights, and its duals."""
    forbidden = np.isposinf(cost)
    finite = cost[np.isfinite(cost)]
    cost = np.where(forbidden, 1 + len(cost) * np.ptp(finite) + finite.max(), cost)
    n = len(a)
    if len(b) == n and all(np.allclose(w, 1 / n, rtol=1e-6, atol=0) for w in (a, b)):
        plan = np.zeros_like(cost)
        columns, u, v = matching(cost)
        plan[np.arange(n), columns] = a
    else:
        plan, u, v = transport(a, b, cost)
    if plan[forbidden].sum() > 1e-12:
        raise ValueError(
            "No coupling with these marginals uses allowed pairs only. Allow more pairs, or give "
            "other marginals."
        )
    return torch.from_numpy(plan), torch.from_numpy(u), torch.from_numpy(v)
