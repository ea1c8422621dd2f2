"""Universal approximation: constructions, their errors and bounds; stability of normalisers."""

import math

import ot
import pytest
import torch
from clouds import SEEDS, cloud, weights
from hypothesis import given, settings, strategies as st

import pushforward as pf
from pushforward.approximation import (
    GaussianConditional,
    Hats,
    QuantileCoupling,
    SinkhornApproximation,
    SoftmaxApproximation,
    SoftNearest,
    relation_distance,
)


def box(cells, d=1):
    return Hats(torch.zeros(d), torch.ones(d), cells)


def shifted(mu, nu):
    """A user's rule: attend near the query, shifted by a fifth of the mean of the context."""
    x, y = mu.atoms + 0.2 * nu.mean(), nu.atoms
    rows = nu.log_weights - (x[:, None] - y).norm(dim=-1) / 0.1
    return pf.Conditional.from_matrix(rows.softmax(-1), nu)


def entropic(eps):
    """Entropic optimal transport of the squared distance, as a rule."""
    near = pf.SquaredDistance(eps)
    return lambda mu, nu: pf.relate(mu, nu, affinity=near, normaliser=pf.Sinkhorn())


def halves(mu, nu):
    """A user's rule of couplings: half monotone, half independent."""
    independent = weights(mu)[:, None] * weights(nu)
    return pf.Coupling.from_matrix((QuantileCoupling()(mu, nu).matrix() + independent) / 2)


CONDITIONALS = {
    "soft nearest": lambda d: SoftNearest(0.1),
    "sharp nearest": lambda d: SoftNearest(0.02),
    "gaussian": lambda d: GaussianConditional(
        -0.7 * torch.eye(d).flip(0), torch.full((d,), 0.8), 0.02 * torch.eye(d) + 0.01
    ),
    "a user's": lambda d: shifted,
}
COUPLINGS = {
    "quantile": lambda d: QuantileCoupling(),
    "entropic": lambda d: entropic(0.1),
    "sharp entropic": lambda d: entropic(0.02),
    "a user's": lambda d: halves,
}


def box_queries(nu, size):
    """Queries everywhere in the box, in the context `nu`."""
    d = nu.dim
    return pf.Measure.grid(torch.zeros(d), torch.ones(d), size=size), nu


def sup_error(first, second, pairs):
    """The largest distance of two rules over pairs of measures."""
    gaps = (relation_distance(first(mu, nu), second(mu, nu), mu, nu) for mu, nu in pairs)
    return max(gap.max().item() for gap in gaps)


def exponent(errors, cells):
    """The slope of log error against log cell width."""
    x, y = (-torch.tensor([float(n - 1) for n in cells]).log()), torch.tensor(errors).log()
    return ((x - x.mean()) @ (y - y.mean()) / (x - x.mean()).square().sum()).item()


# The pieces


@pytest.mark.parametrize("d", [1, 2, 3])
def test_hats_are_a_partition_of_unity(d):
    hats = Hats(torch.full((d,), -1.0), torch.linspace(1, 3, d), cells=4)
    x = hats.low + torch.rand(3, 500, d) * (hats.high - hats.low)
    values = hats(x)
    assert values.shape == (3, 500, hats.count) and hats.count == 4**d
    assert (values >= 0).all() and torch.allclose(values.sum(-1), torch.ones(3, 500), atol=1e-14)
    for hat in values.unbind(-1):
        inside = x[hat > 0]
        assert torch.cdist(inside, inside).max() <= hats.diameter
    corners = hats(torch.stack([hats.low, hats.high]))
    assert corners[0, 0] == 1 and corners[1, -1] == 1


