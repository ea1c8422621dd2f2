"""Relations of attention layers."""

from dataclasses import replace

import pytest
import torch
from related import TIGHT, cloud

import pushforward as pf


def test_one_relation_of_a_batch():
    mu = pf.Measure(torch.randn(3, 5, 2), torch.rand(3, 5))
    gamma = pf.Attention(2, heads=4, normaliser=TIGHT, mask=None)
    for pi in (gamma.relation(mu), pf.Attention(2, heads=4).relation(mu)):
        one = pi[1, 2]
        assert type(one) is type(pi) and one.shape == (5, 5) and pi[1:].shape == (2, 4, 5, 5)
        assert torch.allclose(one.matrix(), pi.matrix()[1, 2], atol=1e-15)
    with pytest.raises(IndexError):
        gamma.relation(mu)[0, 0, 0]


def test_relations_of_a_transformer():
    """Each layer's values, integrated by its relations, are what the layer does."""
    model = pf.Transformer(
        2, depth=3, heads=4, width=6, block=pf.Block(norm=pf.PreNorm(), head_dim=3)
    )
    mu = cloud(8)
    found = model.relations(mu)
    assert len(found) == 3 and all(r.shape == (4, 8, 8) for r in found)
    layer = next(m for m in model.modules() if isinstance(m, pf.Attention))
    states = []
    layer.register_forward_hook(lambda *_: None)
    real = layer.condition
    layer.condition = lambda mu, *rest: states.append(mu) or real(mu, *rest)
    model.push(mu)
    v = layer._split(layer.V(states[0].atoms))
    out = layer.W(found[0].apply(v).transpose(-2, -3).flatten(-2))
    assert torch.allclose(out, real(states[0])(states[0].atoms, None), atol=1e-14)


@pytest.mark.parametrize(
    "normaliser", [pf.Softmax(), TIGHT, pf.relations.DualSoftmax(), pf.relations.Sigmoid()]
)
def test_a_layer_applies_its_relation(normaliser):
    gamma, mu, nu = pf.Attention(2, heads=2, normaliser=normaliser), cloud(5), cloud(7)
    relation = gamma.relation(nu, mu)
    assert relation.shape == (2, 5, 7)
    v = gamma._split(gamma.V(nu.atoms))
    out = gamma.W(relation.apply(v).transpose(-2, -3).flatten(-2))
    assert torch.allclose(gamma(nu, mu), out, atol=1e-10)
    if normaliser in (TIGHT,):
        assert relation.converged.all()


def test_causal_layers_have_relations():
    gamma = pf.Attention(2, heads=2, mask=pf.Causal())
    mu = pf.Measure(torch.randn(5, 2), times=torch.arange(5))
    p = gamma.relation(mu).matrix()
    assert (p.triu(1) == 0).all() and torch.allclose(p.sum(-1), torch.ones(2, 5))
    assert torch.isfinite(gamma.relation(mu).entropy()).all()


def test_gradients_of_a_layer_to_tolerance():
    gamma = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(tol=1e-12))
    twin = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(steps=300))
    twin.load_state_dict(gamma.state_dict())
    mu = cloud(6)
    grads = [
        torch.autograd.grad(g.push(mu).atoms.square().sum(), list(g.parameters()))
        for g in (gamma, twin)
    ]
    for x, y in zip(*grads, strict=True):
        assert torch.allclose(x, y, atol=1e-10)


def test_layers_start_from_earlier_potentials():
    """From its own potential a layer needs one step, in its relation and when it is applied."""
    gamma = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(tol=1e-9))
    mu = cloud(8, spread=3.0)
    cold = gamma.relation(mu)
    warm = gamma.relation(mu, start=cold.g)
    assert warm.steps == 1 < cold.steps
    assert torch.allclose(warm.matrix(), cold.matrix(), atol=1e-9)
    with pytest.raises(ValueError, match="Only Sinkhorn has a `start`"):
        pf.Attention(2).relation(mu, start=cold.g)


def test_a_relation_at_other_queries_is_that_of_the_layer():
    """A layer to a tolerance in float32 computes in float64, at any query."""
    gamma = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(tol=1e-9)).float()
    mu = pf.Measure(3 * torch.randn(8, 2).float())
    relation = gamma.relation(mu)
    assert relation.scores.dtype == torch.float64 and relation.dtype == torch.float32
    assert relation.matrix().dtype == torch.float32 and relation.converged.all()
    assert torch.allclose(gamma(mu, mu.atoms[:3]), gamma.push(mu).atoms[:3], atol=1e-6)


def test_half_precision_stays_so_at_other_queries():
    """Points in bfloat16 go to the reductions as they are, also where potentials are float32."""
    gamma = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(steps=3)).bfloat16()
    mu = pf.Measure(torch.randn(6, 2).bfloat16())
    relation = gamma.relation(mu)
    assert relation.scores.queries.points.dtype == torch.bfloat16
    assert relation.scores.dtype == relation.g.dtype == torch.float32


