"""Distances against closed forms, POT and SciPy, and as distances."""

import math
import time

import numpy as np
import ot
import pytest
import scipy.optimize
import scipy.stats
import torch
from cases import measure, worst
from hypothesis import given, settings, strategies as st

import pushforward as pf

EXACT = {
    "W1": lambda a, b: pf.wasserstein(a, b),
    "W2": lambda a, b: pf.wasserstein(a, b, p=2),
    "sliced": lambda a, b: pf.sliced_wasserstein(
        a, b, projections=20, generator=torch.Generator().manual_seed(0)
    ),
    "energy": pf.energy_distance,
    "mmd": pf.mmd,
}
TIGHT = pf.Sinkhorn(tol=1e-11)
ALL = EXACT | {"sinkhorn": lambda a, b: pf.sinkhorn_divergence(a, b, eps=0.5, normaliser=TIGHT)}


def cloud(n, d=2, seed=None):
    if seed is not None:
        torch.manual_seed(seed)
    return pf.Measure(torch.randn(n, d), torch.rand(n) + 0.05).normalise()


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (30, 30), (40, 61)])
def test_transport_against_pot(n, m, p):
    mu, nu = cloud(n), cloud(m)
    x, y = mu.atoms.numpy(), nu.atoms.numpy()
    cost = ((x[:, None] - y[None]) ** 2).sum(-1) ** (p / 2)
    expected = ot.emd2(mu.weights.numpy(), nu.weights.numpy(), cost) ** (1 / p)
    assert pf.wasserstein(mu, nu, p=p).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [1, 2, 26, 50])
def test_assignment_is_the_best_permutation(n):
    """Uniform clouds of equal size: W1 is the least mean distance over permutations."""
    mu, nu = pf.Measure(torch.randn(n, 3)), pf.Measure(torch.randn(n, 3))
    x, y = mu.atoms.numpy(), nu.atoms.numpy()
    cost = np.linalg.norm(x[:, None] - y[None], axis=-1)
    uniform = np.full(n, 1 / n)
    assert pf.wasserstein(mu, nu).item() == pytest.approx(ot.emd2(uniform, uniform, cost))


@pytest.mark.parametrize("p", [1, 2])
def test_the_line_against_the_plane(p):
    """Quantiles give what the network simplex gives for points on a line in the plane."""
    mu, nu = cloud(30, 1), cloud(41, 1)
    flat = lambda m: m.push(lambda x: torch.cat([x, 0 * x], -1))
    expected = pf.wasserstein(flat(mu), flat(nu), p=p).item()
    assert pf.wasserstein(mu, nu, p=p).item() == pytest.approx(expected, rel=1e-12)


def test_the_line_against_scipy():
    mu, nu = cloud(200, 1), cloud(133, 1)
    arrays = [m.atoms[:, 0].numpy() for m in (mu, nu)] + [m.weights.numpy() for m in (mu, nu)]
    expected = scipy.stats.wasserstein_distance(*arrays)
    assert pf.wasserstein(mu, nu).item() == pytest.approx(expected, rel=1e-12)
    expected = scipy.stats.energy_distance(*arrays)
    assert pf.energy_distance(mu, nu).item() == pytest.approx(expected, rel=1e-10)


def test_ties_and_zero_masses_on_the_line():
    mu = pf.Measure(torch.tensor([[0.0], [0.0], [7.0], [1.0]]), torch.tensor([1.0, 1.0, 0.0, 2.0]))
    nu = pf.Measure(torch.tensor([[1.0], [0.0]]), torch.tensor([2.0, 2.0]))
    assert pf.wasserstein(mu, nu).item() == 0
    assert pf.wasserstein(mu, nu, p=2).item() == 0


def test_gaussians_on_the_line():
    """W2^2 = (m1 - m2)^2 + (s1 - s2)^2; quantiles of a million cells come within 1e-4."""
    u = pf.Measure.grid(0.0, 1.0, size=10**6).atoms
    z = math.sqrt(2) * torch.erfinv(2 * u - 1)
    mu, nu = pf.Measure(0.3 + 0.5 * z), pf.Measure(1.0 + 1.2 * z)
    expected = math.hypot(0.7, 0.7)
    assert pf.wasserstein(mu, nu, p=2).item() == pytest.approx(expected, abs=1e-4)


def test_a_million_weighted_points_on_the_line():
    """Quantiles cost a sort: half a second on one core; the bound only tells a sort from n^2."""
    n = 10**6
    mu, nu = cloud(n, 1), cloud(n, 1)
    start = time.perf_counter()
    value = pf.wasserstein(mu, nu)
    assert time.perf_counter() - start < 20
    arrays = [m.atoms[:, 0].numpy() for m in (mu, nu)] + [m.weights.numpy() for m in (mu, nu)]
    assert value.item() == pytest.approx(scipy.stats.wasserstein_distance(*arrays), rel=1e-9)


