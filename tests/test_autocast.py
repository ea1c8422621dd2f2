"""Attention under autocast: half precision reaches the linear maps, and nothing else."""

import math

import pytest
import torch
from torch import nn

import pushforward as pf

NORMALISERS = {
    "softmax": pf.Softmax(),
    "sinkhorn": pf.Sinkhorn(tol=1e-5),
    "sinkhorn, plain": pf.Sinkhorn(tol=1e-5, accelerate=False),
    "steps": pf.Sinkhorn(steps=5),
    "slack": pf.Sinkhorn(tol=1e-5, slack=0.5),
    "dual softmax": pf.relations.DualSoftmax(),
    "sigmoid": pf.relations.Sigmoid(),
    "exponential": pf.relations.Exponential(),
    "bilinear": pf.relations.Bilinear(),
    "hardmax": pf.relations.Hardmax(),
}
AFFINITIES = {"dot": pf.Dot(), "squared distance": pf.SquaredDistance(2.0)}
UNIT = 2.0**-8  # the rounding unit of bfloat16
HALF = lambda: torch.autocast("cpu", torch.bfloat16)


class RoundedLinear(nn.Module):
    """A linear map in bfloat16, as autocast runs it, inside a layer without autocast."""

    def __init__(self, linear):
        super().__init__()
        self.weight = linear.weight

    def forward(self, x):
        with HALF():
            return nn.functional.linear(x, self.weight)


def layer(normaliser, affinity):
    torch.manual_seed(0)
    gamma = pf.Attention(2, heads=2, normaliser=normaliser, affinity=affinity).float()
    return gamma, torch.randn(9, 2, dtype=torch.float32), torch.rand(9, dtype=torch.float32)


def run(gamma, x, w):
    """The images of a cloud, and gradients in points and parameters."""
    x = x.clone().requires_grad_()
    y = gamma.push(pf.Measure(x, w)).atoms
    wanted = [x, *gamma.parameters()]
    grads = torch.autograd.grad(y.float().square().sum(), wanted, allow_unused=True)
    return y.detach(), [g for g in grads if g is not None]


@pytest.mark.parametrize("affinity", AFFINITIES.values(), ids=AFFINITIES)
@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS)
def test_only_the_linear_maps_are_rounded(normaliser, affinity):
    """The layer is, bit by bit, one whose four linear maps alone run in bfloat16."""
    gamma, x, w = layer(normaliser, affinity)
    with HALF():
        y = gamma.push(pf.Measure(x, w)).atoms
    for name in "QKVW":
        setattr(gamma, name, RoundedLinear(getattr(gamma, name)))
    assert torch.equal(y, gamma.push(pf.Measure(x, w)).atoms)


def budget(gamma, x, w):
    """How far rounding of the four maps may move the images, to first order.

    A map in bfloat16 rounds points, weights and results: 3 units of |W||x|. A score is moved by
    6 s |Q||x| |K||y|, called d. Per unit weight of the query, densities are moved by a factor of
    e^(4 d) at most where the normaliser has a closed form (twice the score, and two sums). For
    couplings, plans move by d in L1: their symmetric divergence is the integral of the change of
    scores against the change of plans, and by Pinsker it is at least the square of the latter.
    """
    sizes = {name: getattr(gamma, name).weight.detach().abs() for name in "QKVW"}
    q, k, v = (x.abs() @ sizes[name].T for name in "QKV")
    scale = abs(gamma.affinity.factor(2))
    d = 6 * UNIT * scale * float((q @ k.T).max())
    if isinstance(gamma.affinity, pf.SquaredDistance):
        d = 4 * d  # |q - k|^2 is at most twice the two squares, each of them a product
    share = (w / w.sum()).min()
    moved = math.expm1(4 * d) + d / share
    density = 1.0
    if isinstance(gamma.normaliser, pf.relations.Exponential | pf.relations.Bilinear):
        density = math.exp(d / (6 * UNIT))
    return float((moved + 12 * UNIT) * density * (v.max() * sizes["W"].sum(-1)).max())


