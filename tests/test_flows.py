"""Flows as in-context maps: networks they equal, queries, batches, Sinkhorn potentials, errors."""

import pytest
import torch
from cases import measure, worst
from flow_cases import I2, end, softmax_field, sphere_cloud

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


@pytest.mark.parametrize("depth", [1, 3, 7, 10])
def test_euler_is_the_weight_tied_residual_network(depth):
    """Bit for bit, for any number of layers, queries included."""
    field = pf.Attention(2, heads=2)
    mu, x = measure(9), torch.randn(4, 2)
    net = pf.Compose(*[pf.Residual(field, step=1.0 / depth)] * depth)
    G = pf.Flow(field, t1=1.0, solver=pf.Euler(steps=depth))
    assert torch.equal(G.push(mu).atoms, net.push(mu).atoms)
    assert torch.equal(G(mu, x), net(mu, x))
    assert torch.equal(pf.flow(field, mu, t1=1.0, solver=pf.Euler(steps=depth))[-1].atoms,
                       net.push(mu).atoms)  # fmt: skip


@pytest.mark.parametrize("norm", [None, pf.PreNorm()])
def test_lie_splitting_is_the_transformer(norm):
    model = pf.Transformer(2, depth=5, heads=2, hidden=7, step=0.3, block=pf.Block(norm=norm))
    mu, x = measure(9), torch.randn(4, 2)
    field = pf.fields.of_transformer(model)
    G = pf.Flow(field, t1=1.5, solver=pf.flows.LieSplit(steps=5))
    assert worst(G.push(mu), model.push(mu)) < 1e-15
    assert worst(G(mu, x), model(mu, x)) < 1e-15
    assert worst(G.at(mu)(x), model(mu, x)) < 1e-15
    path = pf.flow(field, mu, t1=1.5, solver=pf.flows.LieSplit(steps=5), queries=x)
    assert worst(path.queries[-1], model(mu, x)) < 1e-15


SOLVERS = [pf.Euler(5), pf.flows.Midpoint(5), pf.RK4(5), pf.Dopri5(1e-6)]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.Sinkhorn(tol=1e-7)], ids=repr)
def test_queries_do_not_change_the_atoms(solver, normaliser, tmp_path):
    field, mu = softmax_field(normaliser=normaliser), measure(9)
    x = pf.Measure(3 * torch.randn(3, 2))
    for folders in ((None, None), (tmp_path / "alone", tmp_path / "together")):
        alone = pf.flow(field, mu, t1=1.0, solver=solver, save=5, folder=folders[0])
        together = pf.flow(field, mu, t1=1.0, solver=solver, save=5, queries=x, folder=folders[1])
        for a, b in zip(alone, together, strict=True):
            assert torch.equal(a.atoms, b.atoms)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_queries_follow_the_characteristics(solver):
    """A query that begins at an atom stays with it; others see the same field."""
    field, mu = softmax_field(), measure(9)
    x = torch.cat([mu.atoms[2:4], torch.randn(3, 2)])
    G = pf.Flow(field, t1=1.0, solver=solver)
    y = G(mu, x)
    tol = 1e-5 if isinstance(solver, pf.Dopri5) else 1e-14
    assert worst(y[:2], G.push(mu).atoms[2:4]) < tol
    ghosts = pf.Measure(torch.cat([mu.atoms, x]), log_weights=torch.cat([
        mu.log_weights, torch.full((5,), -200.0)]))  # fmt: skip
    assert worst(y, G.push(ghosts).atoms[mu.n :]) < tol


def test_a_skip_in_a_field_is_said():
    for field in (pf.Residual(pf.Attention(2)), pf.Transformer(2, depth=1)):
        with pytest.warns(UserWarning, match="returns the new point, not a velocity"):
            pf.Flow(field, t1=1.0)


def test_a_flow_runs_backwards_with_adaptive_steps():
    field, mu = softmax_field(), measure(9)
    there = pf.Flow(field, t1=1.0, solver=pf.RK4(64)).push(mu)
    back = pf.Flow(field, t0=1.0, t1=0.0, solver=pf.Dopri5(1e-10)).push(there)
    assert worst(back, mu) < 1e-8


def test_two_sided_queries():
    """A measure of queries has potentials of its own, and moves as the same composition does."""
    field = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-13))
    mu, nu = measure(9), measure(5)
    G = pf.Flow(field, t1=0.6, solver=pf.Euler(3))
    net = pf.Compose(*[pf.Residual(field, step=0.2)] * 3)
    assert worst(G(mu, nu), net(mu, nu)) < 1e-11
    assert worst(pf.flow(field, mu, t1=0.6, solver=pf.Euler(3), queries=nu).queries[-1],
                 net(mu, nu)) < 1e-11  # fmt: skip


def test_batched_context_and_one_measure_of_queries():
    field = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-12))
    parts, nu = [measure(5), measure(5)], measure(3)
    G = pf.Flow(field, t1=0.5, solver=pf.Euler(2))
    both = G(pf.Measure.stack(parts), nu)
    assert worst(both[1], G(parts[1], nu)) < 1e-10


FLOWS = {
    "softmax": lambda: softmax_field(),
    "sphere": lambda: softmax_field(2, manifold=pf.Sphere()),
    "sinkhorn": lambda: softmax_field(normaliser=pf.Sinkhorn(tol=1e-14)),
    "hardmax": lambda: softmax_field(normaliser=pf.relations.Hardmax()),
    "unnormalised": lambda: softmax_field(normaliser=pf.relations.Exponential()),
    "pairwise": lambda: pf.fields.Pairwise(lambda x, y: torch.tanh(y - x)),
    "cucker-smale": lambda: pf.fields.CuckerSmale(),
}


