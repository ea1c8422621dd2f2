"""Normalisers: closed forms by hand, the exact plan, and how Sinkhorn iterates."""

import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st
from related import cloud, extreme, pair, related, squared, weights

import pushforward as pf


def test_dual_softmax_and_sigmoid_by_hand():
    mu, nu = pair()
    a, b, scores = weights(mu), weights(nu), mu.atoms @ nu.atoms.T
    e = scores.exp()
    dual = a[:, None] * b * (e / (e @ b)[:, None]) * (e / (a @ e))
    sigmoid = a[:, None] * b * torch.sigmoid(scores - 0.3)
    v = torch.randn(9, 2)
    for normaliser, p in (
        (pf.relations.DualSoftmax(), dual),
        (pf.relations.Sigmoid(bias=-0.3), sigmoid),
    ):
        r = pf.relate(mu, nu, normaliser=normaliser)
        assert torch.allclose(r.matrix(), p, atol=1e-15)
        assert torch.allclose(r.apply(v), p @ v / a[:, None])
        assert torch.allclose(r.transpose().apply(mu.atoms), p.T @ mu.atoms / b[:, None])
        assert float(r.mass()) == pytest.approx(p.sum().item())
        assert float(r.cost()) == pytest.approx(-(p * scores).sum().item())
        assert float(r.entropy()) == pytest.approx(-(p * p.log()).sum().item())
        assert torch.isnan(r.residual)


def test_hard_assignment_is_exact_transport():
    mu, nu = pf.Measure(torch.randn(8, 2)), pf.Measure(torch.randn(8, 2))
    near = pf.SquaredDistance(1.0)
    pi = pf.relate(mu, nu, affinity=near, normaliser=pf.relations.Exact())
    p = 8 * pi.matrix()
    assert torch.allclose(p.round(), p, atol=1e-14) and pi.converged
    assert float(pi.cost()) == pytest.approx(pf.wasserstein(mu, nu, p=2).item() ** 2)
    assert torch.equal(pi.assignment(), pi.matrix().argmax(-1))
    mu, nu = pair()
    pi = pf.relate(mu, nu, affinity=near, normaliser=pf.relations.Exact())
    m, n = mu.normalise(), nu.normalise()
    assert float(pi.converged and pi.cost()) == pytest.approx(
        pf.wasserstein(m, n, p=2).item() ** 2
    )
    soft = related(mu, nu, pf.Sinkhorn(tol=1e-8), eps=1e-3)
    assert float(soft.cost()) == pytest.approx(pi.cost().item(), rel=1e-2)


def test_hard_assignment_on_a_mask():
    mu = pf.Measure(torch.randn(4, 2))
    mask = ~torch.eye(4, dtype=torch.bool)
    pi = pf.relate(mu, mu, normaliser=pf.relations.Exact(), mask=mask)
    assert pi.converged and (pi.matrix()[~mask] == 0).all() and torch.isfinite(pi.cost())
    mask[:2, 1:] = False
    mask[:2, 0] = True
    with pytest.raises(ValueError, match="No coupling"):
        pf.relate(mu, mu, normaliser=pf.relations.Exact(), mask=mask)


def test_fixed_steps_are_plain_steps():
    mu, nu = pair()
    a, b, kernel = weights(mu), weights(nu), (-squared(mu, nu) / 0.7).exp()
    v = torch.ones(9)
    for _ in range(5):
        u = 1 / (kernel @ (b * v))
        v = 1 / (kernel.T @ (a * u))
    u = 1 / (kernel @ (b * v))
    p = (a * u)[:, None] * kernel * (b * v)
    pi = related(mu, nu, pf.Sinkhorn(steps=5))
    assert torch.allclose(pi.matrix(), p, atol=1e-14) and pi.steps == 5
    assert float(pi.residual) == pytest.approx((p.sum(0) - b).abs().sum().item(), abs=1e-14)
    assert not pi.converged


def test_warm_start():
    mu, nu = pair(40, 30)
    cold = related(mu, nu, pf.Sinkhorn(tol=1e-10), eps=0.05)
    near = pf.SquaredDistance(0.05)
    again = lambda start: pf.relate(
        mu, nu, affinity=near, normaliser=pf.Sinkhorn(tol=1e-10), start=start
    )
    assert again(cold).steps == 1 < cold.steps and again(cold.potentials[1]).steps == 1
    assert torch.allclose(again(cold).matrix(), cold.matrix(), atol=1e-10)


