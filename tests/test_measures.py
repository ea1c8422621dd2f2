import math

import pytest
import torch
from cases import measure, worst
from hypothesis import given, settings, strategies as st

import pushforward as pf


def same_measure(mu, nu, tol=1e-13):
    """Equality as measures: canonical forms agree."""
    a, b = mu.merge(), nu.merge()
    assert a.n == b.n
    assert worst(a, b) == 0
    assert (a.weights - b.weights).abs().max() < tol * b.mass.max()


def test_default_weights_are_uniform_of_mass_one():
    mu = pf.Measure(torch.randn(5, 3))
    assert torch.allclose(mu.weights, torch.full((5,), 0.2))
    assert mu.mass == pytest.approx(1)


def test_given_weights_are_kept():
    weights = torch.tensor([0.0, 2.0, 5.0])
    mu = pf.Measure(torch.randn(3, 1), weights)
    assert torch.allclose(mu.weights, weights, rtol=1e-15)
    assert mu.mass.item() == pytest.approx(7, rel=1e-15)
    assert mu.normalise().mass.item() == pytest.approx(1, rel=1e-15)


def test_counts_are_weights():
    mu = pf.Measure(torch.randn(3, 1), torch.tensor([1, 0, 2]))
    assert torch.allclose(mu.weights, torch.tensor([1.0, 0.0, 2.0]))
    assert mu.dtype == torch.float64 and mu.device.type == "cpu"


def test_tiny_weights_live_in_float32():
    logs = torch.tensor([math.log(1e-300), math.log(3e-300)], dtype=torch.float32)
    mu = pf.Measure(torch.tensor([[0.0], [4.0]], dtype=torch.float32), log_weights=logs)
    assert mu.mean().item() == pytest.approx(3, rel=1e-4)  # one ulp of 690 is 6e-5
    assert torch.allclose(mu.normalise().weights, torch.tensor([0.25, 0.75]).float(), rtol=1e-4)


def test_moments_against_their_sums():
    mu = measure(7, 3)
    a, x = mu.weights, mu.atoms
    mean = (a @ x) / a.sum()
    cov = sum(w * torch.outer(p - mean, p - mean) for w, p in zip(a, x, strict=True)) / a.sum()
    assert worst(mu.mean(), mean) < 1e-14
    assert worst(mu.covariance(), cov) < 1e-14
    assert worst(mu.integrate(lambda x: x**2), a @ x**2) < 1e-14
    assert worst(mu.integrate(x[:, 0]), a @ x[:, 0]) < 1e-14


def test_padding_is_never_seen():
    """Means, integrals and their gradients ignore NaN stored in a slot without mass."""
    x = torch.tensor([[1.0], [torch.nan], [3.0], [torch.inf]], requires_grad=True)
    w = torch.tensor([1.0, 0.0, 3.0, 0.0], requires_grad=True)
    mu = pf.Measure(x, w)
    total = mu.mean() + mu.covariance() + mu.integrate(lambda x: 1 / x) + mu.mass
    total.sum().backward()
    assert total.item() == pytest.approx(2.5 + 0.75 + 2 + 4)
    assert x.grad.isfinite().all() and w.grad.isfinite().all()
    assert x.grad[1] == x.grad[3] == 0 and w.grad[1] == w.grad[3] == 0
    values = torch.tensor([1.0, torch.nan, 1.0, torch.inf])
    assert mu.integrate(values).item() == pytest.approx(4)


def test_ragged_batches():
    parts = [measure(3), measure(5), measure(1)]
    batch = pf.Measure.stack(parts)
    assert batch.atoms.shape == (3, 5, 2) and len(batch) == 3
    for part, back in zip(parts, batch, strict=True):
        assert torch.equal(part.atoms, back.atoms)
        assert torch.equal(part.log_weights, back.log_weights)
        assert torch.equal(part.times, back.times)
    for name in ("mean", "covariance"):
        for part, value in zip(parts, getattr(batch, name)(), strict=True):
            assert worst(getattr(part, name)(), value) < 1e-14
    assert batch[1:].batch_shape == (2,)
    assert batch[torch.tensor([2, 0])][0].n == 1
    twice = pf.Measure.stack([batch, batch])
    assert twice[1, 0].n == 3 and twice[1].batch_shape == (3,)