def test_the_quantile_coupling_is_monotone_and_optimal():
    mu, nu = cloud(30), cloud(21)
    pi = QuantileCoupling()(mu, nu)
    assert torch.allclose(pi.matrix().sum(-1), weights(mu), atol=1e-15)
    assert torch.allclose(pi.matrix().sum(-2), weights(nu), atol=1e-15)
    cost = (pi.matrix() * (mu.atoms - nu.atoms.T).abs()).sum()
    least = pf.wasserstein(mu.normalise(), nu.normalise()).item()
    assert cost == pytest.approx(least, abs=1e-14)
    x, y = mu.atoms[:, 0].argsort(), nu.atoms[:, 0].argsort()
    i, j = (pi.matrix()[x][:, y] > 1e-15).nonzero().T
    assert ((i.diff() >= 0) & (j.diff() >= 0) | (i.diff() > 0)).all() and len(i) <= 50


def test_the_quantile_coupling_of_a_batch():
    """Padding included; an atom of no mass takes no part."""
    pairs = [(cloud(5), cloud(6)), (cloud(4), cloud(6))]
    mus, nus = (pf.Measure.stack(m) for m in zip(*pairs, strict=True))
    together = QuantileCoupling()(mus, nus).matrix()
    for one, (mu, nu) in zip(together, pairs, strict=True):
        assert torch.allclose(one[: mu.n], QuantileCoupling()(mu, nu).matrix(), atol=1e-15)
    assert (together[1, 4] == 0).all()


def test_the_gaussian_conditional_is_bayes_rule():
    mu, nu = cloud(5, 2), cloud(7, 3)
    root = torch.randn(3, 3)
    rule = GaussianConditional(torch.randn(3, 2), torch.randn(3), root @ root.T + torch.eye(3))
    means = mu.atoms @ rule.slope.T + rule.shift
    law = torch.distributions.MultivariateNormal(means[:, None], rule.cov)
    rows = (law.log_prob(nu.atoms) + nu.log_weights).softmax(-1)
    assert torch.allclose(rule(mu, nu).matrix(), rows, atol=1e-13)


RULES = [(SoftmaxApproximation, n, rule) for n, rule in CONDITIONALS.items()]
RULES += [(SinkhornApproximation, n, rule) for n, rule in COUPLINGS.items()]
NAMES = [f"{cls.__name__[:-13]}, {name}" for cls, name, _ in RULES]


def joint(relation, mu, nu):
    """The law of pairs."""
    pi = relation.joint(mu) if isinstance(relation, pf.Conditional) else relation
    pairs = torch.cat(torch.broadcast_tensors(mu.atoms[:, None], nu.atoms), -1).flatten(0, 1)
    return pf.Measure(pairs, pi.matrix().flatten())


def apart_by(s, mu):
    """The first atom comes apart into two at a distance s, in the box."""
    ends = (1 - s) * mu.atoms[:1] + s * torch.tensor([[0.0], [1.0]])
    logs = mu.log_weights[[0, 0]] - math.log(2)
    return pf.Measure(
        torch.cat([ends, mu.atoms[1:]]), log_weights=torch.cat([logs, mu.log_weights[1:]])
    )


@pytest.mark.parametrize(("approximate", "name", "rule"), RULES, ids=NAMES)
def test_rules_and_approximations_are_weakly_continuous(approximate, name, rule):
    """An atom of either measure that comes apart by s moves the law of pairs by O(s)."""
    mu, nu = cloud(9), cloud(8)
    for law in (rule(1), approximate(rule(1), box(5), tau=0.01, delta=0.01)):
        before = joint(law(mu, nu), mu, nu)
        for s in (1e-3, 1e-5):
            apart = apart_by(s, mu), apart_by(s, nu)
            after = joint(law(*apart), *apart)
            assert pf.wasserstein(before, after) < 20 * s


# The theorems


CELLS = (3, 5, 9, 17)


@pytest.mark.parametrize("name", CONDITIONALS)
def test_theorem_s(name, record_property):
    """The error over contexts and queries is below the bound and falls with the cells.

    There are twice as many atoms as cells, or the cells would resolve single atoms.
    """
    rule, pairs = CONDITIONALS[name](1), [box_queries(cloud(70), 101) for _ in range(6)]
    errors = []
    for cells in (*CELLS, 33):
        near = SoftmaxApproximation(rule, box(cells))
        errors.append(sup_error(near, rule, pairs))
        assert all(errors[-1] <= near.bound(*pair) for pair in pairs)
    record_property("errors", [f"{e:.4f}" for e in errors])
    assert exponent(errors, (*CELLS, 33)) >= 0.8
    assert errors[0] > 0.05 and errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("name", COUPLINGS)
