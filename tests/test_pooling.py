"""Pooling and dropout: from measures to vectors, and masks that see measures, not lists."""

import pytest
import torch
from cases import measure, worst
from torch import nn

import pushforward as pf

TOL = 1e-13


def encoder(**shared):
    return pf.Transformer(2, depth=2, heads=2, width=4, out_dim=4, block=pf.Block(**shared))


POOLS = {
    "points": lambda: pf.Pool(),
    "sums": lambda: pf.Pool(nn.Linear(2, 3), normalise=False),
    "with the mass": lambda: pf.Pool(nn.Linear(2, 3), mass=True),
    "transformer": lambda: pf.Pool(encoder(norm=pf.PreNorm())),
    "causal": lambda: pf.Pool(encoder(mask=pf.Causal())),
    "queries": lambda: pf.maps.AttentionPool(pf.Attention(2, heads=2), queries=3),
    "cross": lambda: pf.maps.AttentionPool(pf.Attention(5, context_dim=2), queries=2),
    "queries, features": lambda: pf.maps.AttentionPool(pf.Attention(4), features=encoder()),
    "a class token": lambda: pf.maps.AttentionPool(encoder()),
    "transport": lambda: pf.maps.AttentionPool(
        pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-14)), queries=3
    ),
    "cross transport": lambda: pf.maps.AttentionPool(
        pf.Attention(3, context_dim=2, normaliser=pf.Sinkhorn(tol=1e-14)), queries=3
    ),
}


@pytest.fixture(params=POOLS, ids=str)
def pool(request):
    return POOLS[request.param]()


def with_garbage(mu):
    """The same measure with an atom of zero mass at NaN."""
    atoms = torch.cat([mu.atoms, torch.full((1, mu.dim), torch.nan)])
    logs = torch.cat([mu.log_weights, torch.tensor([-torch.inf])])
    return pf.Measure(atoms, log_weights=logs, times=torch.cat([mu.times, mu.times[:1]]))


@torch.no_grad()
def test_pools_depend_on_the_measure_not_on_the_list(pool):
    mu = measure()
    p = torch.randperm(mu.n)
    permuted = pf.Measure(mu.atoms[p], log_weights=mu.log_weights[p], times=mu.times[p])
    for other in (permuted, mu.split([0.2, 0.8], atom=1), mu.split(3), with_garbage(mu)):
        assert worst(pool(other), pool(mu)) < 1e-12


@torch.no_grad()
def test_a_ragged_batch_is_pooled_one_by_one(pool):
    clouds = [measure(6), measure(1), measure(3)]
    batch = pf.Measure.stack(clouds)
    out = pool(batch)
    assert out.shape[0] == 3 and out.ndim == 2
    for mu, y in zip(clouds, out, strict=True):
        assert worst(pool(mu), y) < 1e-12
    assert worst(pool(pf.Measure.stack([batch, batch]))[1], out) < 1e-12


def test_gradients_of_pools(pool):
    atoms, weights = torch.randn(4, 2), torch.rand(4) + 0.1
    times = torch.arange(4)

    def f(atoms, weights):
        return pool(pf.Measure(atoms, weights, times=times))

    assert torch.autograd.gradcheck(f, (atoms.requires_grad_(), weights.requires_grad_()))
    f(atoms, weights).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pool.parameters())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["points", "sums", "with the mass", "queries"])
def test_pools_keep_the_dtype(name, dtype):
    mu = measure()
    pool = POOLS[name]()
    expected = pool(mu)
    found = pool.to(dtype)(mu.to(dtype))
    assert found.dtype == dtype
    # A handful of roundings, each of relative size eps, of numbers of size at most 10.
    assert worst(found.double(), expected) < 200 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    "pool", [pf.Pool, lambda f: pf.maps.AttentionPool(pf.Attention(4), features=f)]
)
def test_pools_under_autocast(pool):
    model, mu = pool(encoder(norm=pf.PreNorm())).float(), measure().float()
    expected = model(mu)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(mu)
    # A few dozen roundings of relative size 2^-8 in the encoder.
    assert worst(found.float(), expected) < 0.1


@pytest.mark.unhooked
@pytest.mark.parametrize("name", ["transformer", "queries, features"])
def test_pools_compile(name):
    pool, mu = POOLS[name](), pf.Measure(torch.randn(3, 5, 2).to(torch.get_default_dtype()))
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    assert worst(compiled(mu), pool(mu)) < 1e-12


