"""What one head can realise, what it cannot, and what many narrow heads can instead."""

import itertools
import math

import pytest
import torch

import pushforward as pf
from pushforward.approximation import (
    birkhoff,
    conditional_rank,
    realise,
    realise_conditional,
    realise_coupling,
    realise_heads,
)


def softmax_head(q, k, log_b):
    """Logarithms of the conditional of a softmax head, in a context of log-weights `log_b`."""
    scores = q @ k.mT + log_b
    return scores - scores.logsumexp(-1, keepdim=True)


def sinkhorn_head(q, k, log_a, log_b, steps=4000, tol=1e-15):
    """Logarithms of the coupling of a Sinkhorn head; rows are exact, columns to `tol`."""
    scores, g = q @ k.mT, torch.zeros_like(log_b)
    for _ in range(steps):
        f = -(scores + g + log_b).logsumexp(-1, keepdim=True)
        before, g = g, -(scores + f + log_a[:, None]).logsumexp(-2, keepdim=True)
        if tol and (g - before).abs().max() < tol:
            break
    f = -(scores + g + log_b).logsumexp(-1, keepdim=True)
    return scores + f + g + log_a[:, None] + log_b


def centre(x, rows=False):
    x = x - x.mean(-1, keepdim=True)
    return x - x.mean(-2, keepdim=True) if rows else x


def weights(n):
    return (torch.rand(n) + 0.05).log().log_softmax(-1)


def conditional(n, m, d=None, spread=1.0):
    """A conditional of a head of dimension `d`, or in general position, and its context."""
    log_b = weights(m)
    scores = torch.randn(n, m) if d is None else torch.randn(n, d) @ torch.randn(d, m)
    return (spread * scores + log_b).softmax(-1), log_b


def coupling(n, m, d=None):
    scores = torch.randn(n, m) if d is None else torch.randn(n, d) @ torch.randn(d, m)
    logs = scores + weights(n)[:, None] + weights(m)
    return logs.flatten().softmax(0).reshape(n, m)


def coupled(pi, q, k):
    """Logarithms of the Sinkhorn head with the marginals of `pi`."""
    return sinkhorn_head(q, k, pi.sum(1).log(), pi.sum(0).log())


SIZES = [(1, 1), (1, 6), (6, 1), (5, 5), (4, 9), (9, 4), (31, 20)]


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_softmax_head_is_exact_at_the_rank(n, m):
    """In general position the rank is min(n, m - 1), for any weights of the context."""
    p, log_b = conditional(n, m)
    found = realise_conditional(p, log_b)
    assert found.rank == min(n, m - 1)
    assert found.q.shape == (n, max(found.rank, 1)) and found.k.shape == (m, max(found.rank, 1))
    assert (softmax_head(found.q, found.k, log_b) - p.log()).abs().max() < 1e-13
    assert found.gap < 1e-12 and found.bound == 0 and found.entry_gap == 0


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_sinkhorn_head_is_exact_at_the_rank(n, m):
    """In general position the rank is min(n, m) - 1, for any two marginals."""
    pi = coupling(n, m)
    found = realise_coupling(pi)
    assert found.rank == min(n, m) - 1
    assert (coupled(pi, found.q, found.k) - pi.log()).abs().max() < 1e-12
    assert found.gap < 1e-12 and found.bound == 0


@pytest.mark.parametrize("d", [1, 2, 5])
def test_rank_of_a_head_is_its_dimension(d):
    """Not more, whatever the weights; a second look finds a head of the same relation."""
    p, log_b = conditional(12, 15, d)
    pi = coupling(12, 15, d)
    assert realise_conditional(p, log_b).rank == d
    assert realise_coupling(pi).rank == d
    assert realise_conditional(p.float(), log_b.float()).rank == d
    assert realise_coupling(pi.float()).rank == d


