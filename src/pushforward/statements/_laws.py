"""Random clouds that many experiments use."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..flows.fields import SelfAttention
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ..representation import zoo

Cloud = Callable[[int], Measure]


def box(n: int, d: int, generator: torch.Generator) -> Measure:
    r"""Points drawn uniformly from $[-1,1]^d$, of equal weight."""
    return Measure(2 * torch.rand(n, d, generator=generator) - 1)


def ball(n: int, d: int, generator: torch.Generator) -> Measure:
    """Points of the box, scaled into the unit ball."""
    return Measure(box(n, d, generator).atoms / d**0.5)


def dyadic(atoms: Tensor) -> Measure:
    r"""Points with weights proportional to $2^{-i}$, whose subset sums all differ."""
    return Measure(atoms, 0.5 ** torch.arange(1, len(atoms) + 1).to(atoms)).normalise()


def simplex(atoms: Tensor, generator: torch.Generator) -> Measure:
    """Points with random weights."""
    weights = torch.rand(len(atoms), generator=generator).to(atoms) + 0.05
    return Measure(atoms, weights).normalise()


def shuffled(mu: Measure, generator: torch.Generator) -> Measure:
    """The same measure with its atoms in another order, equal ones merged."""
    order = torch.randperm(mu.n, generator=generator)
    return Measure(mu.atoms[order], log_weights=mu.log_weights[order]).merge()


def several(count: int, seed: int = 0) -> list[InContextMap]:
    """In-context maps of four kinds, of moderate slopes."""
    kinds = (zoo.attention, zoo.stack, zoo.mlp, zoo.vlasov)
    return [kinds[k % 4](2, seed=seed + k // 4) for k in range(count)]


def beside_one(m: Tensor, points: Tensor) -> Measure:
    r"""$(1-m)\delta_1+\frac mk\sum_{i\le k}\delta_{x_i}$ on the line; there may be batches."""
    k = points.shape[-1]
    atoms = torch.cat([torch.ones_like(m)[..., None], points], -1)
    light = (m / k)[..., None].expand(points.shape)
    return Measure(atoms[..., None], torch.cat([(1 - m)[..., None], light], -1))


def bump(x: Tensor) -> Tensor:
    r"""$\eta(x)=\min(1,(2-4|x|)_+)$: one near 0, zero beyond a half."""
    return (2 - 4 * x.abs()).clamp(0, 1)


def stretched(s: Tensor, x: Tensor) -> Tensor:
    r"""$T_s(x)=\frac{(1+s)x}{s+2|x|}$ for $|x|<\frac12$, $x$ beyond; slope $1+\frac1s$ at 0."""
    return torch.where(x.abs() < 0.5, (1 + s) * x / (s + 2 * x.abs()), x)


def maps(count: int, dim: int = 2, seed: int = 0) -> list[MeasureMap]:
    """In-context maps of several kinds, as maps between measures."""
    made = [
        zoo.attention(dim, 1.0, seed), zoo.stack(dim, 2, 1.0, seed), zoo.mlp(dim, seed),
        zoo.vlasov(dim, seed), zoo.attention(dim, 5.0, seed + 1), zoo.stack(dim, 3, 5.0, seed + 1),
        zoo.mlp(dim, seed + 1), zoo.vlasov(dim, seed + 1), zoo.attention(dim, 1.0, seed + 2),
        zoo.stack(dim, 2, 1.0, seed + 2), zoo.mlp(dim, seed + 2), zoo.vlasov(dim, seed + 2),
    ]  # fmt: skip
    return [gamma.push for gamma in made[:count]]


def cones(count: int, dim: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    r"""A random function of Lipschitz constant 1, $\varphi(x)=\min_j(|x-z_j|-c_j)$."""
    tips = 2 * torch.rand(count, dim, generator=generator) - 1
    heights = torch.rand(count, generator=generator)
    return lambda x: ((x[..., None, :] - tips).norm(dim=-1) - heights).amin(-1)


def cloud(n: int, generator: torch.Generator) -> Measure:
    """Points of the unit disc with random weights."""
    return simplex(ball(n, 2, generator).atoms, generator)


def point(generator: torch.Generator) -> Tensor:
    """A point of the unit disc."""
    return ball(1, 2, generator).atoms[0]


def unit(generator: torch.Generator) -> Tensor:
    """A direction of the plane."""
    u = torch.randn(2, generator=generator)
    return u / u.norm()


def wave(slope: float, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    r"""$\psi(y)=\sin(s\,u\cdot y)$ with a random direction $u$, of slope at most $s$."""
    u = slope * unit(generator)
    return lambda y: (y @ u).sin()


def attention_field(d: int, scale: float, generator: torch.Generator) -> SelfAttention:
    """Attention with normal matrices of one scale, as a velocity."""
    Q, K, V = (scale * torch.randn(3, d, d, generator=generator)).unbind(0)
    return SelfAttention(Q, K, V)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest absolute difference."""
    return float((a - b).abs().max())
