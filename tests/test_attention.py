"""Attention: heads, affinities, normalisers, masks, cross-attention."""

import math

import pytest
import torch
from cases import ATTENTIVE, attention, measure, queries, transformer, worst
from implementations import HERE

import pushforward as pf


def by_hand(gamma, mu, x, seen=None):
    """Eq. (22), head by head, from plain tensors."""
    out = torch.zeros(len(x), gamma.dim)
    width = gamma.Q.out_features // gamma.heads
    for h in range(gamma.heads):
        part = slice(h * width, (h + 1) * width)
        q, k = x @ gamma.Q.weight[part].mT, mu.atoms @ gamma.K.weight[part].mT
        if isinstance(gamma.affinity, pf.Dot):
            scores = q @ k.mT / width**0.5
        else:
            scores = -(q[:, None] - k[None]).square().sum(-1) / gamma.affinity.eps
        p = scores.exp() * mu.weights
        p = p if seen is None else p * seen
        p = p / p.sum(-1, keepdim=True)
        values = mu.atoms @ gamma.V.weight[part].mT
        out = out + (p @ values) @ gamma.W.weight[:, part].mT
    return out


@torch.no_grad()
@pytest.mark.parametrize("affinity", [pf.Dot(), pf.SquaredDistance(0.7)])
def test_softmax_attention_by_hand(affinity):
    gamma = attention(None, affinity=affinity)
    mu, (x, _) = measure(), queries()
    assert worst(gamma(mu, x), by_hand(gamma, mu, x)) < 1e-14


@torch.no_grad()
def test_squared_distance_far_from_the_origin():
    """Moving everything by 1e6 costs digits of the coordinates, not their squares."""
    gamma = pf.Attention(2, affinity=pf.SquaredDistance(1.0))
    for layer in (gamma.Q, gamma.K):
        layer.weight.copy_(torch.eye(2))
    mu, (x, _) = measure(), queries()
    shift = 2.0**20
    far = mu.push(lambda y: y + shift)
    moved = gamma(far, x + shift) - gamma.W(gamma.V(torch.full((2,), shift)))
    assert worst(moved, gamma(mu, x)) < 1e-8


@torch.no_grad()
def test_each_head_stays_in_the_convex_hull_of_its_values():
    """In one dimension of values the hull is an interval."""
    mu = measure(9)
    gamma = pf.Attention(2, heads=3, head_dim=1, normaliser=pf.Sinkhorn(steps=3))
    for h in range(3):
        gamma.W.weight.zero_()
        gamma.W.weight[0, h] = 1
        values = mu.atoms @ gamma.V.weight[h]
        image = gamma(mu, 5 * torch.randn(50, 2))[:, 0]
        assert image.min() >= values.min() - 1e-14 and image.max() <= values.max() + 1e-14


@torch.no_grad()
def test_zero_sinkhorn_steps_is_softmax():
    a, b = attention(None, normaliser=pf.Sinkhorn(steps=0)), attention(None)
    b.load_state_dict(a.state_dict())
    mu, (x, _) = measure(), queries()
    assert torch.equal(a(mu, x), b(mu, x))


@torch.no_grad()
@pytest.mark.parametrize("affinity", [pf.Dot(), pf.SquaredDistance(2.0)])
def test_converged_sinkhorn_keeps_the_mean_of_the_values(affinity):
    """Both marginals are mu: averaging the output over mu averages the values over mu."""
    gamma = attention(None, affinity=affinity, normaliser=pf.Sinkhorn(steps=500))
    mu = measure()
    expected = gamma.W(gamma.V(mu.mean()))
    assert worst(gamma.push(mu).mean(), expected) < 1e-12


@torch.no_grad()
def test_sinkhorn_between_two_measures():
    """Cross-attention: rows are the query measure, columns the context."""
    gamma = pf.Attention(2, context_dim=3, normaliser=pf.Sinkhorn(steps=800))
    mu, nu = measure(6, 3), measure(5, 2)
    image = nu.moved(gamma(mu, nu))
    assert worst(image.mean(), gamma.W(gamma.V(mu.mean()))) < 1e-12
    assert torch.equal(image.atoms, nu.push(gamma.at(mu)).atoms)
    with pytest.raises(ValueError, match="two measures"):
        gamma(mu, nu.atoms)


