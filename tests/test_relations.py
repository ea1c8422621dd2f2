"""Relations: types, certificates, closed forms, invariance, gradients, masks."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st

import pushforward as pf
from pushforward._tools import tiles
from pushforward.sinkhorn import StoredKernel

TIGHT = pf.Sinkhorn(tol=1e-12)


def cloud(n, d=2, spread=1.0):
    """Points with weights over two orders of magnitude."""
    return pf.Measure(spread * torch.randn(n, d), torch.randn(n).exp())


def pair(m=7, n=9, d=2):
    return cloud(m, d), cloud(n, d)


def weights(mu):
    return mu.normalise().weights


def related(mu, nu, normaliser=TIGHT, eps=0.7):
    """The coupling of two clouds by squared distance."""
    near = pf.SquaredDistance(eps)
    return pf.relate(mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=normaliser)


def squared(mu, nu):
    return (mu.atoms[:, None] - nu.atoms[None]).square().sum(-1)


# What the objects are


def test_a_coupling_has_its_marginals():
    mu, nu = pair()
    pi = related(mu, nu)
    p = pi.matrix()
    assert type(pi) is pf.Coupling and pi.converged and pi.residual <= 1e-12
    assert torch.allclose(p.sum(-1), weights(mu), atol=1e-13)
    assert torch.allclose(p.sum(-2), weights(nu), atol=1e-12)
    rows, columns = pi.marginals()
    assert torch.allclose(rows, p.sum(-1)) and torch.allclose(columns, p.sum(-2))
    error = max((rows - weights(mu)).abs().sum(), (columns - weights(nu)).abs().sum())
    assert float(pi.residual) == pytest.approx(error.item(), abs=1e-15)


def test_apply_is_the_mean_under_the_rows():
    mu, nu = pair()
    pi, v = related(mu, nu), torch.randn(9, 3)
    p = pi.matrix()
    assert torch.allclose(pi.apply(v), p @ v / p.sum(-1, keepdim=True), atol=1e-12)
    back, u = pi.transpose(), torch.randn(7, 3)
    assert torch.allclose(back.apply(u), p.T @ u / p.sum(0)[:, None], atol=1e-12)
    assert torch.allclose(back.matrix(), p.T, atol=1e-15) and type(back) is pf.Coupling
    assert torch.allclose(pi.conditional().matrix(), p / p.sum(-1, keepdim=True), atol=1e-14)
    assert torch.allclose(pi.conditional().apply(v), pi.apply(v))


def test_information_and_cost_by_their_sums():
    mu, nu = pair()
    for pi in (related(mu, nu), related(mu, nu).transpose()):
        p = pi.matrix()
        product = p.sum(-1, keepdim=True) * p.sum(-2, keepdim=True)
        assert float(pi.entropy()) == pytest.approx(-(p * p.log()).sum().item(), abs=1e-11)
        info = (p * (p / product).log()).sum().item()
        assert float(pi.mutual_information()) == pytest.approx(info, abs=1e-11)
    cost = (related(mu, nu).matrix() * squared(mu, nu)).sum().item()
    assert float(related(mu, nu).cost()) == pytest.approx(cost, abs=1e-12)
    pi = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=TIGHT)
    dots = (mu.atoms @ nu.atoms.T * pi.matrix()).sum().item()
    assert float(pi.cost()) == pytest.approx(-dots, abs=1e-12)


def test_a_conditional():
    mu, nu = pair()
    kappa = pf.relate(mu.atoms, nu.atoms, mu, nu)
    scores = mu.atoms @ nu.atoms.T + nu.log_weights
    rows = scores.softmax(-1)
    assert type(kappa) is pf.Conditional
    assert torch.allclose(kappa.matrix(), rows)
    v = torch.randn(9, 2)
    assert torch.allclose(kappa.apply(v), rows @ v)
    assert torch.allclose(kappa.entropy(), -(rows * rows.log()).sum(-1), atol=1e-12)
    assert torch.equal(kappa.assignment(), rows.argmax(-1))
    joint = kappa.joint(mu)
    assert torch.allclose(joint.matrix(), weights(mu)[:, None] * rows, atol=1e-14)
    assert joint.residual < 1e-14 and joint.converged
    for name in ("transpose", "marginals", "mutual_information", "cost", "residual"):
        assert not hasattr(kappa, name)


def test_projection_is_sinkhorn_of_the_same_affinity():
    mu, nu = pair()
    kappa = pf.relate(mu.atoms, nu.atoms, mu, nu)
    pi = kappa.project(mu, nu, normaliser=TIGHT)
    direct = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=TIGHT)
    assert torch.allclose(pi.matrix(), direct.matrix(), atol=1e-12)
    other = cloud(9)
    moved = kappa.project(mu, other)
    assert torch.allclose(moved.matrix().sum(0), weights(other), atol=1e-6)


def test_types_do_not_mix():
    mu, nu = pair()
    dual = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=pf.relations.DualSoftmax())
    assert type(dual) is pf.relations.Masses
    for name in ("conditional", "converged", "mutual_information"):
        assert not hasattr(dual, name)
    for name in ("joint", "project"):
        assert not hasattr(related(mu, nu), name)


def test_dual_softmax_and_sigmoid_by_hand():
    mu, nu = pair()
    a, b, scores = weights(mu), weights(nu), mu.atoms @ nu.atoms.T
    e = scores.exp()
    dual = a[:, None] * b * (e / (e @ b)[:, None]) * (e / (a @ e))
    sigmoid = a[:, None] * b * torch.sigmoid(scores - 0.3)
    v = torch.randn(9, 2)
    for normaliser, p in (
        (pf.relations.DualSoftmax(), dual),
        (pf.relations.Sigmoid(bias=-0.3), sigmoid),
    ):
        r = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=normaliser)
        assert torch.allclose(r.matrix(), p, atol=1e-15)
        assert torch.allclose(r.apply(v), p @ v / a[:, None])
        assert torch.allclose(r.transpose().apply(mu.atoms), p.T @ mu.atoms / b[:, None])
        assert float(r.mass()) == pytest.approx(p.sum().item())
        assert float(r.cost()) == pytest.approx(-(p * scores).sum().item())
        assert float(r.entropy()) == pytest.approx(-(p * p.log()).sum().item())
        assert torch.isnan(r.residual)


def test_hard_assignment_is_exact_transport():
    mu, nu = pf.Measure(torch.randn(8, 2)), pf.Measure(torch.randn(8, 2))
    near = pf.SquaredDistance(1.0)
    pi = pf.relate(mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=pf.relations.Exact())
    p = 8 * pi.matrix()
    assert torch.allclose(p.round(), p, atol=1e-14) and pi.converged
    assert float(pi.cost()) == pytest.approx(pf.wasserstein(mu, nu, p=2).item() ** 2)
    assert torch.equal(pi.assignment(), pi.matrix().argmax(-1))
    mu, nu = pair()
    pi = pf.relate(mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=pf.relations.Exact())
    m, n = mu.normalise(), nu.normalise()
    assert float(pi.converged and pi.cost()) == pytest.approx(
        pf.wasserstein(m, n, p=2).item() ** 2
    )
    soft = related(mu, nu, pf.Sinkhorn(tol=1e-8), eps=1e-3)
    assert float(soft.cost()) == pytest.approx(pi.cost().item(), rel=1e-2)


def test_samples_follow_the_masses():
    mu, nu = pair(4, 5)
    pi, generator = related(mu, nu), torch.Generator(mu.device).manual_seed(0)
    rows, keys = pi.sample(200_000, generator=generator)
    counts = torch.zeros(4, 5).index_put((rows, keys), torch.ones(200_000), accumulate=True)
    assert (counts / 200_000 - pi.matrix()).abs().max() < 5e-3
    keys = pi.conditional().sample(50_000, generator=generator)
    assert keys.shape == (4, 50_000)
    share = torch.stack([(keys == j).double().mean(-1) for j in range(5)], -1)
    assert (share - pi.conditional().matrix()).abs().max() < 0.02
    batch = pf.relate(torch.randn(3, 4, 5), pf.Measure(torch.randn(3, 4, 1)),
                      pf.Measure(torch.randn(3, 5, 1)), normaliser=pf.Sinkhorn())  # fmt: skip
    assert batch.sample(7)[0].shape == (3, 7)


# Against others


@pytest.mark.parametrize("eps", [1.0, 0.1])
def test_against_pot(eps):
    ot = pytest.importorskip("ot")
    mu, nu = pair(20, 30)
    pi = related(mu, nu, eps=eps)
    cost = squared(mu, nu).cpu().numpy()
    theirs, log = ot.sinkhorn(
        weights(mu).cpu().numpy(), weights(nu).cpu().numpy(), cost, eps, method="sinkhorn_log",
        numItermax=100_000, stopThr=1e-13, log=True,
    )  # fmt: skip
    theirs = torch.from_numpy(theirs)
    assert torch.allclose(pi.matrix(), theirs, atol=1e-10)
    assert float(pi.cost()) == pytest.approx(
        (theirs * torch.from_numpy(cost)).sum().item(), abs=1e-8
    )
    f, g = pi.potentials
    u = torch.from_numpy(log["log_u"]) - weights(mu).log()
    v = torch.from_numpy(log["log_v"]) - weights(nu).log()
    shift = ((weights(mu) * u).sum() - (weights(nu) * v).sum()) / 2
    assert torch.allclose(f, u - shift, atol=1e-8) and torch.allclose(g, v + shift, atol=1e-8)
    assert float((weights(mu) * f).sum()) == pytest.approx(
        (weights(nu) * g).sum().item(), abs=1e-12
    )


@pytest.mark.parametrize("slack", [(1.0, 1.0), (0.5, math.inf), (math.inf, 2.0)])
def test_unbalanced_against_pot(slack):
    ot = pytest.importorskip("ot")
    mu, nu = pair(12, 10)
    pi = related(mu, nu, pf.Sinkhorn(tol=1e-13, slack=slack), eps=0.4)
    theirs = ot.unbalanced.sinkhorn_unbalanced(
        weights(mu).cpu().numpy(), weights(nu).cpu().numpy(), squared(mu, nu).cpu().numpy(),
        0.4, slack,
        reg_type="kl", numItermax=100_000, stopThr=1e-14,
    )  # fmt: skip
    assert type(pi) is pf.relations.Masses and pi.residual < 1e-12
    assert torch.allclose(pi.matrix(), torch.from_numpy(theirs), atol=1e-10)
    assert pi.transpose().residual < 1e-12
    for side, slack_of_side, mu_ in zip(pi.marginals(), slack, (mu, nu), strict=True):
        if math.isinf(slack_of_side):
            assert torch.allclose(side, weights(mu_), atol=1e-11)


def test_much_slack_is_none():
    mu, nu = pair()
    loose = related(mu, nu, pf.Sinkhorn(tol=1e-12, slack=1e9))
    assert torch.allclose(loose.matrix(), related(mu, nu).matrix(), atol=1e-7)


@pytest.mark.parametrize("eps, order", [(0.5, 20), (0.25, 40), (0.1, 80)])
def test_gaussians(eps, order):
    """Value and cross-covariance of the entropic plan of two normal laws."""
    law = lambda m, s: pf.Measure.gaussian(torch.tensor([m]), torch.tensor([[s]]), order=order)
    mu, nu = law(0.3, 0.5), law(-0.2, 0.3)
    pi = related(mu, nu, pf.Sinkhorn(tol=1e-12), eps=eps)
    sigma = math.sqrt(0.5 * 0.3)
    s = (math.sqrt(eps**2 + 16 * sigma**2) - eps) / (4 * sigma)
    value = 0.25 + 0.8 - 2 * sigma * s - eps / 2 * math.log(1 - s**2)
    assert float(pi.cost() + eps * pi.mutual_information()) == pytest.approx(value, abs=1e-8)
    x, y = mu.atoms[:, 0] - 0.3, nu.atoms[:, 0] + 0.2
    assert float(x @ pi.matrix() @ y) == pytest.approx(sigma * s, abs=1e-8)


def test_optimal_among_feasible_plans():
    """Sinkhorn among couplings, the softmax joint among plans with the first marginal."""
    mu, nu = pair(6, 5)
    a, b, eps = weights(mu), weights(nu), 0.7
    cost, reference = squared(mu, nu), a[:, None] * b
    objective = lambda p: (p * cost).sum() + eps * (p * (p / reference).log()).sum()
    pi = related(mu, nu).matrix()
    joint = related(mu, nu, pf.Softmax()).joint(mu).matrix()
    value = -eps * (a * ((-cost / eps).exp() @ b).log()).sum()
    assert float(objective(joint)) == pytest.approx(value.item(), abs=1e-12)
    for _ in range(50):
        change = torch.randn(6, 5)
        change -= change.mean(-1, keepdim=True)
        assert objective(joint + 1e-4 * joint.min() * change) >= objective(joint)
        change -= change.mean(-2, keepdim=True)
        step = 0.5 * pi.min() / change.abs().max()
        assert objective(pi + step * change) > objective(pi)


# The relation belongs to the measures, not to the lists


def test_splitting_permuting_duplicating_padding():
    mu, nu = pair()
    pi, v = related(mu, nu), torch.randn(9, 2)
    base, f = pi.apply(v), pi.potentials[0]
    split = nu.split([0.2, 0.5, 0.3])
    index = [int((nu.atoms == y).all(-1).nonzero()) for y in split.atoms]
    other = related(mu, split)
    assert other.steps == pi.steps  # acceleration weighs by mass, so it sees no difference
    assert torch.allclose(other.apply(v[index]), base, atol=1e-11)
    assert torch.allclose(other.potentials[0], f, atol=1e-10)
    order = torch.randperm(9)
    mixed = related(mu, pf.Measure(nu.atoms[order], nu.weights[order]))
    assert torch.allclose(mixed.apply(v[order]), base, atol=1e-11)
    padded = pf.Measure(
        torch.cat([nu.atoms, torch.full((2, 2), torch.nan)]),
        torch.cat([nu.weights, torch.zeros(2)]),
    )
    value = torch.cat([v, torch.full((2, 2), torch.nan)])
    assert torch.allclose(related(mu, padded).apply(value), base, atol=1e-11)
    assert related(mu, padded).matrix()[:, 9:].abs().max() == 0
    twice = pf.Measure(nu.atoms.repeat(2, 1), nu.weights.repeat(2))
    assert torch.allclose(related(mu, twice).apply(v.repeat(2, 1)), base, atol=1e-11)
    assert float(related(mu, twice).mutual_information()) == pytest.approx(
        pi.mutual_information().item(), abs=1e-10
    )


def test_batches_are_each_their_own():
    mu, nu = (pf.Measure(torch.randn(3, n, 2), torch.rand(3, n)) for n in (5, 6))
    pi = related(mu, nu)
    assert pi.residual.shape == (3,) and pi.converged.all()
    for i in range(3):
        assert torch.allclose(pi.matrix()[i], related(mu[i], nu[i]).matrix(), atol=1e-11)


def test_ragged_batches():
    clouds = [cloud(n) for n in (3, 6, 4)]
    batch = pf.Measure.stack(clouds)
    pi = related(batch, batch)
    for i, mu in enumerate(clouds):
        alone = related(mu, mu)
        assert torch.allclose(pi.matrix()[i, : mu.n, : mu.n], alone.matrix(), atol=1e-10)


def test_heads_come_after_the_measures():
    """Scores (b, h, m, n) of measures (b,): element i meets measure i in all its heads."""
    w = torch.tensor([[1.0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    mu, scores = pf.Measure(torch.randn(2, 6, 2), w), torch.randn(2, 2, 6, 6)
    rows = pf.relate(scores, mu, mu, normaliser=TIGHT).marginals()[0]
    assert torch.allclose(rows, (w / w.sum(-1, keepdim=True))[:, None].expand(2, 2, 6))
    q = torch.randn(2, 3, 6, 4)
    pi = pf.relate(q, q.flip(1), mu, mu, normaliser=TIGHT)
    assert pi.shape == (2, 3, 6, 6)
    assert torch.allclose(pi.marginals()[0][0, 2], w[0] / 3)
    with pytest.raises(ValueError, match="`mu` and the scores must broadcast"):
        pf.relate(torch.randn(3, 2, 6, 6), mu, mu)


def test_one_relation_of_a_batch():
    mu = pf.Measure(torch.randn(3, 5, 2), torch.rand(3, 5))
    gamma = pf.Attention(2, heads=4, normaliser=TIGHT, mask=None)
    for pi in (gamma.relation(mu), pf.Attention(2, heads=4).relation(mu)):
        one = pi[1, 2]
        assert type(one) is type(pi) and one.shape == (5, 5) and pi[1:].shape == (2, 4, 5, 5)
        assert torch.allclose(one.matrix(), pi.matrix()[1, 2], atol=1e-15)
    with pytest.raises(IndexError):
        gamma.relation(mu)[0, 0, 0]


# One interface, several sources


def test_matrix_function_mask_and_points_agree():
    mu, nu = pair()
    scores = -squared(mu, nu) / 0.7
    function = lambda mu, nu, x, y: -(x - y).square().sum(-1) / 0.7
    p = related(mu, nu).matrix()
    for what in (scores, function):
        assert torch.allclose(pf.relate(what, mu, nu, normaliser=TIGHT).matrix(), p, atol=1e-12)
    everything = torch.ones(7, 9, dtype=torch.bool)
    near = pf.SquaredDistance(0.7)
    masked = pf.relate(
        mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=TIGHT, mask=everything
    )
    assert torch.allclose(masked.matrix(), p, atol=1e-12)
    assert float(masked.cost()) == pytest.approx(related(mu, nu).cost().item())


def test_functions_go_tile_by_tile(monkeypatch):
    """Same numbers and gradients however small the tiles are."""
    mu, nu = pair()
    theta = torch.tensor(1.3, requires_grad=True)
    sizes = []

    def function(mu, nu, x, y):
        sizes.append(x.shape[-3] * y.shape[-2])
        return -theta * (x - y).square().sum(-1)

    results = []
    for tile in (1 << 20, 20):
        for kind in tiles.TILE:
            monkeypatch.setitem(tiles.TILE, kind, tile)
        sizes.clear()
        pi = pf.relate(function, mu, nu, normaliser=TIGHT)
        (slope,) = torch.autograd.grad(pi.cost(), theta)
        results.append((pi.apply(nu.atoms), slope))
    assert max(sizes) <= 20
    assert torch.allclose(results[0][0], results[1][0], atol=1e-12)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-9)


def test_attention_tensors_of_other_models():
    heads = torch.randn(2, 4, 5, 5).softmax(-1)
    kappa = pf.Conditional.from_matrix(heads)
    assert torch.allclose(kappa.matrix(), heads)
    nu = cloud(5)
    assert torch.allclose(pf.Conditional.from_matrix(heads, nu).matrix(), heads)
    v = torch.randn(5, 3)
    assert torch.allclose(kappa.apply(v), heads @ v)
    causal = torch.randn(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
    assert torch.allclose(pf.Conditional.from_matrix(causal).matrix(), causal)
    assert torch.isfinite(pf.Conditional.from_matrix(causal).entropy()).all()
    half = heads.bfloat16()
    assert torch.allclose(pf.Conditional.from_matrix(half).matrix(), heads.float(), atol=1e-2)
    p = torch.rand(4, 6)
    pi = pf.Coupling.from_matrix(p / p.sum())
    assert torch.allclose(pi.matrix(), p / p.sum()) and pi.converged


def test_zeros_of_attention_tensors_have_no_gradient():
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [0.0, 1.0, 2.0]], requires_grad=True)
    kappa = pf.Conditional.from_matrix(logits.softmax(-1))
    total = kappa.entropy().sum() + kappa.apply(torch.randn(3, 2)).sum() + kappa.matrix().sum()
    (grad,) = torch.autograd.grad(total, logits)
    rows = logits.detach().requires_grad_()
    p = rows.softmax(-1)
    (expected,) = torch.autograd.grad(-(p * p.clamp_min(1e-300).log()).sum(), rows)
    assert torch.isfinite(grad).all() and torch.isfinite(expected).all()


def test_results_are_of_the_dtype_of_the_points():
    mu, nu = pair()
    for size in (0.1, 1.0, 2.0):
        m, n = (pf.Measure((size * t.atoms).float()) for t in (mu, nu))
        pi = related(m, n, pf.Sinkhorn(), eps=0.1)
        out = (pi.matrix(), pi.cost(), pi.entropy(), *pi.potentials, *pi.marginals())
        assert {t.dtype for t in out} == {torch.float32} and pi.converged
        assert pi.transpose().matrix().dtype == pi.conditional().matrix().dtype == torch.float32


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
    layer.condition = lambda mu, queries=None: states.append(mu) or real(mu, queries)
    model.push(mu)
    v = layer._split(layer.V(states[0].atoms))
    out = layer.W(found[0].apply(v).transpose(-2, -3).flatten(-2))
    assert torch.allclose(out, real(states[0])(states[0].atoms, None), atol=1e-14)


@pytest.mark.parametrize(
    "normaliser", [pf.Softmax(), TIGHT, pf.relations.DualSoftmax(), pf.relations.Sigmoid()]
)
def test_a_layer_applies_its_relation(normaliser):
    gamma, mu, nu = pf.Attention(2, heads=2, normaliser=normaliser), cloud(5), cloud(7)
    relation = pf.relate(gamma, mu, nu)
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


# The iteration


def test_fixed_steps_are_plain_steps():
    mu, nu = pair()
    a, b, kernel = weights(mu), weights(nu), (-squared(mu, nu) / 0.7).exp()
    v = torch.ones(9)
    for _ in range(5):
        u = 1 / (kernel @ (b * v))
        v = 1 / (kernel.T @ (a * u))
    u = 1 / (kernel @ (b * v))
    p = (a * u)[:, None] * kernel * (b * v)
    pi = related(mu, nu, pf.Sinkhorn(steps=5))
    assert torch.allclose(pi.matrix(), p, atol=1e-14) and pi.steps == 5
    assert float(pi.residual) == pytest.approx((p.sum(0) - b).abs().sum().item(), abs=1e-14)
    assert not pi.converged


def test_warm_start():
    mu, nu = pair(40, 30)
    cold = related(mu, nu, pf.Sinkhorn(tol=1e-10), eps=0.05)
    near = pf.SquaredDistance(0.05)
    again = lambda start: pf.relate(
        mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=pf.Sinkhorn(tol=1e-10), start=start
    )
    assert again(cold).steps == 1 < cold.steps and again(cold.potentials[1]).steps == 1
    assert torch.allclose(again(cold).matrix(), cold.matrix(), atol=1e-10)


def extreme(n, relative, seed, *, even):
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    x, y = torch.rand(n, 3, generator=g), torch.rand(n, 3, generator=g)
    a, b = ((-12 * torch.rand(n, generator=g)) * math.log(10) for _ in range(2))
    log = lambda w: None if even else w
    mu, nu = pf.Measure(x, log_weights=log(a)), pf.Measure(y, log_weights=log(b))
    cost = squared(mu, nu)
    return mu, nu, (relative * (cost.max() - cost.min())).item()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_extreme_problems(seed):
    """Float64, 200 points: eps 1e-3 of the cost range; 1e-4 with weights from 1e-12 to 1."""
    mu, nu, eps = extreme(200, 1e-3, seed, even=True)
    assert related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps).converged
    mu, nu, eps = extreme(200, 1e-4, seed, even=False)
    assert related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps).converged
    mu, nu, eps = extreme(200, 1e-4, seed, even=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps).residual < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("relative, gain", [(1e-2, 2), (1e-3, 5)])
def test_acceleration_saves_steps(relative, gain, record_property):
    counts = []
    for seed in range(3):
        mu, nu, eps = extreme(200, relative, seed, even=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plain = related(mu, nu, pf.Sinkhorn(tol=1e-6, accelerate=False), eps=eps)
        fast = related(mu, nu, pf.Sinkhorn(tol=1e-6), eps=eps)
        counts.append((plain.steps, fast.steps))
        assert torch.allclose(plain.matrix(), fast.matrix(), atol=1e-5)
    record_property("steps plain, accelerated", counts)
    assert sum(p for p, _ in counts) >= gain * sum(f for _, f in counts), counts


def test_fixed_over_relaxation_diverges_and_ours_does_not():
    """An ordinary problem on which steps prolonged by 1.9 blow up."""
    mu, nu, eps = extreme(60, 3e-3, 0, even=True)
    scores = -squared(mu, nu) / eps
    a, b = weights(mu).log(), weights(nu).log()
    f, g = torch.zeros(60), torch.zeros(60)
    for _ in range(300):
        f = f + 1.9 * (-(scores + b + g).logsumexp(-1) - f)
        g = g + 1.9 * (-(scores.T + a + f).logsumexp(-1) - g)
    p = (scores + (a + f)[:, None] + b + g).exp()
    error = (p.sum(-1) - weights(mu)).abs().sum()
    assert not error < 1
    assert related(mu, nu, pf.Sinkhorn(tol=1e-9), eps=eps).converged


def test_giving_up_is_data_and_a_warning():
    mu, nu, eps = extreme(60, 1e-3, 0, even=True)
    with pytest.warns(UserWarning, match="marginal error of .* above tol=1e-09.*Raise"):
        pi = related(mu, nu, pf.Sinkhorn(tol=1e-9, max_steps=30), eps=eps)
    assert not pi.converged and pi.steps == 30 and pi.residual > 1e-9


def test_below_the_floor_of_float32_it_computes_in_float64():
    mu, nu, eps = extreme(100, 1e-3, 0, even=True)
    mu, nu = mu.to(torch.float32), nu.to(torch.float32)
    for tol, dtype in ((1e-3, torch.float32), (1e-8, torch.float64)):
        pi = related(mu, nu, pf.Sinkhorn(tol=tol), eps=eps)
        assert pi.converged and pi.scores.dtype == dtype
        assert pi.apply(nu.atoms).dtype == torch.float32


def test_masses_rounded_to_float32_are_one_all_the_same():
    mu, nu = pf.Measure(torch.rand(300, 1).float()), pf.Measure(torch.rand(170, 1).float())
    pi = pf.relate(mu.atoms, nu.atoms, mu, nu, normaliser=pf.Sinkhorn(tol=1e-10))
    assert float(pi.converged and pi.steps < 100 and pi.matrix().sum()) == pytest.approx(
        1, abs=1e-12
    )


@given(
    st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6),
    st.sampled_from([0.1, 1.0, 10.0, 1e3]),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_any_small_problem(m, n, seed, size):
    """Any sizes, weights over ten orders of magnitude, scores of any size: a coupling."""
    g = torch.Generator(torch.get_default_device()).manual_seed(seed)
    scores = size * torch.randn(m, n, generator=g)
    mu, nu = (
        pf.Measure(torch.zeros(k, 1), log_weights=10 * torch.randn(k, generator=g)) for k in (m, n)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pi = pf.relate(scores, mu, nu, normaliser=pf.Sinkhorn(tol=1e-9))
    p = pi.matrix()
    assert float(torch.isfinite(p).all() and p.sum()) == pytest.approx(1, abs=1e-9)
    assert torch.allclose(p.sum(-1), weights(mu), atol=1e-9)
    assert pi.converged or size == 1e3


def test_one_atom_on_a_side():
    mu, nu = cloud(1), cloud(6)
    for x, y in ((mu, nu), (nu, mu), (mu, mu)):
        pi = related(x, y)
        assert torch.allclose(pi.matrix(), weights(x)[:, None] * weights(y), atol=1e-14)


# Masks


def test_disconnected_masks_have_a_gauge_each():
    mu, nu = pf.Measure(torch.randn(6, 2)), pf.Measure(torch.randn(6, 2))
    mask = torch.block_diag(torch.ones(2, 2), torch.ones(4, 4)).bool()
    x = mu.atoms.clone().requires_grad_()
    pi = pf.relate(x, nu.atoms, mu, nu, normaliser=TIGHT, mask=mask)
    p = pi.matrix()
    assert (p[~mask] == 0).all() and pi.converged
    f, g = pi.potentials
    for part in (slice(0, 2), slice(2, 6)):
        assert float(f[part].sum().item()) == pytest.approx(g[part].sum().item(), abs=1e-10)
    direction = torch.randn(6, 6)
    (grad,) = torch.autograd.grad((p * direction).sum(), x)
    eps, e = 1e-5, torch.zeros(6, 2)
    e[3, 1] = eps
    value = lambda x: (
        pf.relate(x, nu.atoms, mu, nu, normaliser=TIGHT, mask=mask).matrix() * direction
    ).sum()
    with torch.no_grad():
        slope = (value(x + e) - value(x - e)) / (2 * eps)
    assert float(grad[3, 1]) == pytest.approx(slope.item(), abs=1e-8)


def test_no_support_is_an_error():
    mu = pf.Measure(torch.randn(4, 2))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[:2, 1:] = False  # two rows share one column
    with pytest.raises(ValueError, match=r"0.25 of the mass has nowhere to go.*no support"):
        pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.Sinkhorn(), mask=mask)
    heavy = pf.Measure(mu.atoms, torch.tensor([5.0, 1.0, 1.0, 1.0]))
    fits = pf.relate(mu.atoms, mu.atoms, mu, heavy, normaliser=pf.Sinkhorn(), mask=mask)
    assert fits.converged  # other marginals leave room
    loose = pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.Sinkhorn(slack=1.0), mask=mask)
    assert loose.residual < 1e-5 and (loose.matrix()[:2, 1:] == 0).all()


def test_causal_masks_tend_to_the_identity():
    mu = pf.Measure(torch.randn(5, 2))
    mask = torch.ones(5, 5).tril().bool()
    ask = lambda normaliser: pf.relate(torch.zeros(5, 5), mu, mu, normaliser=normaliser, mask=mask)
    with pytest.warns(UserWarning, match="10 of its allowed pairs.*identity"):
        pi = ask(pf.Sinkhorn())
    assert torch.allclose(pi.matrix(), torch.eye(5) / 5, atol=1e-12) and pi.converged
    off = [k * ask(pf.Sinkhorn(steps=k)).matrix().tril(-1).max() for k in (1000, 2000, 4000)]
    assert float(off[1]) == pytest.approx(off[0].item(), rel=0.02)
    assert float(off[2]) == pytest.approx(off[1].item(), rel=0.01)
    rows = pf.Measure(mu.atoms, torch.tensor([1.0, 1, 1, 1, 2]))
    early = pf.Measure(mu.atoms, torch.tensor([2.0, 1, 1, 1, 1]))
    free = pf.relate(mu.atoms, mu.atoms, rows, early, normaliser=pf.Sinkhorn(), mask=mask)
    assert free.converged and free.matrix().tril(-1).max() > 0.01


def test_partial_support_returns_the_limit():
    """One pair can carry no mass; the others are scaled as if it were forbidden."""
    mu = pf.Measure(torch.randn(3, 2))
    mask = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 1]]).bool()
    with pytest.warns(UserWarning, match="2 of its allowed pairs"):
        pi = pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=TIGHT, mask=mask)
    early, late = (
        pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.Sinkhorn(steps=k), mask=mask).matrix()
        for k in (5_000, 10_000)
    )
    limit = 2 * late - early  # it nears its limit like 1/steps
    assert (pi.matrix() - limit).abs().max() < 1e-4


def test_infinite_costs_and_tiny_weights():
    mu, nu, _ = extreme(12, 1.0, 0, even=False)
    scores = -squared(mu, nu)
    forbidden = torch.rand(12, 12) < 0.2
    forbidden.fill_diagonal_(False)
    pi = pf.relate(
        scores.masked_fill(forbidden, -torch.inf), mu, nu, normaliser=pf.Sinkhorn(slack=10.0)
    )
    assert (pi.matrix()[forbidden] == 0).all() and torch.isfinite(pi.cost())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a GPU has something to wait for")
def test_fixed_steps_never_wait_for_the_device():
    mu, nu = (pf.Measure(torch.randn(50, 2, device="cuda")) for _ in range(2))
    v = torch.randn(50, 2, device="cuda")
    gamma = pf.Attention(2, heads=2, normaliser=pf.Sinkhorn(steps=5)).to("cuda", torch.float64)
    x = mu.atoms.clone().requires_grad_()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pi = pf.relate(x, nu.atoms, mu, nu, normaliser=pf.Sinkhorn(steps=5))
        pi.apply(v).sum().backward()
        gamma.push(mu)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def test_atoms_without_a_partner_are_named():
    mu = pf.Measure(torch.randn(3, 2))
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    for normaliser in (
        pf.Softmax(),
        pf.relations.DualSoftmax(),
        pf.Sinkhorn(steps=2),
        pf.Sinkhorn(slack=1.0),
    ):
        with pytest.raises(ValueError, match=r"Every query with mass .* index \(1,\)"):
            pf.relate(mu.atoms, mu.atoms, mu, mu, mask=mask, normaliser=normaliser)
    with pytest.raises(ValueError, match="Every key with mass"):
        pf.relate(mu.atoms, mu.atoms, mu, mu, mask=mask.T, normaliser=pf.Sinkhorn(steps=2))
    assert pf.relate(mu.atoms, mu.atoms, mu, mu, mask=mask.T).matrix().isfinite().all()
    weightless = pf.Measure(mu.atoms, torch.tensor([1.0, 0.0, 1.0]))
    pi = pf.relate(mu.atoms, mu.atoms, weightless, mu, mask=mask, normaliser=pf.Sinkhorn())
    assert pi.converged and pi.matrix().isfinite().all()


def test_hard_assignment_on_a_mask():
    mu = pf.Measure(torch.randn(4, 2))
    mask = ~torch.eye(4, dtype=torch.bool)
    pi = pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.relations.Exact(), mask=mask)
    assert pi.converged and (pi.matrix()[~mask] == 0).all() and torch.isfinite(pi.cost())
    mask[:2, 1:] = False
    mask[:2, 0] = True
    with pytest.raises(ValueError, match="No coupling"):
        pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.relations.Exact(), mask=mask)


def test_nan_is_said_at_once():
    mu = pf.Measure(torch.randn(4, 2))
    q = torch.randn(4, 2).index_fill(0, torch.tensor(1), torch.nan)
    with pytest.raises(ValueError, match="Scores must be finite"):
        pf.relate(q, mu.atoms, mu, mu, normaliser=pf.Sinkhorn())


def outlier():
    q, k = 0.3 * torch.randn(20, 2).float(), 0.3 * torch.randn(20, 2).float()
    k[0, 0] += 11
    return pf.relate(
        q, k, pf.Measure(q), pf.Measure(k), affinity=pf.SquaredDistance(1.0),
        normaliser=pf.Sinkhorn(),
    )  # fmt: skip


def deep_column(dtype, **options):
    scores = torch.zeros(5, 5, dtype=dtype)
    scores[:, 0] = -150 if dtype == torch.float32 else -900
    mu = pf.Measure(torch.zeros(5, 1, dtype=dtype))
    return pf.relate(scores, mu, mu, normaliser=pf.Sinkhorn(tol=1e-5, **options))


@pytest.mark.parametrize(
    "solve",
    [
        outlier,
        lambda: deep_column(torch.float32),
        lambda: deep_column(torch.float64, anneal=False),
        lambda: deep_column(torch.float32, slack=1e3),
    ],
    ids=["outlier", "float32", "float64", "slack"],
)
def test_kernels_stored_too_far_away_are_stored_anew(solve):
    """A key so far off that its column underflows in the kernel of the start."""
    assert solve().residual < 1e-5 and solve().steps <= 30


@pytest.mark.parametrize("batch", [(), (2,)])
def test_careful_products_leave_the_rounding_of_entries(batch):
    """A kernel rounded to float32, against the scores themselves, on both sides."""
    x, y = torch.randn(*batch, 3000, 2), torch.randn(*batch, 400, 2)
    log_b = torch.randn(400).log_softmax(-1).expand(*batch, 400)
    scores = pf.affinities.scores(pf.SquaredDistance(0.5), x, y, log_b)
    kernel = StoredKernel.normal(scores, log_b, torch.zeros_like(log_b), torch.float32)
    bias = torch.randn(*batch, 3000).log_softmax(-1)
    for k in (kernel, kernel.with_care()):
        for ours, truth in (
            (k.over_keys(log_b), scores.over_keys(log_b)),
            (k.T.over_keys(bias + k.f), scores.T.over_keys(bias + k.f)),
        ):
            assert (ours - truth).abs().max() < k.rounding / (2 if k.careful else 50)


def test_claims_of_rounded_kernels_are_true():
    """Potentials to 1e-6 from float32 entries: the plan's error in float64 is what is said."""
    x, y = torch.rand(2100, 3), torch.rand(2100, 3)
    with torch.no_grad():
        pi = pf.relate(
            x, y, pf.Measure(x), pf.Measure(y), affinity=pf.SquaredDistance(0.02),
            normaliser=pf.Sinkhorn(tol=1e-6),
        )  # fmt: skip
        rows, columns = (pi.matrix().sum(k) for k in (1, 0))
    wrong = max(float((m - 1 / 2100).abs().sum()) for m in (rows, columns))
    assert pi.converged and wrong <= pi.residual * (1 + 1e-6)


