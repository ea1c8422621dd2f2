r"""Exact transport: $W_p$ of clouds, on the line, and of their slices."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from .._tools.checks import holds
from .._tools.exact import assignment, transport
from .._tools.once import DifferentiableOnce, check_no_tangent
from .._tools.tiles import over_tiles, row_tiles
from ..measures import Measure
from ._pairs import ONCE, ROUNDING, Distance, distance_matrix, pair, root, same_mass


def wasserstein(mu: Measure, nu: Measure, *, p: float = 1) -> Distance:
    r"""The exact Wasserstein distance $W_p=\min_\pi\bigl(\int|x-y|^p\,d\pi\bigr)^{1/p}$.

    On the line by quantiles, $W_p^p=\int_0^1|F^{-1}-G^{-1}|^pdu$, in $n\log n$; clouds of equal
    size and weights by assignment; else by POT's network simplex, whose cost matrix takes $nm$
    numbers. The gradient in the atoms is that of the optimal plan, in the weights its dual.

    Args:
        mu: a measure.
        nu: another; for $p=1$ it may have another total mass.
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
            each = [_transport(x, y, p) for x, y in zip(_flat(a), _flat(b), strict=True)]
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
    r"""The sliced distance, the mean of $W_p^p$ over projections on lines, to the power $1/p$.

    $$\Bigl(\mathbb E_\theta W_p^p(\theta_\sharp\mu,\theta_\sharp\nu)\Bigr)^{1/p}.$$

    Directions $\theta$ are drawn uniformly from the sphere, the same for a whole batch; on the
    line there is only one and the distance is $W_p$.

    Args:
        mu: a measure.
        nu: another of equal mass.
        p: the exponent, $1\le p<\infty$.
        projections: number of directions.
        generator: of the directions.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> nu = mu.push(lambda x: x + 1)
        >>> pf.sliced_wasserstein(mu, nu, projections=4096).round(decimals=1)
        tensor(1.)
    """
    _check_exponent(p)
    if projections < 1:
        raise ValueError(f"`projections` must be at least 1, got {projections}.")
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
    if not 1 <= p < math.inf:
        raise ValueError(f"`p` must be at least 1 and finite, got {p}.")


def _extent(a: Measure, b: Measure) -> Tensor:
    """A length no distance between the two exceeds, so that its powers do not overflow."""
    both = torch.cat([a.atoms.detach(), b.atoms.detach()], -2)
    size = (both.amax(-2) - both.amin(-2)).norm(dim=-1)
    return size.masked_fill(size == 0, 1)


def _flat(mu: Measure) -> list[Measure]:
    """The measures of a batch of any shape, one by one."""
    return list(Measure.unchecked(mu.atoms.flatten(0, -3), mu.log_weights.flatten(0, -2)))


def _quantile_cost(x: Tensor, log_a: Tensor, y: Tensor, log_b: Tensor, p: float) -> Tensor:
    r"""$\int_0^1|F^{-1}(u)-G^{-1}(u)|^p\,du$ along the last axis, batched.

    Between consecutive levels of the two distribution functions both quantiles are constant. For
    $p>1$, where a mass of $10^{-16}$ in the wrong place would cost $10^{-16/p}$, levels that
    differ by rounding alone are one level.
    """
    (x, i), (y, j) = x.sort(-1), y.sort(-1)
    F, G = (_cumsum(logs.exp().gather(-1, at)) for logs, at in ((log_a, i), (log_b, j)))
    F, G = F / F[..., -1:], G / G[..., -1:]
    levels, order = torch.cat([F, G], -1).sort(dim=-1, stable=True)
    ours = order < x.shape[-1]
    # quantiles on (previous level, level]: how many levels of each side lie strictly before
    at_x = (ours.cumsum(-1) - ours.long()).clamp(max=x.shape[-1] - 1)
    at_y = ((~ours).cumsum(-1) - (~ours).long()).clamp(max=y.shape[-1] - 1)
    du = levels.diff(dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    if p > 1:
        du = torch.where(du > ROUNDING / 2 * levels.shape[-1] ** 0.5, du, 0)
    gap = (x.gather(-1, at_x) - y.gather(-1, at_y)).abs()
    return (du * (gap if p == 1 else gap**p)).sum(-1)


def _cumsum(x: Tensor) -> Tensor:
    r"""Cumulative sums, by rows and over rows: only some $2\sqrt n$ roundings add up."""
    n = x.shape[-1]
    side = math.isqrt(max(n - 1, 0)) + 1
    rows = pad(x, (0, side * side - n)).reshape(*x.shape[:-1], side, side).cumsum(-1)
    before = pad(rows[..., :-1, -1].cumsum(-1), (1, 0))
    return (rows + before[..., None]).flatten(-2)[..., :n]


def _transport(mu: Measure, nu: Measure, p: float) -> Tensor:
    r"""$W_p$ of two single measures, from an optimal plan and its duals.

    With $\pi$ optimal and $(u,v)$ its duals, $\sum\pi_{ij}|x_i-y_j|^p+\langle u,a-\bar a\rangle+
    \langle v,b-\bar b\rangle$ has the value and the gradients, bars being constants.
    """
    mu, nu = mu.strip(), nu.strip()
    a, b = mu.log_weights.softmax(-1), nu.log_weights.softmax(-1)
    check_no_tangent("Exact transport", mu.atoms, nu.atoms, a, b)
    weighted = a.requires_grad or b.requires_grad
    with torch.no_grad():
        apart = distance_matrix(mu.atoms, nu.atoms)
        scale = apart.max() if holds(apart.max() > 0) else torch.ones_like(apart[0, 0])
        cost = ((apart / scale) ** p).cpu().numpy()
        if not weighted and mu.n == nu.n and holds(_uniform(a) & _uniform(b)):
            n, none = len(cost), np.zeros(0)
            found: tuple = np.arange(n), assignment(cost), np.full(n, 1 / n), none, none
        else:
            found = _sparse_plan(a.cpu().numpy(), b.cpu().numpy(), cost)
        i, j, mass, u, v = (torch.as_tensor(t, device=a.device) for t in found)
    gap = (mu.atoms[i] - nu.atoms[j]).norm(dim=-1) / scale
    value = (mass * (gap if p == 1 else gap**p)).sum()
    if weighted:
        value = value + u @ (a - a.detach()) + v @ (b - b.detach())
    return DifferentiableOnce.apply(scale * root(value, p), ONCE)


def _uniform(a: Tensor) -> Tensor:
    return a.max() - a.min() <= 4 * torch.finfo(a.dtype).eps * a.max()


def _sparse_plan(a: np.ndarray, b: np.ndarray, cost: np.ndarray) -> tuple[np.ndarray, ...]:
    """An optimal plan `(i, j, mass)` of at most $n+m-1$ entries, and the duals `u, v`.

    Entries that are rounding beside the atoms they join are left out.
    """
    plan, u, v = transport(a, b, cost)
    noise = ROUNDING * (len(a) + len(b)) ** 0.5
    i, j = plan.nonzero()
    kept = plan[i, j] > noise * np.minimum(a[i], b[j]) / a.sum()
    i, j = i[kept], j[kept]
    return i, j, plan[i, j], u, v
