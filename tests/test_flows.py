"""Flows against closed forms, declared orders, invariants and each other."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from cases import measure, worst

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked

I2 = lambda: torch.eye(2)


def softmax_field(d=2, scale=0.4, **options):
    matrices = (torch.nn.Parameter(scale * torch.randn(d, d)) for _ in range(3))
    return pf.fields.SelfAttention(*matrices, **options)


def sphere_cloud(n=12, d=3):
    return pf.Measure(torch.randn(n, d)).push(pf.Sphere().retract)


def same_everywhere(make):
    """What `make` draws, with the same numbers on every device."""
    device = torch.get_default_device()
    with torch.device("cpu"):
        torch.manual_seed(0)
        return make().to(device)


def end(field, mu, solver, t1=1.0, **options):
    return pf.flow(field, mu, t1=t1, solver=solver, **options)[-1]


# What a flow is


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
        with pytest.warns(UserWarning, match="adds the point itself"):
            pf.Flow(field, t1=1.0)


def test_a_flow_composes():
    """Flowing to 1/2 and on to 1 is flowing to 1."""
    field, mu = softmax_field(), measure(9)
    whole = pf.Flow(field, t1=1.0, solver=pf.RK4(8))
    first = pf.Flow(field, t1=0.5, solver=pf.RK4(4))
    second = pf.Flow(field, t0=0.5, t1=1.0, solver=pf.RK4(4))
    assert worst((second @ first).push(mu), whole.push(mu)) < 1e-15


def test_a_flow_runs_backwards():
    field, mu = softmax_field(), measure(9)
    there = pf.Flow(field, t1=1.0, solver=pf.RK4(64)).push(mu)
    back = pf.Flow(field, t0=1.0, t1=0.0, solver=pf.RK4(64)).push(there)
    assert worst(back, mu) < 1e-8
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


# Solvers


def time_dependent(n=6):
    return pf.fields.Layers([softmax_field(scale=0.7) for _ in range(n)], t1=1e9)


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


def test_order_of_splitting():
    torch.manual_seed(0)
    field = pf.fields.Sum(softmax_field(scale=0.9), pf.MLP(2, 8))
    mu = measure(10)
    truth = end(field, mu, pf.RK4(2048)).atoms
    errors = [worst(end(field, mu, pf.flows.LieSplit(n)).atoms, truth) for n in (64, 128, 256)]
    for coarse, fine in itertools.pairwise(errors):
        assert abs(math.log2(coarse / fine) - 1) < 0.1


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


def test_euler_halves_its_error():
    """Experiment E8: ratio 2.0 within 0.1 from 32 to 64 and from 64 to 128 layers."""
    field, mu = same_everywhere(lambda: softmax_field(scale=0.8)), measure(20)
    study = pf.flows.depth_study(field, mu, depths=[8, 16, 32, 64, 128])
    assert all(abs(r - 2) < 0.1 for r in study.ratios[2:]), study
    assert all(1.8 < r < 2.35 for r in study.ratios[:2]), study
    assert abs(study.rate + 1) < 0.05 and "rate -" in str(study)


# Exact solutions


GAUSSIAN = {
    "softmax": dict(),
    "squared distance": dict(affinity=pf.SquaredDistance(2.0)),
    "sinkhorn": dict(normaliser=pf.Sinkhorn(tol=1e-15)),
    "linear": dict(normaliser=pf.relations.Bilinear()),
}


def gaussian_problem(d=2):
    """Matrices small enough for the nodes to resolve the integrals."""
    Q, K, V = (0.5 * torch.randn(3, d, d)).unbind(0)
    return Q, K, V, 0.3 * torch.randn(d), 0.15 * torch.eye(d) + 0.02


@pytest.mark.parametrize("solver", [pf.Euler(10), pf.flows.Midpoint(10), pf.RK4(10)], ids=repr)
@pytest.mark.parametrize("name", GAUSSIAN)
@pytest.mark.filterwarnings("ignore:Sinkhorn stopped")  # a tolerance below rounding
def test_gaussians_follow_the_recursions(name, solver):
    """Rows 1, 5, 6, 8 (E11): weighted Gauss-Hermite tokens are the mean-field limit, 1e-12."""
    torch.manual_seed(1)
    Q, K, V, mean, cov = gaussian_problem()
    field = pf.fields.SelfAttention(Q, K, V, **GAUSSIAN[name])
    mu = pf.Measure.gaussian(mean, cov, order=20)
    limit = pf.flows.gaussian(field, mean, cov, t1=1.0, solver=solver, save=10)
    path = pf.flow(field, mu, t1=1.0, solver=solver, save=10, queries=torch.ones(1, 2))
    means, covs = path.moments()
    assert worst(means, limit.means) < 1e-12 and worst(covs, limit.covariances) < 1e-12
    assert worst(path.queries, limit(torch.ones(1, 2))) < 1e-11


def test_softmax_gaussian_layer_by_hand():
    """Row 1: M = I + hV Sigma A, alpha' = M alpha + hV alpha, Sigma' = M Sigma M^T."""
    Q, K, V, mean, cov = gaussian_problem()
    A, h = K.mT @ Q, 0.1
    path = pf.flows.gaussian(
        pf.fields.SelfAttention(Q, K, V), mean, cov, t1=1.0, solver=pf.Euler(10)
    )
    for _ in range(10):
        M = I2() + h * V @ cov @ A
        mean, cov = M @ mean + h * V @ mean, M @ cov @ M.mT
    assert worst(path.means[-1], mean) < 1e-14 and worst(path.covariances[-1], cov) < 1e-14


@pytest.mark.parametrize("kind", ["any", "skew"])
def test_softmax_gaussian_flow_in_closed_form(kind):
    """Rows 2 and 3, V = vI."""
    torch.manual_seed(2)
    A, v, t = 0.5 * torch.randn(2, 2), 0.7, 0.6
    A = A - A.mT if kind == "skew" else A
    mean, cov = torch.tensor([0.3, -0.5]), 0.4 * I2() + 0.1
    field = pf.fields.SelfAttention(A, I2(), v * I2())
    path = pf.flows.gaussian(field, mean, cov, t1=t, solver=pf.Dopri5(1e-13, 1e-15))
    exact = torch.linalg.inv(torch.linalg.inv(cov) - v * t * (A + A.mT))
    assert worst(path.covariances[-1], exact) < 1e-11
    if kind == "skew":
        assert worst(path.covariances[-1], cov) < 1e-11
        moved = torch.linalg.matrix_exp(v * t * (I2() + cov @ A)) @ mean
        assert worst(path.means[-1], moved) < 1e-11


def test_softmax_gaussian_flow_on_the_line():
    """Row 4, particles and limit, up to near the blow-up at 1/(2vaS)."""
    v, a, S, m, one = 0.8, 0.6, 0.5, 0.4, torch.eye(1)
    field = pf.fields.SelfAttention(a * one, one, v * one)
    t = 0.6 / (2 * v * a * S)
    S_t = S / (1 - 2 * v * a * S * t)
    m_t = m * math.exp(v * t) * (1 - 2 * v * a * S * t) ** -0.5
    limit = pf.flows.gaussian(field, m * one[0], S * one, t1=t, solver=pf.RK4(2000))
    assert abs(limit.covariances[-1].item() - S_t) < 1e-11
    assert abs(limit.means[-1].item() - m_t) < 1e-11
    past = lambda solver: pf.flows.gaussian(field, m * one[0], S * one, t1=2 * t, solver=solver)
    with pytest.raises(pf.flows.FlowError, match="Worst is atom") as caught:
        past(pf.Dopri5(1e-8))
    assert abs(caught.value.time - t / 0.6) < 1e-2 * t


def test_squared_distance_keeps_the_mean_direction():
    """Row 5 with Q = K: the mean follows exp(Vt)."""
    torch.manual_seed(3)
    Q, V = 0.6 * torch.randn(2, 2), 0.5 * torch.randn(2, 2)
    mean, cov = torch.tensor([0.3, -0.5]), 0.4 * I2() + 0.1
    field = pf.fields.SelfAttention(Q, Q, V, affinity=pf.SquaredDistance(2.0))
    path = pf.flows.gaussian(field, mean, cov, t1=1.0, solver=pf.RK4(200))
    assert worst(path.means[-1], torch.linalg.matrix_exp(V) @ mean) < 1e-10


def test_linear_attention_on_any_cloud():
    """Row 8, V = vI, A = aI: x(t) = (I - 2vat M)^(-1/2) x(0)."""
    torch.manual_seed(4)
    mu = measure(7).normalise()
    v, a, t = 0.5, 0.3, 0.2
    M = torch.einsum("n,ni,nj->ij", mu.weights, mu.atoms, mu.atoms)
    values, vectors = torch.linalg.eigh(I2() - 2 * v * a * t * M)
    exact = mu.atoms @ (vectors / values.sqrt()) @ vectors.mT
    field = pf.fields.SelfAttention(a * I2(), I2(), v * I2(), normaliser=pf.relations.Bilinear())
    assert worst(end(field, mu, pf.RK4(400), t).atoms, exact) < 1e-11


@pytest.mark.parametrize("normaliser, share", [(pf.Softmax(), 1.0), (pf.Sinkhorn(tol=1e-13), 0.5)])
def test_small_bandwidth_is_the_score(normaliser, share):
    """Row 10: (m - x)/eps tends to grad log rho, or half of it."""
    S, errors = 0.8, []
    for eps in (0.2, 0.1, 0.05):
        mu = pf.Measure.grid(-7.0, 7.0, size=1400)
        mu = pf.Measure(mu.atoms, (-mu.atoms[:, 0].square() / (2 * S)).softmax(0))
        one, x = torch.eye(1), torch.tensor([[0.5]])
        field = pf.fields.SelfAttention(
            one, one, one, affinity=pf.SquaredDistance(2 * eps), normaliser=normaliser
        )
        step = (field(mu, x) - x) / eps
        errors.append(abs(step.item() + share * 0.5 / S))
    assert errors[-1] < 0.05 and errors[0] / errors[1] > 1.7 and errors[1] / errors[2] > 1.7


def test_linear_vlasov():
    """Row 20: e^{At}(x - m) + e^{(A+B)t} m, atoms and queries."""
    A, B, t = 0.7 * torch.randn(2, 2), 0.7 * torch.randn(2, 2), 0.8
    mu, x = measure(8), torch.randn(3, 2)
    m, exp = mu.mean(), torch.linalg.matrix_exp
    G = pf.Flow(pf.fields.Linear(A, B), t1=t, solver=pf.RK4(400))
    exact = lambda z: (z - m) @ exp(A * t).mT + exp((A + B) * t) @ m
    assert worst(G.push(mu).atoms, exact(mu.atoms)) < 1e-10
    assert worst(G(mu, x), exact(x)) < 1e-10
    limit = pf.flows.gaussian(pf.fields.Linear(A, B), m, mu.covariance(), t1=t, solver=pf.RK4(400))
    assert worst(limit.covariances[-1], exp(A * t) @ mu.covariance() @ exp(A * t).mT) < 1e-10


def harmonic(w, d):
    """The matrices of the linear field on (x, v) with x'' = -w^2 (x - mean)."""
    zero, eye = torch.zeros(d, d), torch.eye(d)
    spring = torch.cat([torch.cat([zero, zero], 1), torch.cat([w**2 * eye, zero], 1)])
    drift = torch.cat([torch.cat([zero, eye], 1), torch.cat([zero, zero], 1)])
    return drift - spring, spring


def test_harmonic_vlasov():
    """Row 21."""
    mu, w, t = measure(8, 4).normalise(), 1.3, 1.1
    x, v = mu.atoms.chunk(2, -1)
    mx, mv = mu.mean().chunk(2)
    exact = mx + mv * t + (x - mx) * math.cos(w * t) + (v - mv) / w * math.sin(w * t)
    for field in (
        pf.fields.Linear(*harmonic(w, 2)),
        pf.fields.SecondOrder(pf.fields.Pairwise(lambda z, y: w**2 * (y - z)[..., :2])),
    ):
        assert worst(end(field, mu, pf.RK4(400), t).atoms[:, :2], exact) < 1e-9


def test_cucker_smale_with_constant_influence():
    """Row 22: closed form, and momentum constant to 1e-12."""
    k, t = 0.8, 1.5
    mu = measure(10, 4).normalise()
    field = pf.fields.CuckerSmale(lambda r: torch.full_like(r, k))
    path = pf.flow(field, mu, t1=t, solver=pf.RK4(400), save=10)
    x, v = mu.atoms.chunk(2, -1)
    mean = mu.mean()[2:]
    decay = math.exp(-k * t)
    assert worst(path[-1].atoms[:, 2:], mean + (v - mean) * decay) < 1e-10
    assert worst(path[-1].atoms[:, :2], x + mean * t + (v - mean) * (1 - decay) / k) < 1e-10
    assert (path.moments()[0][:, 2:] - mean).abs().max() < 1e-12


def flock(speed, exponent):
    """Two groups that fly apart; psi = (1 + r^2)^-exponent."""
    x = torch.randn(20, 1) * 0.1
    v = speed * torch.sign(torch.linspace(-1, 1, 20))[:, None]
    field = pf.fields.CuckerSmale(lambda r: (1 + r.square()) ** -exponent)
    mu = pf.Measure(torch.cat([x + v, v], -1))
    return field, mu


def test_flocking_on_both_sides_of_the_threshold():
    """Row 22 (E14): D_V falls, below its bound; flocks below the threshold, not far above."""
    torch.manual_seed(5)
    field, mu = flock(0.1, 1.0)
    path = pf.flow(field, mu, t1=30.0, solver=pf.RK4(600), save=100)
    DV, DX = path.velocity_diameter(), path.diameter()
    reserve = math.pi / 2 - math.atan(DX[0].item())  # the integral of psi beyond D_X(0)
    assert DV[0] < reserve  # the theorem applies
    assert (DV.diff() <= 1e-12).all() and DV[-1] < 1e-3 * DV[0]
    rate = 1 / (1 + DX.max().item() ** 2)
    assert (DV <= DV[0] * torch.exp(-rate * path.times) * (1 + 1e-9)).all()
    field, mu = flock(3.0, 1.0)
    path = pf.flow(field, mu, t1=30.0, solver=pf.RK4(600), save=10)
    assert path.velocity_diameter()[-1] > 0.5 * path.velocity_diameter()[0]


def equiangular(n, rho):
    """Unit vectors of pairwise product rho."""
    gram = torch.full((n, n), rho) + (1 - rho) * torch.eye(n)
    return pf.Measure(torch.linalg.cholesky(gram))


@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.relations.Exponential()], ids=repr)
def test_equiangular_points_on_the_sphere(normaliser):
    """Row 14 (E13): the angle's ODE, 1e-8, and the constraint to 1e-14."""
    n, beta, rho0, t1 = 7, 1.5, 0.1, 1.2
    eye = torch.eye(n)
    field = pf.fields.SelfAttention(
        beta * eye, eye, eye, normaliser=normaliser, manifold=pf.Sphere()
    )

    def rate(mu, x):
        e = torch.exp(beta * x)
        Z = math.exp(beta) + (n - 1) * e if normaliser == pf.Softmax() else n
        return 2 * e * (1 - x) * (1 + (n - 1) * x) / Z

    class Angle(pf.InContextMap):
        evaluate = lambda self, mu, x: rate(mu, x)

    rho = end(Angle(), pf.Measure(torch.tensor([[rho0]])), pf.RK4(800), t1).atoms.item()
    path = pf.flow(field, equiangular(n, rho0), t1=t1, solver=pf.RK4(800), save=10)
    x = path[-1].atoms
    off = (x @ x.mT)[~torch.eye(n, dtype=bool)]
    assert (off - rho).abs().max() < 1e-8
    radii = torch.stack([m.atoms.norm(dim=-1) for m in path])
    assert (radii - 1).abs().max() < 1e-14