def test_extended_w1():
    """W1(c1 mu1, c2 mu2) = |c1 - c2| + W1(mu1, mu2)."""
    mu, nu = cloud(5), cloud(6)
    scale = lambda m, c: pf.Measure(m.atoms, c * m.weights)
    expected = 2.5 + pf.wasserstein(mu, nu).item()
    assert pf.wasserstein(scale(mu, 3), scale(nu, 0.5)).item() == pytest.approx(expected)
    for name, distance in ALL.items():
        if name != "W1":
            with pytest.raises(ValueError, match="equal masses"):
                distance(scale(mu, 3), scale(nu, 0.5))
        both = distance(scale(mu, 3), scale(nu, 3)).item()
        assert both == pytest.approx(distance(mu, nu).item(), rel=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_batches_and_padding(name):
    """A ragged batch is a loop; one measure broadcasts against many."""
    distance = ALL[name]
    for d in (1, 2):
        left, right = [cloud(4, d), cloud(7, d)], [cloud(5, d), cloud(3, d)]
        expected = torch.stack([distance(a, b) for a, b in zip(left, right, strict=True)])
        got = distance(pf.Measure.stack(left), pf.Measure.stack(right))
        assert got.shape == (2,) and worst(got, expected) < 1e-9
        one = distance(left[0], pf.Measure.stack(right))
        assert worst(one[1], distance(left[0], right[1])) < 1e-9


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("name", [*EXACT, pytest.param("sinkhorn", marks=pytest.mark.slow)])
def test_gradients_in_atoms_and_weights(name, d):
    distance = ALL[name]
    x, y = torch.randn(4, d, requires_grad=True), torch.randn(6, d, requires_grad=True)
    a, b = torch.rand(4, requires_grad=True), torch.rand(6, requires_grad=True)
    f = lambda x, y, a, b: distance(pf.Measure(x, a).normalise(), pf.Measure(y, b).normalise())
    assert torch.autograd.gradcheck(f, (x, y, a, b), atol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
def test_gradient_of_the_assignment(p):
    y = pf.Measure(torch.randn(5, 2))
    f = lambda x: pf.wasserstein(pf.Measure(x), y, p=p)
    assert torch.autograd.gradcheck(f, torch.randn(5, 2, requires_grad=True))


def test_gradient_at_equality_is_finite():
    for name, distance in ALL.items():
        x = torch.randn(4, 2, requires_grad=True)
        distance(pf.Measure(x), pf.Measure(x.detach().clone())).backward()
        assert x.grad.isfinite().all(), name


def test_mass_without_points_gets_no_gradient():
    x, w = torch.randn(4, 2), torch.tensor([1.0, 0.0, 2.0, 1.0], requires_grad=True)
    x[1] = torch.nan
    x.requires_grad_()
    for name, distance in ALL.items():
        value = distance(pf.Measure(x, w).normalise(), cloud(3))
        gx, gw = torch.autograd.grad(value, (x, w))
        assert gx.isfinite().all() and gw.isfinite().all(), name
        assert gx[1].eq(0).all() and gw[1] == 0, name


@pytest.mark.parametrize("eps", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("d", [1, 2])
def test_entropic_cost_of_gaussians(d, eps):
    """Closed form for |x - y|^2 + eps KL between Gaussians, through the debiased value."""
    order = 40 if d == 1 else 16

    def cost(ma, Sa, mb, Sb):
        ra, rb = (torch.linalg.cholesky(S) for S in (Sa, Sb))
        s = torch.linalg.svdvals(ra.mT @ rb)
        c = ((eps**2 + 16 * s**2).sqrt() - eps) / (4 * s)
        gain = (-2 * s * c - eps / 2 * torch.log1p(-(c**2))).sum()
        return (ma - mb).square().sum() + Sa.trace() + Sb.trace() + gain

    ma, mb = torch.zeros(d), torch.full((d,), 0.7)
    Sa, Sb = 0.5 * torch.eye(d), 0.3 * torch.eye(d) + 0.05 * torch.ones(d, d)
    expected = cost(ma, Sa, mb, Sb) - (cost(ma, Sa, ma, Sa) + cost(mb, Sb, mb, Sb)) / 2
    mu, nu = pf.Measure.gaussian(ma, Sa, order=order), pf.Measure.gaussian(mb, Sb, order=order)
    got = pf.sinkhorn_divergence(mu, nu, eps=eps, normaliser=pf.Sinkhorn(tol=1e-12))
    assert got.item() == pytest.approx(expected.item(), abs=1e-6 if eps < 1 else 1e-9)


def test_sinkhorn_divergence_against_pot():
    """In a square: POT takes thousands of steps where an atom lies far from the others."""
    mu, nu = (pf.Measure(torch.rand(n, 2), torch.rand(n) + 0.05).normalise() for n in (20, 31))
    eps = 0.05
    cost = lambda a, b: (a.atoms[:, None] - b.atoms[None]).square().sum(-1).numpy()

    def entropic(a, b):
        wa, wb = a.weights.numpy(), b.weights.numpy()
        plan = ot.sinkhorn(wa, wb, cost(a, b), eps, method="sinkhorn_log", stopThr=1e-13,
                           numItermax=100_000)  # fmt: skip
        kl = (plan * np.log(plan / np.outer(wa, wb))).sum()
        return (plan * cost(a, b)).sum() + eps * kl

    expected = entropic(mu, nu) - (entropic(mu, mu) + entropic(nu, nu)) / 2
    got = pf.sinkhorn_divergence(mu, nu, eps=eps, normaliser=TIGHT).item()
    assert got == pytest.approx(expected, rel=1e-8)


def test_sinkhorn_divergence_tends_to_transport():
    mu, nu = cloud(15), cloud(15)
    exact = pf.wasserstein(mu, nu, p=2).item() ** 2
    errors = [abs(pf.sinkhorn_divergence(mu, nu, eps=e).item() - exact) for e in (1.0, 0.1, 0.01)]
    assert errors[2] < errors[1] < errors[0] and errors[2] < 0.02 * exact


def test_a_permuted_copy_is_found_at_once():
    """The start from the symmetric potentials: no warning, no value, no gradient to speak of."""
    x = torch.randn(20, 2, requires_grad=True)
    value = pf.sinkhorn_divergence(
        pf.Measure(x),
        pf.Measure(x.detach().flip(0)),
        eps=0.05,
        normaliser=pf.Sinkhorn(tol=1e-8),
    )
    (grad,) = torch.autograd.grad(value, x)
    assert abs(value.item()) < 1e-9 and grad.abs().max() < 1e-7


def test_sinkhorn_says_when_it_gave_up():
    few = pf.Sinkhorn(tol=1e-9, max_steps=20)
    with pytest.warns(UserWarning, match="marginal error"):
        pf.sinkhorn_divergence(cloud(30), cloud(30), eps=1e-3, normaliser=few)


def test_energy_and_mmd_by_their_double_sums():
    mu, nu = cloud(30), cloud(40)
    gap = lambda a, b: (a.atoms[:, None] - b.atoms[None]).norm(dim=-1)
    total = lambda k: sum(
        s * (a.weights @ k(gap(a, b)) @ b.weights)
        for s, a, b in ((1, mu, mu), (1, nu, nu), (-2, mu, nu))
    )
    assert pf.energy_distance(mu, nu).item() == pytest.approx(
        (-total(lambda r: r)).sqrt().item(), rel=1e-10
    )
    assert pf.mmd(mu, nu, bandwidth=0.8).item() == pytest.approx(
        total(lambda r: (-(r**2) / 1.28).exp()).sqrt().item(), rel=1e-10
    )


def test_sliced_distance_of_a_translation():
    """SW2 of a translation by v is |v| / sqrt(d), up to the Monte Carlo of directions."""
    mu = measure(10, 3)
    v = torch.tensor([1.0, -2.0, 0.5])
    got = pf.sliced_wasserstein(mu, mu.push(lambda x: x + v), projections=20_000)
    assert got.item() == pytest.approx((v.norm() / math.sqrt(3)).item(), rel=0.02)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 2))
def test_metric_properties(name, seed, d):
    """Non-negative, symmetric, zero on the same measure rewritten, triangle inequality."""
    distance = EXACT[name]
    a, b, c = (cloud(n, d, seed + i) for i, n in enumerate((3, 5, 4)))
    ab, bc, ac = distance(a, b), distance(b, c), distance(a, c)
    assert ab >= 0 and abs(ab - distance(b, a)) < 1e-7
    assert ac <= ab + bc + 1e-7
    again = a.split([0.4, 0.6])
    # square roots of rounding of size 1e-16
    assert distance(a, again) < 1e-7


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_divergence_properties(seed):
    """Non-negative, symmetric, zero on the same measure rewritten."""
    near = lambda m: m.push(lambda x: x / 2)
    a, b, s = near(cloud(4, 2, seed)), near(cloud(6, 2)), ALL["sinkhorn"]
    assert s(a, b) >= -1e-9 and abs(s(a, b) - s(b, a)) < 1e-9
    assert abs(s(a, a.split(2))) < 1e-9


@pytest.mark.parametrize("d", [1, 2])
def test_rounding_of_weights_is_no_distance(d):
    """Splitting atoms changes distribution functions by 1e-16, whose p-th root is not small."""
    mu = pf.Measure(torch.randn(7, d))
    for again in (mu.split(3), mu.split([0.1, 0.2, 0.7])):
        for p in (1, 2, 4, 8):
            assert pf.wasserstein(mu, again, p=p).item() < 1e-14
    moved = mu.push(lambda x: x + 1e-3).split(3)
    expected = 1e-3 * math.sqrt(d)
    assert pf.wasserstein(mu, moved, p=10).item() == pytest.approx(expected, rel=1e-9)


def test_rounding_does_not_add_up():
    """Adding 1e-5 a hundred thousand times drifts; W8 of a cloud and its thirds is still 0."""
    mu = pf.Measure.grid(0.0, 1.0, size=100_000)
    assert pf.wasserstein(mu, mu.split(3), p=8).item() < 1e-14


@pytest.mark.parametrize("d", [1, 2])
def test_gradients_at_the_same_measure_rewritten_stay_small(d):
    """A distance is 1-Lipschitz in W1: gradients in the weights are bounded by the diameter."""
    x, w = torch.randn(6, d), torch.rand(6).requires_grad_()
    flip = pf.Measure(x.flip(0), w.detach().flip(0)).normalise()
    for name, distance in EXACT.items():
        x.requires_grad_()
        mu = pf.Measure(x, w).normalise()
        grads = torch.autograd.grad(distance(mu, flip), (x, w), allow_unused=True)
        assert all(g is None or g.abs().max() < 10 for g in grads), name


def test_mass_rounding_has_no_gradient():
    """Ten weights of 0.1 sum to 1 + 4e-16: no mass to be paid for."""
    w = torch.full((10,), 0.1, requires_grad=True)
    mu = pf.Measure(torch.arange(10.0)[:, None], w)
    (grad,) = torch.autograd.grad(pf.wasserstein(mu, pf.Measure(torch.zeros(1, 1))), w)
    assert torch.allclose(grad, torch.arange(10.0) - 4.5)


@pytest.mark.parametrize("log_mass", [-230.0, -40.0, 40.0, 230.0])
def test_masses_are_compared_by_their_logarithms(log_mass):
    x = torch.randn(2, 2)
    log = lambda *w: torch.tensor(w).log() + log_mass
    mu = pf.Measure(x, log_weights=log(0.5, 0.5))
    nu = pf.Measure(x, log_weights=log(0.3, 0.7))
    expected = (0.2 * (x[0] - x[1]).square().sum()).sqrt()
    assert pf.wasserstein(mu, nu, p=2).item() == pytest.approx(expected.item(), rel=1e-6)
    with pytest.raises(ValueError, match="equal masses"):
        pf.wasserstein(mu, pf.Measure(x, log_weights=log(0.3, 0.71)), p=2)


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("d", [1, 2])
def test_large_exponents_neither_under_nor_overflow(d, size):
    mu = pf.Measure(size * torch.randn(5, d))
    nu = mu.push(lambda x: x + size)
    got = pf.wasserstein(mu, nu, p=50).item()
    assert got == pytest.approx(size * math.sqrt(d), rel=1e-6)


@pytest.mark.parametrize("name", ["W2", "sinkhorn"])
def test_second_derivatives_are_refused_where_they_would_be_wrong(name):
    x = torch.randn(4, 2, requires_grad=True)
    value = ALL[name](pf.Measure(x), cloud(5))
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(value, x, create_graph=True)


def test_empty_batches():
    none = pf.Measure.stack([cloud(4), cloud(4)])[:0]
    for name, distance in ALL.items():
        assert distance(none, none).shape == (0,), name


@pytest.mark.parametrize("dim", [2, 8, 64])
@pytest.mark.parametrize("kind", ["random", "moved", "clustered", "tied"])
def test_equal_clouds_against_an_assignment(kind, dim):
    """The network simplex finds the cost of SciPy's assignment, for p = 1 and 2."""
    x, y = torch.randn(120, dim), torch.randn(120, dim)
    if kind == "moved":
        y = x.flip(0) + 3
    elif kind == "clustered":
        x, y = (5 * torch.randn(6, dim)[torch.randint(6, (120,))] + 0.1 * t for t in (x, y))
    elif kind == "tied":
        x, y = x.round(), y.round()
    for p in (1, 2):
        cost = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") ** p
        best = cost[scipy.optimize.linear_sum_assignment(cost.numpy())].mean() ** (1 / p)
        got = pf.wasserstein(pf.Measure(x), pf.Measure(y), p=p)
        assert float(got) == pytest.approx(float(best), rel=1e-12)