def test_tokens_with_a_mask():
    tokens, mask = torch.randn(2, 4, 3), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    mu = pf.Measure.from_tokens(tokens, mask=mask)
    assert worst(mu.mean()[0], tokens[0, :2].mean(0)) < 1e-15
    assert mu.mass.allclose(torch.ones(2))
    assert torch.equal(pf.Measure.from_tokens(tokens[0]).atoms, tokens[0])


def test_merge_is_canonical():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, -0.0], [0.0, 2.0], [5.0, 5.0]])
    mu = pf.Measure(x, torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]))
    merged = mu.merge()
    assert torch.equal(merged.atoms, torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    assert torch.allclose(merged.weights, torch.tensor([6.0, 4.0]))
    p = torch.randperm(5)
    again = pf.Measure(mu.atoms[p], mu.weights[p]).merge()
    assert torch.equal(again.atoms, merged.atoms)


def test_merge_keeps_times_apart():
    mu = pf.Measure(torch.zeros(3, 1), times=torch.tensor([0, 1, 1]))
    assert mu.merge().times.tolist() == [0, 1]


def test_near_points_merge_along_chains():
    x = torch.tensor([[0.0], [0.3], [0.1], [0.2], [1.0]])
    mu = pf.Measure(x, torch.tensor([1.0, 1.0, 1.0, 1.0, 2.0]))
    merged = mu.merge(0.11)
    assert torch.allclose(merged.atoms.flatten(), torch.tensor([0.15, 1.0]))
    assert torch.allclose(merged.weights, torch.tensor([4.0, 2.0]))
    assert mu.merge(0.09).n == 5


def test_split_mixture_and_merge_undo_each_other():
    mu = measure(5)
    same_measure(mu.split(3), mu)
    same_measure(mu.split([0.1, 0.9], atom=-1), mu)
    same_measure(mu.split([0.0, 1.0]), mu)
    same_measure(pf.Measure.mixture([mu, mu], torch.tensor([0.3, 0.7])), mu)
    nu = measure(4)
    joint = pf.Measure.mixture([mu, nu], torch.tensor([0.5, 2.0]))
    assert joint.mass.item() == pytest.approx((0.5 * mu.mass + 2 * nu.mass).item())


def test_sampling_frequencies():
    """Each frequency within five standard deviations; atoms of zero mass never drawn."""
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 6.0, 0.0])
    mu = pf.Measure(torch.arange(6.0)[:, None], weights)
    n = 100_000
    drawn = mu.sample(n, generator=torch.Generator().manual_seed(1)).atoms.flatten().long()
    p = weights / weights.sum()
    frequency = drawn.bincount(minlength=6) / n
    assert ((frequency - p).abs() <= 5 * (p * (1 - p) / n).sqrt()).all()
    again = mu.sample(n, generator=torch.Generator().manual_seed(1)).atoms.flatten().long()
    assert torch.equal(drawn, again)
    assert pf.Measure.stack([mu, mu]).sample(7).atoms.shape == (2, 7, 1)


def test_restriction():
    mu = pf.Measure.grid(-1.0, 1.0, size=100)
    right = mu.restrict(lambda x: x[..., 0] > 0)
    assert right.mass.item() == pytest.approx(0.5)
    assert right.mean().item() == pytest.approx(0.5)
    assert right.strip().n == 50
    with pytest.raises(ValueError, match="no mass"):
        mu.restrict(lambda x: x[..., 0] > 2)


