"""What one head can realise, what it cannot, and what many narrow heads can instead."""

import itertools

import pytest
import torch
from heads import sinkhorn_head, softmax_head, weights

import pushforward as pf
from pushforward.approximation import (
    birkhoff,
    conditional_rank,
    realise,
    realise_conditional,
    realise_coupling,
    realise_heads,
)


def centre(x, rows=False):
    x = x - x.mean(-1, keepdim=True)
    return x - x.mean(-2, keepdim=True) if rows else x


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


def with_zero(x):
    x = x.clone()
    x[0, 0] = 0
    return x / x.sum(1, keepdim=True)


ERRORS = {
    "a zero in a conditional": (
        lambda: realise_conditional(with_zero(torch.ones(2, 3)), torch.zeros(3)),
        r"positive, got 1 zeros\. Add a small positive part: `\(1 - 1e-6\) \* P",
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