@pytest.mark.parametrize("normaliser", [pf.Softmax(), pf.relations.Exponential()], ids=repr)
def test_energy_on_the_sphere(normaliser):
    """Row 15: E is its formula, and its rate the one of the theory."""
    torch.manual_seed(6)
    beta, mu, eye = 2.0, sphere_cloud(15), torch.eye(3)
    field = pf.fields.SelfAttention(
        beta * eye, eye, eye, normaliser=normaliser, manifold=pf.Sphere()
    )
    E = (beta * mu.atoms @ mu.atoms.mT).exp().mean() / (2 * beta)
    assert worst(field.energy(mu), E) < 1e-14
    h = 1e-4
    ahead, behind = (end(field, mu, pf.RK4(4), t) for t in (h, -h))
    slope = (field.energy(ahead) - field.energy(behind)) / (2 * h)
    assert abs(slope / field.dissipation(mu) - 1) < 1e-6
    path = pf.flow(field, mu, t1=5.0, solver=pf.RK4(200), save=50)
    assert (path.energy().diff() > -1e-12).all() and (path.dissipation() >= 0).all()


def test_sinkhorn_flow_is_a_gradient_flow():
    """Row 11 (E12): d/dt OT = -2 int |T|^2, relative 1e-6."""
    torch.manual_seed(7)
    B = torch.randn(2, 2)
    B = 0.4 * (B + B.mT)
    mu = measure(12).normalise()
    field = pf.fields.SelfAttention(I2(), B, B, normaliser=pf.Sinkhorn(tol=1e-13))
    h = 3e-4
    ahead, behind = (end(field, mu, pf.RK4(4), t) for t in (h, -h))
    slope = (field.energy(ahead) - field.energy(behind)) / (2 * h)
    assert abs(slope / field.dissipation(mu) - 1) < 1e-6 and slope < 0