def test_theorem_k(name, record_property):
    """E18: as above, between two measures."""
    rule, pairs = COUPLINGS[name](1), [(cloud(40), cloud(35)) for _ in range(2)]
    errors = []
    for cells in CELLS:
        near = SinkhornApproximation(rule, box(cells))
        errors.append(sup_error(near, rule, pairs))
        assert all(errors[-1] <= near.bound(*p) <= near.uniform_bound for p in pairs)
    record_property("errors", [f"{e:.4f}" for e in errors])
    assert exponent(errors, CELLS) >= 0.8
    assert errors[0] > 0.03 and errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("name", ["soft nearest", "gaussian"])
def test_theorem_s_in_the_plane(name):
    rule, pairs = CONDITIONALS[name](2), [box_queries(cloud(170, 2), 5)]
    nears = [SoftmaxApproximation(rule, box(cells, 2)) for cells in (3, 5, 9)]
    errors = [sup_error(near, rule, pairs) for near in nears]
    assert all(e <= near.bound(*pairs[0]) for e, near in zip(errors, nears, strict=True))
    assert exponent(errors, (3, 5, 9)) >= 0.8


def test_theorem_k_in_the_plane():
    rule, pair = entropic(0.1), (cloud(55, 2), cloud(51, 2))
    nears = [SinkhornApproximation(rule, box(cells, 2)) for cells in (2, 3, 5)]
    errors = [sup_error(near, rule, [pair]) for near in nears]
    assert all(e <= near.bound(*pair) for e, near in zip(errors, nears, strict=True))
    assert exponent(errors, (2, 3, 5)) >= 0.8


def test_spaces_of_different_dimensions():
    """Queries of the plane and keys of the line, each with their own hats."""
    mu, nu = cloud(30, 2), cloud(25, 1)
    rule = GaussianConditional(torch.tensor([[0.5, 0.5]]), torch.zeros(1), 0.02 * torch.eye(1))
    coupled = lambda mu, nu: rule(mu, nu).project(mu, nu, normaliser=pf.Sinkhorn(tol=1e-12))
    near = SinkhornApproximation(coupled, box(9), queries=box(5, 2))
    assert relation_distance(near(mu, nu), coupled(mu, nu), mu, nu) <= near.bound(mu, nu)
    near = SoftmaxApproximation(rule, box(9))
    assert relation_distance(near(mu, nu), rule(mu, nu), mu, nu) < 0.05


@pytest.mark.parametrize(("approximate", "name", "rule"), RULES, ids=NAMES)
def test_the_affinity_is_a_function_of_pairs_for_relate(approximate, name, rule):
    """Given to `relate`, in tiles and on other queries, it makes the same relation."""
    mu, nu, near = cloud(12), cloud(15), approximate(rule(1), box(5), tau=0.01, delta=0.01)
    matrix = near(mu, nu).matrix()
    again = pf.relate(mu, nu, affinity=pf.Pairs(near.affinity), normaliser=near.normaliser)
    assert type(again) is type(near(mu, nu)) and torch.allclose(again.matrix(), matrix, atol=1e-6)
    whole = near.affinity(mu, nu, mu.atoms[:, None], nu.atoms[None])
    part = near.affinity(mu, nu, mu.atoms[3:5, None], nu.atoms[None, 2:9])
    assert torch.allclose(part, whole[3:5, 2:9], atol=1e-12) and whole.min() >= math.log(0.01)