@pytest.mark.parametrize("order", [1, 2, 5, 20, 60, 180])
def test_gauss_hermite_is_exact_for_polynomials(order):
    """E x^(2k) = (2k - 1)!! for k below the order; k up to 8 is enough to notice."""
    mu = pf.Measure.gaussian(0.0, 1.0, order=order)
    for k in range(min(order, 9)):
        exact = math.prod(range(2 * k - 1, 0, -2))
        assert mu.integrate(lambda x: x[:, 0] ** (2 * k)).item() == pytest.approx(exact, rel=1e-12)  # noqa: B023


def test_gaussian_in_the_plane_and_in_batches():
    mean, cov = torch.tensor([1.0, -2.0]), torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    mu = pf.Measure.gaussian(mean, cov, order=6)
    assert mu.n == 36
    assert worst(mu.mean(), mean) < 1e-13 and worst(mu.covariance(), cov) < 1e-13
    both = pf.Measure.gaussian(torch.stack([mean, -mean]), torch.stack([cov, 2 * cov]), order=6)
    assert worst(both.covariance()[1], 2 * cov) < 1e-13
    round_ = pf.Measure.gaussian(mean, 0.5, order=3)
    assert worst(round_.covariance(), 0.5 * torch.eye(2)) < 1e-13
    image = mu.push(lambda x: x @ cov + 1)
    assert worst(image.covariance(), cov @ cov @ cov) < 1e-12


def test_grid():
    mu = pf.Measure.grid(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 1.0]), size=50)
    assert mu.n == 2500
    assert worst(mu.mean(), torch.tensor([0.5, 0.0])) < 1e-13
    variance = torch.tensor([1 / 12, 4 / 12]) * (1 - 1 / 50**2)
    assert worst(mu.covariance().diagonal(), variance) < 1e-13


def test_everything_is_differentiable():
    x, w = torch.randn(5, 2, requires_grad=True), torch.rand(5, requires_grad=True)
    with torch.no_grad():
        x[3] = x[1]
    part = lambda nu: torch.cat([nu.atoms.flatten(), nu.weights.flatten()])
    for f in (
        lambda mu: mu.mean(),
        lambda mu: mu.covariance(),
        lambda mu: mu.mass,
        lambda mu: mu.integrate(torch.sin),
        lambda mu: part(mu.normalise()),
        lambda mu: part(mu.split([0.3, 0.7])),
        lambda mu: part(pf.Measure.mixture([mu, mu.normalise()])),
        lambda mu: part(mu.restrict(torch.tensor([True, True, False, True, True])).strip()),
        lambda mu: part(pf.Measure.stack([mu, mu.split(2)])),
        lambda mu: mu.merge(0.5).integrate(torch.sin),
    ):
        assert torch.autograd.gradcheck(lambda x, w, f=f: f(pf.Measure(x, w)), (x, w))
    mean, root = torch.randn(2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    gaussian = lambda m, r: pf.Measure.gaussian(m, r @ r.mT + torch.eye(2), order=3).atoms
    assert torch.autograd.gradcheck(gaussian, (mean, root))


def test_merging_equal_points_shares_the_gradient():
    """Where two atoms coincide, moving one of them moves the barycentre by its share."""
    x = torch.tensor([[1.0], [1.0]], requires_grad=True)
    pf.Measure(x, torch.tensor([1.0, 3.0])).merge().atoms.sum().backward()
    assert torch.allclose(x.grad.flatten(), torch.tensor([0.25, 0.75]))


def test_moving_between_dtypes():
    mu = measure().to(torch.bfloat16)
    assert mu.atoms.dtype == torch.bfloat16 and mu.log_weights.dtype == torch.float32
    assert mu.times.dtype == torch.float64
    assert mu.mean().dtype == torch.bfloat16
    assert mu.to(torch.float64).log_weights.dtype == torch.float64
    x = torch.randn(2, 1, requires_grad=True)
    assert not pf.Measure(x).detach().atoms.requires_grad


def test_repr_names_what_matters():
    mu = pf.Measure.stack([measure(3), measure(5)])
    assert repr(mu) == "Measure(batch (2,), 5 atoms in R^2, timed, float64, cpu)"


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 10**6))
def test_rewriting_a_measure_keeps_its_integrals(n, d, seed):
    torch.manual_seed(seed)
    mu = measure(n, d)
    f = lambda x: torch.cos(x.sum(-1))
    expected = mu.integrate(f)
    for nu in (mu.split(2), mu.merge(), pf.Measure.mixture([mu, mu]), pf.Measure.stack([mu])[0]):
        assert abs(nu.integrate(f) - expected) < 1e-13


