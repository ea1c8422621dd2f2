"""Relations of attention layers."""

import pytest
import torch
from clouds import TIGHT, cloud

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
    block = pf.Block(norm=pf.PreNorm(), head_dim=3)
    model = pf.Transformer(2, depth=3, heads=4, width=6, block=block)
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
