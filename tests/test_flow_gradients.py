"""Gradients of flows: through the steps, recomputed, by the adjoint."""

import pytest
import torch
from cases import measure, worst
from flow_cases import softmax_field, sphere_cloud

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


def functional(path):
    """Something of the whole path."""
    return sum((k + 1) * mu.integrate(lambda x: x.sin().sum(-1)) for k, mu in enumerate(path))


GRADIENTS = [pf.flows.Backprop(), pf.flows.Backprop(checkpoint=7), pf.flows.Adjoint()]


@pytest.mark.parametrize("name", ["softmax", "sinkhorn", "pairwise", "layers", "dopri5"])
def test_gradients_of_a_path_functional(name):
    """Backprop, checkpointing, the adjoint and finite differences agree."""
    torch.manual_seed(12)
    solver = pf.Dopri5(1e-11) if name == "dopri5" else pf.RK4(20 if name == "sinkhorn" else 40)
    rate = torch.nn.Linear(2, 2, bias=False)
    field = {
        "softmax": softmax_field,
        "dopri5": softmax_field,
        "sinkhorn": lambda: softmax_field(normaliser=pf.Sinkhorn(tol=1e-13)),
        "pairwise": lambda: pf.fields.Pairwise(_Module(rate)),
        "layers": lambda: pf.fields.Layers([softmax_field(), softmax_field()]),
    }[name]()
    atoms, logs = torch.randn(5, 2), torch.randn(5)
    inputs = (atoms, logs, *field.parameters())

    def value(gradients):
        x, a = atoms.clone().requires_grad_(), logs.clone().requires_grad_()
        mu = pf.Measure(x, log_weights=a.log_softmax(0))
        G = pf.Flow(field, t1=1.0, solver=solver, gradients=gradients)
        path = G.path(mu, save=4)
        loss = functional(path)
        return loss, torch.autograd.grad(loss, (x, a, *field.parameters()))

    results = [value(g) for g in GRADIENTS]
    for _, found in results[1:]:
        for a, b in zip(results[0][1], found, strict=True):
            assert worst(a, b) < 1e-7
    with torch.no_grad():
        for k, (tensor, grad) in enumerate(zip(inputs, results[0][1], strict=True)):
            way = torch.randn_like(tensor)
            values = []
            for h in (1e-5, -1e-5):
                tensor.add_(h * way)
                with torch.enable_grad():
                    values.append(value(pf.flows.Backprop())[0].item())
                tensor.sub_(h * way)
            slope = (values[0] - values[1]) / 2e-5
            assert abs(slope - (grad * way).sum()) < 1e-6 * max(1, abs(slope)), k


class _Module(torch.nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x, y):
        return torch.tanh(self.rate(y - x))


def test_gradients_on_the_sphere():
    """Tangent parts of backprop and adjoint agree."""
    field = softmax_field(3, 1.0, manifold=pf.Sphere())
    start = sphere_cloud(6).atoms
    found = []
    for gradients in (pf.flows.Backprop(), pf.flows.Adjoint()):
        x = start.clone().requires_grad_()
        out = (
            pf.Flow(field, t1=1.0, solver=pf.RK4(60), gradients=gradients)
            .push(pf.Measure(x))
            .atoms
        )
        (g,) = torch.autograd.grad((out * torch.linspace(0, 1, 18).view(6, 3)).sum(), x)
        found.append(pf.Sphere().tangent(start, g))
    assert worst(*found) < 1e-7


def test_gradients_of_queries():
    """Also through the curried map, whose context is done once."""
    field, mu = softmax_field(), measure(6)
    x = torch.randn(3, 2, requires_grad=True)
    grads = []
    for gradients in GRADIENTS:
        G = pf.Flow(field, t1=1.0, solver=pf.RK4(50), gradients=gradients)
        for call in (lambda x, G=G: G(mu, x), G.at(mu)):
            grads.append(torch.autograd.grad(call(x).sin().sum(), (x, field.V)))
    for other in grads[1:]:
        assert worst(other[0], grads[0][0]) < 1e-8 and worst(other[1], grads[0][1]) < 1e-8


def test_the_adjoint_of_a_constant_field():
    x = torch.randn(4, 2, requires_grad=True)
    field = pf.Pointwise(torch.ones_like)
    G = pf.Flow(field, t1=1.0, solver=pf.RK4(3), gradients=pf.flows.Adjoint())
    G.push(pf.Measure(x)).atoms.sum().backward()
    assert worst(x.grad, torch.ones(4, 2)) < 1e-15