@pytest.mark.parametrize("affinity", AFFINITIES.values(), ids=AFFINITIES)
@pytest.mark.parametrize("name", [n for n in NORMALISERS if n != "hardmax"])
def test_images_are_those_without_autocast(name, affinity):
    gamma, x, w = layer(NORMALISERS[name], affinity)
    with HALF():
        y = gamma.push(pf.Measure(x, w)).atoms
    assert (y - gamma.push(pf.Measure(x, w)).atoms).abs().max() < budget(gamma, x, w)


@pytest.mark.parametrize("affinity", AFFINITIES.values(), ids=AFFINITIES)
@pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS)
@pytest.mark.parametrize("inside", [False, True], ids=["after", "inside"])
def test_gradients_are_those_of_rounded_linear_maps(normaliser, affinity, inside):
    """Backward after autocast has ended, as PyTorch advises, or inside.

    Autocast converts the points once for all maps, so that it adds their gradients in bfloat16;
    inside, its own products are rounded too. That is a few roundings per entry: 16 units.
    """
    gamma, x, w = layer(normaliser, affinity)
    with HALF():
        x_half = x.clone().requires_grad_()
        y = gamma.push(pf.Measure(x_half, w)).atoms.float().square().sum()
        if inside:
            (got,) = torch.autograd.grad(y, x_half)
    if not inside:
        (got,) = torch.autograd.grad(y, x_half)
    for name in "QKVW":
        setattr(gamma, name, RoundedLinear(getattr(gamma, name)))
    expected = run(gamma, x, w)[1][0]
    assert (got - expected).norm() <= 16 * UNIT * expected.norm()


@pytest.mark.parametrize("affinity", AFFINITIES.values(), ids=AFFINITIES)
@pytest.mark.parametrize("name", [n for n in NORMALISERS if n != "hardmax"])
def test_gradients_are_near_those_without_autocast(name, affinity):
    """Relative to the layer's own sensitivity: the change that rounding the parameters makes.

    Parameters and points rounded to bfloat16 move the exact gradient by some share. Autocast also
    rounds results and their gradients, three roundings for one: five times that share, plus 16
    units, is the budget.
    """
    gamma, x, w = layer(NORMALISERS[name], affinity)
    with HALF():
        x_half = x.clone().requires_grad_()
        y = gamma.push(pf.Measure(x_half, w)).atoms.float().square().sum()
    (got,) = torch.autograd.grad(y, x_half)
    exact = run(gamma, x, w)[1][0]
    with torch.no_grad():
        for p in gamma.parameters():
            p.copy_(p.bfloat16())
    rounded = run(gamma, x.bfloat16().float(), w)[1][0]
    allowed = 5 * (rounded - exact).norm() + 16 * UNIT * exact.norm()
    assert (got - exact).norm() < allowed


def test_relations_of_pairs_do_not_depend_on_where_they_are_evaluated():
    linear = nn.Linear(2, 4, bias=False).float()
    mu = pf.Measure(torch.randn(7, 2, dtype=torch.float32))
    function = lambda mu, nu, x, y: (linear(x) * linear(y)).sum(-1)
    for normaliser in (pf.Softmax(), pf.Sinkhorn(tol=1e-5)):
        with HALF():
            inside = pf.relate(mu, mu, affinity=pf.Pairs(function), normaliser=normaliser)
            images = inside.apply(mu.atoms)
        outside = pf.relate(mu, mu, affinity=pf.Pairs(function), normaliser=normaliser)
        assert torch.equal(images, outside.apply(mu.atoms))


def test_small_matrices_and_distances_under_autocast():
    logits = torch.randn(5, 20, 20, dtype=torch.float32)
    mu, nu = (pf.Measure(torch.randn(30, 2, dtype=torch.float32)) for _ in range(2))
    with HALF():
        scaled = pf.doubly_stochastic(logits).scaled
        distance = pf.sinkhorn_divergence(mu, nu, eps=0.1)
    assert torch.equal(scaled, pf.doubly_stochastic(logits).scaled)
    assert torch.equal(distance, pf.sinkhorn_divergence(mu, nu, eps=0.1))
