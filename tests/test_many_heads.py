"""Many heads of dimension two: equal and weighted ones, permutations."""

import math

import pytest
import torch
from heads import sinkhorn_head, softmax_head, weights

import pushforward as pf
from pushforward.approximation import (
    birkhoff,
    realise_heads,
)


def average(heads, log_b):
    """The weighted average of the softmax heads."""
    return torch.einsum("h,hij->ij", heads.weights, softmax_head(heads.q, heads.k, log_b).exp())


def row_tv(p, other):
    return ((p - other).abs().sum(1) / 2).max().item()


def stochastic(n, m, zeros=0.0):
    """Random rows, of which a share is zero."""
    p = torch.rand(n, m).log().neg() * (torch.rand(n, m) >= zeros)
    p[p.sum(1) == 0, 0] = 1
    return p / p.sum(1, keepdim=True)


@pytest.mark.parametrize("number", [1, 2, 3, 7, 16, 100])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 3), (5, 2), (6, 9), (20, 32)])
def test_equal_heads_of_dimension_two(number, n, m):
    """E17: row total variation at most m/4H and the tail, for unequal weights of the context."""
    p, log_b = stochastic(n, m, zeros=0.3), weights(m)
    heads = realise_heads(p, number, weights=log_b.exp())
    assert heads.q.shape == (number, n, 2) and heads.k.shape == (m, 2)
    left = row_tv(p, average(heads, log_b))
    assert left <= heads.bound + 1e-14
    assert heads.bound <= m / (4 * number) + heads.tail + 1e-14
    assert heads.tail <= math.exp(-40)


def test_rounding_attains_its_bound():
    """m even, every fraction one half: total variation is m/4H."""
    p = torch.full((1, 6), 1 / 6)
    assert realise_heads(p, 3).bound == pytest.approx(6 / 12, abs=1e-15)
    assert realise_heads(p, 6).bound < 1e-15


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 5), (5, 1), (4, 3), (7, 8), (12, 32)])
@pytest.mark.parametrize("zeros", [0, 0.5])
def test_weighted_heads_are_exact(n, m, zeros):
    """At most n(m - 1) + 1 of them; that many for a target in general position."""
    p, log_b = stochastic(n, m, zeros), weights(m)
    heads = realise_heads(p, weights=log_b.exp())
    assert len(heads.weights) <= n * (m - 1) + 1
    assert zeros or len(heads.weights) == n * (m - 1) + 1
    assert heads.weights.sum().item() == pytest.approx(1, abs=1e-14)
    assert row_tv(p, average(heads, log_b)) <= heads.bound + 1e-14
    assert heads.bound < 1e-14 * m


def test_few_heads_where_few_suffice():
    """Maps need one head; equal rows as many heads as atoms."""
    assert len(realise_heads(torch.eye(9)[torch.randperm(9)]).weights) == 1
    p = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(5, 4)
    assert torch.allclose(realise_heads(p).weights, p[0])


def test_a_fixed_sharpness_fails():
    """lambda = 50: a one-hot map to 1e-8 of 7 atoms, but not at all of 32."""
    for m, expected in [(7, 1.3e-8), (32, 0.448)]:
        heads, log_b = realise_heads(torch.eye(m), 1), torch.full((m,), -math.log(m))
        fixed = softmax_head(50 * heads.k, heads.k, log_b).exp()
        assert row_tv(torch.eye(m), fixed) == pytest.approx(expected, rel=0.05)
        assert row_tv(torch.eye(m), average(heads, log_b)) < 1e-15


@pytest.mark.parametrize("light", [1e-1, 1e-6, 1e-300])
def test_the_tail_holds_for_unequal_weights(light):
    """The lightest atom is taken as surely as the others."""
    b = torch.ones(32)
    b[3] = light
    heads = realise_heads(torch.eye(32), 1, weights=b)
    logs = softmax_head(heads.q[0], heads.k, b.log())
    others = logs.masked_fill(torch.eye(32, dtype=torch.bool), -torch.inf).logsumexp(1)
    assert others.max() <= math.log(heads.tail) + 1e-9


