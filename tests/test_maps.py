"""Composition, push-forward, and what a network costs."""

import pytest
import torch
from cases import Drift, attention, measure, queries, transformer, worst

import pushforward as pf


class Recorder(pf.InContextMap):
    """Notes each context and the number of points it is asked for."""

    def __init__(self):
        super().__init__()
        self.contexts, self.asked = [], []

    def evaluate(self, mu, x):
        self.contexts.append(mu.atoms)
        self.asked.append(x.shape[-2])
        return x * 1.5


@torch.no_grad()
def test_composition_is_iterated_push_forward():
    """[A, eq. 8]."""
    mu, (x, _) = measure(), queries()
    g1, g2 = attention(None), Drift()
    both = g2 @ g1
    middle = g1.push(mu)
    assert torch.equal(both.push(mu).atoms, g2.push(middle).atoms)
    assert torch.equal(both(mu, x), g2(middle, g1(mu, x)))


@torch.no_grad()
def test_pushing_evaluates_each_layer_once():
    layers = [Recorder() for _ in range(5)]
    model = pf.Compose(*layers)
    mu, (x, _) = measure(6), queries(4)
    for push in (model.push, lambda mu: mu.push(model.at(mu))):
        push(mu)
        assert all(layer.asked == [6] for layer in layers)
        for layer in layers:
            layer.asked.clear()
    model(mu, x)
    assert sorted(layers[0].asked) == [4, 6] and layers[-1].asked == [4]
    for layer in layers:
        layer.asked.clear()
    conditioned = model.condition(mu)
    conditioned(x, None), conditioned(x, None)
    assert sorted(layers[0].asked) == [4, 4, 6]


@torch.no_grad()
def test_queries_never_change_a_bit_of_the_atoms():
    last = Recorder()
    model = pf.Compose(transformer(None), last)
    mu = measure(6)
    model.push(mu)
    for m in (1, 7, 300):
        model(mu, torch.randn(m, 2))
        model.at(mu)(torch.randn(m, 2))
    assert all(torch.equal(seen, last.contexts[0]) for seen in last.contexts)


@torch.no_grad()
def test_queries_share_the_context_work(monkeypatch):
    """Keys, values and potentials are computed once a layer and call, for all its queries."""
    model = transformer(None, normaliser=pf.Sinkhorn(steps=3))
    calls = []
    real = pf.Sinkhorn.relate
    monkeypatch.setattr(pf.Sinkhorn, "relate", lambda *a, **k: calls.append(1) or real(*a, **k))
    mu, (x, _) = measure(), queries()
    model(mu, x)
    assert len(calls) == 2
    conditioned = model.condition(mu)
    conditioned(x, None), conditioned(x, None), conditioned(mu.atoms, None)
    assert len(calls) == 4
    curried = model.at(mu)
    curried(x), curried(x)
    assert len(calls) == 8


@torch.no_grad()
def test_universal_architecture():
    """Token dimension d + 3d', d' heads of dimension one, whatever depth and accuracy."""
    model = pf.Transformer.universal(2, 3, depth=4, hidden=7)
    layers = [m for m in model.modules() if isinstance(m, pf.Attention)]
    assert len(layers) == 4
    for layer in layers:
        assert layer.dim == 2 + 3 * 3
        assert layer.heads == 3 and layer.Q.out_features == layer.V.out_features == 3
    image = model.push(measure())
    assert image.dim == 3 and image.n == 6


@torch.no_grad()
def test_norms_are_pointwise_maps_in_their_places():
    torch.manual_seed(1)
    pre = pf.Transformer(2, depth=1, hidden=4, step=0.5, block=pf.Block(norm=pf.PreNorm()))
    torch.manual_seed(1)
    post = pf.Transformer(2, depth=1, hidden=4, step=0.5, block=pf.Block(norm=pf.PostNorm()))
    torch.manual_seed(1)
    plain = pf.Transformer(2, depth=1, hidden=4, step=0.5)
    gamma, mlp = (layer.gamma for layer in plain)
    mu = measure()
    normal = lambda x: torch.nn.functional.layer_norm(x, (2,))
    x = mu.atoms + 0.5 * gamma.push(mu.push(normal)).atoms
    x = x + 0.5 * mlp.evaluate(mu, normal(x))
    assert worst(pre.push(mu), x) < 1e-14
    x = normal(mu.atoms + 0.5 * gamma.push(mu).atoms)
    x = normal(x + 0.5 * mlp.evaluate(mu, x))
    assert worst(post.push(mu), x) < 1e-14


@torch.no_grad()
def test_residual_step_is_euler_to_the_bit():
    gamma, mu = attention(None), measure()
    for h in (1.0, 0.1, 1 / 3):
        expected = mu.atoms + h * gamma.push(mu).atoms
        assert torch.equal(pf.Residual(gamma, step=h).push(mu).atoms, expected)


