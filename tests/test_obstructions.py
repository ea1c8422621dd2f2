"""What no push-forward can do: the bounds, what `fit` says, and the two remedies."""

import math
import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch

import pushforward as pf
from pushforward import fitting, maps
from pushforward._tools.warn import PushforwardWarning
from pushforward.fitting.problems._obstructions import _Sums

X = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
E21 = pf.Measure(X), pf.Measure(X, torch.tensor([1.0, 2.0], dtype=torch.float64) / 3)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def masses(n, seed=0):
    return torch.rand(n, generator=seeded(seed), dtype=torch.float64) + 0.05


def only(source, target):
    """The one entry for a pair."""
    return fitting.obstructions([(source, target)]).pairs[0]


def best_on_targets(source, target):
    """The least W1 of all push-forwards that send points to points of the target."""
    everywhere = torch.tensor(list(product(range(target.n), repeat=source.n)))
    images = pf.Measure(
        target.atoms[everywhere], source.weights.expand(len(everywhere), -1)
    ).normalise()
    batch = (len(everywhere), *target.atoms.shape)
    right = pf.Measure(target.atoms.expand(batch), target.weights.expand(batch[:2])).normalise()
    return pf.wasserstein(images, right).min().item()


# The bound


def test_the_bound_of_the_two_points_is_a_third_and_attained():
    """1/2 d_-1 + 1/2 d_1 to 1/3 d_-1 + 2/3 d_1."""
    found = only(*E21)
    assert math.isclose(found.bound, 1 / 3) and math.isclose(found.displacement, 1 / 3)
    assert math.isclose(best_on_targets(*E21), 1 / 3)
    assert found.problems == ("re-weights",) and math.isclose(found.reweighted, 1 / 6)


@pytest.mark.parametrize("dim", [1, 3])
def test_the_bound_of_a_split_atom_is_one(dim):
    """d_0 to 1/2 d_-1 + 1/2 d_1, along a slanted line in R^3."""
    direction = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64)[:dim]
    two = X * direction / direction.norm()
    found = only(pf.Measure(two[:1] * 0), pf.Measure(two))
    assert math.isclose(found.bound, 1.0) and found.problems == ("splits", "re-weights")


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_is_below_every_push_forward(seed):
    """On the line the best push-forward sends points to points of the target: all are tried."""
    n, m, dim = seed % 4 + 1, seed % 3 + 2, 1 + seed % 2
    source = pf.Measure(draws(n, dim, seed=seed), masses(n, seed=seed))
    target = pf.Measure(draws(m, dim, seed=50 + seed), masses(m, seed=50 + seed))
    bound, best = only(source, target).bound, best_on_targets(source, target)
    assert 0 < bound <= best + 1e-12
    if n == 1 and dim == 1:  # one atom goes to the median, and the bound is its error
        assert math.isclose(bound, best)


def test_distances_from_subset_sums():
    """Against all subset sums; a larger set if there are many masses."""
    for n, exact in ((5, True), (20, False)):
        mass = masses(n, seed=n) / masses(n, seed=n).sum()
        every = torch.zeros(1, dtype=torch.float64)
        for a in mass:
            every = torch.cat([every, every + a])
        t = torch.linspace(0, 1, 41, dtype=torch.float64)
        right = (t[:, None] - every).abs().min(-1).values
        found = _Sums(mass).distance(t)
        assert (found <= right + 1e-12).all()
        if exact:
            assert torch.allclose(found, right, atol=1e-12)
    hundred = _Sums(torch.full((100,), 0.01, dtype=torch.float64))
    t = torch.tensor([1 / 3, 0.255, 0.2], dtype=torch.float64)
    assert torch.allclose(hundred.distance(t), torch.tensor([1 / 300, 0.005, 0]).double())


# What is no obstruction


