"""The Sinkhorn divergence, on the two reductions."""

import math
import warnings

from torch import Tensor

from .._tools.once import DifferentiableOnce, check_no_tangent
from ..affinities import PointScores, SquaredDistance, scores
from ..measures import Measure
from ..sinkhorn import Problem, Settings, solve
from ._pairs import ONCE, Distance, pair


def sinkhorn_divergence(
    mu: Measure, nu: Measure, *, eps: float, tol: float = 1e-4, max_steps: int = 10_000
) -> Distance:
    r"""The debiased entropic transport cost $S_\varepsilon$ for the squared distance.

    $$S_\varepsilon(\mu,\nu)=OT_\varepsilon(\mu,\nu)-\tfrac12OT_\varepsilon(\mu,\mu)
      -\tfrac12OT_\varepsilon(\nu,\nu),\qquad
      OT_\varepsilon=\min_\pi\int|x-y|^2d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu).$$

    It is not negative, and zero for equal measures only; it tends to $W_2^2$ as
    $\varepsilon\to0$. Sinkhorn runs in float64 on the two reductions, in linear memory, with
    $\varepsilon$ lowered from the squared diameter.

    Args:
        mu: a measure.
        nu: another of equal mass.
        eps: $\varepsilon>0$, in squared units of length.
        tol: marginal error, in L1, at which the iteration stops. The value is good to second
            order in it, the gradient to first.
        max_steps: iterations after which it gives up, with a warning that names the error.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> pf.sinkhorn_divergence(mu, mu.push(lambda x: x + 1), eps=0.1)
        tensor(2.)
    """
    if not (0 < eps < math.inf and 0 < tol < math.inf and max_steps >= 1):
        raise ValueError(
            f"`eps` and `tol` must be positive and finite and `max_steps` at least 1, got "
            f"eps={eps}, tol={tol}, max_steps={max_steps}."
        )
    a, b = pair(mu, nu)
    check_no_tangent("The Sinkhorn divergence", a.atoms, a.log_weights, b.atoms, b.log_weights)
    cost = lambda x, y, start=None: _entropic_cost(x, y, start, eps, tol, max_steps)
    (own_a, _), (own_b, g) = cost(a, a), cost(b, b)
    both, _ = cost(a, b, g)
    value = both - (own_a + own_b) / 2
    return DifferentiableOnce.apply(value.to(mu.log_weights.dtype), ONCE)


def _entropic_cost(
    mu: Measure, nu: Measure, start: Tensor | None, eps: float, tol: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    r"""$OT_\varepsilon(\mu,\nu)=\int f\,d\mu+\int g\,d\nu$ at the optimal potentials, and $g$.

    By the envelope theorem its gradient leaves the potentials fixed: $f$ is evaluated once more
    as a function of its own point, everything else held constant, and so is $g$.
    """
    if not mu.atoms.numel():  # an empty batch
        return mu.log_weights.sum(-1), nu.log_weights
    held_mu, held_nu = mu.detach(), nu.detach()
    problem = Problem(held_mu.log_weights, held_nu.log_weights, symmetric=nu is mu)
    cost = _scores(held_mu, held_nu, eps)
    end = solve(cost, problem, Settings(tol, max_steps), start)
    residual = float(end.residual.max())
    if not residual <= tol:
        warnings.warn(
            f"Sinkhorn stopped after {end.steps} iterations with a marginal error of "
            f"{residual:.1e}, above tol={tol:g}. Raise `max_steps` ({max_steps}), `eps` ({eps:g}) "
            "or `tol`.",
            stacklevel=4,
        )
    f = problem.rows(cost, end.g)
    rows = _scores(mu, held_nu, eps).over_keys(held_nu.log_weights + end.g)
    columns = _scores(held_mu, nu, eps).over_queries(held_mu.log_weights + f)
    return mu.integrate(-eps * rows) + nu.integrate(-eps * columns), end.g


def _scores(x: Measure, y: Measure, eps: float) -> PointScores:
    return scores(SquaredDistance(eps), x.atoms, y.atoms, y.log_weights)