def test_pools_against_their_sums():
    mu, f = measure(), nn.Linear(2, 3)
    total = mu.weights @ f(mu.atoms)
    assert worst(pf.Pool(f, normalise=False)(mu), total) < TOL
    assert worst(pf.Pool(f)(mu), total / mu.mass) < TOL
    both = pf.Pool(f, normalise=False, mass=True)(mu)
    assert worst(both, torch.cat([total, mu.mass.log()[None]])) < TOL


def test_atoms_of_weight_one_give_the_sum_of_deep_sets():
    x = torch.randn(5, 2)
    pool = pf.Pool(torch.sin, normalise=False, mass=True)
    out = pool(pf.Measure(x, torch.ones(5)))
    assert worst(out[:2], x.sin().sum(0)) < TOL
    assert out[2].exp().item() == pytest.approx(5)


def test_attention_pooling_is_pytorch_attention_at_the_queries():
    """With equal weights, against `nn.MultiheadAttention`, whose matrices are copied."""
    gamma = pf.Attention(4, heads=2)
    pool, theirs = pf.maps.AttentionPool(gamma, queries=3), nn.MultiheadAttention(4, 2, bias=False)
    with torch.no_grad():
        parts = [gamma.Q.weight, gamma.K.weight, gamma.V.weight]
        theirs.in_proj_weight.copy_(torch.cat(parts))
        theirs.out_proj.weight.copy_(gamma.W.weight)
    x = torch.randn(7, 4)
    expected = theirs(pool.queries, x, x)[0].flatten()
    assert worst(pool(pf.Measure(x)), expected) < 1e-12


def test_queries_share_the_mass_of_a_transport():
    """With Sinkhorn, the mean of the images is the image of the mean: no mass is left out."""
    gamma = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-13))
    pool, mu = pf.maps.AttentionPool(gamma, queries=4), measure()
    images = pool(mu).reshape(4, 2)
    assert worst(images.mean(0), gamma.W(gamma.V(mu.mean()))) < 1e-12


def test_a_set_classifier_is_a_sequence():
    block = pf.Block(norm=pf.PreNorm(), dropout=0.1)
    body = pf.Transformer(2, depth=1, heads=2, width=8, out_dim=8, block=block)
    model = nn.Sequential(pf.Pool(body), nn.ReLU(), nn.Linear(8, 2))
    batch = pf.Measure.stack([measure(3), measure(5)])
    loss = nn.functional.cross_entropy(model(batch), torch.tensor([0, 1]))
    loss.backward()
    assert model(batch).shape == (2, 2)
    assert all(p.grad is not None for p in model.parameters())
    same = nn.Sequential(pf.Pool(encoder()), nn.Linear(4, 2))
    same.load_state_dict(same.state_dict())


# Dropout


def test_one_mask_for_all_points_of_a_set():
    drop, batch = pf.Dropout(0.5), pf.Measure(torch.ones(50, 7, 40))
    image = drop.push(batch).atoms
    assert (image == image[:, :1]).all()
    assert set(image.unique().tolist()) == {0.0, 2.0}
    assert len({tuple(row) for row in image[:, 0].tolist()}) == 50


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_statistics_of_the_mask(p):
    """Frequencies and correlations within five standard deviations."""
    n = 20_000
    image = pf.Dropout(p).push(pf.Measure(torch.ones(n, 1, 3))).atoms[:, 0]
    kept = (image != 0).double()
    assert ((kept.mean(0) - (1 - p)).abs() < 5 * (p * (1 - p) / n) ** 0.5).all()
    assert ((image.mean(0) - 1).abs() < 5 * (p / (1 - p) / n) ** 0.5).all()
    off = torch.corrcoef(kept.T) - torch.eye(3)
    assert off.abs().max() < 5 / n**0.5


def test_splitting_atoms_does_not_change_dropout():
    model, mu = encoder(dropout=0.5), measure()
    for other in (mu.split(3), mu.split([0.3, 0.7], atom=0)):
        images = []
        for m in (mu, other):
            torch.manual_seed(1)
            images.append(model.push(m).mean())
        assert worst(*images) < 1e-12


def test_atoms_and_queries_share_their_masks():
    model, mu = encoder(dropout=0.5), measure()
    outs = []
    for call in (lambda: model.push(mu).atoms, lambda: model(mu, mu.atoms)):
        torch.manual_seed(2)
        outs.append(call())
    assert torch.equal(*outs)


