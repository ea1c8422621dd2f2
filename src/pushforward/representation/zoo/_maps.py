r"""Maps between measures whose kind is known, each with its theorem.

`specimens(dim)` lists them with the verdict that `characterise` owes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..._tools.checks import check_sizes
from ...flows import RK4, Flow
from ...flows.fields import Linear, SelfAttention
from ...maps import MLP, Compose, InContextMap, Residual
from ...measures import Measure

IN_CONTEXT = "in-context map (not refuted)"
NO_MEASURE_MAP = "not a measure map"
SPLITS = "splits or re-weights atoms (B1)"
DISCONTINUOUS = "no continuous in-context map (B2)"


@dataclass(frozen=True)
class Specimen:
    """A map with its answer.

    Args:
        name: what it is called.
        f: the map, `Measure` to `Measure`, or an in-context map.
        verdict: what it is.
        theorem: why.
    """

    name: str
    f: Callable[[Measure], Measure] | InContextMap
    verdict: str
    theorem: str


def attention(dim: int, scale: float = 1.0, seed: int = 0) -> InContextMap:
    r"""Residual softmax attention, $x+\int Vy\,\pi(dy|x)$, with random matrices times `scale`.

    Smooth in $x$ and in $\mu$: Lipschitz on every ball, with the constants of `lipschitz`.
    """
    check_sizes(dim=dim)
    draw = torch.Generator().manual_seed(seed)
    Q, K, V = (torch.randn(3, dim, dim, generator=draw, dtype=torch.float64) / dim**0.5).unbind(0)
    return Residual(SelfAttention(scale * Q, K, V))


def stack(dim: int, depth: int = 3, scale: float = 1.0, seed: int = 0) -> InContextMap:
    """Attention and MLPs in turn: a transformer. Compositions of in-context maps are ones."""
    layers: list[InContextMap] = []
    for k in range(depth):
        layers.append(attention(dim, scale, seed + k))
        layers.append(mlp(dim, seed + k))
    return Compose(*layers)


def mlp(dim: int, seed: int = 0) -> InContextMap:
    r"""A residual MLP on every point: $G(\mu,x)=F(x)$ does not look at $\mu$."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MLP(dim, 4 * dim, skip=True).to(torch.float64)


def vlasov(dim: int, seed: int = 0) -> InContextMap:
    r"""The solution map of the Vlasov equation of $V[\mu](x)=Ax+Bm(\mu)$, at time 1 (Prop. 2)."""
    draw = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(2, dim, dim, generator=draw, dtype=torch.float64) / 2).unbind(0)
    return Flow(Linear(A, B), t1=1.0, solver=RK4(steps=5))


def counterexample(mu: Measure) -> Measure:
    r"""Continuous and support preserving, without a continuous $G$ (Proposition 1, rational form).

    On the first coordinate, with $s(\mu)=\int\min(1,(2-4|x|)_+)\,d\mu$ the mass near 0:
    $T_s(x)=\frac{(1+s)x}{s+2|x|}$ for $|x|<\frac12$, $x$ beyond, and
    $f(\mu)=(T_{s(\mu)})_\sharp\mu$. $W_1(f\mu,f\nu)\le9\,W_1(\mu,\nu)^{1/2}$, but along
    $\mu_n^\pm=(1-\frac1n)\delta_1+\frac1n\delta_{\pm1/n}\to\delta_1$ the light atom goes to
    $\pm\frac13$, although it comes to 0 from either side.
    """
    first = mu.atoms[..., 0]
    s = mu.normalise().integrate((2 - 4 * first.abs()).clamp(0, 1))[..., None]
    inside = (first.abs() < 0.5) & (s > 0)
    steep = (1 + s) * first / torch.where(inside, s + 2 * first.abs(), 1)
    moved = torch.where(inside, steep, first)
    return mu.moved(torch.cat([moved[..., None], mu.atoms[..., 1:]], -1))


def smooth_counterexample(mu: Measure) -> Measure:
    r"""The same, smooth and in any dimension.

    With $\eta(x)=(1-4|x|^2)_+^2$ and $s=\int\eta\,d\mu$:
    $T_s(x)=x+\frac12\eta(x)\frac x{\sqrt{s^2+4|x|^2}}$. The limits are $\pm\frac1{2\sqrt5}$.
    """
    x = mu.atoms
    square = x.square().sum(-1)
    bump = (1 - 4 * square).clamp_min(0).square()
    s = mu.normalise().integrate(bump)[..., None]
    size = (s.square() + 4 * square).sqrt()
    share = torch.where(size > 0, bump / (2 * torch.where(size > 0, size, 1)), 0)
    return mu.moved(x + share[..., None] * x)


def bayes(mu: Measure) -> Measure:
    r"""A Bayes update, $d\mu'\propto e^{x_1}d\mu$: weights change, so it is no push-forward."""
    return Measure.unchecked(mu.atoms, mu.log_weights + mu.atoms[..., 0])