@pytest.mark.parametrize("n", [1, 2, 7, 30, 200])
@pytest.mark.parametrize("equal", [True, False])
def test_push_forwards_break_nothing(n, equal):
    """Collisions, repeated points, reordered atoms and atoms of no mass are allowed."""
    x = draws(n, 2, seed=n).repeat(2, 1)
    a = torch.ones(2 * n).double() if equal else masses(2 * n)
    a[0] = 0 if n > 1 else a[0]
    source = pf.Measure(x, a)
    moved = source.push(lambda x: (2 * x).round())
    order = torch.randperm(2 * n, generator=seeded(n))
    target = pf.Measure(moved.atoms[order], moved.weights[order])
    found = fitting.obstructions([(source, target)])
    assert found.share == 0 and found.out_of_reach < 1e-9 and not found.serious
    swapped = pf.Measure(x[order], a[order])
    assert only(source, swapped).problems == ()


def test_a_permutation_of_masses_is_a_push_forward():
    """The same points with exchanged masses: the map exchanges the points."""
    found = only(E21[1], pf.Measure(X, torch.tensor([2.0, 1.0]).double() / 3))
    assert found.problems == () and found.reweighted == 0 and found.bound < 1e-15


@pytest.mark.parametrize("sizes", [(5, 500), (8, 13), (13, 8), (16, 15), (8, 300), (300, 200)])
@pytest.mark.parametrize("dim", [1, 2])
def test_two_samples_give_no_alarm(sizes, dim):
    """Samples of one law, so that nothing moves, break (B1) and are no reason to warn."""
    n, m = sizes
    pairs = [
        (pf.Measure(draws(n, dim, seed=k)), pf.Measure(draws(m, dim, seed=99 + k)))
        for k in range(16)
    ]
    found = fitting.obstructions(pairs)
    assert found.share == 1 and not found.serious


# What is one


def test_births_are_seen_in_the_total_mass():
    source = pf.Measure(draws(10, 2), torch.ones(10).double())
    target = pf.Measure(draws(12, 2), torch.ones(12).double())
    found = fitting.obstructions([(source, target)])
    assert math.isclose(found.mass, 1 / 6) and found.serious and "births" in str(found)
    assert found.pairs[0].problems == ("mass", "splits", "re-weights")


def test_cells_that_divide_are_seen():
    """Each atom splits in two halves: a push-forward can do nothing but stay."""
    x = 10 * draws(12, 1).sort(0).values
    children = torch.cat([x - 0.1, x + 0.1])
    found = fitting.obstructions([(pf.Measure(x), pf.Measure(children))])
    assert math.isclose(found.out_of_reach, 1.0) and found.serious


def test_bayes_rule_is_seen_however_many_points_there_are():
    """The masses of many points can nearly be matched, by a map that jumps; the points stay."""
    mu = pf.Measure(draws(300, 2), masses(300))
    found = fitting.obstructions([(mu, pf.representation.zoo.bayes(mu))])
    assert found.pairs[0].bound < 1e-3 and found.reweighted > 0.1 and found.serious


def test_between_spaces_the_bound_is_compared_with_the_spread():
    found = only(pf.Measure(draws(1, 3)), pf.Measure(X))
    assert math.isclose(found.bound, 1.0) and math.isclose(found.displacement, 1.0)


def test_wrong_pairs_are_refused():
    for wrong, said in (([], "at least one"), ([E21[:1]], "got 1 things")):
        with pytest.raises(ValueError, match=said):
            fitting.obstructions(wrong)


# What fit says


def network(dim=1, out_dim=1, width=32):
    block = pf.Block(norm=pf.PreNorm())
    return pf.Transformer(dim, depth=2, heads=2, width=width, out_dim=out_dim, block=block)


ONE_LOOK = fitting.Evaluation(every=1000, sizes=(4,), measures=2)
PAIRED = fitting.Training(batches=fitting.Batches((4, 9), 32), evaluation=ONE_LOOK)
SMALL = fitting.Training(
    loss=fitting.EnergyDistance(), batches=fitting.Batches((4, 9), 32), evaluation=ONE_LOOK
)
ENERGY = fitting.Training(loss=fitting.EnergyDistance(), evaluation=ONE_LOOK)