class Sharp(pf.Normaliser):
    """A temperature of its own, in front of another normaliser."""

    def __init__(self, inner):
        self.inner, self.needs_query_measure = inner, inner.needs_query_measure

    def relate(self, scores, log_a, log_b, *, start=None):
        return self.inner.relate(scores.scaled(2.0), log_a, log_b)


class Extended(Sharp):
    """The same, saying what holds at other queries."""

    def relate(self, scores, log_a, log_b, *, start=None):
        inner = super().relate(scores, log_a, log_b)
        there = lambda scores, log_a: inner.at(scores.scaled(2.0), log_a)
        return replace(inner, extension=there)


def sharpened(normaliser, base):
    """Two layers with the same parameters: one sharpens, the other has twice the scale."""
    torch.manual_seed(1)
    gamma = pf.Attention(2, heads=2, affinity=pf.Dot(1.0), normaliser=normaliser)
    twice = pf.Attention(2, heads=2, affinity=pf.Dot(2.0), normaliser=base)
    twice.load_state_dict(gamma.state_dict())
    return gamma, twice


@pytest.mark.parametrize(
    "base",
    [pf.Softmax(), pf.relations.Sigmoid(), pf.relations.Exponential(), pf.relations.Hardmax()],
    ids=str,
)
def test_a_normaliser_made_of_another_keeps_what_it_does_at_new_queries(base):
    gamma, twice = sharpened(Sharp(base), base)
    mu, x = cloud(8), torch.randn(5, 2)
    assert torch.allclose(gamma(mu, x), twice(mu, x), atol=1e-12)
    others = pf.Measure(x)
    here, there = (layer.relation(mu, others) for layer in (gamma, twice))
    assert torch.allclose(here.matrix(), there.matrix(), atol=1e-12)


@pytest.mark.parametrize("base", [pf.Softmax(), pf.relations.Sigmoid()], ids=str)
def test_at_of_a_normaliser_made_of_another(base):
    mu, nu, others = cloud(6), cloud(5), cloud(4)
    relation = pf.relate(mu, nu, normaliser=Sharp(base))
    expected = pf.relate(others, nu, affinity=pf.Dot(2.0), normaliser=base)
    scores = pf.Dot(1.0).scores(others, nu)
    log_a = others.log_weights.log_softmax(-1)
    there = relation.at(scores, log_a)
    assert torch.allclose(there.matrix(), expected.matrix(), atol=1e-12)
    again = there.at(scores, log_a)  # and from there on
    assert torch.allclose(again.matrix(), expected.matrix(), atol=1e-12)


@pytest.mark.parametrize("base", [TIGHT, pf.relations.DualSoftmax()], ids=str)
def test_where_columns_need_all_queries_the_author_says_what_holds_elsewhere(base):
    mu, x = cloud(8), torch.randn(5, 2)
    gamma, twice = sharpened(Sharp(base), base)
    with pytest.raises(ValueError, match="would forget what Sharp did"):
        gamma(mu, x)
    gamma, twice = sharpened(Extended(base), base)
    assert torch.allclose(gamma(mu, x), twice(mu, x), atol=1e-8)


def test_a_normaliser_must_return_a_relation():
    class Wrong(pf.Normaliser):
        def relate(self, scores, log_a, log_b, *, start=None):
            return scores.matrix()

    mu = cloud(4)
    with pytest.raises(TypeError, match="must return a Relation, got Tensor"):
        pf.relate(mu, mu, normaliser=Wrong())


@pytest.mark.parametrize("start", [0, -(2**63)], ids=["from zero", "from the lowest"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int8, torch.int64], ids=str)
def test_causal_relations_at_times_of_every_dtype(dtype, start):
    """The order of times is turned round for the columns: no negation may wrap."""
    if start and dtype != torch.int64:
        start = torch.iinfo(dtype).min
    causal = pf.Attention(2, mask=pf.Causal())
    x = torch.randn(4, 2)
    relation = lambda times: causal.relation(pf.Measure(x, times=times))[0]
    got = relation((torch.arange(4) + start).to(dtype))
    assert torch.equal(got.matrix(), relation(torch.arange(4.0)).matrix())
    joint = got.joint(pf.Measure(x))
    assert torch.allclose(joint.marginals()[1], got.matrix().mean(0), atol=1e-12)
    assert float(joint.matrix().sum()) == pytest.approx(1, abs=1e-12)


def test_times_of_uint64_are_refused():
    with pytest.raises(TypeError, match="uint64"):
        pf.Measure(torch.randn(4, 2), times=torch.arange(4).to(torch.uint64))
