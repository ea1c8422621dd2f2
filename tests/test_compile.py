"""`torch.compile(fullgraph=True)`: no graph break, same numbers."""

import pytest
import torch
from cases import attention, measure, queries, transformer, worst
from implementations import HERE

import pushforward as pf

pytestmark = pytest.mark.unhooked

MODELS = {
    "softmax": lambda impl: attention(impl),
    "sinkhorn": lambda impl: attention(impl, normaliser=pf.Sinkhorn(steps=3)),
    "squared distance": lambda impl: attention(impl, affinity=pf.SquaredDistance(1.0)),
    "causal": lambda impl: attention(impl, mask=pf.Causal()),
    "transformer": lambda impl: transformer(impl, norm=pf.PreNorm()),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("impl", [None, *HERE[1:]])  # None: the choice too, then the reference
@pytest.mark.parametrize("name", MODELS)
def test_whole_graph(name, impl):
    """Forward and backward, push and queries, traced without a break."""
    model = MODELS[name](impl)
    mu, (x, t) = measure(), queries()

    def f(mu, x, t):
        image = model.push(mu)
        return image.atoms, image.mean(), model(mu, x, t)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    expected, got = f(mu, x, t), compiled(mu, x, t)
    assert max(worst(a, b) for a, b in zip(expected, got, strict=True)) < 1e-13
    grads = [torch.autograd.grad(sum(o.sum() for o in out), list(model.parameters()))
             for out in (expected, got)]  # fmt: skip
    assert max(worst(a, b) for a, b in zip(*grads, strict=True)) < 1e-12


def test_fixed_step_relations():
    """Apply, matrix, cost and their gradients, from points and from a matrix."""
    mu, nu, to = pf.Measure(torch.randn(6, 2)), pf.Measure(torch.rand(5, 2)), pf.Sinkhorn(steps=4)

    def f(x, scores, v):
        near = pf.SquaredDistance(0.5)
        pi = pf.relate(mu, nu, affinity=pf.Encoded(x, nu.atoms, near), normaliser=to)
        return (
            pi.apply(v),
            pi.matrix(),
            pi.cost(),
            pf.relate(mu, nu, affinity=pf.Matrix(scores), normaliser=to).apply(v),
        )

    x, scores, v = torch.randn(6, 2, requires_grad=True), torch.randn(6, 5), torch.randn(5, 2)
    outs = f(x, scores, v), torch.compile(f, fullgraph=True, backend="aot_eager")(x, scores, v)
    assert max((a - b).abs().max().item() for a, b in zip(*outs, strict=True)) < 1e-14
    grads = [torch.autograd.grad(sum(o.sum() for o in out), x)[0] for out in outs]
    assert worst(*grads) < 1e-13


def test_building_measures_inside_a_graph():
    """Public constructors cannot check values there, and do not try."""
    model = attention(None)
    f = lambda tokens, w: model.push(pf.Measure(tokens, w).normalise()).atoms
    tokens, weights = torch.randn(5, 2), torch.rand(5)
    got = torch.compile(f, fullgraph=True, backend="aot_eager")(tokens, weights)
    assert worst(got, f(tokens, weights)) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "sinkhorn"])
def test_generated_code(name):
    """The default backend, which generates and compiles C++, on a size that streams."""
    model = MODELS[name]("streamed")
    mu = pf.Measure(torch.randn(300, 2), torch.rand(300))
    got = torch.compile(model.push, fullgraph=True)(mu)
    assert worst(got, model.push(mu)) < 1e-12


def test_functional_transforms_of_layers():
    """`torch.func` on the reference: a layer's Jacobian in a query, and a batch of contexts."""
    model = attention("reference")
    mu, (x, _) = measure(), queries()
    jacobian = torch.func.jacrev(lambda x: model(mu, x[None])[0])(x[0])
    eps = 1e-6
    for i in range(2):
        e = torch.zeros(2)
        e[i] = eps
        slope = (model(mu, (x[0] + e)[None]) - model(mu, (x[0] - e)[None]))[0] / (2 * eps)
        assert worst(jacobian[:, i], slope) < 1e-8
    clouds = torch.randn(3, 6, 2)
    batched = torch.func.vmap(lambda atoms: model.push(pf.Measure(atoms)).atoms)(clouds)
    assert worst(batched, model.push(pf.Measure(clouds)).atoms) < 1e-13
