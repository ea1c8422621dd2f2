"""How stable normalisers are: softmax and Sinkhorn under changes of the affinity, causal masks."""

import math

import pytest
import torch
from clouds import SEEDS, cloud
from hypothesis import given, settings, strategies as st

import pushforward as pf


def total_variation(p, q):
    return (p - q).abs().sum() / 2


def oscillation(x, dim=None):
    return x.max() - x.min() if dim is None else x.amax(dim) - x.amin(dim)


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.sampled_from([0.1, 1.0, 5.0, 30.0]))
def test_softmax_moves_by_at_most_tanh(seed, size):
    """Row by row, TV <= tanh(osc(A - B) / 4), whatever the weights."""
    torch.manual_seed(seed)
    mu, nu = cloud(6), cloud(8)
    a, b = size * torch.randn(6, 8), size * torch.randn(6, 8)
    p, q = (pf.relate(mu, nu, affinity=pf.Matrix(s)).matrix() for s in (a, b))
    bound = (oscillation(a - b, -1) / 4).tanh()
    assert ((p - q).abs().sum(-1) / 2 <= bound * (1 + 1e-12)).all()


@pytest.mark.parametrize("size", [0.01, 1.0, 10.0])
def test_softmax_attains_its_bound(size):
    """Two groups of equal mass in the middle between A and B."""
    nu = pf.Measure(torch.rand(4, 1))
    side = torch.tensor([[1.0, 1.0, -1.0, -1.0]]) * size / 4
    p, q = (pf.relate(cloud(1), nu, affinity=pf.Matrix(s)).matrix() for s in (side, -side))
    assert total_variation(p, q) == pytest.approx(math.tanh(size / 4), rel=1e-12)


def centred(x):
    x = x - x.mean(0)
    return x - x.mean(1, keepdim=True)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from([0.1, 1.0, 8.0]))
def test_sinkhorn_moves_by_at_most_a_quarter(seed, size):
    """TV <= osc / 4 of A - B, and of what is left of it when rows and columns are centred."""
    torch.manual_seed(seed)
    mu, nu = cloud(5), cloud(7)
    a, b = size * torch.randn(5, 7), size * torch.randn(5, 7)
    p, q = (
        pf.relate(mu, nu, affinity=pf.Matrix(s), normaliser=pf.Sinkhorn(tol=1e-12)).matrix()
        for s in (a, b)
    )
    for change in (a - b, centred(a - b)):
        assert total_variation(p, q) <= oscillation(change) / 4 + 1e-12


def checkered(size):
    return size * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])


def test_sinkhorn_attains_its_bound_in_the_limit():
    """Two points on each side, small scores: the ratio is tanh(s) / s."""
    mu, s = pf.Measure(torch.rand(2, 1)), 0.1
    tight = pf.Sinkhorn(tol=1e-14)
    p, q = (
        pf.relate(mu, mu, affinity=pf.Matrix(checkered(t)), normaliser=tight).matrix()
        for t in (s, -s)
    )
    ratio = total_variation(p, q) / (oscillation(checkered(2 * s)) / 4)
    assert ratio == pytest.approx(math.tanh(s) / s, rel=1e-10) and ratio > 0.99


def after_one_step(scores, mu, nu, g):
    return pf.relate(
        mu, nu, affinity=pf.Matrix(scores), normaliser=pf.Sinkhorn(steps=1), start=g
    ).g


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([0.1, 0.5, 2.0]), st.sampled_from([0.01, 1.0, 10.0]))
def test_sinkhorn_contracts_in_the_hilbert_metric(seed, size, far):
    """A full step brings two potentials nearer by tanh(Delta / 4)^2 at least."""
    torch.manual_seed(seed)
    mu, nu, scores = cloud(5), cloud(6), size * torch.randn(5, 6)
    rows = scores[:, None] - scores[None]
    delta = (rows.amax(-1) - rows.amin(-1)).max()
    g, h = far * torch.randn(6), far * torch.randn(6)
    moved = after_one_step(scores, mu, nu, g) - after_one_step(scores, mu, nu, h)
    assert oscillation(moved) <= (delta / 4).tanh() ** 2 * oscillation(g - h) + 1e-13


def test_the_hilbert_factor_is_attained_in_the_limit():
    mu, scores = pf.Measure(torch.rand(2, 1)), checkered(0.7)
    g = torch.tensor([1e-4, -1e-4])
    ratio = oscillation(after_one_step(scores, mu, mu, g)) / oscillation(g)
    assert ratio == pytest.approx(math.tanh(0.7) ** 2, rel=1e-6)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_sinkhorn_with_a_causal_mask_tends_to_the_identity(n):
    """E19: like 1/k, whatever the scores. Near the limit the subdiagonal obeys
    p_i' = p_i (p_(i-1) + p_(i+1) - 2 p_i), so that p_i = i (n - i) / 2k.
    """
    mu = pf.Measure(torch.rand(n, 1))
    scores = torch.randn(n, n).masked_fill(torch.ones(n, n).triu(1) > 0, -torch.inf) / 2
    i, wrong = torch.arange(1.0, n), []
    for k in (400, 1200):
        p = (
            n
            * pf.relate(
                mu, mu, affinity=pf.Matrix(scores), normaliser=pf.Sinkhorn(steps=k)
            ).matrix()
        )
        wrong.append((k * p.diagonal(-1) / (i * (n - i) / 2) - 1).abs().max())
        assert p.tril(-1).max() == p.diagonal(-1).max()
    assert wrong[1] < min(0.05, wrong[0])