def test_a_part_without_weight_leaves_the_mixture():
    """Points and times of a component of weight zero are never seen."""
    a = pf.Measure(torch.zeros(2, 1), times=torch.zeros(2))
    b = pf.Measure(torch.ones(3, 1), times=torch.full((3,), 5.0))
    mu = pf.Measure.mixture([a, b], torch.tensor([0.0, 1.0]))
    assert mu.push(lambda x: 1 / x).mean().item() == 1
    causal = pf.Transformer(1, depth=2, block=pf.Block(mask=pf.Causal()))
    assert causal.push(mu).atoms.isfinite().all()
    with pytest.raises(ValueError, match="attends to nothing"):
        causal(mu, torch.zeros(1, 1), torch.ones(1))


def test_merge_with_a_tolerance_keeps_times_apart():
    close = pf.Measure(torch.zeros(2, 1), times=torch.tensor([0.0, 0.05]))
    assert close.merge(0.1).n == 2
    large = pf.Measure(torch.zeros(2, 1).float(), times=torch.tensor([2**24, 2**24 + 1]))
    assert large.merge().n == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_measures(dtype):
    x = torch.tensor([[100.0], [100.5], [100.5]], dtype=dtype)
    mu = pf.Measure(x)
    assert mu.merge().n == 2 and mu.merge().atoms.dtype == dtype
    two = pf.Measure(x[:2])
    assert two.covariance().item() == 0.0625
    assert pf.Measure.gaussian(x[0], torch.ones(1, 1, dtype=dtype), order=3).atoms.dtype == dtype


def test_autocast_leaves_moments_alone(device):
    mu = measure(50, 3).to(torch.float32)
    expected = mu.mean(), mu.covariance()
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(mu.mean(), expected[0]) and torch.equal(mu.covariance(), expected[1])


def test_merging_a_dense_cluster_is_cheap():
    """Thirty thousand points within the tolerance: 4.5e8 pairs, few cells."""
    mu = pf.Measure(torch.cat([torch.rand(30_000, 2), 10 + torch.rand(30_000, 2)]))
    merged = mu.merge(0.5)
    assert merged.n == 2
    assert torch.allclose(merged.weights, torch.tensor([0.5, 0.5]))


def test_chains_against_all_pairs():
    """Cells and their neighbours find the same components as all pairs of points."""
    from scipy.sparse.csgraph import connected_components

    for d, tol in ((1, 0.008), (2, 0.05), (3, 0.1), (6, 0.35)):
        x = torch.rand(200, d)
        near = (x[:, None] - x[None]).norm(dim=-1) <= tol
        count = connected_components(near.numpy(), directed=False)[0]
        assert 1 < count < 200
        assert pf.Measure(x).merge(tol).n == count


def test_any_index_of_the_batch_axes():
    mu = pf.Measure(torch.randn(2, 3, 5, 4), torch.rand(2, 3, 5))
    assert mu[..., 0].batch_shape == (2,)
    assert torch.equal(mu[..., 0].atoms, mu.atoms[:, 0])
    mask = torch.tensor([[True, False, True], [False, False, True]])
    assert torch.equal(mu[mask].log_weights, mu.log_weights[mask])
    assert mu[1, 2].atoms.shape == (5, 4) and mu[:0].batch_shape == (0, 3)
    with pytest.raises(IndexError):
        mu[0, 0, 0]
