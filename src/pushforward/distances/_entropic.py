"""The Sinkhorn divergence."""

import torch
from torch import Tensor

from .._tools.checks import check_finite, check_kind, check_number
from .._tools.once import DifferentiableOnce, check_no_tangent
from .._tools.warn import warn
from ..affinities import PointScores, SquaredDistance
from ..measures import Measure
from ..relations import Sinkhorn
from ..sinkhorn import Problem, Settings, Solution, solve
from ._pairs import ONCE, Distance, pair

TOL = 1e-4
"""Marginal error to reach unless another is given: the value is good to second order in it."""


def sinkhorn_divergence(
    mu: Measure, nu: Measure, *, eps: float, normaliser: Sinkhorn | None = None
) -> Distance:
    r"""The debiased entropic transport cost $S_\varepsilon$ for the squared distance.

    $$S_\varepsilon(\mu,\nu)=OT_\varepsilon(\mu,\nu)-\tfrac12OT_\varepsilon(\mu,\mu)
      -\tfrac12OT_\varepsilon(\nu,\nu),\qquad
      OT_\varepsilon=\min_\pi\int|x-y|^2d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu).$$

    With `normaliser=Sinkhorn(slack=rho)` masses need not be equal. $OT_\varepsilon$ is then the
    least value of the cost of unbalanced transport, to which
    $\rho\,\mathrm{KL}(\pi_1|\mu)+\rho\,\mathrm{KL}(\pi_2|\nu)$ is added, and the divergence has
    one more term, $\frac\varepsilon2(\mu(1)-\nu(1))^2$ (Séjourné et al. 2019).

    It is non-negative, zero only for equal measures, and tends to $W_2^2$ as $\varepsilon\to0$
    (Feydy et al. 2019). Sinkhorn runs in float64, with $\varepsilon$ lowered from the squared
    diameter. Memory is linear in the number of atoms, apart from a stored kernel where one fits.

    Args:
        mu: a measure.
        nu: another measure, of equal mass unless there is slack.
        eps: $\varepsilon>0$, in squared units of length.
        normaliser: the Sinkhorn that finds the three plans, `pf.Sinkhorn(tol=1e-4)` by default; a
            Sinkhorn without `tol` goes to $10^{-4}$ here too. `tol` is the L1 error of the
            marginals: the value is accurate to second order in it, the gradient to first. If
            `max_steps` do not suffice, a warning states the error. `slack` is one number, in
            squared units of length. `steps` are refused.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> pf.sinkhorn_divergence(mu, mu.push(lambda x: x + 1), eps=0.1)
        tensor(2.)
    """
    check_number("eps", eps)
    check_finite("eps", eps)
    normaliser = Sinkhorn() if normaliser is None else normaliser
    settings = _settings(normaliser)
    if not normaliser.balanced:
        return _unbalanced(mu, nu, eps, normaliser, settings)
    a, b = pair(mu, nu)
    check_no_tangent("The Sinkhorn divergence", a.atoms, a.log_weights, b.atoms, b.log_weights)
    own_a, _ = _entropic_cost(a, a, eps, settings)
    own_b, g = _entropic_cost(b, b, eps, settings)
    # The potential of (nu, nu) is a good start for (mu, nu), the exact one if mu = nu.
    both, _ = _entropic_cost(a, b, eps, settings, start=g)
    value = both - (own_a + own_b) / 2
    return DifferentiableOnce.apply(value.to(mu.log_weights.dtype), ONCE)


def _settings(normaliser: Sinkhorn) -> Settings:
    """How to solve; an error for a Sinkhorn whose plans are not the optimal couplings."""
    check_kind("normaliser", normaliser, Sinkhorn, "Give `pf.Sinkhorn(tol=1e-4)`.")
    if normaliser.steps is not None:
        raise ValueError(
            f"The Sinkhorn divergence needs plans to a tolerance, got `Sinkhorn(steps="
            f"{normaliser.steps})`. Give `Sinkhorn(tol=..., max_steps=...)`."
        )
    slack = normaliser.slack
    if isinstance(slack, tuple) and slack[0] != slack[1]:
        raise ValueError(
            f"The Sinkhorn divergence treats both measures alike, got `Sinkhorn(slack={slack})`. "
            "Give one number, or leave `slack` out for measures of equal mass."
        )
    return Settings(
        TOL if normaliser.tol is None else normaliser.tol,
        normaliser.max_steps,
        normaliser.anneal,
        normaliser.accelerate,
        normaliser.memory,
    )