@pytest.mark.parametrize("solver", [pf.RK4(8), pf.Dopri5(1e-10)], ids=repr)
@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.filterwarnings("ignore:Sinkhorn stopped")
def test_splitting_atoms_changes_nothing(name, solver):
    torch.manual_seed(9)
    field, mu = FLOWS[name](), measure(7).normalise()
    if name == "sphere":
        mu = mu.push(pf.Sphere().retract)
    if name == "hardmax" and isinstance(solver, pf.Dopri5):
        pytest.skip("a discontinuous field")
    doubled = pf.Measure(torch.cat([mu.atoms, mu.atoms[:3]]), torch.cat([
        mu.weights[:3] * 0.25, mu.weights[3:], mu.weights[:3] * 0.75]))  # fmt: skip
    a, b = end(field, mu, solver), end(field, doubled, solver)
    assert worst(b.atoms[:7], a.atoms) < 1e-12 and worst(b.atoms[7:], a.atoms[:3]) < 1e-12
    order = torch.randperm(7)
    shuffled = pf.Measure(mu.atoms[order], mu.weights[order])
    assert worst(end(field, shuffled, solver).atoms, a.atoms[order]) < 1e-12


def test_order_on_the_line_is_kept():
    mu = pf.Measure(torch.randn(30, 1).sort(0).values)
    one = torch.eye(1)
    path = pf.flow(pf.fields.SelfAttention(-one, one, 2 * one), mu, t1=3.0, save=50)
    assert all((m.atoms[:, 0].diff() > 0).all() for m in path)


def test_batches_of_flows():
    parts = [measure(5), measure(7)]
    batch = pf.Measure.stack(parts)
    field = softmax_field()
    moved = end(field, batch, pf.RK4(6))
    for k, part in enumerate(parts):
        assert worst(moved[k], end(field, part, pf.RK4(6))) < 1e-14
    x = torch.randn(3, 2)
    G = pf.Flow(field, t1=1.0, solver=pf.RK4(6))
    assert worst(G(batch, x)[1], G(parts[1], x)) < 1e-14


def total_steps(field, mu, history, solver, t1=1.0):
    from pushforward.flows._dynamics import Characteristics
    from pushforward.sinkhorn import PotentialHistory

    dynamics = Characteristics(field, mu, history=PotentialHistory(history))
    grid = solver.grid(0.0, t1, 1)
    with torch.no_grad():
        *_, state = solver.solve(dynamics, dynamics.start(), grid, 0, grid.last)
    return dynamics.history.steps, state[0]


@pytest.mark.parametrize("solver", [pf.Euler(100), pf.RK4(100)], ids=repr)
def test_predicted_potentials_save_steps(solver):
    """At 1e-6 at most a quarter of the cold start's steps; the same flow within the tolerance."""
    torch.manual_seed(13)
    Q = 1.5 * I2()
    field = pf.fields.SelfAttention(Q, Q, -I2(), normaliser=pf.Sinkhorn(tol=1e-6))
    mu = pf.Measure(torch.randn(60, 2))
    cold, a = total_steps(field, mu, 0, solver)
    warm, b = total_steps(field, mu, 1, solver)
    predicted, c = total_steps(field, mu, 4, solver)
    assert predicted <= 0.25 * cold and predicted < warm < cold, (cold, warm, predicted)
    assert worst(a, b) < 1e-5 and worst(a, c) < 1e-5
    path = pf.flow(field, mu, t1=1.0, solver=solver)
    assert path.sinkhorn_steps == predicted and torch.equal(path[-1].atoms, c)


def test_functions_keep_their_tensors_beside_sinkhorn():
    """Fields with potentials to predict are copied, what their functions hold is not."""

    class Pull:
        def __init__(self):
            self.rate = torch.tensor(0.3, requires_grad=True)

        def __call__(self, x, y):
            return self.rate * (y - x)

    pull = Pull()
    attention = softmax_field(normaliser=pf.Sinkhorn(tol=1e-8))
    field = pf.fields.Sum(pf.fields.Pairwise(pull), attention)
    end(field, measure(5), pf.Euler(3)).atoms.sum().backward()
    assert pull.rate.grad is not None and pull.rate.grad != 0


def test_curried_flows_say_what_goes_wrong():
    with torch.no_grad():
        G = pf.Flow(pf.Pointwise(torch.square), t1=1.0, solver=pf.RK4(20))
        with pytest.raises(pf.flows.FlowError, match="of the queries"):
            G.at(pf.Measure(torch.zeros(2, 1)))(torch.full((1, 1), 30.0))
        on = pf.Flow(softmax_field(3, manifold=pf.Sphere()), t1=1.0)
        with pytest.raises(ValueError, match="must lie on the sphere"):
            on.at(sphere_cloud())(torch.ones(2, 3))


def test_relations_of_a_flow_are_those_of_its_field_at_the_beginning():
    layers, mu = [pf.Attention(2, heads=3) for _ in range(2)], measure(6)
    G = pf.Flow(pf.fields.Layers(layers), t0=0.5, t1=1.0, solver=pf.Euler(2))
    (found,) = G.relations(mu)
    assert worst(found.matrix(), layers[1].relation(mu).matrix()) == 0
    both = (pf.Residual(layers[0]) @ G).relations(mu)
    assert len(both) == 2
    assert worst(both[1].matrix(), layers[0].relation(G.push(mu)).matrix()) < 1e-14