@pytest.mark.unhooked
def test_fit_warns_once_at_the_line_of_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = pf.fit(pf.Residual(network()), [E21], steps=2, training=ENERGY)
    (said,) = [w for w in caught if issubclass(w.category, PushforwardWarning)]
    assert said.filename == __file__
    for words in ("re-weighting", "100.0% of the displacement", "Reweighted", "NoiseSource"):
        assert words in str(said.message)
    assert math.isclose(result.obstructions.pairs[0].bound, 1 / 3, rel_tol=1e-6)


def test_fit_sees_the_target_of_a_simulation():
    law = fitting.Mixtures(1)
    with pytest.warns(PushforwardWarning, match="re-weighting"):
        pf.fit(pf.Residual(network()), target=posterior, law=law, steps=1, training=SMALL)


def posterior(mu):
    logs = mu.log_weights - 2 * (mu.atoms[..., 0] - 1).square()
    return pf.Measure.unchecked(mu.atoms, logs.log_softmax(-1))


def test_fit_is_silent_where_there_is_no_reason():
    """A remedy is no push-forward, samples are no obstruction, and flows are push-forwards."""
    samples = [(pf.Measure(torch.randn(30, 1)), pf.Measure(torch.randn(40, 1))) for _ in range(3)]
    flow, law = pf.Pointwise(lambda x: x + 1), fitting.Mixtures(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PushforwardWarning)
        source = maps.NoiseSource(network(), points=8)
        assert pf.fit(source, [E21], steps=1, training=ENERGY).obstructions is None
        model = pf.Residual(network())
        assert pf.fit(model, samples, steps=1, training=ENERGY).obstructions.share == 1
        assert pf.fit(model, target=flow, law=law, steps=1, training=PAIRED).obstructions is None


def test_paired_images_of_another_number_of_atoms_are_an_error():
    source = maps.NoiseSource(network(), points=8)
    mu = pf.Measure(torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"`Paired` compares atoms one by one, got .*\(8, 1\)"):
        fitting.Paired().between(source.push(mu), mu)


@pytest.mark.unhooked
def test_push_forwards_stay_above_a_third_and_remedies_fall_below():
    """The same network, a second or two each."""
    mu, nu = E21
    quick = fitting.Optimiser(lr=5e-3, ema=0.95)
    training = replace(ENERGY, loss=fitting.Wasserstein(), optimiser=quick)
    models = {
        "push-forward": (lambda: pf.Residual(network()), 60),
        "noise": (lambda: maps.NoiseSource(network(), points=64), 200),
        "density": (lambda: maps.Reweighted(pf.Residual(network()), network()), 80),
    }
    errors = {}
    for name, (make, steps) in models.items():
        torch.manual_seed(0)
        model = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PushforwardWarning)
            result = pf.fit(model, [(mu, nu)], steps=steps, training=training)
        errors[name] = pf.wasserstein(result.model.push(mu), nu).item()
    assert 1 / 3 - 1e-6 < errors.pop("push-forward") < 0.5
    assert max(errors.values()) < 0.05, errors


# The two remedies


def test_noise_has_its_own_number_of_atoms_and_the_mass_of_its_context():
    model = maps.NoiseSource(network(2, 3), points=50, seed=1).double()
    many = pf.Measure.stack([pf.Measure(draws(n, 2), masses(n)) for n in (1, 4, 9)])
    images = model(many)
    assert images.n == 50 and images.dim == 3
    assert torch.allclose(images.mass, many.mass)
    for image, mu in zip(images, many, strict=True):
        assert torch.allclose(image.atoms, model.push(mu).atoms)
        assert torch.allclose(model.push(mu.split(3)).atoms, image.atoms)


def test_noise_reads_its_context_by_cross_attention_from_another_space():
    attention = pf.Attention(2, context_dim=5).double()
    image = maps.NoiseSource(attention, points=6).double().push(pf.Measure(draws(4, 5)))
    assert (image.n, image.dim) == (6, 2)


