"""Couplings and conditionals: marginals, closed forms, other libraries, invariance."""

import math

import pytest
import torch
from related import TIGHT, cloud, pair, related, squared, weights

import pushforward as pf


def test_a_coupling_has_its_marginals():
    mu, nu = pair()
    pi = related(mu, nu)
    p = pi.matrix()
    assert type(pi) is pf.Coupling and pi.converged and pi.residual <= 1e-12
    assert torch.allclose(p.sum(-1), weights(mu), atol=1e-13)
    assert torch.allclose(p.sum(-2), weights(nu), atol=1e-12)
    rows, columns = pi.marginals()
    assert torch.allclose(rows, p.sum(-1)) and torch.allclose(columns, p.sum(-2))
    error = max((rows - weights(mu)).abs().sum(), (columns - weights(nu)).abs().sum())
    assert float(pi.residual) == pytest.approx(error.item(), abs=1e-15)


def test_apply_is_the_mean_under_the_rows():
    mu, nu = pair()
    pi, v = related(mu, nu), torch.randn(9, 3)
    p = pi.matrix()
    assert torch.allclose(pi.apply(v), p @ v / p.sum(-1, keepdim=True), atol=1e-12)
    back, u = pi.transpose(), torch.randn(7, 3)
    assert torch.allclose(back.apply(u), p.T @ u / p.sum(0)[:, None], atol=1e-12)
    assert torch.allclose(back.matrix(), p.T, atol=1e-15) and type(back) is pf.Coupling
    assert torch.allclose(pi.conditional().matrix(), p / p.sum(-1, keepdim=True), atol=1e-14)
    assert torch.allclose(pi.conditional().apply(v), pi.apply(v))


def test_information_and_cost_by_their_sums():
    mu, nu = pair()
    for pi in (related(mu, nu), related(mu, nu).transpose()):
        p = pi.matrix()
        product = p.sum(-1, keepdim=True) * p.sum(-2, keepdim=True)
        assert float(pi.entropy()) == pytest.approx(-(p * p.log()).sum().item(), abs=1e-11)
        info = (p * (p / product).log()).sum().item()
        assert float(pi.mutual_information()) == pytest.approx(info, abs=1e-11)
    cost = (related(mu, nu).matrix() * squared(mu, nu)).sum().item()
    assert float(related(mu, nu).cost()) == pytest.approx(cost, abs=1e-12)
    pi = pf.relate(mu, nu, normaliser=TIGHT)
    dots = (mu.atoms @ nu.atoms.T * pi.matrix()).sum().item()
    assert float(pi.cost()) == pytest.approx(-dots, abs=1e-12)


def test_a_conditional():
    mu, nu = pair()
    kappa = pf.relate(mu, nu)
    scores = mu.atoms @ nu.atoms.T + nu.log_weights
    rows = scores.softmax(-1)
    assert type(kappa) is pf.Conditional
    assert torch.allclose(kappa.matrix(), rows)
    v = torch.randn(9, 2)
    assert torch.allclose(kappa.apply(v), rows @ v)
    assert torch.allclose(kappa.entropy(), -(rows * rows.log()).sum(-1), atol=1e-12)
    assert torch.equal(kappa.assignment(), rows.argmax(-1))
    joint = kappa.joint(mu)
    assert torch.allclose(joint.matrix(), weights(mu)[:, None] * rows, atol=1e-14)
    assert joint.residual < 1e-14 and joint.converged
    for name in ("transpose", "marginals", "mutual_information", "cost", "residual"):
        assert not hasattr(kappa, name)


def test_projection_is_sinkhorn_of_the_same_affinity():
    mu, nu = pair()
    kappa = pf.relate(mu, nu)
    pi = kappa.project(mu, nu, normaliser=TIGHT)
    direct = pf.relate(mu, nu, normaliser=TIGHT)
    assert torch.allclose(pi.matrix(), direct.matrix(), atol=1e-12)
    other = cloud(9)
    moved = kappa.project(mu, other)
    assert torch.allclose(moved.matrix().sum(0), weights(other), atol=1e-6)


def test_types_do_not_mix():
    mu, nu = pair()
    dual = pf.relate(mu, nu, normaliser=pf.relations.DualSoftmax())
    assert type(dual) is pf.relations.Masses
    for name in ("conditional", "converged", "mutual_information"):
        assert not hasattr(dual, name)
    for name in ("joint", "project"):
        assert not hasattr(related(mu, nu), name)


def test_samples_follow_the_masses():
    mu, nu = pair(4, 5)
    pi, generator = related(mu, nu), torch.Generator(mu.device).manual_seed(0)
    rows, keys = pi.sample(200_000, generator=generator)
    counts = torch.zeros(4, 5).index_put((rows, keys), torch.ones(200_000), accumulate=True)
    assert (counts / 200_000 - pi.matrix()).abs().max() < 5e-3
    keys = pi.conditional().sample(50_000, generator=generator)
    assert keys.shape == (4, 50_000)
    share = torch.stack([(keys == j).double().mean(-1) for j in range(5)], -1)
    assert (share - pi.conditional().matrix()).abs().max() < 0.02
    batch = pf.relate(
        pf.Measure(torch.randn(3, 4, 1)),
        pf.Measure(torch.randn(3, 5, 1)),
        affinity=pf.Matrix(torch.randn(3, 4, 5)),
        normaliser=pf.Sinkhorn(),
    )
    assert batch.sample(7)[0].shape == (3, 7)