def test_long_context():
    """Row 16: with beta = gamma log n the self-weight goes to 0, 1/2 or 1 around 1/(1 - rho)."""
    rho = 0.5
    critical = 1 / (1 - rho)
    for factor, limit in ((0.5, 0.0), (1.0, 0.5), (2.0, 1.0)):
        weights = []
        for n in (100, 400, 1600):
            beta = factor * critical * math.log(n)
            weights.append(1 / (1 + (n - 1) * math.exp(-beta * (1 - rho))))
        n, beta = 100, factor * critical * math.log(100)
        eye = torch.eye(n)
        field = pf.fields.SelfAttention(beta * eye, eye, eye, manifold=pf.Sphere())
        P = field.relation(equiangular(n, rho)).matrix()[0]
        assert worst(P.diagonal(), torch.full((n,), weights[0])) < 1e-12
        gaps = [abs(w - limit) for w in weights]
        assert gaps[0] >= gaps[1] >= gaps[2] and gaps[2] < 0.05


def test_leaders_on_the_line():
    """Row 19: z = e^{-t} x contracts, rows become Boolean, at extremes."""
    mu = same_everywhere(lambda: pf.Measure(torch.randn(20, 1)))
    one = torch.eye(1)
    field = pf.fields.SelfAttention(one, one, one)
    path = pf.flow(field, mu, t1=4.0, solver=pf.RK4(800), save=40)
    z = torch.stack([m.atoms[:, 0] for m in path]) * torch.exp(-path.times)[:, None]
    assert (z.amax(1).diff() < 1e-12).all() and (z.amin(1).diff() > -1e-12).all()
    P = field.relation(path[-1]).matrix()[0]
    assert (P.amax(-1) > 0.99).float().mean() > 0.85
    assert set(path.leaders()[-1].tolist()) == {int(mu.atoms.argmin()), int(mu.atoms.argmax())}
    top = int(mu.atoms.argmax())
    gaps = torch.stack([1 - field.relation(m).matrix()[0, top, top] for m in path])
    keep = (gaps < 0.1) & (gaps > 1e-12)
    y, t = (-gaps[keep].log()).log(), path.times[keep]
    late = slice(-6, None)
    slope = ((y - y[late].mean()) * (t - t[late].mean()))[late].sum()
    slope = slope / (t - t[late].mean())[late].square().sum()
    assert abs(slope - 1) < 0.35


