"""Solvers: declared orders, adaptive errors, dense output, and what they report."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from cases import measure, worst
from flow_cases import end, same_everywhere, softmax_field, sphere_cloud

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


ORDER_FIELDS = {
    "softmax": lambda: softmax_field(scale=0.9),
    "sphere": lambda: softmax_field(3, 1.0, manifold=pf.Sphere()),
    "kuramoto": lambda: pf.fields.Kuramoto(2.0, dim=2),
    "cucker-smale": lambda: pf.fields.CuckerSmale(),
}


@pytest.mark.parametrize("name", ORDER_FIELDS)
@pytest.mark.parametrize("solver", [pf.Euler(1), pf.flows.Midpoint(1), pf.RK4(1)], ids=repr)
def test_order_is_the_declared_one(name, solver):
    """Within 0.1, from 64 to 128 and from 128 to 256 steps, where errors are in range."""
    torch.manual_seed(0)
    field = ORDER_FIELDS[name]()
    mu = sphere_cloud() if name == "sphere" else measure(10)
    t1 = 0.15 if solver.order == 1 else 1.0
    truth = end(field, mu, pf.RK4(2048), t1).atoms
    errors = [
        worst(end(field, mu, replace(solver, steps=n), t1).atoms, truth) for n in (64, 128, 256)
    ]
    seen = 0
    for coarse, fine in itertools.pairwise(errors):
        if 1e-11 <= fine and coarse <= 1e-3:
            seen += 1
            assert abs(math.log2(coarse / fine) - solver.order) < 0.1, errors
    assert seen, errors


def test_order_with_sinkhorn():
    """Potentials to 1e-12, predicted from stage to stage, leave the order as it is."""
    torch.manual_seed(0)
    field = softmax_field(scale=0.9, normaliser=pf.Sinkhorn(tol=1e-12))
    mu = measure(6)
    truth = end(field, mu, pf.RK4(256)).atoms
    errors = [worst(end(field, mu, pf.flows.Midpoint(n)).atoms, truth) for n in (16, 32)]
    assert abs(math.log2(errors[0] / errors[1]) - 2) < 0.1


def test_order_with_time_dependent_parameters():
    """Parameters move with time; RK4 sees it at its stages."""
    make = lambda: pf.fields.Layers([softmax_field(scale=0.8) for _ in range(2)], t1=4.0)
    field = same_everywhere(make)  # one linear piece on [0, 2]
    mu = same_everywhere(lambda: measure(8))
    truth = end(field, mu, pf.RK4(1024), 1.9).atoms
    for solver in (pf.flows.Midpoint(1), pf.RK4(1)):
        errors = [worst(end(field, mu, replace(solver, steps=n), 1.9).atoms, truth)
                  for n in (64, 128)]  # fmt: skip
        assert abs(math.log2(errors[0] / errors[1]) - solver.order) < 0.1


def test_adaptive_error_falls_with_the_tolerance():
    torch.manual_seed(0)
    field, mu = softmax_field(scale=0.9), measure(10)
    truth = end(field, mu, pf.RK4(4096), 2.0).atoms
    logs = []
    for k in range(4, 11):
        error = worst(end(field, mu, pf.Dopri5(10.0**-k), 2.0).atoms, truth)
        logs.append((-k * math.log(10), math.log(error)))
    x, y = torch.tensor(logs).T
    slope = ((x - x.mean()) * y).sum() / (x - x.mean()).square().sum()
    assert abs(slope - 1) < 0.15
    assert ((y - x).exp() < 100).all()  # never far above what was asked for


def test_dense_output():
    """Many saved times cost no accuracy to speak of, and restarts give the same."""
    field, mu = softmax_field(scale=0.9), measure(8)
    path = pf.flow(field, mu, t1=1.0, solver=pf.Dopri5(1e-9), save=[0.1, 0.37, 0.9])
    assert path.times.tolist() == [0.0, 0.1, 0.37, 0.9, 1.0]
    for t, at in zip(path.times.tolist()[1:], list(path)[1:], strict=True):
        assert worst(at, end(field, mu, pf.RK4(512), t)) < 1e-7


def test_blow_up_is_reported():
    """Where, when and which atom, with fixed and adaptive steps."""
    field = pf.Pointwise(lambda x: x.square())  # 1/x falls by t: the largest blows up first
    mu = pf.Measure(torch.tensor([[0.5], [2.0], [1.0]]))
    for solver in (pf.RK4(50), pf.Dopri5(1e-6)):
        with pytest.raises(pf.flows.FlowError, match="atom 1") as caught:
            pf.flow(field, mu, t1=1.5, solver=solver)
        assert caught.value.atom == (1,) and 0.3 < caught.value.time < 0.75
        assert caught.value.atoms.isfinite().all()
    with pytest.raises(pf.flows.FlowError, match=r"atom \(1, 0\)"):
        pf.flow(field, pf.Measure(torch.tensor([[[0.1]], [[3.0]]])), t1=1.0, solver=pf.RK4(50))
    with pytest.raises(pf.flows.FlowError, match="of the queries"):
        pf.flow(field, mu, t1=0.3, solver=pf.RK4(50), queries=torch.tensor([[40.0]]))


def test_stiffness_is_reported():
    field = pf.Pointwise(lambda x: -1e6 * (x - 1))
    with pytest.raises(pf.flows.FlowError, match="within 50 steps"):
        pf.flow(field, pf.Measure(torch.zeros(2, 1)), t1=1.0, solver=pf.Dopri5(1e-6, max_steps=50))


def test_an_assertion_of_the_field_is_its_own():
    def wrong(x):
        raise AssertionError("mine")

    with pytest.raises(AssertionError, match="mine"):
        pf.flow(pf.Pointwise(wrong), measure(3), t1=1.0, solver=pf.Dopri5())


class Ralston(pf.flows.RungeKutta):
    """A method of a user: a tableau and nothing else."""

    order = 2
    nodes = (0.0, 2 / 3)
    rows = ((), (2 / 3,))
    weights = (1 / 4, 3 / 4)


def test_a_tableau_makes_a_solver():
    torch.manual_seed(0)
    field, mu = softmax_field(scale=0.9), measure(6)
    truth = end(field, mu, pf.RK4(512)).atoms
    errors = [worst(end(field, mu, Ralston(n)).atoms, truth) for n in (32, 64)]
    assert abs(math.log2(errors[0] / errors[1]) - 2) < 0.1