def test_dropout_in_eval_mode_is_the_identity():
    mu = measure()
    assert torch.equal(pf.Dropout(0.7).eval().push(mu).atoms, mu.atoms)
    model = encoder(dropout=0.7).eval()
    plain = encoder()
    plain_layers = [p for p in model.parameters()]
    with torch.no_grad():
        for p, q in zip(plain.parameters(), plain_layers, strict=True):
            p.copy_(q)
    assert torch.equal(model.push(mu).atoms, plain.push(mu).atoms)
    assert not torch.equal(model.train().push(mu).atoms, plain.push(mu).atoms)


def test_extreme_probabilities():
    mu = measure()
    assert torch.equal(pf.Dropout(0.0).push(mu).atoms, mu.atoms)
    assert pf.Dropout(1.0).push(mu).atoms.eq(0).all()
    assert pf.Dropout(0.5).half().push(mu.half()).dtype == torch.float16


def test_bounds_with_dropout():
    drop = pf.Dropout(0.75)
    assert drop.lipschitz(2.0).x == 4.0 and drop.lipschitz(2.0).reach == 8.0
    assert drop.eval().lipschitz(2.0) == pf.maps.Lipschitz(1.0, 0.0, 2.0, 2.0)
    block = pf.Block(dropout=0.5)
    assert pf.Transformer(2, depth=1, block=block).lipschitz(0.1).x > 1


# Sizes of heads


@pytest.mark.parametrize("dim, heads, size", [(64, 8, 8), (2, 4, 1), (3, 2, 2), (5, 1, 5)])
def test_heads_share_the_dimension(dim, heads, size):
    gamma = pf.Attention(dim, heads=heads)
    assert gamma.head_dim == size
    assert gamma.push(measure(4, dim)).dim == dim
    assert pf.Attention(dim, heads=heads, head_dim=dim).head_dim == dim


def test_as_many_parameters_as_pytorch():
    """Besides biases of attention, which there are none of."""
    count = lambda module: sum(p.numel() for p in module.parameters())
    ours = pf.Transformer(64, depth=1, heads=8, hidden=256, block=pf.Block(norm=pf.PreNorm()))
    theirs = nn.TransformerEncoderLayer(64, 8, 256)
    assert count(theirs) - count(ours) == 4 * 64


def test_matrices_start_as_random_as_in_pytorch():
    """Uniform, with the same bound: `nn.Linear` alone would have a smaller one."""
    ours, theirs = pf.Attention(64, heads=8), nn.MultiheadAttention(64, 8)
    bound = (6 / (64 + 3 * 64)) ** 0.5
    for weight in (theirs.in_proj_weight, ours.Q.weight, ours.K.weight, ours.V.weight):
        # The largest of 4096 draws is within 1 % of the bound, the mean of squares within 5 %.
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.square().mean().item() == pytest.approx(bound**2 / 3, rel=0.05)
    assert worst(*(p.weight.abs().max() for p in (ours.W, nn.Linear(64, 64)))) < 0.01 * bound


# Messages


@pytest.mark.unhooked
def test_messages():
    mu = pf.Measure(torch.randn(3, 2))
    with pytest.raises(TypeError, match=r"`gamma.push\(mu\)`. `nn.Sequential` gives"):
        nn.Sequential(pf.Transformer(2, depth=1))(mu)
    with pytest.raises(TypeError, match="called with Tensor alone"):
        pf.Attention(2)(mu.atoms)
    for p in (-0.1, 1.5, "a", True):
        with pytest.raises(ValueError, match="`p` must be a probability"):
            pf.Dropout(p)
        with pytest.raises(ValueError, match="`dropout` must be a probability"):
            pf.Block(dropout=p)
    with pytest.raises(TypeError, match="`mu` must be a Measure, got Tensor"):
        pf.Pool()(mu.atoms)
    with pytest.raises(TypeError, match="features"):
        pf.Pool(3)
    with pytest.raises(ValueError, match="float32 parameters"):
        pf.Pool(nn.Linear(2, 2).float())(mu)
    with pytest.raises(ValueError, match="The map has torch.float32 parameters"):
        pf.maps.AttentionPool(pf.Attention(2)).float()(mu)
    with pytest.raises(ValueError, match="causal"):
        pf.maps.AttentionPool(pf.Attention(2, mask=pf.Causal()))
    with pytest.raises(ValueError, match="need a dimension"):
        pf.maps.AttentionPool(pf.Pointwise(torch.sin))
    array = pf.Measure.unchecked(mu.atoms.numpy(), mu.log_weights)
    with pytest.raises(TypeError, match="`mu.atoms` must be a Tensor, got ndarray"):
        pf.Attention(2).push(array)