def test_hull_shrinks_in_the_plane():
    """Row 19 in any dimension: the support function of e^{-t} x falls."""
    mu, directions = pf.Measure(torch.randn(15, 2)), torch.randn(20, 2)
    field = pf.fields.SelfAttention(I2(), I2(), I2())
    path = pf.flow(field, mu, t1=2.0, solver=pf.RK4(400), save=20)
    support = torch.stack([(m.atoms @ directions.mT).amax(0) for m in path])
    assert ((support * torch.exp(-path.times)[:, None]).diff(dim=0) < 1e-10).all()


def test_kuramoto_order_grows():
    mu = pf.Measure(2 * math.pi * torch.rand(50, 1))
    path = pf.flow(pf.fields.Kuramoto(1.0), mu, t1=10.0, solver=pf.RK4(200), save=20)
    r = path.order()
    assert (r.diff() > -1e-12).all() and r[-1] > 0.99
    assert (path[-1].atoms >= 0).all() and (path[-1].atoms < 2 * math.pi).all()
    same = pf.fields.Pairwise(lambda x, y: torch.sin(y - x), manifold=pf.Torus())
    turned = lambda m: torch.cat([m.atoms.sin(), m.atoms.cos()], -1)
    assert worst(turned(end(same, mu, pf.RK4(50))),
                 turned(end(pf.fields.Kuramoto(1.0), mu, pf.RK4(50)))) < 1e-13  # fmt: skip