def test_a_batch_is_its_elements():
    pairs = [(cloud(9), cloud(8)), (cloud(9), cloud(6))]
    mus, nus = (pf.Measure.stack(m) for m in zip(*pairs, strict=True))
    for approximate, rule in (
        (SoftmaxApproximation, SoftNearest(0.05)),
        (SinkhornApproximation, QuantileCoupling()),
    ):
        near = approximate(rule, box(4), tau=0.02, delta=0.02)
        gaps = relation_distance(near(mus, nus), rule(mus, nus), mus, nus)
        for gap, bound, (mu, nu) in zip(gaps, near.bound(mus, nus), pairs, strict=True):
            alone = relation_distance(near(mu, nu), rule(mu, nu), mu, nu)
            assert gap == pytest.approx(alone.item(), abs=1e-6)
            assert bound == pytest.approx(near.bound(mu, nu).item(), abs=1e-12)


# The bounds, where tau and delta matter

LEVELS = st.sampled_from([0.0, 0.003, 0.03, 0.1, 0.3])
SLACK = 1e-5
"""The marginals of a coupling are good to 1e-6, its potentials are some ten units."""


@settings(max_examples=60, deadline=None)
@given(SEEDS, LEVELS, LEVELS)
def test_bound_s_for_any_conditional(seed, tau, delta):
    """Continuous or not: rows drawn at random, on clouds with very light atoms."""
    torch.manual_seed(seed)
    nu = pf.Measure(torch.rand(12, 1), (4 * torch.randn(12)).exp())
    rows = (5 * torch.randn(6, 12)).softmax(-1)
    rule = lambda mu, nu: pf.Conditional.from_matrix(rows, nu)
    mu, hats = cloud(6), box(7)
    near = SoftmaxApproximation(rule, hats, tau=tau, delta=delta)
    error = relation_distance(near(mu, nu), rule(mu, nu), mu, nu).item()
    chi = hats(nu.atoms)
    shares, masses = rows @ chi, weights(nu) @ chi
    lost = (shares * (1 - masses / tau).clamp_min(0)).sum(-1) if tau else torch.zeros(6)
    exact = SoftmaxApproximation(rule, hats, tau=0.0, delta=0.0)(mu, nu).matrix()
    changed = (near(mu, nu).matrix() - exact).abs().sum(-1) / 2
    assert (changed <= lost.clamp_min(delta) + 1e-12).all()
    omega = shares[:, masses <= tau].max().item() if (masses <= tau).any() else 0.0
    stated = hats.diameter + 2 * hats.extent * (hats.count * omega + delta)
    assert error <= near.bound(mu, nu).item() <= stated + 1e-12


@settings(max_examples=25, deadline=None)
@given(SEEDS, LEVELS, st.sampled_from([0.003, 0.03, 0.3]))
def test_bound_k_for_any_coupling_system(seed, tau, delta):
    """And every inequality of its proof, for masses over many orders of magnitude."""
    torch.manual_seed(seed)
    mu = pf.Measure(torch.rand(9, 1), (3 * torch.randn(9)).exp())
    nu = pf.Measure(torch.rand(11, 1), (3 * torch.randn(11)).exp())
    hats = box(6)
    target = pf.relate(
        mu, nu, affinity=pf.Matrix(5 * torch.randn(9, 11)), normaliser=pf.Sinkhorn(tol=1e-11)
    )
    rule = lambda mu, nu: target
    near = SinkhornApproximation(rule, hats, tau=tau, delta=delta)
    exact = SinkhornApproximation(rule, hats, tau=0.0, delta=delta)
    points = mu, nu, mu.atoms[:, None], nu.atoms[None]
    change = exact.affinity(*points) - near.affinity(*points)
    p, q = exact(mu, nu).matrix(), near(mu, nu).matrix()
    divergence = ((p - q) * (p / q).log()).sum()
    truncated = (p * change).sum()
    masses = [weights(m) @ hats(m.atoms) for m in (mu, nu)]
    light = sum((m * (tau / m).log())[(m > 0) & (m < tau)].sum() for m in masses)
    steps = [divergence, truncated, light, torch.tensor(2 * hats.count * tau / math.e)]
    assert all(a <= b + SLACK for a, b in zip(steps, steps[1:], strict=False)), steps
    assert (p - q).abs().sum() / 2 <= truncated.clamp_min(0).sqrt() / 2 + SLACK
    error = relation_distance(near(mu, nu), target, mu, nu)
    spread = hats.diameter * math.sqrt(2)
    assert near.bound(mu, nu) == pytest.approx(spread + delta + math.sqrt(light) / 2, abs=1e-9)
    assert error <= near.bound(mu, nu) + SLACK and near.bound(mu, nu) <= near.uniform_bound