def test_the_rank_of_a_conditional():
    """As `realise` finds it, in both precisions; keys of no mass are left out; None with zeros."""
    for d in (1, 2, 5):
        P = conditional(9, 8, d)[0]
        padded = torch.cat([P, torch.zeros(9, 2)], 1)
        ranks = [conditional_rank(p) for p in (P, padded, P.float())]
        assert ranks == [realise_conditional(P, torch.zeros(8)).rank] * 3
    P[0, 0] = 0
    assert conditional_rank(P) is None


@pytest.mark.parametrize("d", [1, 3])
def test_squared_distances_cost_softmax_one_dimension_more(d):
    """The shift by |k|^2 depends on keys alone: Sinkhorn absorbs it, softmax does not."""
    scores, log_b = -torch.cdist(torch.randn(8, d), torch.randn(9, d)).square(), weights(9)
    assert realise_conditional((scores + log_b).softmax(-1), log_b).rank == d + 1
    assert realise_coupling((scores + log_b).flatten().softmax(0).reshape(8, 9)).rank == d


NORMALISERS = [pf.Softmax(), pf.Sinkhorn(tol=1e-13)]


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=lambda x: type(x).__name__)
def test_relations_of_the_library(normaliser):
    """A relation is realised by a head of its rank, and by none below; between any measures."""
    mu = pf.Measure(torch.randn(8, 2), torch.rand(8) + 0.1)
    nu = pf.Measure(torch.randn(9, 2), torch.rand(9) + 0.1)
    of = lambda q, k: pf.relate(mu, nu, affinity=pf.Encoded(q, k), normaliser=normaliser)
    relate = lambda q, k: of(q, k).matrix()
    target = of(torch.randn(8, 3), torch.randn(9, 3))
    head, narrow = realise(target), realise(target, 2)
    assert head.rank == narrow.rank == 3
    assert (relate(head.q, head.k) - target.matrix()).abs().max() < 1e-12
    left = target.matrix().log() - relate(narrow.q, narrow.k).log()
    assert left.norm() >= narrow.bound > 0
    rows = isinstance(normaliser, pf.Sinkhorn)
    assert centre(left, rows).norm().item() == pytest.approx(narrow.bound, abs=1e-10)


def test_weights_of_the_context_belong_to_no_head():
    """P = 1 b' has rank 0, though log b does not; without b it has rank 1."""
    log_b = weights(5)
    p = log_b.exp().expand(4, 5)
    assert realise_conditional(p, log_b).rank == 0
    assert realise_conditional(p, torch.zeros(5)).rank == 1
    assert realise_coupling(p).rank == 0


@pytest.mark.parametrize("d", range(1, 8))
def test_the_gap_is_the_tail_of_the_singular_values(d):
    """E16: equality in the centred norm at every dimension, measured on the normalised heads."""
    p, log_b = conditional(8, 11)
    found = realise_conditional(p, log_b, d)
    left = p.log() - softmax_head(found.q, found.k, log_b)
    tail = torch.linalg.svdvals(centre(p.log() - log_b))[d:].norm().item()
    assert found.bound == pytest.approx(tail, abs=1e-12)
    assert found.gap == pytest.approx(tail, abs=1e-12)
    assert centre(left).norm().item() == pytest.approx(tail, abs=1e-12)
    assert left.norm() >= tail - 1e-12
    worst = (p - softmax_head(found.q, found.k, log_b).exp()).abs().max()
    assert worst >= found.entry_gap > 0

    pi = coupling(9, 10)
    found = realise_coupling(pi, d)
    left = pi.log() - coupled(pi, found.q, found.k)
    tail = torch.linalg.svdvals(centre(pi.log(), rows=True))[d:].norm().item()
    assert found.bound == pytest.approx(tail, abs=1e-12)
    assert centre(left, rows=True).norm().item() == pytest.approx(tail, abs=1e-10)
    assert left.norm() >= tail - 1e-12
    assert (pi - coupled(pi, found.q, found.k).exp()).abs().max() >= found.entry_gap > 0


