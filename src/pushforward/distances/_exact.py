r"""Exact transport: $W_p$ of clouds, of clouds on the line, and of projections on lines."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .._tools.checks import check_generator, check_range, check_sizes, holds
from .._tools.exact import matching, transport
from .._tools.once import DifferentiableOnce, check_no_tangent
from .._tools.tiles import distance_matrix, over_tiles, row_tiles
from ..measures import Measure
from ._pairs import ONCE, ROUNDING, Distance, pair, root, same_mass


def wasserstein(mu: Measure, nu: Measure, *, p: float = 1) -> Distance:
    r"""The exact Wasserstein distance $W_p=\min_\pi\bigl(\int|x-y|^p\,d\pi\bigr)^{1/p}$.

    On the line it is computed from quantiles, $W_p^p=\int_0^1|F^{-1}-G^{-1}|^pdu$, in time
    $n\log n$; for $p=1$ this is $\int|F-G|\,dx$ [A, eq. 67]. In more dimensions it is found by
    POT's network simplex, which needs a cost matrix of $mn$ numbers; for clouds of equally many
    points with equal weights the plan is a permutation. The gradient in the atoms holds the
    optimal plan fixed; the gradient in the weights is the dual potential.

    Args:
        mu: a measure.
        nu: another measure. For $p=1$ the masses may differ, and the difference is added:
            $W_1(c_1\mu_1,c_2\mu_2)=|c_1-c_2|+W_1(\mu_1,\mu_2)$.
        p: the exponent, $1\le p<\infty$.

    Examples:
        >>> a, b = pf.Measure(torch.tensor([[0.0], [1.0]])), pf.Measure(torch.tensor([[2.0]]))
        >>> pf.wasserstein(a, b), pf.wasserstein(a, b, p=2)
        (tensor(1.5000), tensor(1.5811))
    """
    _check_exponent(p)
    a, b = pair(mu, nu, equal=p != 1)
    if a.dim == 1:
        scale = _extent(a, b)
        x, y = (m.atoms[..., 0] / scale[..., None] for m in (a, b))
        distance = scale * root(_quantile_cost(x, a.log_weights, y, b.log_weights, p), p)
    elif a.batch_shape:
        distance = a.log_weights.new_zeros(a.batch_shape)
        if distance.numel():
            each = [_transport(a[i], b[i], p) for i in np.ndindex(a.batch_shape)]
            distance = torch.stack(each).reshape(a.batch_shape)
    else:
        distance = _transport(a, b, p)
    if p == 1:
        masses = mu.log_weights.double().logsumexp(-1), nu.log_weights.double().logsumexp(-1)
        excess = (masses[0].exp() - masses[1].exp()).abs()
        distance = distance + torch.where(same_mass(mu, nu), 0, excess)
    return distance.to(mu.log_weights.dtype)


def sliced_wasserstein(
    mu: Measure,
    nu: Measure,
    *,
    p: float = 2,
    projections: int = 128,
    generator: torch.Generator | None = None,
) -> Distance:
    r"""The sliced Wasserstein distance: the mean of $W_p^p$ over projections, to the power $1/p$.

    $$\Bigl(\mathbb E_\theta W_p^p(\theta_\sharp\mu,\theta_\sharp\nu)\Bigr)^{1/p}.$$

    Directions $\theta$ are drawn uniformly from the sphere, the same for a whole batch. On the
    line there is only one direction, and the distance is $W_p$.

    Args:
        mu: a measure.
        nu: another measure of equal mass.
        p: the exponent, $1\le p<\infty$.
        projections: number of directions.
        generator: draws the directions.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> nu = mu.push(lambda x: x + 1)
        >>> pf.sliced_wasserstein(mu, nu, projections=4096).round(decimals=1)
        tensor(1.)
    """
    _check_exponent(p)
    check_sizes(projections=projections)
    check_generator(generator)
    a, b = pair(mu, nu)
    where = mu.atoms.device if generator is None else generator.device
    theta = torch.randn(projections, a.dim, generator=generator, dtype=torch.float64, device=where)
    theta = torch.ones_like(theta[:1]) if a.dim == 1 else theta / theta.norm(dim=-1, keepdim=True)
    scale = _extent(a, b)

    def cost(directions: Tensor) -> Tensor:
        x, y = ((m.atoms @ directions.mT).mT / scale[..., None, None] for m in (a, b))
        log_a, log_b = (
            m.log_weights[..., None, :].expand(line.shape) for m, line in ((a, x), (b, y))
        )
        return _quantile_cost(x, log_a, y, log_b, p).sum(-1)

    theta, line = theta.to(a.atoms), (a.n + b.n) * math.prod(a.batch_shape)
    tiles = row_tiles(len(theta), line, theta.device, entries=1 << 21)
    total = torch.stack(list(over_tiles(lambda rows: cost(theta[rows]), tiles))).sum(0)
    return (scale * root(total / len(theta), p)).to(mu.log_weights.dtype)


def _check_exponent(p: float) -> None:
    """Raise unless the distance is defined."""
    check_range("p", p, 1)


def _extent(a: Measure, b: Measure) -> Tensor:
    """An upper bound of all distances between atoms.

    In units of it no distance exceeds one, so that powers do not overflow.
    """
    both = torch.cat([a.atoms.detach(), b.atoms.detach()], -2)
    size = (both.amax(-2) - both.amin(-2)).norm(dim=-1)
    return size.masked_fill(size == 0, 1)


def _quantile_cost(x: Tensor, log_a: Tensor, y: Tensor, log_b: Tensor, p: float) -> Tensor:
    r"""$\int_0^1|F^{-1}(u)-G^{-1}(u)|^p\,du$ along the last axis, batched.

    Between consecutive values of the two distribution functions, here called levels, both
    quantiles are constant. For $p>1$ levels that differ only by rounding are merged: a mass of
    $10^{-16}$ in the wrong place would cost $10^{-16/p}$.
    """
    (x, i), (y, j) = x.sort(-1), y.sort(-1)
    F, G = (_cumsum(logs.exp().gather(-1, order)) for logs, order in ((log_a, i), (log_b, j)))
    F, G = F / F[..., -1:], G / G[..., -1:]
    levels, order = torch.cat([F, G], -1).sort(dim=-1, stable=True)
    from_x = order < x.shape[-1]
    # The quantile of x on (previous level, level] is the sorted atom whose index is the number of
    # levels of F strictly before; likewise for y.
    at_x = (from_x.cumsum(-1) - from_x.long()).clamp(max=x.shape[-1] - 1)
    at_y = ((~from_x).cumsum(-1) - (~from_x).long()).clamp(max=y.shape[-1] - 1)
    du = levels.diff(dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    if p > 1:
        du = torch.where(du > ROUNDING / 2 * levels.shape[-1] ** 0.5, du, 0)
    gap = (x.gather(-1, at_x) - y.gather(-1, at_y)).abs()
    return (du * (gap if p == 1 else gap**p)).sum(-1)


def _cumsum(x: Tensor) -> Tensor:
    r"""Cumulative sums in two stages, so that only some $2\sqrt n$ rounding errors add up.

    The entries are written as rows of a square: sums within rows, then sums of whole rows.
    """
    n = x.shape[-1]
    side = math.isqrt(max(n - 1, 0)) + 1
    rows = pad(x, (0, side * side - n)).reshape(*x.shape[:-1], side, side).cumsum(-1)
    before = pad(rows[..., :-1, -1].cumsum(-1), (1, 0))
    return (rows + before[..., None]).flatten(-2)[..., :n]


def _transport(mu: Measure, nu: Measure, p: float) -> Tensor:
    r"""$W_p$ of two single measures, from an optimal plan and its duals.

    With $\pi$ optimal, $(u,v)$ its dual potentials and bars for constants, the expression
    $\sum\pi_{ij}|x_i-y_j|^p+\langle u,a-\bar a\rangle+\langle v,b-\bar b\rangle$ has the right
    value, and by the envelope theorem the right gradients.
    """
    mu, nu = mu.strip(), nu.strip()
    a, b = mu.log_weights.softmax(-1), nu.log_weights.softmax(-1)
    check_no_tangent("Exact transport", mu.atoms, nu.atoms, a, b)
    weighted = a.requires_grad or b.requires_grad
    with torch.no_grad():
        distances = distance_matrix(mu.atoms, nu.atoms)
        largest = distances.max()
        scale = largest if holds(largest > 0) else torch.ones_like(largest)
        cost = ((distances / scale) ** p).cpu().numpy()
        if not weighted and mu.n == nu.n and holds(_uniform(a) & _uniform(b)):
            n, no_dual = len(cost), np.zeros(0)
            plan: tuple[np.ndarray, ...] = (
                np.arange(n), matching(cost)[0], np.full(n, 1 / n), no_dual, no_dual
            )  # fmt: skip
        else:
            plan = _sparse_plan(a.cpu().numpy(), b.cpu().numpy(), cost)
        i, j, mass, u, v = (torch.as_tensor(t, device=a.device) for t in plan)
    gap = (mu.atoms[i] - nu.atoms[j]).norm(dim=-1) / scale
    value = (mass * (gap if p == 1 else gap**p)).sum()
    if weighted:
        value = value + u @ (a - a.detach()) + v @ (b - b.detach())
    return DifferentiableOnce.apply(scale * root(value, p), ONCE)


def _uniform(a: Tensor) -> Tensor:
    """Whether all weights are equal, up to rounding."""
    return a.max() - a.min() <= 4 * torch.finfo(a.dtype).eps * a.max()


def _sparse_plan(a: np.ndarray, b: np.ndarray, cost: np.ndarray) -> tuple[np.ndarray, ...]:
    """An optimal plan `(i, j, mass)` of at most $m+n-1$ entries, and the dual potentials `u, v`.

    Entries that are mere rounding, relative to the atoms they connect, are left out.
    """
    plan, u, v = transport(a, b, cost)
    noise = ROUNDING * (len(a) + len(b)) ** 0.5
    i, j = plan.nonzero()
    kept = plan[i, j] > noise * np.minimum(a[i], b[j]) / a.sum()
    i, j = i[kept], j[kept]
    return i, j, plan[i, j], u, v