@torch.no_grad()
def test_self_attention_sinkhorn_takes_a_query_measure_on_request():
    gamma = attention(None, normaliser=pf.Sinkhorn(steps=4))
    mu, nu = measure(6), measure(5)
    assert torch.equal(gamma(mu, mu), gamma.push(mu).atoms)
    assert worst(gamma(mu, nu), gamma(mu, nu.atoms)) > 1e-4
    deep = pf.Compose(gamma, gamma)
    assert torch.equal(deep(mu, mu), deep.push(mu).atoms)


@torch.no_grad()
def test_cross_attention_with_softmax():
    gamma = pf.Attention(2, heads=2, head_dim=3, context_dim=4)
    mu, x = measure(6, 4), torch.randn(3, 2)
    assert worst(gamma(mu, x), by_hand(gamma, mu, x)) < 1e-14
    assert pf.Residual(gamma)(mu, x).shape == (3, 2)


@torch.no_grad()
@pytest.mark.parametrize("impl", HERE)
def test_causal_attention_by_hand(impl):
    gamma = attention(impl, mask=pf.Causal())
    mu, (x, t) = measure(), queries()
    seen = (mu.times[None] <= t[:, None]).double()
    assert worst(gamma(mu, x, t), by_hand(gamma, mu, x, seen)) < 1e-14


@torch.no_grad()
@pytest.mark.parametrize("impl", HERE)
def test_earlier_outputs_do_not_depend_on_later_tokens(impl):
    model = transformer(impl, mask=pf.Causal())
    mu = measure(8)
    changed = pf.Measure(
        torch.where(mu.times[:, None] > 0.5, 9.0, mu.atoms), mu.weights, times=mu.times
    )
    early = mu.times <= 0.5
    a, b = model.push(mu).atoms, model.push(changed).atoms
    assert worst(a[early], b[early]) < 1e-14 and worst(a[~early], b[~early]) > 1e-2


@torch.no_grad()
def test_integer_positions_are_times():
    tokens = torch.randn(7, 2)
    gamma = attention(None, mask=pf.Causal())
    whole = gamma.push(pf.Measure.from_tokens(tokens, times=torch.arange(7))).atoms
    for i in range(7):
        prefix = pf.Measure.from_tokens(tokens[: i + 1], times=torch.arange(i + 1))
        assert worst(gamma.push(prefix).atoms[i], whole[i]) < 1e-13


@torch.no_grad()
def test_small_and_large_go_different_ways_to_the_same_answer():
    gamma = attention(None)
    mu = pf.Measure(torch.randn(2000, 2), torch.rand(2000))
    dense = attention("reference")
    dense.load_state_dict(gamma.state_dict())
    assert worst(gamma.push(mu), dense.push(mu)) < 1e-13


@torch.no_grad()
def test_half_precision_scores_are_single():
    """Keys and shifts of bf16 points are computed in float32: the score of a point with itself."""
    affinity = pf.SquaredDistance(1.0)
    k = (3 * torch.randn(200, 4)).bfloat16()
    eps = affinity.eps
    origin = affinity.origin(k, torch.zeros(200, dtype=torch.float32))
    points, shift = affinity.features(k, origin)
    own = affinity.factor(4) * points.square().sum(-1) + 2 * shift
    assert own.dtype == torch.float32 and own.abs().max() < 1e-4 / eps


@torch.no_grad()
@pytest.mark.parametrize("log_ratio", [-600.0, 5.0, 600.0])
def test_masses_of_both_sides_do_not_matter(log_ratio):
    """Potentials of unequal masses must not drift: float32, many steps, cross-attention."""
    gamma = pf.Attention(2, context_dim=2, normaliser=pf.Sinkhorn(steps=300)).float()
    mu, nu = measure(6).to(torch.float32), measure(5).to(torch.float32)
    heavy = pf.Measure(nu.atoms, log_weights=nu.log_weights + log_ratio)
    # log-weights of size 600 are themselves rounded to 600 units of float32
    slack = (10 + abs(log_ratio)) * torch.finfo(torch.float32).eps
    assert worst(gamma(mu, heavy), gamma(mu, nu)) < 10 * slack


def test_traits_show_on_composites():
    causal = pf.Transformer(2, depth=1, block=pf.Block(mask=pf.Causal(), norm=pf.PreNorm()))
    assert causal.causal and not causal.two_sided
    assert pf.Residual(pf.Attention(2, normaliser=pf.Sinkhorn(steps=2))).two_sided


