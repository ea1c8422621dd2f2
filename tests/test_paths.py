"""Paths: which times are saved, and what is measured along them."""

import pytest
import torch
from cases import measure
from flow_cases import softmax_field

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


def test_saved_times():
    field, mu = softmax_field(), measure(5)
    path = pf.flow(field, mu, t1=1.0, solver=pf.RK4(10), save=[0.3, 0.5])
    assert path.times.tolist() == pytest.approx([0, 0.3, 0.5, 1.0]) and len(path) == 4
    assert torch.equal(path[0].atoms, mu.atoms)
    every = pf.flow(field, mu, t1=1.0, solver=pf.RK4(10), save=10)
    assert torch.equal(every[3].atoms, path[1].atoms) and torch.equal(
        path[-1].atoms, every[-1].atoms
    )
    assert len(pf.flow(field, mu, t1=1.0, solver=pf.RK4(10), save=4)) == 5
    assert len(pf.flow(field, mu, t1=1.0, solver=pf.RK4(10))) == 2


def test_ways_to_save():
    import numpy as np

    field, mu = softmax_field(), measure(4)
    four = pf.RK4(np.int64(4))
    run = lambda save, solver=four: pf.flow(field, mu, t1=1.0, solver=solver, save=save)
    assert len(run(np.int64(2))) == 3 and len(run(torch.tensor([0.25, 0.5]))) == 4
    assert len(run([0.5, 0.5], pf.Dopri5())) == 3
    assert run(run(4).times).times.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_flow_is_a_shorthand_for_the_path_of_a_flow():
    field, mu, x = softmax_field(), measure(5), torch.randn(2, 2)
    short = pf.flow(field, mu, t0=0.5, t1=1.0, solver=pf.RK4(4), save=2, queries=x)
    path = pf.Flow(field, t0=0.5, t1=1.0, solver=pf.RK4(4)).path(mu, save=2, queries=x)
    assert torch.equal(short.queries, path.queries) and torch.equal(short.times, path.times)
    assert all(torch.equal(a.atoms, b.atoms) for a, b in zip(short, path, strict=True))


@pytest.mark.parametrize("wrap", [
    lambda f: f, lambda f: pf.fields.Sum(f), lambda f: pf.fields.Layers([f, f]),
    lambda f: pf.fields.Tangent(f, pf.flows.Euclidean()),
], ids=["alone", "sum", "layers", "tangent"])  # fmt: skip
def test_diameters_of_second_order_fields_are_those_of_positions(wrap):
    """Tokens (x, v) with |x - y| = 1 and |v - w| = 10, also inside other fields."""
    mu = pf.Measure(torch.tensor([[0.0, 10.0], [1.0, 0.0]]))
    path = pf.flow(wrap(pf.fields.CuckerSmale()), mu, t1=1e-6, solver=pf.Euler(1))
    assert abs(path.diameter()[0] - 1) < 1e-15 and abs(path.velocity_diameter()[0] - 10) < 1e-15
