r"""Exact transport: $W_p$ of clouds, on the line, and of their slices."""

import numpy as np
import torch
from torch import Tensor

from .._checks import holds
from ..measures import Measure
from ._common import Distance, distance_matrix, pair, root


def wasserstein(mu: Measure, nu: Measure, *, p: float = 1) -> Distance:
    r"""The exact Wasserstein distance $W_p=\min_\pi\bigl(\int|x-y|^p\,d\pi\bigr)^{1/p}$.

    On the line by quantiles, $W_p^p=\int_0^1|F^{-1}-G^{-1}|^pdu$, in $n\log n$; clouds of equal
    size and weights by assignment; else by POT's network simplex, whose cost matrix takes $nm$
    numbers. The gradient in the atoms is that of the optimal plan, in the weights its dual.

    Args:
        mu: a measure.
        nu: another; for $p=1$ it may have another total mass.
        p: the exponent, at least 1.

    Examples:
        >>> a, b = pf.Measure(torch.tensor([[0.0], [1.0]])), pf.Measure(torch.tensor([[2.0]]))
        >>> pf.wasserstein(a, b), pf.wasserstein(a, b, p=2)
        (tensor(1.5000), tensor(1.5811))
    """
    if not p >= 1:
        raise ValueError(f"`p` must be at least 1, got {p}.")
    a, b = pair(mu, nu, equal=p != 1)
    if a.dim == 1:
        cost = _quantile_cost(a.atoms[..., 0], a.log_weights, b.atoms[..., 0], b.log_weights, p)
    elif a.batch_shape:
        flat = [_transport_cost(x, y, p) for x, y in zip(_flat(a), _flat(b), strict=True)]
        cost = torch.stack(flat).reshape(a.batch_shape)
    else:
        cost = _transport_cost(a, b, p)
    distance = root(cost, p).to(mu.log_weights.dtype)
    return distance + (mu.mass - nu.mass).abs() if p == 1 else distance


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
        p: the exponent, at least 1.
        projections: number of directions.
        generator: of the directions.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 2))
        >>> pf.sliced_wasserstein(mu, mu.push(lambda x: x + 1), projections=4096).round(decimals=1)
        tensor(1.)
    """
    if not p >= 1 or projections < 1:
        raise ValueError(f"Expected p >= 1 and projections >= 1, got {p} and {projections}.")
    a, b = pair(mu, nu)
    where = mu.atoms.device if generator is None else generator.device
    theta = torch.randn(projections, a.dim, generator=generator, dtype=torch.float64, device=where)
    theta = torch.ones_like(theta[:1]) if a.dim == 1 else theta / theta.norm(dim=-1, keepdim=True)
    theta = theta.to(a.atoms)
    lines = [(m.atoms @ theta.mT).mT for m in (a, b)]
    logs = [
        m.log_weights[..., None, :].expand(x.shape) for m, x in zip((a, b), lines, strict=True)
    ]
    cost = _quantile_cost(lines[0], logs[0], lines[1], logs[1], p).mean(-1)
    return root(cost, p).to(mu.log_weights.dtype)


def _flat(mu: Measure):
    """The measures of a batch of any shape, one by one."""
    flat = Measure.unchecked(mu.atoms.flatten(0, -3), mu.log_weights.flatten(0, -2))
    return list(flat)


def _quantile_cost(x: Tensor, log_a: Tensor, y: Tensor, log_b: Tensor, p: float) -> Tensor:
    r"""$\int_0^1|F^{-1}(u)-G^{-1}(u)|^p\,du$ along the last axis, batched.

    Between consecutive levels of the two distribution functions both quantiles are constant.
    """
    (x, i), (y, j) = x.sort(-1), y.sort(-1)
    F, G = (logs.exp().gather(-1, at).cumsum(-1) for logs, at in ((log_a, i), (log_b, j)))
    F, G = F / F[..., -1:], G / G[..., -1:]
    levels, order = torch.cat([F, G], -1).sort(dim=-1, stable=True)
    ours = order < x.shape[-1]
    # quantiles on (previous level, level]: how many levels of each side lie strictly before
    at_x = (ours.cumsum(-1) - ours.long()).clamp(max=x.shape[-1] - 1)
    at_y = ((~ours).cumsum(-1) - (~ours).long()).clamp(max=y.shape[-1] - 1)
    du = levels.diff(dim=-1, prepend=torch.zeros_like(levels[..., :1]))
    gap = (x.gather(-1, at_x) - y.gather(-1, at_y)).abs()
    return (du * (gap if p == 1 else gap**p)).sum(-1)


def _transport_cost(mu: Measure, nu: Measure, p: float) -> Tensor:
    r"""$\min_\pi\int|x-y|^pd\pi$ of two single measures, from an optimal plan and its duals.

    With $\pi$ optimal and $(u,v)$ its duals, $\sum\pi_{ij}|x_i-y_j|^p+\langle u,a-\bar a\rangle+
    \langle v,b-\bar b\rangle$ has the value and the gradients, bars being constants.
    """
    mu, nu = mu.strip(), nu.strip()
    a, b = mu.log_weights.softmax(-1), nu.log_weights.softmax(-1)
    weighted = a.requires_grad or b.requires_grad
    with torch.no_grad():
        cost = distance_matrix(mu.atoms, nu.atoms).cpu().numpy() ** p
        if not weighted and mu.n == nu.n and holds(_uniform(a) & _uniform(b)):
            found = _assignment(cost)
        else:
            found = _network_simplex(a.cpu().numpy(), b.cpu().numpy(), cost)
        i, j, mass, u, v = (torch.as_tensor(t, device=a.device) for t in found)
    gap = (mu.atoms[i] - nu.atoms[j]).norm(dim=-1)
    value = (mass * (gap if p == 1 else gap**p)).sum()
    return value + u @ (a - a.detach()) + v @ (b - b.detach()) if weighted else value


def _uniform(a: Tensor) -> Tensor:
    return a.max() - a.min() <= 4 * torch.finfo(a.dtype).eps * a.max()


def _assignment(cost: np.ndarray):
    """An optimal permutation as a plan `(i, j, mass)`; without duals."""
    from scipy.optimize import linear_sum_assignment

    i, j = linear_sum_assignment(cost)
    none = np.zeros(0)
    return i, j, np.full(len(i), 1 / len(i)), none, none


def _network_simplex(a: np.ndarray, b: np.ndarray, cost: np.ndarray):
    """An optimal plan `(i, j, mass)` of at most $n+m-1$ entries, and the duals `u, v`."""
    try:
        import ot
    except ImportError:
        raise ImportError(
            "Exact transport in more than one dimension needs POT: `pip install POT`."
        ) from None
    plan, log = ot.emd(a / a.sum(), b / b.sum(), cost, numItermax=10**8, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"POT found no optimal plan: {log['warning']}")
    i, j = plan.nonzero()
    return i, j, plan[i, j], log["u"], log["v"]