def test_noise_needs_a_dimension_and_no_times():
    with pytest.raises(ValueError, match="needs a dimension"):
        maps.NoiseSource(pf.Pointwise(torch.sin))
    with pytest.raises(ValueError, match="causal"):
        maps.NoiseSource(pf.Attention(2, mask=pf.Causal()))


def test_a_density_gives_the_masses_of_bayes_rule():
    stay = pf.Pointwise(lambda x: x)
    likelihood = pf.Pointwise(lambda x: -2 * (x - 1).square())
    mu = pf.Measure(draws(9, 1), masses(9))
    image = maps.Reweighted(stay, likelihood).push(mu)
    assert torch.allclose(image.normalise().weights, posterior(mu).weights)
    assert torch.allclose(image.mass, mu.mass)
    born = maps.Reweighted(stay, likelihood, births=True).push(mu)
    total = mu.integrate(lambda x: torch.exp(-2 * (x[..., 0] - 1).square()))
    assert torch.allclose(born.mass, total)


def test_a_density_sees_the_measure_and_not_how_it_is_written():
    model = maps.Reweighted(network(2, 2), network(2, 1)).double()
    mu = pf.Measure(draws(5, 2), masses(5))
    padded = pf.Measure.stack([mu, pf.Measure(draws(8, 2))])
    assert model.push(mu.split(2)).merge(1e-9).allclose(model.push(mu).merge(1e-9))
    assert model.push(padded)[0].allclose(model.push(mu))


def test_births_are_learned_by_a_loss_of_masses():
    """d_0 becomes 3 d_0: the loss of normalised measures does not see it, the other does."""
    mu = pf.Measure(torch.zeros(1, 1))
    nu = pf.Measure(torch.zeros(1, 1), torch.tensor([3.0]))
    plain = fitting.EnergyDistance()
    assert plain.between(mu, nu) == 0
    assert math.isclose(fitting.WithMass(plain).between(mu, nu), 2)
    exact = fitting.WithMass(fitting.Wasserstein())
    a, b = pf.Measure(draws(4, 2), masses(4)), pf.Measure(draws(3, 2), 2 * masses(3))
    assert torch.allclose(exact.between(a, b), pf.wasserstein(a, b))
    torch.manual_seed(0)
    model = maps.Reweighted(pf.Pointwise(lambda x: x), pf.MLP(1, 8), births=True)
    quick = fitting.Optimiser(lr=5e-2, ema=0.9)
    training = replace(ENERGY, loss=fitting.WithMass(plain), optimiser=quick)
    image = pf.fit(model, [(mu, nu)], steps=60, training=training).model.push(mu)
    assert abs(image.mass.item() - 3) < 0.1


def test_a_density_is_a_number():
    with pytest.raises(ValueError, match=r"images in R\^1"):
        maps.Reweighted(network(2, 2), network(2, 2))
    with pytest.raises(ValueError, match=r"images in R\^1, got R\^2"):
        maps.Reweighted(network(2, 2), pf.Pointwise(torch.sin)).push(pf.Measure(torch.ones(3, 2)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: maps.NoiseSource(network(), points=7, seed=3),
        lambda: maps.Reweighted(pf.Residual(network()), network(), births=True),
        lambda: maps.LearnedRule(network(), network(), normaliser=pf.Sinkhorn(steps=3)),
    ],
    ids=["NoiseSource", "Reweighted", "LearnedRule"],
)
def test_the_models_are_saved_and_loaded(make, tmp_path):
    model = make()
    maps.save(model, tmp_path / "model.safetensors")
    again = maps.load(tmp_path / "model.safetensors")
    mu = pf.Measure(torch.randn(5, 1))
    if isinstance(model, maps.LearnedRule):
        assert torch.equal(model(mu, mu).matrix(), again(mu, mu).matrix())
    else:
        image, same = model.push(mu), again.push(mu)
        assert torch.equal(image.atoms, same.atoms)
        assert torch.equal(image.log_weights, same.log_weights)