def test_awful_starts():
    mu, nu = pair(30, 30)
    ask = lambda start: pf.relate(
        mu.atoms, nu.atoms, mu, nu, affinity=pf.SquaredDistance(0.3), normaliser=pf.Sinkhorn(),
        start=start,
    )  # fmt: skip
    for start in (1e6 * torch.randn(30), torch.full((30,), 1e6), related(mu, nu, eps=0.03).g):
        assert ask(start).converged
    with pytest.raises(ValueError, match="`start` must be finite"):
        ask(torch.full((30,), torch.nan))


@pytest.mark.parametrize("offset", [1e2, 1e4, 1e6])
def test_certificates_of_scores_with_an_offset(offset):
    """In float32 a common offset of the scores leaves potentials no digits: float64 is used."""
    a, b = torch.rand(20), torch.rand(20)
    mu, nu = (pf.Measure(torch.zeros(20, 1), w).to(torch.float32) for w in (a, b))
    pi = pf.relate(torch.randn(20, 20).float() + offset, mu, nu, normaliser=pf.Sinkhorn())
    p = pi.matrix().double()
    assert pi.converged and (p.sum(-1) - a / a.sum()).abs().sum() < 1e-6
    assert (p.sum(-2) - b / b.sum()).abs().sum() < 1e-6
    far = pf.Measure(torch.randn(9, 2).float() + 1e4)
    near = pf.Measure(1e-3 * torch.randn(9, 2).float())
    kappa = pf.relate(far.atoms, near.atoms, far, near, affinity=pf.SquaredDistance(1.0))
    assert float(kappa.joint(far).matrix().sum()) == pytest.approx(1, abs=1e-5)