@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_against_pot(eps):
    ot = pytest.importorskip("ot")
    mu, nu = pair(20, 30)
    pi = related(mu, nu, eps=eps)
    cost = squared(mu, nu).cpu().numpy()
    theirs, log = ot.sinkhorn(
        weights(mu).cpu().numpy(), weights(nu).cpu().numpy(), cost, eps, method="sinkhorn_log",
        numItermax=100_000, stopThr=1e-13, log=True,
    )  # fmt: skip
    theirs = torch.from_numpy(theirs)
    assert torch.allclose(pi.matrix(), theirs, atol=1e-10)
    assert float(pi.cost()) == pytest.approx(
        (theirs * torch.from_numpy(cost)).sum().item(), abs=1e-8
    )
    f, g = pi.potentials
    u = torch.from_numpy(log["log_u"]) - weights(mu).log()
    v = torch.from_numpy(log["log_v"]) - weights(nu).log()
    shift = ((weights(mu) * u).sum() - (weights(nu) * v).sum()) / 2
    assert torch.allclose(f, u - shift, atol=1e-8) and torch.allclose(g, v + shift, atol=1e-8)
    assert float((weights(mu) * f).sum()) == pytest.approx(
        (weights(nu) * g).sum().item(), abs=1e-12
    )


def test_much_slack_is_none():
    mu, nu = (m.normalise() for m in pair())
    loose = related(mu, nu, pf.Sinkhorn(tol=1e-12, slack=1e9))
    assert torch.allclose(loose.matrix(), related(mu, nu).matrix(), atol=1e-7)


@pytest.mark.parametrize("eps, order", [(0.5, 20), (0.25, 40), (0.1, 80)])
def test_gaussians(eps, order):
    """Value and cross-covariance of the entropic plan of two normal laws."""
    law = lambda m, s: pf.Measure.gaussian(torch.tensor([m]), torch.tensor([[s]]), order=order)
    mu, nu = law(0.3, 0.5), law(-0.2, 0.3)
    pi = related(mu, nu, pf.Sinkhorn(tol=1e-12), eps=eps)
    sigma = math.sqrt(0.5 * 0.3)
    s = (math.sqrt(eps**2 + 16 * sigma**2) - eps) / (4 * sigma)
    value = 0.25 + 0.8 - 2 * sigma * s - eps / 2 * math.log(1 - s**2)
    assert float(pi.cost() + eps * pi.mutual_information()) == pytest.approx(value, abs=1e-8)
    x, y = mu.atoms[:, 0] - 0.3, nu.atoms[:, 0] + 0.2
    assert float(x @ pi.matrix() @ y) == pytest.approx(sigma * s, abs=1e-8)


def test_splitting_permuting_duplicating_padding():
    mu, nu = pair()
    pi, v = related(mu, nu), torch.randn(9, 2)
    base, f = pi.apply(v), pi.potentials[0]
    split = nu.split([0.2, 0.5, 0.3])
    index = [int((nu.atoms == y).all(-1).nonzero()) for y in split.atoms]
    other = related(mu, split)
    assert other.steps == pi.steps  # acceleration weighs by mass, so it sees no difference
    assert torch.allclose(other.apply(v[index]), base, atol=1e-11)
    assert torch.allclose(other.potentials[0], f, atol=1e-10)
    order = torch.randperm(9)
    mixed = related(mu, pf.Measure(nu.atoms[order], nu.weights[order]))
    assert torch.allclose(mixed.apply(v[order]), base, atol=1e-11)
    padded = pf.Measure(
        torch.cat([nu.atoms, torch.full((2, 2), torch.nan)]),
        torch.cat([nu.weights, torch.zeros(2)]),
    )
    value = torch.cat([v, torch.full((2, 2), torch.nan)])
    assert torch.allclose(related(mu, padded).apply(value), base, atol=1e-11)
    assert related(mu, padded).matrix()[:, 9:].abs().max() == 0
    twice = pf.Measure(nu.atoms.repeat(2, 1), nu.weights.repeat(2))
    assert torch.allclose(related(mu, twice).apply(v.repeat(2, 1)), base, atol=1e-11)
    assert float(related(mu, twice).mutual_information()) == pytest.approx(
        pi.mutual_information().item(), abs=1e-10
    )


def test_batches_are_each_their_own():
    mu, nu = (pf.Measure(torch.randn(3, n, 2), torch.rand(3, n)) for n in (5, 6))
    pi = related(mu, nu)
    assert pi.residual.shape == (3,) and pi.converged.all()
    for i in range(3):
        assert torch.allclose(pi.matrix()[i], related(mu[i], nu[i]).matrix(), atol=1e-11)


def test_ragged_batches():
    clouds = [cloud(n) for n in (3, 6, 4)]
    batch = pf.Measure.stack(clouds)
    pi = related(batch, batch)
    for i, mu in enumerate(clouds):
        alone = related(mu, mu)
        assert torch.allclose(pi.matrix()[i, : mu.n, : mu.n], alone.matrix(), atol=1e-10)
