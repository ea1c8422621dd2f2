"""Contextual rules learned by `fit`: losses and errors against closed forms, a small training."""

import pytest
import torch

import pushforward as pf
from pushforward import fitting, maps
from pushforward.fitting.problems import drawn, relation_error

NEAREST = pf.approximation.SoftNearest(0.3)
QUANTILES = pf.approximation.QuantileCoupling()
STAY = pf.Pointwise(lambda x: x)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def task(rule, dim=1, **options):
    return fitting.Relating(rule, fitting.Mixtures(dim, unequal=1.0), **options)


def other(kind):
    """A rule that differs from the right one."""
    normaliser = pf.Softmax() if kind == "conditional" else pf.Sinkhorn(steps=200)
    return maps.LearnedRule(STAY, STAY, affinity=pf.SquaredDistance(1.0), normaliser=normaliser)


def alike(normaliser):
    """A rule without parameters, as a module."""
    near = pf.SquaredDistance(0.3)
    return maps.LearnedRule(STAY, STAY, affinity=near, normaliser=normaliser)


RULES = {"conditional": alike(pf.Softmax()), "coupling": alike(pf.Sinkhorn(tol=1e-12))}


@pytest.mark.parametrize("kind", RULES)
def test_the_loss_is_the_divergence(kind):
    """Computed from the matrices."""
    learned, problem = other(kind), task(RULES[kind], 2)
    batch = drawn(problem, 3, 5, 7, generator())
    mu, nu, right = batch
    p, q = right.matrix(), learned(mu, nu).matrix()
    terms = p * (p / q).log()
    expected = mu.integrate(terms.sum(-1)) if kind == "conditional" else terms.sum((-1, -2))
    assert torch.allclose(problem.losses(learned, batch), expected)


@pytest.mark.parametrize("kind", RULES)
def test_the_right_rule_has_neither_loss_nor_error(kind):
    problem = task(RULES[kind], 2)
    batch = drawn(problem, 3, 5, 7, generator())
    assert problem.losses(RULES[kind], batch).abs().max() < 1e-12
    mu, nu, right = batch
    assert relation_error(right, RULES[kind](mu, nu), mu, nu).abs().max() < 1e-12


def test_the_error_is_the_relation_distance_of_conditionals_and_above_that_of_couplings():
    for kind, rule in RULES.items():
        mu, nu, right = drawn(task(rule, 2), 4, 5, 6, generator())
        found = other(kind)(mu, nu)
        distance = pf.approximation.relation_distance(right, found, mu, nu)
        error = relation_error(right, found, mu, nu)
        if kind == "conditional":
            assert torch.allclose(error, distance)
        else:
            assert (error >= distance - 1e-9).all() and (error < 3 * distance).all()


def test_the_loss_of_a_peaked_relation_is_finite_and_has_a_gradient():
    """Masses of a singular coupling are 0, and those of sharp scores underflow."""
    k = maps.LearnedRule(
        pf.MLP(1, 4), pf.MLP(1, 4), affinity=pf.SquaredDistance(1e-4),
        normaliser=pf.Sinkhorn(steps=5),
    ).double()  # fmt: skip
    problem = task(QUANTILES)
    loss = problem.losses(k, drawn(problem, 2, 6, 4, generator())).sum()
    loss.backward()
    assert loss.isfinite() and all(p.grad.isfinite().all() for p in k.parameters())
    assert any((p.grad != 0).any() for p in k.parameters())


def test_padded_atoms_count_for_nothing():
    """A ragged batch of measures has the losses of its members."""
    sizes = [3, 5, 8]
    clouds = [pf.Measure(torch.randn(n, 2, generator=generator(n)).double()) for n in sizes]

    class Ragged(fitting.Law):
        dim = 2

        def draw(self, count, n, generator):
            return pf.Measure.stack(clouds[:count])

    learned, problem = other("conditional"), fitting.Relating(NEAREST, Ragged())
    together = drawn(problem, 3, 8, 8, generator())
    for k, mu in enumerate(clouds):
        alone = fitting.problems.Meeting(*(m for m in (mu, mu)), NEAREST(mu, mu))
        assert torch.allclose(problem.losses(learned, together)[k], problem.losses(learned, alone))
        both = together.relation, learned(together.mu, together.nu)
        error = relation_error(*both, together.mu, together.nu)[k]
        assert torch.allclose(error, relation_error(alone[2], learned(mu, mu), mu, mu))


def test_the_same_index_draws_the_same_pairs():
    problem = fitting.Relating(NEAREST, fitting.Mixtures(2), fitting.Box(2))
    first, again = (problem.batch(generator(5), 7) for _ in range(2))
    assert torch.equal(first.mu.atoms, again.mu.atoms)
    assert torch.equal(first.nu.atoms, again.nu.atoms)
    assert first.mu.n != problem.batch(generator(5), 8).mu.n


def test_relations_of_another_kind_are_refused():
    problem = task(QUANTILES)
    batch = drawn(problem, 1, 4, 4, generator())
    with pytest.raises(ValueError, match="rule makes a Coupling and the model a Conditional"):
        problem.losses(other("conditional"), batch)
    with pytest.raises(TypeError, match=r"`rule` must return a Conditional or a Coup"):
        drawn(task(lambda mu, nu: mu), 1, 4, 4, generator())
    with pytest.raises(ValueError, match=r"`rule` must relate the measures"):
        drawn(task(lambda mu, nu: NEAREST(nu, mu)), 1, 4, 5, generator())


@pytest.mark.unhooked
def test_encoders_of_other_spaces_are_refused():
    with pytest.raises(ValueError, match=r"one space, got R\^2 and R\^3"):
        maps.LearnedRule(pf.Attention(2), pf.MLP(2, 4, out_dim=3))
    with pytest.raises(TypeError, match="`q` must be an InContextMap"):
        maps.LearnedRule(torch.nn.Linear(2, 2), STAY)


def encoder(dim):
    sizes = dict(depth=1, heads=2, width=16, out_dim=4, block=pf.Block(norm=pf.PreNorm()))
    return pf.Transformer(dim, **sizes)


@pytest.mark.unhooked
@pytest.mark.parametrize("kind", ["softmax", "sinkhorn"])
def test_rules_are_learned_and_hold_at_other_sizes(kind, tmp_path):
    """The nearest key once the keys are centred (softmax), quantiles (Sinkhorn): in seconds."""
    torch.manual_seed(0)

    def centred(mu, nu):
        keys = nu.atoms - nu.mean()[..., None, :]
        return pf.relate(mu, nu, affinity=pf.Encoded(mu.atoms, keys, pf.SquaredDistance(0.5)))

    rule = centred if kind == "softmax" else QUANTILES
    normaliser = pf.Softmax() if kind == "softmax" else pf.Sinkhorn(steps=5)
    batches = fitting.Batches((8, 16), 128)
    problem = fitting.Relating(rule, fitting.Mixtures(1), batches=batches)
    model = maps.LearnedRule(encoder(1), encoder(1), normaliser=normaliser)
    training = fitting.Training(
        optimiser=fitting.Optimiser(lr=1e-2), evaluation=fitting.Evaluation(every=100)
    )
    result = pf.fit(model, problem, steps=120, training=training, out=tmp_path / "run")
    for score in fitting.evaluate_rule(result.model, problem, sizes=(8, 100)):
        assert score.mean < 0.4 * score.independent
    again = maps.load(tmp_path / "run" / "model.safetensors")
    mu = pf.Measure(torch.randn(6, 1))
    assert torch.equal(again(mu, mu).matrix(), result.model(mu, mu).matrix())
