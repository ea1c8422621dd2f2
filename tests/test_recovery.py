"""Theorem 1: recovered maps against the maps themselves, with the orders of the theory."""

import math

import numpy as np
import pytest
import torch
from cases import measure

import pushforward as pf
from pushforward.representation import decode, flattened
from pushforward.representation._subset_sums import LIMIT


def field(scale=1.0):
    return pf.Residual(pf.fields.SelfAttention(*(scale * torch.randn(3, 2, 2)).unbind(0)))


MAPS = {
    "attention": lambda: field(),
    "deep": lambda: pf.Transformer(2, depth=3, heads=2, hidden=6, step=0.5),
    "flow": lambda: pf.Flow(field().gamma, t1=1.0, solver=pf.RK4(10)),
    "sinkhorn": lambda: pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-13)),
}


def gap(a, b):
    return float((a - b).norm(dim=-1).max())


# Masses


def test_masses_are_decoded():
    """Unions of atoms, in any order; limits and refusals."""
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 13, 20):
        a = 2.0 ** -np.arange(n) if n == 20 else rng.dirichlet(np.ones(n))
        a = a / a.sum()
        owner = rng.integers(0, max(1, n // 2), n)
        kinds = np.unique(owner)
        sums = np.array([a[owner == k].sum() for k in kinds])
        order = rng.permutation(len(sums))
        found = decode(a, sums[order], 1e-13)
        assert found.residual < 1e-15 and (kinds[order][found.owner] == owner).all()


def test_what_cannot_be_decoded():
    a = np.array([0.5, 0.3, 0.2])
    assert decode(a, np.array([0.5, 0.5]), 1e-12).problem == "several subsets"
    halves = decode(np.array([0.6, 0.4]), np.array([0.5, 0.5]), 1e-12)
    assert halves.problem == "no subset" and abs(halves.residual - 0.1) < 1e-12
    b = np.array([0.55, 0.3, 0.15])
    assert decode(b, np.array([0.55, 0.55]), 1e-12).problem == "subsets overlap"
    assert decode(b, np.array([0.55]), 1e-12).problem == "mass is missing"
    with pytest.raises(ValueError, match=f"at most {LIMIT} atoms"):
        decode(np.ones(LIMIT + 1), np.ones(1), 1e-12)


@pytest.mark.parametrize("name", MAPS)
def test_layers_keep_masses(name):
    """Experiment E1: output masses are input masses to 1e-12."""
    mu = measure(10)
    out = MAPS[name]().push(mu)
    masses = lambda m: m.normalise().weights.detach().cpu().numpy()
    assert decode(masses(mu), masses(out.merge()), 1e-12).residual < 1e-12


# Recovery


@pytest.mark.parametrize("by", [pf.representation.Excess(), pf.representation.Decode()], ids=repr)
@pytest.mark.parametrize("name", MAPS)
def test_recovered_maps_have_the_orders_of_the_theory(name, by):
    """Experiment E3: an error of order 1 in the mass, 2 extrapolated."""
    gamma, mu, x = MAPS[name](), measure(9), torch.randn(2, 2)
    truth = gamma(mu, pf.Measure(x, torch.tensor([0.5, 0.5])) if gamma.paired else x)
    for extrapolate, order in ((False, 1), (True, 2)):
        errors = []
        with torch.no_grad():
            for eta in (4e-3, 1e-3):
                G = pf.recover(gamma.push, by=by, eta=eta, extrapolate=extrapolate)
                errors.append(gap(G(mu, x), truth))
        assert abs(math.log(errors[0] / errors[1], 4) - order) < 0.15


def test_the_best_mass_of_the_weak_form():
    """Truncation falls, rounding grows: without extrapolation the best is near 1e-8."""
    gamma, mu, x = field(0.5), measure(6), torch.tensor([[1.3, -0.8]])
    truth, errors = gamma(mu, x), {}
    for eta in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12):
        errors[eta] = gap(
            pf.recover(gamma.push, by=pf.representation.Weak(), eta=eta, extrapolate=False)(mu, x),
            truth,
        )
    assert min(errors, key=errors.get) in (1e-6, 1e-8, 1e-10) and min(errors.values()) < 1e-6
    assert errors[1e-4] > 1e-6 and errors[1e-12] > 10 * min(errors.values())


def test_thousands_of_equal_tokens():
    """Excess mass reads the position at any number of tokens."""
    gamma = field()
    mu, x = pf.Measure(torch.randn(2000, 2)), torch.randn(2, 2)
    with torch.no_grad():
        assert gap(pf.recover(gamma.push)(mu, x), gamma(mu, x)) < 1e-9


@pytest.mark.parametrize("by", [pf.representation.Excess(), pf.representation.Decode()], ids=repr)
def test_collisions(by):
    """Images that fall onto each other, merged by the black box itself."""
    flat = pf.Pointwise(lambda x: x * torch.tensor([1.0, 0.0]))
    mu = pf.Measure(torch.tensor([[0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]), torch.rand(3))
    black_box = lambda nu: flat.push(nu).merge()
    for point in ([0.5, 3.0], [0.0, 3.0], [0.0, 1.0], [1.0, 5.0]):
        x = torch.tensor([point])
        assert gap(pf.recover(black_box, by=by, eta=1e-4)(mu, x), flat(mu, x)) < 1e-12
    constant = lambda nu: nu.push(torch.zeros_like).merge()
    assert gap(pf.recover(constant, by=by)(mu, torch.ones(1, 2)), torch.zeros(1, 2)) == 0


def test_atoms_of_dense_clouds():
    """Their mass tells them apart though images move by more than their distance."""
    f = lambda nu: nu.push(lambda y: y + 3000 * nu.normalise().mean())
    mu = pf.Measure(torch.linspace(0, 1, 2000)[:, None])
    x = mu.atoms[[0, 700, -1]]
    assert gap(pf.recover(f)(mu, x), x + 1500) < 1e-6
    grid = lambda nu: f(nu.push(lambda y: y.mul(500).round() / 500)).merge()
    with pytest.raises(pf.representation.BlackBoxError, match="cannot be separated"):
        pf.recover(grid, eta=1e-5)(mu, torch.tensor([[0.33333]]))


def test_outputs_in_any_order():
    gamma, mu, x = field(), measure(8), torch.randn(2, 2)

    def shuffled(nu):
        out, order = gamma.push(nu), torch.randperm(nu.n)
        return pf.Measure.unchecked(out.atoms[order], out.log_weights[order])

    assert gap(pf.recover(shuffled)(mu, x), gamma(mu, x)) < 1e-9


def test_error_estimates():
    """They are the error, as long as that is above rounding."""
    gamma, mu, x = field(), measure(8), torch.randn(4, 2)
    for eta in (1e-2, 1e-3):
        y, error = pf.recover(gamma.push, eta=eta).estimate(mu, x)
        true = (y - gamma(mu, x)).norm(dim=-1)
        assert (error / true - 1).abs().max() < 0.1
        y, error = pf.recover(gamma.push, eta=eta, extrapolate=False).estimate(mu, x)
        assert (error / (y - gamma(mu, x)).norm(dim=-1) - 1).abs().max() < 0.1


@pytest.mark.parametrize("far", [0.05, 0.12, 0.15, 0.25])
def test_the_error_estimate_of_weak_counts_its_radius(far):
    """Exactly, if the image is between one and two radii from another; else at most the radius."""
    mu = pf.Measure(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    shift = lambda m: m.push(lambda z: z + 0.1 * m.mean())
    x = torch.tensor([[far, 0.0]])
    y, estimate = pf.recover(shift, by=pf.representation.Weak(radius=0.1)).estimate(mu, x)
    true = (y - x - 0.1 * mu.mean()).norm().item()
    assert true <= estimate.item() <= (0.1 if far < 0.1 else true) + 1e-7


def test_the_resolution_of_excess_is_the_extent_of_its_cluster():
    """Two atoms of the same mass, so that the image is known as the centre of a cluster only."""
    eta, x = 0.1, torch.tensor([1e-3])
    light = eta / (1 - eta)
    mu = pf.Measure(torch.tensor([[0.0], [1.0]]), torch.tensor([1 - light, light]))
    found = pf.representation.Excess(radius=0.01).find(lambda nu: nu, mu, x, eta)
    assert 1e-4 < (found.image - x).norm().item() <= found.resolution < 0.01


PROBES = {
    "excess": pf.representation.Excess(),
    "decode": pf.representation.Decode(tol=1e-6),
    "weak": pf.representation.Weak(),
}


@pytest.mark.parametrize("by", PROBES)
@pytest.mark.parametrize("extrapolate", [True, False], ids=["extrapolated", "plain"])
def test_error_estimates_in_float32_count_rounding(by, extrapolate):
    """None below half the true error, which is known in float64; none is nothing."""
    for seed in range(12):
        torch.manual_seed(seed)
        gamma = pf.Transformer(2, depth=2).float()
        n = 8 if by == "decode" else 20
        mu = pf.Measure(torch.randn(n, 2).float(), torch.rand(n).float() + 0.1)
        x = torch.randn(4, 2).float()
        with torch.no_grad():
            G = pf.recover(gamma.push, by=PROBES[by], extrapolate=extrapolate)
            y, estimate = G.estimate(mu, x)
            exact = gamma.double()(mu.to(torch.float64), x.double())
        true = (y.double() - exact).norm(dim=-1)
        assert (estimate > 0).all() and (estimate.double() >= 0.5 * true).all(), seed


def test_a_probe_of_your_own_says_its_resolution():
    class Blurred(pf.representation.Probe):
        def find(self, f, mu, x, eta):
            return pf.representation.Excess().image(f, mu, x, eta) + 0.3, 0.6, 0.0

    y, estimate = pf.recover(lambda nu: nu, by=Blurred()).estimate(measure(5), torch.ones(1, 2))
    assert abs(estimate.item() - 0.6) < 1e-9 and abs(y[0, 0].item() - 1.3) < 1e-9


def test_float32_and_batches():
    gamma = field().float()
    mu = pf.Measure(torch.randn(3, 30, 2).float())
    x = torch.randn(2, 2).float()
    with torch.no_grad():
        assert gap(pf.recover(gamma.push)(mu, x), gamma(mu, x)) < 2e-5


@pytest.mark.unhooked
def test_wrong_maps_are_said():
    mu, x = pf.Measure(torch.randn(5, 2)), torch.ones(1, 2)
    for f in (pf.representation.zoo.bayes, pf.representation.zoo.splitting):
        with pytest.raises(pf.representation.BlackBoxError, match="splits or re-weights"):
            pf.recover(f)(mu, x)
    with pytest.raises(pf.representation.BlackBoxError, match="no sum of input masses"):
        pf.recover(pf.representation.zoo.splitting, by=pf.representation.Decode())(measure(5), x)
    with pytest.raises(pf.representation.BlackBoxError, match="not generic"):
        pf.recover(lambda nu: nu, by=pf.representation.Decode())(mu, x)
    with pytest.raises(pf.representation.BlackBoxError, match="not a Measure"):
        pf.recover(lambda nu: nu.atoms)(mu, x)
    with pytest.raises(pf.representation.BlackBoxError, match="NaN or infinity"):
        pf.recover(lambda nu: nu.moved(nu.atoms * torch.nan))(mu, x)
    with pytest.raises(ValueError, match="at most 32 atoms"):
        pf.recover(lambda nu: nu, by=pf.representation.Decode())(measure(40), x)
    with pytest.raises(TypeError, match="`by` must be a Probe"):
        pf.recover(lambda nu: nu, by="excess")
    for eta in (0.0, 1.0):
        with pytest.raises(ValueError, match="`eta`"):
            pf.recover(lambda nu: nu, eta=eta)


# Derivatives


def test_flattened_coordinates():
    """Constant near the centres, the identity far away, 2-Lipschitz, and never far from it."""
    centres, y = torch.randn(5, 2), torch.randn(4000, 2)
    r = 0.2
    z = flattened(y, centres, r)
    assert (z - y).norm(dim=-1).max() <= r + 1e-12
    near = (y[:, None] - centres).norm(dim=-1).amin(-1)
    assert torch.equal(z[near >= 2 * r], y[near >= 2 * r])
    inside = z[near <= r]
    assert ((inside[:, None] - centres).norm(dim=-1).amin(-1) == 0).all()
    line = torch.linspace(-1, 1, 2001)[:, None] * torch.tensor([[1.0, 0.3]])
    steps = flattened(line, torch.zeros(1, 2), r).diff(dim=0).norm(dim=-1)
    assert (steps / line.diff(dim=0).norm(dim=-1)).max() <= 2 + 1e-9


@pytest.mark.unhooked
def test_wrong_points_and_measures_are_said():
    gamma, mu = field(), measure(4)
    G = pf.recover(gamma.push)
    batch = pf.Measure(torch.randn(2, 4, 2))
    with pytest.raises(ValueError, match="must be one measure, got a batch"):
        G.estimate(batch, torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"`x` must have shape \(2,\)"):
        pf.representation.derivative(gamma, mu, torch.zeros(1, 2), lambda y: y)
    with pytest.raises(ValueError, match="share their space"):
        G.estimate(mu, torch.zeros(1, 3))
    causal = pf.recover(pf.Attention(2, mask=pf.Causal()).push)
    with pytest.raises(pf.representation.CallRejected, match="Causal attention needs times"):
        causal(pf.Measure(torch.randn(4, 2), times=torch.arange(4.0)), torch.zeros(1, 2))
    for eta in (0.0, 1.0):
        with pytest.raises(ValueError, match="`eta`"):
            pf.representation.derivative(gamma, mu, torch.zeros(2), lambda y: y, eta=eta)


def test_subset_sums_where_excess_mass_fails():
    """Images collide among others that move: excess mass fails, subset sums do not."""
    atoms = torch.tensor([[-1.0], [1.001], [1.002], [1.003]])
    mu = pf.Measure(atoms, weights=torch.tensor([0.1, 0.2, 0.3, 0.4]).sqrt())
    f = lambda mu: mu.moved(mu.atoms.abs() + 1e4 * mu.mean())
    x = torch.tensor([[1.0]])
    with pytest.raises(pf.representation.BlackBoxError, match="cannot be separated"):
        pf.recover(f, by=pf.representation.Excess())(mu, x)
    expected = 1 + 1e4 * mu.mean()
    assert torch.allclose(pf.recover(f)(mu, x), expected, rtol=1e-9)
    many = pf.Measure(atoms.repeat(20, 1) + 1e-6 * torch.arange(80)[:, None])
    with pytest.raises(pf.representation.BlackBoxError):
        pf.recover(f)(many, -many.atoms[:1])