def test_kuramoto_frequencies():
    """Without coupling, angles turn at their own speed, and wrap; speeds stay."""
    z = torch.cat([torch.rand(5, 1), torch.linspace(-3, 3, 5)[:, None]], -1)
    field = pf.fields.Kuramoto(0.0, frequencies=True)
    moved = end(field, pf.Measure(z), pf.Euler(10), 4.0).atoms
    assert worst(moved[:, 1], z[:, 1]) == 0
    assert worst(moved[:, 0], (z[:, 0] + 4 * z[:, 1]).remainder(2 * math.pi)) < 1e-14


# Structure


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


def test_causal_flows_do_not_look_ahead():
    field = softmax_field(mask=pf.Causal())
    mu = measure(8)
    late = mu.times > 0.5
    other = pf.Measure(torch.where(late[:, None], torch.randn(8, 2), mu.atoms),
                       log_weights=mu.log_weights, times=mu.times)  # fmt: skip
    a, b = (end(field, m, pf.RK4(5)).atoms for m in (mu, other))
    assert worst(a[~late], b[~late]) == 0 and worst(a[late], b[late]) > 0.1


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


def test_dobrushin():
    """E10: W1 grows by at most exp((L + K)t), with the constants of attention on a ball."""
    torch.manual_seed(10)
    ratios = []
    for _ in range(20):
        Q, K, V = (0.5 * torch.randn(3, 2, 2)).unbind(0)
        field = pf.fields.SelfAttention(Q, K, V)
        mu = pf.Measure(torch.rand(12, 2) - 0.5)
        nu = mu.push(lambda x: x + 0.01 * torch.randn_like(x))
        t, b, v = 0.5, torch.linalg.matrix_norm(Q.mT @ K, 2), torch.linalg.matrix_norm(V, 2)
        path = pf.flow(field, mu, t1=t, solver=pf.RK4(20), save=20)
        R = max(path.radius().max(), pf.flow(field, nu, t1=t, save=20).radius().max())
        L, C = v * b * R**2, v * torch.exp(2 * b * R**2) * (1 + 2 * b * R**2)
        bound = torch.exp((L + C) * t) * pf.wasserstein(mu, nu)
        ratios.append(pf.wasserstein(path[-1], end(field, nu, pf.RK4(20), t)) / bound)
    assert 0.05 < max(ratios) <= 1