def _entropic_cost(
    mu: Measure, nu: Measure, eps: float, settings: Settings, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""$OT_\varepsilon(\mu,\nu)=\int f\,d\mu+\int g\,d\nu$ at the optimal potentials, and $g$.

    By the envelope theorem the gradient of the value holds the potentials fixed: only the last
    evaluation of $f$ at the atoms of $\mu$, and of $g$ at those of $\nu$, is differentiated.
    """
    if not mu.atoms.numel():  # an empty batch
        return mu.log_weights.sum(-1), nu.log_weights
    fixed_mu, fixed_nu = mu.detach(), nu.detach()
    problem = Problem(fixed_mu.log_weights, fixed_nu.log_weights, symmetric=nu is mu)
    affinity = SquaredDistance(eps)
    scores = affinity.scores(fixed_mu, fixed_nu)
    end = _solved(scores, problem, settings, eps, start)
    f = problem.rows(scores, end.g)
    rows = affinity.scores(mu, fixed_nu).over_keys(fixed_nu.log_weights + end.g)
    columns = affinity.scores(fixed_mu, nu).over_queries(fixed_mu.log_weights + f)
    return mu.integrate(-eps * rows) + nu.integrate(-eps * columns), end.g


def _solved(
    scores: PointScores, problem: Problem, settings: Settings, eps: float, start: Tensor | None
) -> Solution:
    """The solution, with a warning if it is not one."""
    end = solve(scores, problem, settings, start)
    error = float(end.residual.max())
    if not error <= settings.tol:
        warn(
            f"Sinkhorn stopped after {end.steps} steps with a marginal error of {error:.1e}, "
            f"above tol={settings.tol:g}. Raise `eps` ({eps:g}), or give a `normaliser` with a "
            f"larger `tol` or more `max_steps` ({settings.max_steps})."
        )
    return end


def _unbalanced(
    mu: Measure, nu: Measure, eps: float, normaliser: Sinkhorn, settings: Settings
) -> Distance:
    """The divergence with slack, of measures with masses of their own."""
    a, b = pair(mu, nu, equal=False)
    check_no_tangent("The Sinkhorn divergence", a.atoms, a.log_weights, b.atoms, b.log_weights)
    log_masses = [m.log_weights.double().logsumexp(-1).expand(a.batch_shape) for m in (mu, nu)]
    (slack, _), (mass_a, mass_b) = normaliser.slacks, (logs.exp() for logs in log_masses)
    first, second = (a, log_masses[0]), (b, log_masses[1])
    cost = lambda x, y: _unbalanced_cost(x, y, eps, slack, settings)
    value = cost(first, second) - (cost(first, first) + cost(second, second)) / 2
    value = value + eps / 2 * (mass_a - mass_b).square()
    return DifferentiableOnce.apply(value.to(mu.log_weights.dtype), ONCE)


def _unbalanced_cost(
    first: tuple[Measure, Tensor],
    second: tuple[Measure, Tensor],
    eps: float,
    slack: float,
    settings: Settings,
) -> Tensor:
    r"""$OT_\varepsilon$ with slack $\rho$, of probabilities and the logarithms of their masses.

    With potentials in units of $\varepsilon$ and $r=\rho/\varepsilon$ it is the dual value

    $$\rho\int(1-e^{-f/r})\,d\mu+\rho\int(1-e^{-g/r})\,d\nu
      -\varepsilon\int\!\!\int(e^{A+f\oplus g}-1)\,d\mu\,d\nu,$$

    which is stationary in the potentials at the solution: its gradient holds them fixed.
    """
    (mu, log_m), (nu, log_n) = first, second
    if not mu.atoms.numel():  # an empty batch
        return log_m
    r, affinity = slack / eps, SquaredDistance(eps)
    fixed_mu, fixed_nu = mu.detach(), nu.detach()
    masses = log_m.detach()[..., None], log_n.detach()[..., None]
    problem = Problem(fixed_mu.log_weights, fixed_nu.log_weights, (r, r), log_masses=masses)
    scores = affinity.scores(fixed_mu, fixed_nu)
    g = _solved(scores, problem, settings, eps, None).g
    f = problem.rows(scores, g)
    # Potentials against the measures with their masses, of which those of the solver contain
    # the logarithms.
    f, g = f - masses[0], g - masses[1]
    rows = affinity.scores(mu, nu).over_keys(nu.log_weights + g)
    plan = mu.integrate((f + rows + (log_m + log_n)[..., None]).exp())
    kept = log_m.exp() * mu.integrate(-slack * torch.expm1(-f / r))
    kept = kept + log_n.exp() * nu.integrate(-slack * torch.expm1(-g / r))
    return kept - eps * (plan - (log_m + log_n).exp())
