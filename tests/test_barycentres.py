"""Barycentres of measures, and the entropic transport value."""

import numpy as np
import ot
import pytest
import torch
from cases import measure

import pushforward as pf
from pushforward._tools.warn import PushforwardWarning
from pushforward.distances import barycentre


def single(*points):
    return pf.Measure(torch.tensor(points)[:, None])


def test_two_diracs():
    """The barycentre of two Diracs is the Dirac on the segment between them."""
    x, y = torch.randn(1, 3), torch.randn(1, 3)
    lam = torch.tensor([0.25, 0.75])
    nu = barycentre([pf.Measure(x), pf.Measure(y, torch.tensor([5.0]))], lam, size=4)
    assert torch.allclose(nu.atoms, (0.25 * x + 0.75 * y).expand(4, 3), atol=1e-14)
    assert nu.mass.item() == pytest.approx(1)


def test_the_line_has_mean_quantiles():
    """With n atoms each, the sorted atoms are the means of the sorted atoms."""
    a, b = torch.randn(8).sort().values, 3 + 2 * torch.randn(8).sort().values
    nu = barycentre([single(*a.tolist()), single(*b.tolist())], torch.tensor([0.3, 0.7]), size=8)
    assert torch.allclose(nu.atoms.flatten().sort().values, 0.3 * a + 0.7 * b, atol=1e-12)


def test_gaussians_on_the_line():
    """The barycentre of N(m_k, s_k^2) is N(mean m, (mean s)^2): on quantiles, to rounding."""
    u = (torch.arange(50) + 0.5) / 50
    normal = torch.distributions.Normal(0.0, 1.0).icdf(u)
    means, sizes = torch.tensor([0.0, 4.0, -1.0]), torch.tensor([1.0, 3.0, 0.5])
    lam = torch.tensor([0.5, 0.25, 0.25])
    clouds = [pf.Measure((m + s * normal)[:, None]) for m, s in zip(means, sizes, strict=True)]
    nu = barycentre(clouds, lam, size=50)
    expected = lam @ means + (lam @ sizes) * normal
    assert torch.allclose(nu.atoms.flatten().sort().values, expected, atol=1e-12)


def test_weights_of_atoms_count():
    """A weighted measure and the same measure with repeated atoms have one barycentre."""
    start, other = measure(4), measure(3)
    x = torch.randn(2, 2)
    heavy = pf.Measure(x, torch.tensor([1.0, 2.0]))
    often = pf.Measure(x[[0, 1, 1]])
    a, b = (barycentre([m, other], start=start) for m in (heavy, often))
    assert a.allclose(b, rtol=1e-12)
    assert torch.allclose(a.weights, start.normalise().weights) and a.mass.item() == pytest.approx(
        1
    )


def test_against_pot():
    clouds, start = [measure(5), measure(7), measure(4)], pf.Measure(torch.randn(6, 2))
    lam = torch.tensor([0.2, 0.5, 0.3])
    nu = barycentre(clouds, lam, start=start)
    theirs = ot.lp.free_support_barycenter(
        [m.atoms.numpy() for m in clouds],
        [m.normalise().weights.numpy() for m in clouds],
        start.atoms.numpy(), weights=lam.numpy(), stopThr=1e-24, numItermax=100,
    )  # fmt: skip
    assert np.abs(nu.atoms.numpy() - theirs).max() < 1e-10


def test_a_measure_is_its_own_barycentre():
    mu = pf.Measure(torch.randn(6, 2))
    assert barycentre([mu, mu], start=mu).allclose(mu)


def test_batches_padding_dtypes_and_zero_shares():
    clouds = [measure(3), measure(5), measure(2)]
    start = pf.Measure(torch.randn(4, 2))
    nu = barycentre(clouds, start=start)
    assert torch.equal(barycentre(pf.Measure.stack(clouds), start=start).atoms, nu.atoms)
    low = barycentre([m.float() for m in clouds], start=start.float())
    assert low.dtype == torch.float32 and low.times is None
    assert torch.allclose(low.double().atoms, nu.atoms, atol=1e-5)
    none = barycentre(clouds, torch.tensor([1.0, 0.0, 1.0]), start=start)
    assert none.allclose(barycentre([clouds[0], clouds[2]], start=start), rtol=1e-12)