def test_masses_of_parts_agree_up_to_rounding():
    """Float32 weights of a block mask, and of a causal one, have a coupling all the same."""
    mask = torch.block_diag(torch.ones(4, 3), torch.ones(3, 2)).bool()
    mu = pf.Measure(torch.randn(7, 2).float())
    nu = pf.Measure(torch.randn(5, 2).float(), torch.tensor([4 / 3] * 3 + [1.5] * 2).float())
    scores = torch.randn(7, 5).float()
    assert pf.relate(scores, mu, nu, mask=mask, normaliser=pf.Sinkhorn()).converged
    a = torch.rand(6).float()
    mu, nu = (pf.Measure(torch.randn(6, 2).float(), w) for w in (a, 3.7 * a))
    with pytest.warns(UserWarning, match="total support"):
        pi = pf.relate(
            torch.randn(6, 6).float(), mu, nu, mask=torch.ones(6, 6).tril().bool(),
            normaliser=pf.Sinkhorn(),
        )  # fmt: skip
    assert pi.converged


@pytest.mark.parametrize("weight", [-60.0, -300.0])
def test_gradients_of_a_heavy_and_a_light_part(weight):
    mask = torch.block_diag(torch.ones(6, 6), torch.ones(6, 6)).bool()
    logs = torch.cat([torch.zeros(6), torch.full((6,), weight)])
    mu, v = pf.Measure(torch.zeros(12, 1), log_weights=logs), torch.randn(12, 2)
    scores = torch.randn(12, 12, requires_grad=True)
    grads = [
        torch.autograd.grad(
            pf.relate(scores, mu, mu, mask=mask, normaliser=to).apply(v).square().sum(), scores
        )[0]
        for to in (TIGHT, pf.Sinkhorn(steps=500))
    ]
    assert torch.allclose(*grads, atol=1e-9)