def test_sequence_models_become_measure_maps():
    """Permutation-equivariant models agree with our own; order and batches are kept."""
    model = transformer(None)
    F = lambda tokens: model.push(pf.Measure(tokens)).atoms
    f = pf.from_sequence_model(F)
    mu = pf.Measure(torch.randn(5, 2), torch.full((5,), 3.0))
    assert worst(f(mu), model.push(mu)) < 1e-14
    assert f(mu).mass.item() == pytest.approx(15)
    p = torch.randperm(5)
    assert worst(F(mu.atoms[p]), F(mu.atoms)[p]) < 1e-14
    batch = pf.Measure.stack([pf.Measure(torch.randn(n, 2)) for n in (4, 2)])
    for got, expected in zip(f(batch), model.push(batch), strict=True):
        assert worst(got, expected) < 1e-14
    with pytest.raises(ValueError, match="equal weights"):
        f(measure())


def test_a_model_trains():
    """A few steps on a target lower the loss: gradients reach every parameter."""
    model, mu = transformer(None), measure(20)
    target = mu.push(lambda x: x @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(50):
        loss = (model.push(mu).atoms - target.atoms).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_curried_map_keeps_no_stale_work():
    """Gradients reach keys and values after a call without them; new parameters are used."""
    gamma, mu, (x, _) = attention(None), measure(), queries()
    curried = gamma.at(mu)
    with torch.no_grad():
        curried(x)
    for _ in range(2):
        curried(x).sum().backward()
    assert all(p.grad is not None for p in gamma.parameters())
    with torch.no_grad():
        curried(x)
        gamma.K.weight.mul_(2.0)
        assert torch.equal(curried(x), gamma(mu, x))
    with torch.inference_mode():
        curried(x)
    curried(x).sum().backward()
    with torch.no_grad():
        curried(x)
        gamma.V.weight = torch.nn.Parameter(torch.randn_like(gamma.V.weight))
        assert torch.equal(curried(x), gamma(mu, x))


@torch.no_grad()
def test_no_queries_and_no_measures():
    model, mu = transformer(None), measure()
    assert model(mu, torch.zeros(0, 2)).shape == (0, 2)
    batch = pf.Measure.stack([mu, mu])[:0]
    assert model.push(batch).atoms.shape == (0, 6, 2)


@torch.no_grad()
def test_a_pointwise_map_answers_for_every_context():
    batch = pf.Measure.stack([measure(), measure()])
    mlp = pf.MLP(2, 4)
    for x in (torch.randn(3, 2), torch.randn(1, 3, 2)):
        assert mlp(batch, x).shape == mlp.at(batch)(x).shape == (2, 3, 2)


@torch.no_grad()
def test_a_measure_of_queries_shares_the_context_work():
    """Softmax does not look at the weights of queries: no layer is conditioned twice."""
    layers = [Recorder() for _ in range(3)]
    model, mu, nu = pf.Compose(*layers), measure(6), measure(3)
    assert torch.equal(model(mu, nu), model(mu, nu.atoms))
    assert sorted(layers[0].asked) == [3, 3, 6, 6]


@torch.no_grad()
def test_cross_attention_may_close_a_composition():
    cross = pf.Attention(2, context_dim=2, normaliser=pf.Sinkhorn(steps=3))
    mu, nu = measure(6), measure(4)
    model = pf.Compose(pf.MLP(2, 4), cross)
    moved = nu.push(model.at(mu))
    mlp = next(iter(model))
    assert torch.equal(moved.atoms, cross(mlp.push(mu), mlp.push(nu)))
    apart = pf.Compose(pf.Attention(2, context_dim=3, normaliser=pf.Sinkhorn(steps=2)))
    assert apart(measure(5, 3), nu).shape == (4, 2)


class Centred(pf.InContextMap):
    """Written by `condition`."""

    def condition(self, mu, queries=None, starts=None):
        centre = mu.mean()[..., None, :]
        return lambda x, t: x - centre


@torch.no_grad()
def test_either_method_gives_the_other():
    mu, (x, _) = measure(), queries()
    for gamma in (Centred(), Drift()):
        expected = gamma(mu, x)
        assert torch.equal(gamma.evaluate(mu, x), expected)
        assert torch.equal(gamma.condition(mu)(x, None), expected)


def test_exactly_one_method_is_written():
    with pytest.raises(TypeError, match="exactly one .* got both"):

        class Both(pf.InContextMap):
            def evaluate(self, mu, x):
                return x

            def condition(self, mu, queries=None, starts=None):
                return lambda x, t: x

    with pytest.raises(TypeError, match="exactly one .* got neither"):

        class Neither(pf.InContextMap):
            pass


class Twice(pf.maps.Container):
    """A container of a user's: the mean of two maps on the same context."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def condition(self, mu, queries=None, starts=None):
        a, b = (part.condition(mu, queries) for part in self.parts())
        return lambda x, t: (a(x, t) + b(x, t)) / 2


@torch.no_grad()
def test_traits_and_relations_follow_from_the_parts():
    """Each relation is that of its layer in the context which that layer sees."""
    plain, couples = attention(None), attention(None, normaliser=pf.Sinkhorn(steps=3))
    causal = attention(None, mask=pf.Causal())
    mu = measure()
    deep = pf.Residual(Twice(plain, couples) @ pf.MLP(2, 3)) @ causal
    assert deep.causal and deep.two_sided and not deep.paired
    assert not Twice(plain, plain).two_sided
    found = deep.relations(mu)
    inner = deep.maps[1].gamma.maps[0].push(causal.push(mu))
    for relation, layer, seen in zip(
        found, (causal, plain, couples), (mu, inner, inner), strict=True
    ):
        assert torch.equal(relation.matrix(), layer.relation(seen).matrix())
    other = deep.with_parts([plain, plain])
    assert not other.causal and len(other.relations(mu)) == 2 and deep.causal
    with pytest.raises(ValueError, match="`parts` must be a list of 2 maps, got 1"):
        deep.with_parts([plain])


def test_a_part_may_come_twice():
    """Also in a list of modules, and each place can get another part."""
    gamma, other = pf.MLP(2, 3), pf.MLP(2, 3)
    twice = pf.Compose(gamma, gamma)
    assert list(twice) == [gamma, gamma] and list(twice.with_parts([gamma, other]))[1] is other


@torch.no_grad()
def test_starts_are_handed_to_every_part():
    from pushforward.sinkhorn import PotentialHistory

    names, mu = [], measure()

    class Leaf(pf.InContextMap):
        two_sided = True

        def condition(self, mu, queries=None, starts=None):
            names.append(starts.name)
            return lambda x, t: x

    model = pf.Compose(pf.Residual(Leaf()), pf.MLP(2, 3), Leaf())
    model.condition(mu, None, PotentialHistory().at(0.0))
    assert names == ["0.gamma", "2"]
    names.clear()
    model.condition(mu, measure(3), PotentialHistory().at(0.0))
    assert names == ["0.gamma", "0.queries.gamma", "2"]


TWO_SIDED = {
    "sinkhorn": pf.Sinkhorn(tol=1e-13),
    "sinkhorn of three steps": pf.Sinkhorn(steps=3),
    "sinkhorn with slack": pf.Sinkhorn(tol=1e-13, slack=1.0),
    "dual softmax": pf.relations.DualSoftmax(),
}


@pytest.mark.parametrize("norm", [None, pf.PreNorm(), pf.PostNorm()], ids=str)
@pytest.mark.parametrize("name", TWO_SIDED)
def test_one_measure_of_queries_for_a_batch_of_contexts(name, norm):
    """Each context sees these queries as if it were alone."""
    block = pf.Block(norm=norm, normaliser=TWO_SIDED[name])
    gamma = pf.Transformer(2, depth=2, width=6, block=block)
    mu, queries = pf.Measure(torch.randn(3, 4, 2)), pf.Measure(torch.randn(5, 2), torch.rand(5))
    with torch.no_grad():
        alone = torch.stack([gamma(one, queries) for one in mu])
        assert worst(gamma(mu, queries), alone) < 1e-9
        assert worst(gamma.condition(mu, queries)(queries.atoms, None), alone) < 1e-9
        assert worst(gamma(mu, pf.Measure.stack([queries] * 3)), alone) < 1e-9


CHANGES = {
    "parameters in place": lambda gamma, mu: gamma.Q.weight.data.mul_(2),
    "other parameters": lambda gamma, mu: setattr(gamma.V.weight, "data", 2 * gamma.V.weight.data),
    "a hook": lambda gamma, mu: gamma.V.register_forward_hook(lambda m, args, out: 3 * out),
    "a hook of the map": lambda gamma, mu: gamma.register_forward_hook(lambda m, args, out: -out),
    "atoms in place": lambda gamma, mu: mu.atoms.mul_(3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_map_at_a_context_sees_changes(change):
    """Nothing is kept from an earlier call."""
    gamma, mu, x = pf.Attention(2), measure(5), torch.randn(3, 2)
    with torch.no_grad():
        at = gamma.at(mu)
        before = at(x)
        CHANGES[change](gamma, mu)
        assert torch.equal(at(x), gamma(mu, x)) and not torch.allclose(at(x), before)


def test_push_evaluates_what_is_inside_a_residual_step_once():
    """Not once on the context and once more on the same points as queries."""
    calls = []

    def count(x):
        calls.append(x)
        return x

    inner = pf.Compose(pf.Pointwise(count), pf.Pointwise(count), pf.Attention(2))
    nested = pf.Residual(pf.Residual(inner))
    mu = pf.Measure(torch.randn(5, 2))
    images = nested.push(mu).atoms
    assert len(calls) == 2
    assert torch.equal(images, nested(mu, mu.atoms))
