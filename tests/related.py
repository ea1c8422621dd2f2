"""Weighted clouds of points, and their couplings by squared distance."""

import math

import torch

import pushforward as pf

TIGHT = pf.Sinkhorn(tol=1e-12)


def cloud(n, d=2, spread=1.0):
    """Points with weights over two orders of magnitude."""
    return pf.Measure(spread * torch.randn(n, d), torch.randn(n).exp())


def pair(m=7, n=9, d=2):
    return cloud(m, d), cloud(n, d)


def weights(mu):
    return mu.normalise().weights


def related(mu, nu, normaliser=TIGHT, eps=0.7):
    """The coupling of two clouds by squared distance."""
    near = pf.SquaredDistance(eps)
    return pf.relate(mu, nu, affinity=near, normaliser=normaliser)


def squared(mu, nu):
    return (mu.atoms[:, None] - nu.atoms[None]).square().sum(-1)


def extreme(n, relative, seed, *, even):
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    x, y = torch.rand(n, 3, generator=g), torch.rand(n, 3, generator=g)
    a, b = ((-12 * torch.rand(n, generator=g)) * math.log(10) for _ in range(2))
    log = lambda w: None if even else w
    mu, nu = pf.Measure(x, log_weights=log(a)), pf.Measure(y, log_weights=log(b))
    cost = squared(mu, nu)
    return mu, nu, (relative * (cost.max() - cost.min())).item()