def test_functions_are_called_in_their_own_dtype():
    linear = torch.nn.Linear(2, 4, bias=False).float()
    mu = pf.Measure(torch.randn(6, 2).float())
    function = lambda mu, nu, x, y: 900 * (linear(x) * linear(y)).sum(-1)
    pi = pf.relate(function, mu, mu, normaliser=pf.Sinkhorn(tol=1e-5))
    assert pi.converged and pi.scores.dtype == torch.float64


def test_matrices_meet_batches():
    mu = pf.Measure(torch.randn(3, 4, 2), torch.rand(3, 4))
    pi = pf.relate(torch.randn(4, 4), mu, mu, normaliser=pf.Sinkhorn())
    assert pi.shape == (3, 4, 4) and pi.converged.all()
    heads = torch.rand(3, 2, 4, 4) * (torch.rand(3, 2, 4, 4) > 0.2) + torch.eye(4)
    kappa = pf.Conditional.from_matrix(heads / heads.sum(-1, keepdim=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert kappa.project(mu, mu).converged.all()


def test_annealing_counts_as_steps():
    mu, nu, eps = extreme(60, 1e-3, 0, even=True)
    for most in (2, 15, 30):
        with pytest.warns(UserWarning, match="marginal error"):
            assert related(mu, nu, pf.Sinkhorn(tol=1e-9, max_steps=most), eps=eps).steps == most


# Gradients


def gradients(normaliser, *, through):
    """A function of points, weights and values, and its arguments."""
    nodes = torch.randn(7, 9)
    values = torch.randn(9, 2)

    def f(x, y, a, b, v):
        mu, nu = pf.Measure(x, a), pf.Measure(y, b)
        pi = pf.relate(x, y, mu, nu, affinity=pf.SquaredDistance(0.8), normaliser=normaliser)
        if through == "matrix":
            return (pi.matrix() * nodes).sum()
        if through == "apply":
            return pi.apply(v).square().sum()
        if through == "transpose":
            return pi.transpose().apply(x).square().sum()
        if through == "potentials":
            f, g = pi.potentials
            return (f * nodes[:, 0]).sum() + (g * nodes[0]).sum()
        return pi.cost() + 0.3 * pi.mutual_information() + 0.1 * pi.entropy()

    args = (
        torch.randn(7, 2), torch.randn(9, 2), torch.rand(7) + 0.1, torch.rand(9) + 0.1, values,
    )  # fmt: skip
    return f, [t.requires_grad_() for t in args]


THROUGH = ["matrix", "apply", "transpose", "potentials", "information"]


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize(
    "normaliser",
    [
        pf.Sinkhorn(tol=1e-13),
        pf.Sinkhorn(steps=7),
        pf.Sinkhorn(tol=1e-13, slack=(1.0, 2.0)),
        pf.Sinkhorn(tol=1e-13, slack=(math.inf, 0.5)),
    ],
    ids=["implicit", "unrolled", "unbalanced", "one side"],
)
def test_gradients_against_finite_differences(normaliser, through):
    f, args = gradients(normaliser, through=through)
    if not normaliser.balanced and through in ("potentials", "information"):
        pytest.skip("not defined on masses without marginals")
    grads = torch.autograd.grad(f(*args), args, allow_unused=True)
    eps = 1e-5
    for i, (arg, grad) in enumerate(zip(args, grads, strict=True)):
        if grad is None:
            continue
        way = torch.randn_like(arg)
        with torch.no_grad():
            slope = (
                f(*args[:i], arg + eps * way, *args[i + 1 :])
                - f(*args[:i], arg - eps * way, *args[i + 1 :])
            ) / (2 * eps)
        assert float((grad * way).sum()) == pytest.approx(slope.item(), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("through", THROUGH)
def test_implicit_and_unrolled_agree(through):
    torch.manual_seed(1)
    implicit, args = gradients(pf.Sinkhorn(tol=1e-13), through=through)
    torch.manual_seed(1)
    unrolled, _ = gradients(pf.Sinkhorn(steps=400), through=through)
    a, b = (torch.autograd.grad(f(*args), args, allow_unused=True) for f in (implicit, unrolled))
    for x, y in zip(a, b, strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.allclose(x, y, atol=1e-8, rtol=1e-6)


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


def test_implicit_gradients_are_first_order():
    f, args = gradients(pf.Sinkhorn(tol=1e-10), through="apply")
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(f(*args), args, create_graph=True, allow_unused=True)


def test_zero_mass_atoms_have_no_say_in_gradients():
    x, y = torch.randn(4, 2, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    mu = pf.Measure(x, torch.tensor([0.2, 0.0, 0.5, 0.3]))
    nu = pf.Measure(y, torch.tensor([0.0, 0.3, 0.3, 0.2, 0.2]))
    pi = related(mu, nu)
    gx, gy = torch.autograd.grad(pi.matrix().square().sum(), (x, y))
    assert (gx[1] == 0).all() and (gy[0] == 0).all()
    assert torch.isfinite(gx).all() and torch.isfinite(gy).all()
    row = pi.apply(y.detach())[1]  # a relation can be asked where there is no mass
    assert torch.isfinite(row).all()


# Pictures


def test_pictures(tmp_path):
    mu, nu = pair(6, 5)
    near = pf.SquaredDistance(1.0)
    for normaliser in (pf.Softmax(), pf.Sinkhorn(), pf.relations.DualSoftmax()):
        r = pf.relate(mu.atoms, nu.atoms, mu, nu, affinity=near, normaliser=normaliser)
        figures = (
            pf.pictures.heatmap(r), pf.pictures.graph(r), pf.pictures.transported(r, mu, nu),
        )  # fmt: skip
        for i, figure in enumerate(figures):
            figure.savefig(tmp_path / f"{i}.png")
            assert (tmp_path / f"{i}.png").stat().st_size > 5000
    image = pf.pictures.heatmap(related(mu, nu)).axes[0].images[0].get_array()
    assert torch.allclose(torch.as_tensor(image), related(mu, nu).matrix())
    with pytest.raises(ValueError, match="one relation, got a batch"):
        pf.pictures.graph(pf.Conditional.from_matrix(torch.rand(2, 3, 3).softmax(-1)))
    with pytest.raises(ValueError, match="`nu` must be one cloud of 5 points in the plane"):
        pf.pictures.transported(related(mu, nu), mu, mu)
