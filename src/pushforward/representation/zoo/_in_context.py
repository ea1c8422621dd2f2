r"""Maps that are push-forwards by continuous in-context maps."""

from __future__ import annotations

import torch

from ..._tools.checks import check_finite, check_number, check_seed, check_sizes
from ...flows import RK4, Flow
from ...flows.fields import Linear, SelfAttention
from ...maps import MLP, Compose, InContextMap, Residual
from ...measures import Measure, check_measures


def attention(dim: int, scale: float = 1.0, seed: int = 0) -> InContextMap:
    r"""Residual softmax attention [A, eq. 20], $x+\int Vy\,\pi(dy|x)$, with random matrices.

    Smooth in $x$ and in $\mu$: Lipschitz on every ball, with the constants of `lipschitz`.

    Args:
        dim: dimension of the points.
        scale: of the query matrix.
        seed: of random matrices.
    """
    check_sizes(dim=dim)
    check_finite("scale", scale)
    check_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    Q, K, V = (torch.randn(3, dim, dim, generator=draw, dtype=torch.float64) / dim**0.5).unbind(0)
    return Residual(SelfAttention(scale * Q, K, V))


def stack(dim: int, depth: int = 3, scale: float = 1.0, seed: int = 0) -> InContextMap:
    """Attention and MLPs in turn, a transformer: a composition of in-context maps is one.

    Args:
        dim: dimension of the points.
        depth: number of pairs of attention and MLP.
        scale: of the query matrices.
        seed: of random matrices.
    """
    check_sizes(depth=depth)
    check_seed(seed)
    layers: list[InContextMap] = []
    for k in range(depth):
        layers.append(attention(dim, scale, seed + k))
        layers.append(mlp(dim, seed + k))
    return Compose(*layers)


def mlp(dim: int, seed: int = 0) -> InContextMap:
    r"""A residual MLP on every point: $G(\mu,x)=F(x)$ does not depend on $\mu$.

    Args:
        dim: dimension of the points.
        seed: of random matrices.
    """
    check_sizes(dim=dim)
    check_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MLP(dim, 4 * dim, skip=True).to(torch.float64)


def vlasov(dim: int, seed: int = 0) -> InContextMap:
    r"""The solution map at time 1 of the Vlasov equation [A, Prop. 2] of $V[\mu](x)=Ax+Bm(\mu)$.

    Args:
        dim: dimension of the points.
        seed: of random matrices.
    """
    check_sizes(dim=dim)
    check_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(2, dim, dim, generator=draw, dtype=torch.float64) / 2).unbind(0)
    return Flow(Linear(A, B), t1=1.0, solver=RK4(steps=5))


def steep(mu: Measure) -> Measure:
    r"""$\tanh(10^6x)$: continuous, with a slope of $10^6$."""
    check_measures(mu=mu)
    return mu.push(lambda x: (1e6 * x).tanh())


def root(mu: Measure, exponent: float = 0.5) -> Measure:
    r"""$\operatorname{sign}(x)|x|^p$: continuous, not Lipschitz."""
    check_measures(mu=mu)
    check_number("exponent", exponent)
    return mu.push(lambda x: x.sign() * x.abs() ** exponent)
