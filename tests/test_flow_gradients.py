"""Gradients of flows: through the steps, recomputed, by the adjoint."""

from functools import cache

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


class _Swaying(pf.fields.TimeDependent):
    """A field whose strength is a smooth function of time and a parameter."""

    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(1.3))
        self.matrix = torch.nn.Parameter(torch.randn(2, 2))

    def at_time(self, t):
        return pf.Pointwise(lambda x: torch.sin(self.rate * t) * torch.tanh(x @ self.matrix))


SOLVERS = [pf.Euler(64), pf.flows.Midpoint(32), pf.RK4(16), pf.flows.LieSplit(64), pf.Dopri5(1e-8)]
PROBLEMS = {
    "autonomous": lambda: pf.fields.Sum(softmax_field(), pf.MLP(2, 4)),
    "layers": lambda: pf.fields.of_transformer(pf.Transformer(2, depth=4, step=0.25)),
    "swaying": lambda: pf.fields.Sum(_Swaying(), softmax_field()),
    "sphere": lambda: pf.fields.Sum(
        *(softmax_field(3, 1.0, manifold=pf.Sphere()) for _ in range(2))
    ),
    "torus": lambda: pf.fields.Sum(
        *(pf.fields.Pairwise(_Wave(), manifold=pf.Torus()) for _ in range(2))
    ),
}


@cache
def problem(name):
    """A field, points, and a function of points, parameters and a solver; its slopes in some ways.

    The slopes are differences of an accurate solution, which knows nothing of gradients.
    """
    torch.manual_seed(3)
    field, start = PROBLEMS[name](), torch.randn(5, 3 if name == "sphere" else 2)
    way, parameters = torch.randn_like(start), list(field.parameters())
    retract = field.manifold.retract

    def value(solver, gradients, x):
        G = pf.Flow(field, t1=1.0, solver=solver, gradients=gradients)
        return (G.push(pf.Measure(retract(x))).atoms.sin() * way).sum()

    def accurate():
        return value(pf.RK4(100), pf.flows.Backprop(), start).item()

    found, h = [], 1e-5
    with torch.no_grad():
        exact = accurate()
        for tensors in ([start], parameters, parameters[-1:]):
            moves, ends = [torch.randn_like(p) for p in tensors], []
            for step in (h, -2 * h):
                for p, move in zip(tensors, moves, strict=True):
                    p.add_(step * move)
                ends.append(accurate())
            for p, move in zip(tensors, moves, strict=True):
                p.add_(h * move)
            found.append((tensors, moves, (ends[0] - ends[1]) / (2 * h)))
    return start, value, exact, found


@pytest.mark.parametrize("gradients", GRADIENTS, ids=repr)
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_as_accurate_as_the_solver(name, solver, gradients):
    """Of atoms and parameters, against differences of a solution with 100 steps of RK4.

    An error e of the values is a smooth function of what is differentiated, so that its
    derivative is a moderate multiple of e; differences add h^2.
    """
    if gradients.adjoint and solver.splits:
        pytest.skip("a split has no continuous adjoint")
    start, value, exact, differences = problem(name)
    x = start.clone().requires_grad_()
    found = value(solver, gradients, x)
    error = max(abs(found.item() - exact), solver_error(solver))
    for tensors, moves, slope in differences:
        inputs = [x if p is start else p for p in tensors]
        grads = torch.autograd.grad(found, inputs, retain_graph=True)
        got = sum((g * move).sum().item() for g, move in zip(grads, moves, strict=True))
        assert abs(got - slope) < 30 * error + 1e-7 * max(1, abs(slope)), (got, slope, error)


def solver_error(solver):
    """What a solver promises on times and slopes of order one, if its error vanishes by chance."""
    return solver.rtol if isinstance(solver, pf.Dopri5) else 0.2 * solver.steps**-solver.order


class _Wave(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Linear(2, 2)

    def forward(self, x, y):
        return self.rate(torch.sin(y - x))


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
