"""Fields and clouds that tests of flows share."""

import torch

import pushforward as pf

I2 = lambda: torch.eye(2)


def softmax_field(d=2, scale=0.4, **options):
    matrices = (torch.nn.Parameter(scale * torch.randn(d, d)) for _ in range(3))
    return pf.fields.SelfAttention(*matrices, **options)


def sphere_cloud(n=12, d=3):
    return pf.Measure(torch.randn(n, d)).push(pf.Sphere().retract)


def same_everywhere(make):
    """What `make` draws, with the same numbers on every device."""
    device = torch.get_default_device()
    with torch.device("cpu"):
        torch.manual_seed(0)
        return make().to(device)


def end(field, mu, solver, t1=1.0, **options):
    return pf.flow(field, mu, t1=t1, solver=solver, **options)[-1]


def equiangular(n, rho):
    """Unit vectors of pairwise product rho."""
    gram = torch.full((n, n), rho) + (1 - rho) * torch.eye(n)
    return pf.Measure(torch.linalg.cholesky(gram))