@pytest.mark.parametrize("m", [8, 200, 2000])
def test_heads_in_single_precision(m):
    """Rounded scores still prefer their atom; where they cannot, an error says so."""
    heads = realise_heads(torch.eye(m).float(), 1)
    logs = softmax_head(heads.q[0], heads.k, torch.full((m,), -math.log(m)).float())
    assert (logs.exp() - torch.eye(m)).abs().max() < 1e-16
    with pytest.raises(ValueError, match="float64"):
        realise_heads(torch.full((1, 6000), 1 / 6000).float(), 1)


def test_heads_do_not_look_at_atoms_without_mass():
    p, b = stochastic(3, 4), torch.rand(4) + 0.1
    alone = realise_heads(p, weights=b)
    found = realise_heads(
        torch.nn.functional.pad(p, (1, 0)), weights=torch.nn.functional.pad(b, (1, 0))
    )
    assert torch.equal(found.q, alone.q) and torch.equal(found.k[1:], alone.k)
    assert torch.equal(found.choices, alone.choices + 1)


def doubly_stochastic(n):
    """In general position, by Sinkhorn's own iteration."""
    p = torch.rand(n, n).log().neg() + 1e-3
    for _ in range(2000):
        p = p / p.sum(0)
        p = p / p.sum(1, keepdim=True)
    return p


def mixture(n, parts):
    """Of random permutations."""
    shares = (torch.rand(parts) + 0.1).log().softmax(0)
    return sum(s * torch.eye(n)[torch.randperm(n)] for s in shares)


def check_birkhoff(p, most):
    n = len(p)
    heads = birkhoff(p)
    assert len(heads.weights) <= min(most, (n - 1) ** 2 + 1)
    assert heads.weights.min() > 0
    assert heads.weights.sum().item() == pytest.approx(1, abs=1e-14)
    assert torch.equal(heads.choices.sort(1).values, torch.arange(n).expand_as(heads.choices))
    assert heads.bound < 1e-13 * n
    log_a = torch.full((n,), -math.log(n))
    plans = [n * sinkhorn_head(q, heads.k, log_a, log_a, steps=2).exp() for q in heads.q]
    found = sum(w * plan for w, plan in zip(heads.weights, plans, strict=True))
    assert row_tv(p, found) <= heads.bound + 1e-13
    assert row_tv(p, average(heads, log_a)) <= heads.bound + 1e-13
    return heads


@pytest.mark.parametrize("n", range(1, 9))
def test_birkhoff_heads(n):
    """At most (n - 1)^2 + 1 permutations, each a Sinkhorn head of dimension two."""
    for _ in range(5):
        check_birkhoff(doubly_stochastic(n), (n - 1) ** 2 + 1)
    check_birkhoff(torch.full((n, n), 1 / n), (n - 1) ** 2 + 1)


@pytest.mark.parametrize("n", range(2, 9))
def test_birkhoff_heads_of_sparse_matrices(n):
    """Permutations are one head; mixtures have zeros, and rounding adds no heads of dust."""
    check_birkhoff(torch.eye(n)[torch.randperm(n)], 1)
    for parts in (2, 3, 5):
        heads = check_birkhoff(mixture(n, parts), (n - 1) ** 2 + 1)
        assert heads.weights.min() > 1e-6


def test_permutation_heads_need_no_sinkhorn_iteration():
    """Scores of the circle are circulant up to order: softmax has uniform columns already."""
    heads = birkhoff(torch.eye(7)[torch.randperm(7)])
    blunt = softmax_head(heads.q[0] / 50, heads.k, torch.zeros(7)).exp()
    assert (blunt.sum(0) - 1).abs().max() < 1e-14 and blunt.max() < 0.9


def test_birkhoff_takes_what_doubly_stochastic_certifies():
    for seed in range(40):
        torch.manual_seed(seed)
        result = pf.doubly_stochastic(torch.randn(6, 6))
        heads = birkhoff(result.scaled)
        assert result.converged and heads.bound <= 6 * result.residual + 1e-12


def test_the_message_shows_how_far_sums_are_off():
    wrong = torch.full((2, 2), 0.5) + torch.tensor([[1e-4, 0.0], [0.0, 0.0]])
    with pytest.raises(ValueError, match=r"off by up to 1.0e-04; at most 1.0e-05"):
        birkhoff(wrong)
