"""The Sinkhorn divergence, on the two reductions."""

import math
import warnings

import torch
from torch import Tensor

from .._checks import check_no_tangent
from ..affinities import Scores, SquaredDistance, scores
from ..measures import Measure
from ..normalisers import alternate
from ._common import Distance, Once, pair


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
    solve = lambda x, y, start=None: _entropic_cost(x, y, start, eps, tol, max_steps)
    (own_a, _), (own_b, g) = solve(a, a), solve(b, b)
    both, _ = solve(a, b, g)
    return Once.apply((both - (own_a + own_b) / 2).to(mu.log_weights.dtype))


def _entropic_cost(
    mu: Measure, nu: Measure, start: Tensor | None, eps: float, tol: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    r"""$OT_\varepsilon(\mu,\nu)=\int f\,d\mu+\int g\,d\nu$ at the optimal potentials, and $g$.

    By the envelope theorem its gradient leaves the potentials fixed: $f$ is evaluated once more
    as a function of its own point, everything else held constant, and so is $g$.
    """
    if not mu.atoms.numel():  # an empty batch
        return mu.log_weights.sum(-1), nu.log_weights
    held_mu = mu.detach()
    held_nu = held_mu if nu is mu else nu.detach()
    with torch.no_grad():
        f, g = _potentials(held_mu, held_nu, start, eps, tol, max_steps)
    rows = _scores(mu, held_nu, eps).over_keys(held_nu.log_weights + g)
    value = mu.integrate(-eps * rows)
    if nu is mu:
        return 2 * value, g
    columns = _scores(held_mu, nu, eps).over_queries(held_mu.log_weights + f)
    return value + nu.integrate(-eps * columns), g


def _potentials(
    x: Measure, y: Measure, start: Tensor | None, eps: float, tol: float, max_steps: int
) -> tuple[Tensor, Tensor]:
    r"""Optimal potentials in units of $\varepsilon$, to a marginal error below `tol`.

    $\varepsilon$ falls by factors of four from the squared diameter, two iterations each, and each
    level starts from the potentials of the one before. A given start, such as the potential of `y`
    with itself, which is exact for equal measures, is taken instead where it is better.
    """
    radius = max((m.atoms - y.mean()[..., None, :]).norm(dim=-1).max() for m in (x, y))
    level, g = max(4 * float(radius) ** 2, eps), torch.zeros_like(y.log_weights)
    while level > eps:
        g = _iterate(_scores(x, y, level), x, y, g, 2)[1]
        lower = max(level / 4, eps)
        g, level = g * (level / lower), lower
    cost, steps, residual = _scores(x, y, eps), 0, torch.inf
    if start is not None:
        g = min((g, start), key=lambda g: _column_error(cost, x, y, g))
    while residual > tol and steps < max_steps:
        f, g = _iterate(cost, x, y, g, _CHECK)
        steps += _CHECK
        excess = (f + cost.over_keys(y.log_weights + g)).expm1()
        residual = float(x.integrate(excess.abs()).max())
    if not residual <= tol:
        warnings.warn(
            f"Sinkhorn stopped after {steps} iterations with a marginal error of {residual:.1e}, "
            f"above tol={tol:g}. Raise `max_steps` ({max_steps}), `eps` ({eps:g}) or `tol`.",
            stacklevel=5,
        )
    return f, g


def _column_error(cost: Scores, x: Measure, y: Measure, g: Tensor) -> float:
    """How far the columns are from their marginal once the rows are right."""
    f = -cost.over_keys(y.log_weights + g)
    excess = (g + cost.over_queries(x.log_weights + f)).expm1()
    return float(y.integrate(excess.abs()).max())


_CHECK = 10
"""Iterations between two looks at the error, each of which waits for the device."""


def _scores(x: Measure, y: Measure, eps: float) -> Scores:
    return scores(SquaredDistance(eps), x.atoms, y.atoms, y.log_weights)


def _iterate(cost: Scores, x: Measure, y: Measure, g: Tensor, steps: int):
    """Sinkhorn iterations; a measure with itself has $f=g$, found by averaging with the image."""
    if x is not y:
        return alternate(cost, x.log_weights, y.log_weights, g, steps)
    for _ in range(steps):
        g = (g - cost.over_keys(y.log_weights + g)) / 2
    return g, g
