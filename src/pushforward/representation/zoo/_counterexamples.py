r"""Maps that are not push-forwards by continuous in-context maps."""

from __future__ import annotations

import math

import torch

from ..._tools.checks import check_sizes
from ...measures import Measure, check_measures


def counterexample(mu: Measure) -> Measure:
    r"""Continuous and support preserving, without a continuous $G$ [A, Prop. 1], rational form.

    On the first coordinate, with $s(\mu)=\int\min(1,(2-4|x|)_+)\,d\mu$ the mass near 0:
    $T_s(x)=\frac{(1+s)x}{s+2|x|}$ for $|x|<\frac12$, $x$ beyond, and
    $f(\mu)=(T_{s(\mu)})_\sharp\mu$. $W_1(f\mu,f\nu)\le9\,W_1(\mu,\nu)^{1/2}$, but along
    $\mu_n^\pm=(1-\frac1n)\delta_1+\frac1n\delta_{\pm1/n}\to\delta_1$ the light atom goes to
    $\pm\frac13$, although the atom itself tends to 0 from both sides [A, eq. 73].
    """
    check_measures(mu=mu)
    first = mu.atoms[..., 0]
    s = mu.normalise().integrate((2 - 4 * first.abs()).clamp(0, 1))[..., None]
    inside = (first.abs() < 0.5) & (s > 0)
    steep = (1 + s) * first / torch.where(inside, s + 2 * first.abs(), 1)
    moved = torch.where(inside, steep, first)
    return mu.moved(torch.cat([moved[..., None], mu.atoms[..., 1:]], -1))


def smooth_counterexample(mu: Measure) -> Measure:
    r"""Continuous and support preserving, without a continuous $G$ [A, Prop. 1], smooth form.

    In any dimension, with $\eta(x)=(1-4|x|^2)_+^2$ and $s=\int\eta\,d\mu$:
    $T_s(x)=x+\frac12\eta(x)\frac x{\sqrt{s^2+4|x|^2}}$. The limits are $\pm\frac1{2\sqrt5}$.
    """
    check_measures(mu=mu)
    x = mu.atoms
    square = x.square().sum(-1)
    bump = (1 - 4 * square).clamp_min(0).square()
    s = mu.normalise().integrate(bump)[..., None]
    size = (s.square() + 4 * square).sqrt()
    share = torch.where(size > 0, bump / (2 * torch.where(size > 0, size, 1)), 0)
    return mu.moved(x + share[..., None] * x)


def bayes(mu: Measure) -> Measure:
    r"""A Bayes update, $d\mu'\propto e^{x_1}d\mu$: weights change, so it is no push-forward."""
    check_measures(mu=mu)
    return Measure.unchecked(mu.atoms, mu.log_weights + mu.atoms[..., 0])


def splitting(mu: Measure) -> Measure:
    r"""Every atom becomes two halves, at $x\pm\frac14e_1$: no push-forward splits atoms."""
    check_measures(mu=mu)
    step = torch.zeros_like(mu.atoms[..., :1, :])
    step[..., 0] = 0.25
    logs = mu.log_weights - math.log(2)
    return Measure.unchecked(
        torch.cat([mu.atoms - step, mu.atoms + step], -2), torch.cat([logs, logs], -1)
    )


def length_temperature(mu: Measure) -> Measure:
    r"""Attention with temperature $1/\log n$ for $n$ tokens: doubling the sequence changes it."""
    check_measures(mu=mu)
    x = mu.atoms
    scores = math.log(mu.n + 1) * (x @ x.mT) + mu.log_weights[..., None, :]
    return mu.moved(x + scores.softmax(-1) @ x)


def unweighted_mean(mu: Measure) -> Measure:
    r"""$x$ plus the mean of the list of points: weights are ignored."""
    check_measures(mu=mu)
    return mu.moved(mu.atoms + mu.atoms.mean(-2, keepdim=True))


def top_k(mu: Measure, k: int = 2) -> Measure:
    r"""Attention to the $k$ tokens of highest score: tokens are counted, not weighed."""
    check_measures(mu=mu)
    check_sizes(k=k)
    x = mu.atoms
    scores = x @ x.mT
    least = scores.topk(min(k, mu.n), -1).values[..., -1:]
    scores = (scores + mu.log_weights[..., None, :]).masked_fill(scores < least, -torch.inf)
    return mu.moved(x + scores.softmax(-1) @ x)


def alice_elise(n: int) -> tuple[Measure, Measure]:
    r"""Two long prompts that differ in one token, Alice (+0.002) or Elise (-0.002).

    Of $n$ tokens three lie near 0 (the name and $\pm0.1$), all others at 0.8. Under
    `counterexample` the name goes to $\pm\frac{(1+3/n)\,0.002}{3/n+0.004}$: the longer the prompt,
    the larger the distance of the two images, although the two prompts tend to the same measure.

    Args:
        n: number of tokens, at least 3.

    Examples:
        >>> alice, elise = pf.representation.zoo.alice_elise(1000)
        >>> round(pf.representation.zoo.counterexample(alice).atoms[0].item(), 5)
        0.28657
    """
    check_sizes(n=n)
    if n < 3:
        raise ValueError(f"`n` must be at least 3, the tokens near 0, got {n}.")
    tokens = torch.full((n, 1), 0.8, dtype=torch.float64)
    tokens[:3, 0] = torch.tensor([0.002, 0.1, -0.1], dtype=torch.float64)
    others = tokens.clone()
    others[0] = -0.002
    return Measure(tokens), Measure(others)