@pytest.mark.parametrize("d", [1, 2, 4, 7])
def test_the_gap_bounds_total_variation(d):
    """Stability of the normalisations, as an oscillation is at most sqrt(2) norms."""
    p, log_b = conditional(8, 11)
    found = realise_conditional(p, log_b, d)
    away = (p - softmax_head(found.q, found.k, log_b).exp()).abs().sum(1).max() / 2
    assert away <= math.tanh(found.gap / 8**0.5)
    pi = coupling(9, 10)
    found = realise_coupling(pi, d)
    away = (pi - coupled(pi, found.q, found.k).exp()).abs().sum() / 2
    assert away <= found.gap / 8**0.5


def descend(loss, best, starts, steps=60):
    """Heads trained by L-BFGS from the best one and from random ones, all at once."""
    near = [x + 0.1 * torch.randn(starts, *x.shape) for x in (best.q, best.k)]
    far = [torch.randn(starts, *x.shape) for x in (best.q, best.k)]
    q, k = (torch.cat(pair).requires_grad_() for pair in zip(near, far, strict=True))
    optimiser = torch.optim.LBFGS([q, k], max_iter=steps, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        value = loss(q, k).sum()
        value.backward()
        return value

    optimiser.step(closure)
    return q.detach(), k.detach()


LOSSES = {
    "logs": lambda p, logs: (p.log() - logs).square(),
    "entries": lambda p, logs: 100 * (p - logs.exp()).square(),
    "largest entries": lambda p, logs: (p - logs.exp()).pow(8).sum((-2, -1)).pow(1 / 8),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("d", [1, 2])
def test_no_softmax_head_is_better(d, loss):
    """Trained heads of dimension d stay above both bounds."""
    p, log_b = conditional(4, 5)
    best = realise_conditional(p, log_b, d)
    head = lambda q, k: softmax_head(q, k, log_b)
    trained = head(*descend(lambda q, k: loss(p, head(q, k)), best, starts=4))
    norms = centre(p.log() - trained).norm(dim=(-2, -1))
    assert (norms >= best.bound - 1e-12).all()
    assert ((p - trained.exp()).abs().amax((-2, -1)) >= best.entry_gap).all()


@pytest.mark.parametrize("d", [1, 2])
def test_trained_heads_reach_the_bound(d):
    """What is trained for the centred norm finds the head of the decomposition, and no better."""
    p, log_b = conditional(4, 5)
    best = realise_conditional(p, log_b, d)
    left = lambda q, k: centre(p.log() - softmax_head(q, k, log_b)).square().sum((-2, -1))
    norms = left(*descend(left, best, starts=4, steps=300)).sqrt()
    assert (norms >= best.bound - 1e-12).all()
    assert norms.min().item() == pytest.approx(best.bound, rel=1e-8)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_no_sinkhorn_head_is_better(loss):
    """The same through forty unrolled iterations, for heads of dimension one."""
    pi = coupling(4, 4)
    best = realise_coupling(pi, 1)
    log_a, log_b = pi.sum(1).log(), pi.sum(0).log()
    head = lambda q, k: sinkhorn_head(q, k, log_a, log_b, steps=40, tol=0)
    trained = head(*descend(lambda q, k: loss(pi, head(q, k)), best, starts=3, steps=30))
    norms = centre(pi.log() - trained, rows=True).norm(dim=(-2, -1))
    assert (norms >= best.bound - 1e-12).all()
    assert ((pi - trained.exp()).abs().amax((-2, -1)) >= best.entry_gap).all()


def test_the_entry_bound_is_better_than_half_of_its_first_order():
    """p (1 - exp(-t)) >= min(p / 2, p t / 2), t the root mean square of the tail."""
    for spread, d in itertools.product([0.01, 0.3, 1.0, 5.0], [1, 3]):
        p, log_b = conditional(6, 7, spread=spread)
        found = realise_conditional(p, log_b, d)
        t = found.bound / 42**0.5
        assert found.entry_gap >= p.min().item() * min(1, t) / 2


def test_wider_heads_than_the_rank_are_filled_with_zeros():
    p, log_b = conditional(3, 4)
    for d in [3, 4, 9]:
        found = realise_conditional(p, log_b, d)
        assert found.q.shape == (3, d) and found.k.shape == (4, d) and found.rank == 3
        assert found.q[:, 3:].abs().sum() == found.k[:, 3:].abs().sum() == 0
        assert (softmax_head(found.q, found.k, log_b).exp() - p).abs().max() < 1e-14


def test_points_without_mass_are_not_seen():
    p, log_b = conditional(3, 4)
    alone = realise_conditional(p, log_b)
    padded = torch.cat([p, torch.zeros(3, 2)], 1)
    found = realise_conditional(padded, torch.cat([log_b, torch.full((2,), -torch.inf)]))
    assert torch.equal(found.q, alone.q) and torch.equal(found.k[:4], alone.k)
    assert found.k[4:].abs().sum() == 0 and found.gap == alone.gap

    pi = coupling(3, 4)
    alone, found = (
        realise_coupling(pi),
        realise_coupling(torch.nn.functional.pad(pi, (0, 1, 2, 0))),
    )
    assert torch.equal(found.q[2:], alone.q) and torch.equal(found.k[:4], alone.k)
    assert found.q[:2].abs().sum() == found.k[4:].abs().sum() == 0


def test_single_precision():
    """Computed in float64: what is left is the rounding of target, queries and keys."""
    p, log_b = (x.float() for x in conditional(20, 30))
    found = realise_conditional(p, log_b)
    assert found.q.dtype == found.k.dtype == torch.float32
    logs = softmax_head(found.q.double(), found.k.double(), log_b.double())
    assert (logs - p.double().log()).abs().max() < 1e-5
    assert found.gap < 1e-4


# many heads


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


def with_zero(x):
    x = x.clone()
    x[0, 0] = 0
    return x / x.sum(1, keepdim=True)


ERRORS = {
    "a zero in a conditional": (
        lambda: realise_conditional(with_zero(torch.ones(2, 3)), torch.zeros(3)),
        r"positive, got 1 zeros\. Mix in a floor: `\(1 - 1e-6\) \* P",
    ),
    "a zero in a coupling": (lambda: realise_coupling(with_zero(torch.ones(2, 3))), "1e-6 \\* a"),
    "a negative mass": (lambda: realise_coupling(-torch.ones(2, 3)), "not logarithms"),
    "a NaN": (lambda: realise_coupling(torch.full((2, 3), torch.nan)), "non-negative, finite"),
    "rows of another sum": (
        lambda: realise_conditional(torch.ones(2, 3), torch.zeros(3)),
        "rows .* sums from 3 to 3",
    ),
    "mass at an atom without": (
        lambda: realise_heads(torch.eye(2), weights=torch.tensor([1.0, 0.0])),
        "atoms of zero mass",
    ),
    "columns of another sum": (
        lambda: birkhoff(torch.tensor([[1.0, 0.0], [1.0, 0.0]])),
        "columns .* times n",
    ),
}


@pytest.mark.parametrize(("call", "words"), ERRORS.values(), ids=ERRORS)
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()


SHAPES = {
    "a batch": (lambda: realise_coupling(torch.ones(2, 3, 3)), "one relation"),
    "weights of another number": (
        lambda: realise_heads(torch.eye(3), weights=torch.ones(4)),
        r"shape \(3,\), got \(4,\)",
    ),
    "a matrix": (lambda: realise(torch.eye(3)), "must be a Conditional, got Tensor"),
    "a rectangle": (lambda: birkhoff(torch.eye(3)[:2]), "realise_heads"),
    "no dimension": (lambda: realise_coupling(torch.ones(2, 3), 0), "at least 1"),
    "no heads": (lambda: realise_heads(torch.eye(3), 0), "at least 1"),
}


@pytest.mark.unhooked
@pytest.mark.parametrize(("call", "words"), SHAPES.values(), ids=SHAPES)
def test_errors_of_shapes_and_types(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