@pytest.mark.slow
def test_token_rate_of_a_flow():
    """E9 for whole flows: RMSE sqrt(N) constant within 20 %, 100 repetitions."""
    field = same_everywhere(lambda: softmax_field(2, 0.9))
    law = lambda n, g: pf.Measure(2 * torch.rand(n, 2, generator=g) - 1)
    study = pf.flows.token_study(
        field, law, [100, 400, 1600], solver=pf.flows.Midpoint(3), queries=2 * torch.eye(2)
    )
    scaled = [e * math.sqrt(n) for n, e in zip(study.sizes, study.errors, strict=True)]
    assert max(scaled) / min(scaled) < 1.2, study


# Gradients


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


# Sinkhorn potentials along a flow


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


# What goes wrong


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


# Found by others


def test_layers_of_constants_are_interpolated():
    """Matrices that are no parameters move with time too."""
    eye = torch.eye(2)
    layers = [pf.fields.SelfAttention(eye, eye, v * eye) for v in (1.0, 3.0)]
    field = pf.fields.Layers(layers)
    assert worst(field.at_time(0.25).V, 2 * eye) < 1e-15
    assert field.at_time(0.5) is field.layers[1]
    limit = pf.flows.gaussian(field, torch.ones(2), 0.1 * eye, t1=0.5, solver=pf.RK4(20))
    nodes = pf.Measure.gaussian(torch.ones(2), 0.1 * eye, order=12)
    assert worst(end(field, nodes, pf.RK4(20), 0.5).covariance(), limit.covariances[-1]) < 1e-6