def splitting(mu: Measure) -> Measure:
    r"""Every atom becomes two halves, at $x\pm\frac14e_1$: no push-forward splits atoms."""
    step = torch.zeros_like(mu.atoms[..., :1, :])
    step[..., 0] = 0.25
    logs = mu.log_weights - math.log(2)
    return Measure.unchecked(
        torch.cat([mu.atoms - step, mu.atoms + step], -2), torch.cat([logs, logs], -1)
    )


def length_temperature(mu: Measure) -> Measure:
    r"""Attention with temperature $1/\log n$ for $n$ tokens: doubling the sequence changes it."""
    x = mu.atoms
    scores = math.log(mu.n + 1) * (x @ x.mT) + mu.log_weights[..., None, :]
    return mu.moved(x + scores.softmax(-1) @ x)


def top_k(mu: Measure, k: int = 2) -> Measure:
    r"""Attention to the $k$ tokens of highest score: tokens are counted, not weighed."""
    x = mu.atoms
    scores = x @ x.mT
    least = scores.topk(min(k, mu.n), -1).values[..., -1:]
    scores = (scores + mu.log_weights[..., None, :]).masked_fill(scores < least, -torch.inf)
    return mu.moved(x + scores.softmax(-1) @ x)


def masked_pooling(mu: Measure) -> Measure:
    r"""$x$ plus the mean of the tokens with $x_1>0$: division by the mass of a part of $\mu$.

    As that mass vanishes the mean has no limit: no continuous $G$.
    """
    chosen = (mu.atoms[..., 0] > 0).to(mu.dtype)
    weights = mu.normalise().weights * chosen
    total = weights.sum(-1, keepdim=True)
    mean = (weights[..., None] * mu.atoms).sum(-2) / torch.where(total > 0, total, 1)
    return mu.moved(mu.atoms + mean[..., None, :])


def steep(mu: Measure) -> Measure:
    r"""$\tanh(10^6x)$: continuous, with a slope of $10^6$."""
    return mu.push(lambda x: (1e6 * x).tanh())


def root(mu: Measure, exponent: float = 0.5) -> Measure:
    r"""$\operatorname{sign}(x)|x|^p$: continuous, not Lipschitz."""
    return mu.push(lambda x: x.sign() * x.abs() ** exponent)


def _why(f: Callable) -> str:
    return (f.__doc__ or "").strip().splitlines()[0]


def specimens(dim: int = 2, seed: int = 0) -> list[Specimen]:
    """All of them, with their verdicts.

    Args:
        dim: dimension of the points.
        seed: of random matrices.

    Examples:
        >>> len({s.verdict for s in pf.representation.zoo.specimens()})
        4
    """
    good: dict[str, tuple] = {
        "attention": (attention(dim, 1.0, seed), attention),
        "attention, scale 5": (attention(dim, 5.0, seed), attention),
        "attention, scale 30": (attention(dim, 30.0, seed), attention),
        "three layers": (stack(dim, 3, 1.0, seed), stack),
        "three layers, scale 5": (stack(dim, 3, 5.0, seed), stack),
        "MLP": (mlp(dim, seed), mlp),
        "linear Vlasov": (vlasov(dim, seed), vlasov),
        "tanh(1e6 x)": (steep, steep),
        "square root": (root, root),
        "cube root": (lambda mu: root(mu, 1 / 3), root),
    }
    bad = [
        ("length-dependent temperature", length_temperature, NO_MEASURE_MAP),
        ("top-2 attention", top_k, NO_MEASURE_MAP),
        ("Bayes update", bayes, SPLITS),
        ("splitting atoms", splitting, SPLITS),
        ("counterexample", counterexample, DISCONTINUOUS),
        ("smooth counterexample", smooth_counterexample, DISCONTINUOUS),
        ("masked mean pooling", masked_pooling, DISCONTINUOUS),
    ]
    found = [Specimen(name, f, IN_CONTEXT, _why(why)) for name, (f, why) in good.items()]
    return found + [Specimen(name, f, verdict, _why(f)) for name, f, verdict in bad]


def alice_elise(n: int) -> tuple[Measure, Measure]:
    r"""Two long prompts that differ in one token, Alice (+0.002) or Elise (-0.002).

    Of $n$ tokens three lie near 0 (the name and $\pm0.1$), all others at 0.8. Under
    `counterexample` the name goes to $\pm\frac{(1+3/n)\,0.002}{3/n+0.004}$: the longer the prompt,
    the farther apart, although the prompts become the same.

    Args:
        n: number of tokens, at least 3.

    Examples:
        >>> alice, elise = pf.representation.zoo.alice_elise(1000)
        >>> round(pf.representation.zoo.counterexample(alice).atoms[0].item(), 5)
        0.28657
    """
    check_sizes(n=n)
    if n < 3:
        raise ValueError(f"The prompt has at least 3 tokens, got {n}.")
    tokens = torch.full((n, 1), 0.8, dtype=torch.float64)
    tokens[:3, 0] = torch.tensor([0.002, 0.1, -0.1], dtype=torch.float64)
    others = tokens.clone()
    others[0] = -0.002
    return Measure(tokens), Measure(others)