# Distances of relations


@pytest.mark.parametrize("d", [1, 2])
def test_distances_against_pot(d):
    mu, nu = cloud(6, d), cloud(7, d)
    draw = lambda: (2 * torch.randn(6, 7)).softmax(-1)
    first, second = (pf.Conditional.from_matrix(draw(), nu) for _ in range(2))
    costs = torch.cdist(nu.atoms, nu.atoms).numpy()
    rows = zip(first.matrix().numpy(), second.matrix().numpy(), strict=True)
    worst = max(ot.emd2(p / p.sum(), q / q.sum(), costs) for p, q in rows)
    assert relation_distance(first, second, mu, nu) == pytest.approx(worst, abs=1e-12)
    pi, other = (r.project(mu, nu) for r in (first, second))
    pairs = torch.cat(torch.broadcast_tensors(mu.atoms[:, None], nu.atoms), -1).flatten(0, 1)
    p, q = (r.matrix().flatten().numpy() for r in (pi, other))
    apart = ot.emd2(p / p.sum(), q / q.sum(), (pairs[:, None] - pairs).norm(dim=-1).numpy())
    assert relation_distance(pi, other, mu, nu) == pytest.approx(apart, abs=1e-12)
    assert relation_distance(pi, pi, mu, nu) == 0 == relation_distance(first, first, mu, nu)


# Errors


def test_errors_say_what_to_do():
    mu, nu, hats = cloud(5), cloud(6), box(3)
    with pytest.raises(TypeError, match="must be a Coupling, got Conditional.*from_matrix"):
        SinkhornApproximation(SoftNearest(0.1), hats)(mu, nu)
    with pytest.raises(TypeError, match="must be a Conditional, got Tensor.*from_matrix"):
        SoftmaxApproximation(lambda mu, nu: torch.ones(mu.n, nu.n) / nu.n, hats)(mu, nu)
    with pytest.raises(ValueError, match="must couple the measures.*project"):
        SinkhornApproximation(lambda mu, nu: SoftNearest(0.1)(mu, nu).joint(mu), hats)(mu, nu)
    with pytest.raises(ValueError, match=r"must lie in the box.*Hats.around"):
        SoftmaxApproximation(SoftNearest(0.1), hats)(mu, nu.push(lambda y: y + 1))
    with pytest.raises(ValueError, match="`low` below `high`"):
        Hats(torch.zeros(2), torch.tensor([1.0, 0.0]), 3)
    with pytest.raises(ValueError, match="`cells` must be at least 2"):
        Hats(torch.zeros(1), torch.ones(1), 1)
    with pytest.raises(ValueError, match="`delta` must be at least 0 and below 1, got 1.0"):
        SoftmaxApproximation(SoftNearest(0.1), hats, tau=0.1, delta=1.0)
    with pytest.raises(ValueError, match="on the line, got one in R.2"):
        QuantileCoupling()(cloud(5, 2), nu)
    with pytest.raises(TypeError, match="`second` must be a Coupling.*or couplings"):
        relation_distance(QuantileCoupling()(mu, nu), SoftNearest(0.1)(mu, nu), mu, nu)


@pytest.mark.parametrize("tau", [0.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_uniform_bound_is_not_below_a_bound_it_bounds(tau, dtype):
    mu = pf.Measure(torch.rand(5, 1, dtype=dtype))
    zero, one = torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    for cells in range(2, 12):
        hats = pf.approximation.Hats(zero, one, cells=cells)
        near = pf.approximation.SinkhornApproximation(
            pf.approximation.QuantileCoupling(), hats, tau=tau, delta=0.1
        )
        bound = near.bound(mu, mu).item()
        torch.set_default_dtype(torch.float32)  # what users have
        assert bound <= near.uniform_bound <= bound + 0.2 + 1e-6
        torch.set_default_dtype(torch.float64)
