"""Unbalanced transport: plans of measures with masses of their own, and their divergence."""

import math

import pytest
import torch
from related import cloud, pair, related, squared

import pushforward as pf


def dirac(position, mass):
    return pf.Measure(torch.tensor([[position, 0.0]]), torch.tensor([mass]))


def one_atom_mass(a, b, cost, eps, rho):
    """The mass of the plan of two Diracs: the logarithmic derivative of the objective is zero."""
    logs = (eps * math.log(a * b) + rho[0] * math.log(a) + rho[1] * math.log(b) - cost) / (
        eps + sum(rho)
    )
    return math.exp(logs)


def one_atom_cost(a, b, cost, eps, rho):
    """The least value of the objective for two Diracs, term by term."""
    p = one_atom_mass(a, b, cost, eps, (rho, rho))
    kl = lambda q: p * math.log(p / q) - p + q
    return cost * p + eps * kl(a * b) + rho * kl(a) + rho * kl(b)


@pytest.mark.parametrize("slack", [(1.0, 1.0), (0.5, math.inf), (math.inf, 2.0), (0.3, 4.0)])
def test_plans_against_pot(slack):
    """The given masses count, and the reference measure is their product, as in POT's `kl`."""
    ot = pytest.importorskip("ot")
    mu, nu = pair(12, 10)
    pi = related(mu, nu, pf.Sinkhorn(tol=1e-13, slack=slack), eps=0.4)
    theirs = ot.unbalanced.sinkhorn_unbalanced(
        mu.weights.cpu().numpy(), nu.weights.cpu().numpy(), squared(mu, nu).cpu().numpy(),
        0.4, slack,
        reg_type="kl", numItermax=100_000, stopThr=1e-15,
    )  # fmt: skip
    assert type(pi) is pf.relations.Masses and pi.residual < 1e-12
    assert torch.allclose(pi.matrix(), torch.from_numpy(theirs), atol=1e-9)
    assert pi.transpose().residual < 1e-12
    for side, slack_of_side, m in zip(pi.marginals(), slack, (mu, nu), strict=True):
        if math.isinf(slack_of_side):
            assert torch.allclose(side, m.weights, atol=1e-10)


@pytest.mark.parametrize("masses", [(1.0, 1.0), (2.0, 1.0), (1e-3, 1e3), (1e200, 1e-250)])
@pytest.mark.parametrize("steps", [None, 400])
def test_one_atom_each(masses, steps):
    (a, b), rho = masses, (0.7, 1.9)
    how = {"tol": 1e-12} if steps is None else {"steps": steps}
    pi = related(dirac(0.0, a), dirac(1.3, b), pf.Sinkhorn(slack=rho, **how), eps=0.4)
    expected = one_atom_mass(a, b, 1.69, 0.4, rho)
    assert float(pi.mass()) == pytest.approx(expected, rel=1e-10)
    assert pi.residual < 1e-12 and pi.transpose()[()].residual < 1e-12


@pytest.mark.parametrize("rho", [1e3, 1e9])
def test_much_slack_and_unequal_masses(rho):
    """The limit is the coupling times the geometric mean of the masses; steps stay few."""
    mu, nu = pair()
    pi = related(mu, nu, pf.Sinkhorn(tol=1e-10, slack=rho))
    limit = related(mu, nu).matrix() * (mu.mass * nu.mass).sqrt()
    assert torch.allclose(pi.matrix(), limit, rtol=1e2 / rho + 1e-6) and pi.steps < 200
    assert pi.residual < 1e-6


def test_one_relation_of_a_batch_keeps_its_masses():
    x, w = torch.randn(3, 5, 2), torch.rand(3, 5) * torch.tensor([1.0, 10.0, 100.0])[:, None]
    pi = related(pf.Measure(x, w), pf.Measure(x.flip(0), w), pf.Sinkhorn(tol=1e-12, slack=1.0))
    alone = related(
        pf.Measure(x[2], w[2]), pf.Measure(x[0], w[2]), pf.Sinkhorn(tol=1e-12, slack=1.0)
    )
    assert torch.allclose(pi[2].matrix(), alone.matrix(), rtol=1e-9)
    assert (pi[2].residual < 1e-11).all()