@pytest.mark.filterwarnings("ignore:A field is a velocity")
@pytest.mark.parametrize("wrap", [
    lambda f: pf.Compose(f), lambda f: pf.fields.Sum(f, f), lambda f: pf.Residual(f),
    lambda f: pf.fields.Tangent(f, pf.flows.Euclidean()),
    lambda f: pf.fields.SecondOrder(pf.Pointwise(lambda z: z[..., :2]) @ f),
], ids=["compose", "sum", "residual", "tangent", "second order"])  # fmt: skip
def test_time_reaches_fields_inside_others(wrap):
    d = 4
    layers = [pf.Attention(d), pf.Attention(d)]
    mu = pf.Measure(torch.randn(5, d))
    moving, still = wrap(pf.fields.Layers(layers)), wrap(layers[0])
    assert worst(pf.fields.at_time(moving, 0.0)(mu, mu.atoms), still(mu, mu.atoms)) < 1e-15
    assert worst(end(moving, mu, pf.RK4(4)).atoms, end(still, mu, pf.RK4(4)).atoms) > 1e-3


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


def test_batched_context_and_one_measure_of_queries():
    field = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-12))
    parts, nu = [measure(5), measure(5)], measure(3)
    G = pf.Flow(field, t1=0.5, solver=pf.Euler(2))
    both = G(pf.Measure.stack(parts), nu)
    assert worst(both[1], G(parts[1], nu)) < 1e-10


def test_the_adjoint_of_a_constant_field():
    x = torch.randn(4, 2, requires_grad=True)
    field = pf.Pointwise(torch.ones_like)
    G = pf.Flow(field, t1=1.0, solver=pf.RK4(3), gradients=pf.flows.Adjoint())
    G.push(pf.Measure(x)).atoms.sum().backward()
    assert worst(x.grad, torch.ones(4, 2)) < 1e-15


def test_an_assertion_of_the_field_is_its_own():
    def wrong(x):
        raise AssertionError("mine")

    with pytest.raises(AssertionError, match="mine"):
        pf.flow(pf.Pointwise(wrong), measure(3), t1=1.0, solver=pf.Dopri5())


def test_ways_to_save():
    import numpy as np

    field, mu = softmax_field(), measure(4)
    four = pf.RK4(np.int64(4))
    run = lambda save, solver=four: pf.flow(field, mu, t1=1.0, solver=solver, save=save)
    assert len(run(np.int64(2))) == 3 and len(run(torch.tensor([0.25, 0.5]))) == 4
    assert len(run([0.5, 0.5], pf.Dopri5())) == 3
    assert run(run(4).times).times.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_energy_needs_both_marginals():
    eye = torch.eye(2)
    field = pf.fields.SelfAttention(eye, eye, eye, normaliser=pf.Sinkhorn(slack=1.0))
    with pytest.raises(ValueError, match="no gradient flow"):
        field.energy(measure(4))


def test_the_ends_of_a_torus_meet():
    field = pf.fields.Kuramoto(1.0)
    mu = pf.Measure(torch.tensor([[0.01], [2 * math.pi - 0.01], [0.02]]))
    path = pf.flow(field, mu, t1=0.1, solver=pf.Euler(2))
    assert path.cluster_count(0.1).tolist() == [1, 1] and path.diameter()[0] < 0.031
    assert pf.Torus(1.0).retract(torch.tensor([[-1e-20]])) == 0
    torch.manual_seed(3)
    turning = pf.fields.Pairwise(lambda x, y: 1 + torch.sin(y - x), manifold=pf.Torus())
    study = pf.flows.depth_study(turning, pf.Measure(7 * torch.rand(30, 1)), [32, 64, 128], t1=3.0)
    assert all(abs(r - 2) < 0.1 for r in study.ratios)