def test_draws_are_reproducible():
    clouds = [measure(9), measure(8)]
    draw = lambda: barycentre(clouds, size=5, generator=torch.Generator().manual_seed(4))
    assert torch.equal(draw().atoms, draw().atoms)


def test_steps_that_do_not_suffice_are_reported():
    with pytest.warns(PushforwardWarning, match="after 1 steps. Raise `steps`"):
        barycentre([measure(9), measure(8)], size=5, steps=1)


@pytest.mark.unhooked
def test_messages():
    mu = measure()
    cases = {
        "`size`, a number of atoms, or `start`": lambda: barycentre([mu]),
        "a list or a batch": lambda: barycentre(mu, size=2),
        "at least one measure": lambda: barycentre([], size=2),
        "share their space": lambda: barycentre([mu, measure(3, 1)], size=2),
        "One per measure": lambda: barycentre([mu], torch.ones(2), size=2),
        "non-negative": lambda: barycentre([mu, mu], torch.tensor([-1.0, 2.0]), size=2),
        "must be a Measure, got Tensor": lambda: barycentre([mu.atoms], size=2),
        "at least 1": lambda: barycentre([mu], size=0),
        "single measures": lambda: barycentre([pf.Measure.stack([mu])], size=2),
    }
    for words, call in cases.items():
        with pytest.raises((ValueError, TypeError), match=words):
            call()


# The entropic value


@pytest.mark.parametrize("eps", [0.3, 2.0])
def test_the_entropic_value_is_that_of_pot(eps):
    mu, nu = measure(6), measure(5)
    to = pf.Sinkhorn(tol=1e-12)
    pi = pf.relate(mu, nu, affinity=pf.SquaredDistance(eps), normaliser=to)
    a, b = (m.normalise().weights.numpy() for m in (mu, nu))
    cost = ot.dist(mu.atoms.numpy(), nu.atoms.numpy())
    theirs = ot.solve(cost, a, b, reg=eps, reg_type="KL", max_iter=100_000, tol=1e-14)
    assert pi.value().item() == pytest.approx(theirs.value, rel=1e-9)
    assert pi.cost().item() == pytest.approx(theirs.value_linear, rel=1e-9)
    assert pi.transpose().value().item() == pytest.approx(pi.value().item(), rel=1e-10)


def test_the_value_of_sinkhorn_is_the_least():
    mu, nu, near = measure(6), measure(5), pf.SquaredDistance(0.5)
    value = pf.relate(mu, nu, affinity=near, normaliser=pf.Sinkhorn(tol=1e-12)).value()
    exact = pf.relate(mu, nu, affinity=near, normaliser=pf.relations.Exact())
    expected = exact.cost() + 0.5 * exact.mutual_information()
    assert torch.allclose(exact.value(), expected) and value < exact.value()
    assert exact.cost() < pf.relate(mu, nu, affinity=near, normaliser=pf.Sinkhorn()).cost()


def test_the_value_is_that_of_its_potentials():
    r"""The dual value, eps (int f dmu + int g dnu); and its gradient by finite differences."""
    x, eps = torch.randn(4, 2), 0.7
    mu, nu = measure(4), measure(5)

    def value(x):
        context = pf.Measure(x, mu.weights)
        to = pf.Sinkhorn(tol=1e-13)
        return pf.relate(context, nu, affinity=pf.SquaredDistance(eps), normaliser=to)

    f, g = value(x).potentials
    dual = eps * (mu.normalise().integrate(f) + nu.normalise().integrate(g))
    assert torch.allclose(value(x).value(), dual, atol=1e-11)
    assert torch.autograd.gradcheck(lambda x: value(x).value(), x.requires_grad_(), atol=1e-6)


def test_the_value_of_dot_products_and_heads():
    mu = pf.Measure.stack([measure(4), measure(3)])
    pi = pf.relate(mu, mu, normaliser=pf.Sinkhorn(tol=1e-12))
    assert pi.value().shape == (2,)
    assert torch.allclose(pi.value(), pi.cost() + pi.mutual_information())
    low = pf.relate(mu.float(), mu.float(), normaliser=pf.Sinkhorn(tol=1e-5))
    assert low.value().dtype == torch.float32
    assert torch.allclose(low.value().double(), pi.value(), atol=1e-5)