def test_large_clouds_start_from_a_sample_with_their_masses():
    x = torch.rand(2100, 2)
    mu, nu = pf.Measure(x, torch.full((2100,), 3.0)), pf.Measure(x.flip(0) ** 2)
    plans = [
        related(mu, nu, pf.Sinkhorn(tol=1e-8, slack=0.5, anneal=anneal), eps=2e-3)
        for anneal in (True, False)
    ]
    assert all(p.residual < 1e-7 for p in plans)
    assert float(plans[0].mass()) == pytest.approx(float(plans[1].mass()), rel=1e-6)


def test_gradients_in_points_and_masses():
    torch.manual_seed(3)
    x, w = torch.randn(4, 2, requires_grad=True), (torch.rand(4) + 0.5).requires_grad_()
    nu = cloud(3)

    def value(x, w):
        pi = related(pf.Measure(x, w), nu, pf.Sinkhorn(tol=1e-14, slack=0.8))
        return pi.mass(), pi.cost()

    assert torch.autograd.gradcheck(value, (x, w), atol=1e-6)


def test_attention_normalises_its_measures():
    gamma = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-12, slack=0.5))
    mu = cloud(6)
    heavy = pf.Measure(mu.atoms, 7 * mu.weights)
    assert torch.allclose(gamma.push(mu).atoms, gamma.push(heavy).atoms, atol=1e-10)


def divergence(mu, nu, rho=0.8, eps=0.3, tol=1e-12):
    return pf.sinkhorn_divergence(
        mu, nu, eps=eps, normaliser=pf.Sinkhorn(tol=tol, slack=rho, max_steps=50_000)
    )


@pytest.mark.parametrize("masses", [(1.0, 1.0), (2.0, 1.0), (0.1, 5.0)])
@pytest.mark.parametrize("distance", [0.0, 1.3])
def test_divergence_of_two_diracs(masses, distance):
    """From the cost of two Diracs, and the term for the masses."""
    (a, b), eps, rho = masses, 0.3, 0.8
    cost = lambda m, n, c: one_atom_cost(m, n, c, eps, rho)
    expected = cost(a, b, distance**2) - (cost(a, a, 0) + cost(b, b, 0)) / 2
    expected += eps / 2 * (a - b) ** 2
    got = divergence(dirac(0.0, a), dirac(distance, b))
    assert float(got) == pytest.approx(expected, abs=1e-10)
    assert got >= -1e-12


@pytest.mark.parametrize("seed", range(5))
def test_divergence_is_non_negative_and_zero_for_equal_measures(seed):
    torch.manual_seed(seed)
    mu, nu = pair()
    assert divergence(mu, nu) > 0
    assert divergence(mu, mu).abs() < 1e-11
    again = pf.Measure(mu.atoms.flip(0), mu.weights.flip(0))
    assert divergence(mu, again).abs() < 1e-11
    assert torch.allclose(divergence(mu, nu), divergence(nu, mu), atol=1e-10)


def test_divergence_with_much_slack_is_the_balanced_one():
    """At rate 1 / rho."""
    mu, nu = (m.normalise() for m in pair())
    balanced = pf.sinkhorn_divergence(mu, nu, eps=0.3, normaliser=pf.Sinkhorn(tol=1e-12))
    gaps = [abs(float(divergence(mu, nu, rho) - balanced)) for rho in (1e2, 1e3)]
    assert gaps[1] < 0.11 * gaps[0] < 0.11 * float(balanced)


def test_divergence_has_the_gradients_of_finite_differences():
    torch.manual_seed(4)
    x, w = torch.randn(4, 2, requires_grad=True), (torch.rand(4) + 0.5).requires_grad_()
    nu = cloud(3)
    value = lambda x, w: divergence(pf.Measure(x, w), nu, tol=1e-14)
    assert torch.autograd.gradcheck(value, (x, w), atol=1e-6)


def test_divergence_of_a_batch():
    x, y, w = torch.randn(3, 5, 2), torch.randn(3, 4, 2), torch.rand(3, 5) + 0.1
    got = divergence(pf.Measure(x, w), pf.Measure(y))
    alone = [divergence(pf.Measure(x[i], w[i]), pf.Measure(y[i])) for i in range(3)]
    assert torch.allclose(got, torch.stack(alone), atol=1e-9)
    assert divergence(pf.Measure(x[:0]), pf.Measure(y[:0])).shape == (0,)