def dense(layer, mu):
    """Scores, values and normalised weights of a layer of one head, written out."""
    q, k, v = (m(mu.atoms) for m in (layer.Q, layer.K, layer.V))
    return q @ k.mT / q.shape[-1] ** 0.5, v, mu.normalise().weights


def test_unnormalised_attention():
    layer, mu = pf.Attention(2, normaliser=pf.relations.Exponential()), measure(7)
    A, v, w = dense(layer, mu)
    assert worst(layer.push(mu).atoms, layer.W((A.exp() * w) @ v)) < 1e-13


@pytest.mark.parametrize("affinity", [pf.Dot(0.7), pf.SquaredDistance(1.3)], ids=repr)
def test_linear_attention(affinity):
    """The scores themselves as a density, signs and all."""
    layer, mu = pf.Attention(2, normaliser=pf.relations.Bilinear(), affinity=affinity), measure(7)
    q, k, v = (m(mu.atoms) for m in (layer.Q, layer.K, layer.V))
    A = 0.7 * q @ k.mT if isinstance(affinity, pf.Dot) else -torch.cdist(q, k).square() / 1.3
    w = mu.normalise().weights
    assert worst(layer.push(mu).atoms, layer.W((A * w) @ v)) < 1e-13
    pi = layer.relation(mu)[0]
    assert worst(pi.matrix(), w[:, None] * A * w) < 1e-13
    assert worst(pi.transpose().matrix(), pi.matrix().mT) < 1e-14
    assert worst(pi.apply(v), (A * w) @ v) < 1e-13
    assert torch.equal(pi.assignment(), (A * w).argmax(-1))


def test_linear_attention_takes_linear_time():
    """No pair is formed: a million tokens fit."""
    mu = pf.Measure(torch.randn(1_000_000, 2))
    assert (
        pf.Attention(2, normaliser=pf.relations.Bilinear())(mu, torch.randn(3, 2)).isfinite().all()
    )


def test_hardmax_attention():
    """The mean over the keys of highest score, ties by mass, atoms without mass unseen."""
    atoms = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [5.0, 5.0]])
    mu = pf.Measure(atoms, torch.tensor([1.0, 3.0, 1.0, 0.0]))
    eye = torch.eye(2)
    field = pf.fields.SelfAttention(eye, eye, eye, normaliser=pf.relations.Hardmax())
    x = torch.tensor([[2.0, 1.0], [1.0, 1.0], [-1.0, 1e-18]])
    exact = torch.tensor([[1.0, 0.0], [0.25, 0.75], [-1.0, 0.0]])
    assert worst(field(mu, x), exact) < 1e-15
    hot = pf.fields.SelfAttention(1e4 * eye, eye, eye)
    assert worst(hot(mu, x), exact) < 1e-12
    kappa = field.relation(mu)
    assert worst(kappa.matrix().sum(-1), torch.ones(1, 4)) < 1e-15
    joint = kappa[0].joint(mu)
    assert worst(joint.matrix().sum(), torch.tensor(1.0)) < 1e-14


@pytest.mark.parametrize("batch", [(), (3,), (40_000,)], ids=str)
@pytest.mark.parametrize("parameter", ["Q", "K", "V"])
def test_attention_with_a_nan_parameter_gives_nan_whatever_the_batch(parameter, batch):
    gamma = pf.Attention(2).float()
    getattr(gamma, parameter).weight.data[0, 0] = math.nan
    mu = pf.Measure(torch.randn(*batch, 6, 2, dtype=torch.float32))
    assert gamma.push(mu).atoms.isnan().any(-1).all()


@pytest.mark.parametrize("impl", HERE)
@pytest.mark.parametrize("name", [n for n in ATTENTIVE if "tolerance" not in n])
def test_every_layer_keeps_nan(name, impl):
    """A NaN in a matrix of queries reaches the images, or is refused where a solve reads it."""
    gamma = ATTENTIVE[name](impl)
    layer = next(m for m in gamma.modules() if isinstance(m, pf.Attention))
    layer.Q.weight.data.fill_(math.nan)
    mu = measure()
    try:
        images = gamma.push(mu).atoms
    except ValueError as error:
        assert "finite" in str(error) and "unbalanced" in name
    else:
        assert images.isnan().any()