def test_awful_starts():
    mu, nu = pair(30, 30)
    ask = lambda start: pf.relate(
        mu, nu, affinity=pf.SquaredDistance(0.3), normaliser=pf.Sinkhorn(), start=start
    )
    for start in (1e6 * torch.randn(30), torch.full((30,), 1e6), related(mu, nu, eps=0.03).g):
        assert ask(start).converged
    with pytest.raises(ValueError, match="`start` must be finite"):
        ask(torch.full((30,), torch.nan))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_extreme_problems(seed):
    """Float64, 200 points: eps 1e-3 of the cost range; 1e-4 with weights from 1e-12 to 1."""
    mu, nu, eps = extreme(200, 1e-3, seed, even=True)
    assert related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps).converged
    mu, nu, eps = extreme(200, 1e-4, seed, even=False)
    assert related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps).converged
    mu, nu, eps = extreme(200, 1e-4, seed, even=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps).residual < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("relative, gain", [(1e-2, 2), (1e-3, 5)])
def test_acceleration_saves_steps(relative, gain, record_property):
    counts = []
    for seed in range(3):
        mu, nu, eps = extreme(200, relative, seed, even=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = related(mu, nu, pf.Sinkhorn(tol=1e-6, accelerate=False), eps=eps)
        fast = related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps)
        counts.append((plain.steps, fast.steps))
        assert torch.allclose(plain.matrix(), fast.matrix(), atol=1e-5)
    record_property("steps plain, accelerated", counts)
    assert sum(p for p, _ in counts) >= gain * sum(f for _, f in counts), counts


def test_fixed_over_relaxation_diverges_and_ours_does_not():
    """An ordinary problem on which steps prolonged by 1.9 blow up."""
    mu, nu, eps = extreme(60, 3e-3, 0, even=True)
    scores = -squared(mu, nu) / eps
    a, b = weights(mu).log(), weights(nu).log()
    f, g = torch.zeros(60), torch.zeros(60)
    for _ in range(300):
        f = f + 1.9 * (-(scores + b + g).logsumexp(-1) - f)
        g = g + 1.9 * (-(scores.T + a + f).logsumexp(-1) - g)
    p = (scores + (a + f)[:, None] + b + g).exp()
    error = (p.sum(-1) - weights(mu)).abs().sum()
    assert not error < 1
    assert related(mu, nu, pf.Sinkhorn(tol=1e-9), eps=eps).converged


def test_giving_up_is_data_and_a_warning():
    mu, nu, eps = extreme(60, 1e-3, 0, even=True)
    with pytest.warns(UserWarning, match="marginal error of .* above tol=1e-09.*Raise"):
        pi = related(mu, nu, pf.Sinkhorn(tol=1e-9, max_steps=30), eps=eps)
    assert not pi.converged and pi.steps == 30 and pi.residual > 1e-9


def test_annealing_counts_as_steps():
    mu, nu, eps = extreme(60, 1e-3, 0, even=True)
    for most in (2, 15, 30):
        with pytest.warns(UserWarning, match="marginal error"):
            assert related(mu, nu, pf.Sinkhorn(tol=1e-9, max_steps=most), eps=eps).steps == most


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6),
    st.sampled_from([0.1, 1.0, 10.0, 1e3]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_any_small_problem(m, n, seed, size):
    """Any sizes, weights over ten orders of magnitude, scores of any size: a coupling."""
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    scores = size * torch.randn(m, n, generator=g)
    mu, nu = (
        pf.Measure(torch.zeros(k, 1), log_weights=10 * torch.randn(k, generator=g)) for k in (m, n)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pi = pf.relate(mu, nu, affinity=pf.Matrix(scores), normaliser=pf.Sinkhorn(tol=1e-9))
    p = pi.matrix()
    assert float(torch.isfinite(p).all() and p.sum()) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(p.sum(-1), weights(mu), atol=1e-9)
    assert pi.converged or size == 1e3


def test_one_atom_on_a_side():
    mu, nu = cloud(1), cloud(6)
    for x, y in ((mu, nu), (nu, mu), (mu, mu)):
        pi = related(x, y)
        assert torch.allclose(pi.matrix(), weights(x)[:, None] * weights(y), atol=1e-14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU has something to wait for")
def test_fixed_steps_never_wait_for_the_device():
    mu, nu = (pf.Measure(torch.randn(50, 2, device="cuda")) for _ in range(2))
    v = torch.randn(50, 2, device="cuda")
    gamma = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(steps=5)).to("cuda", torch.float64)
    x = mu.atoms.clone().requires_grad_()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pi = pf.relate(mu, nu, affinity=pf.Encoded(x, nu.atoms), normaliser=pf.Sinkhorn(steps=5))
        pi.apply(v).sum().backward()
        gamma.push(mu)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_nan_is_said_at_once():
    mu = pf.Measure(torch.randn(4, 2))
    q = torch.randn(4, 2).index_fill(0, torch.tensor(1), torch.nan)
    with pytest.raises(ValueError, match="Scores must be finite"):
        pf.relate(mu, mu, affinity=pf.Encoded(q, mu.atoms), normaliser=pf.Sinkhorn())
