"""Fields against exact solutions and invariants, and fields inside others."""

import math

import pytest
import torch
from cases import measure, worst
from flow_cases import I2, end, equiangular, same_everywhere, sphere_cloud

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


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


def test_linear_vlasov_of_a_gaussian():
    """Row 20: the covariance of the limit turns with the atoms."""
    A, B, t = 0.7 * torch.randn(2, 2), 0.7 * torch.randn(2, 2), 0.8
    mu, exp = measure(8), torch.linalg.matrix_exp(A * 0.8)
    limit = pf.flows.gaussian(
        pf.fields.Linear(A, B), mu.mean(), mu.covariance(), t1=t, solver=pf.RK4(400)
    )
    assert worst(limit.covariances[-1], exp @ mu.covariance() @ exp.mT) < 1e-10


def harmonic(w, d):
    """The matrices of the linear field on (x, v) with x'' = -w^2 (x - mean)."""
    zero, eye = torch.zeros(d, d), torch.eye(d)
    spring = torch.cat([torch.cat([zero, zero], 1), torch.cat([w**2 * eye, zero], 1)])
    drift = torch.cat([torch.cat([zero, eye], 1), torch.cat([zero, zero], 1)])
    return drift - spring, spring


def test_harmonic_vlasov():
    """Row 21, as a linear field on tokens (x, v)."""
    mu, w, t = measure(8, 4).normalise(), 1.3, 1.1
    x, v = mu.atoms.chunk(2, -1)
    mx, mv = mu.mean().chunk(2)
    exact = mx + mv * t + (x - mx) * math.cos(w * t) + (v - mv) / w * math.sin(w * t)
    moved = end(pf.fields.Linear(*harmonic(w, 2)), mu, pf.RK4(400), t)
    assert worst(moved.atoms[:, :2], exact) < 1e-9


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


def test_energy_needs_both_marginals():
    eye = torch.eye(2)
    field = pf.fields.SelfAttention(eye, eye, eye, normaliser=pf.Sinkhorn(slack=1.0))
    with pytest.raises(ValueError, match="no gradient flow"):
        field.energy(measure(4))


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


@pytest.mark.filterwarnings("ignore:Residual returns the new point")
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


def test_a_field_that_depends_on_time_needs_one():
    """Outside a flow there is no time, alone or inside another field."""
    layers = pf.fields.Layers([pf.Attention(2), pf.Attention(2)])
    mu = measure(4)
    for ask in (
        lambda: layers(mu, mu.atoms),
        lambda: layers.push(mu),
        lambda: layers.relations(mu),
        lambda: pf.fields.Sum(layers, pf.MLP(2, 3))(mu, mu.atoms),
    ):
        with pytest.raises(ValueError, match="Layers depends on time"):
            ask()
    inside = pf.fields.at_time(pf.fields.Sum(layers, pf.MLP(2, 3)), 0.0)
    assert inside(mu, mu.atoms).shape == (4, 2) and len(inside.relations(mu)) == 1


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_retraction_to_the_sphere_beyond_the_range_of_squares(size):
    x = torch.tensor([[size, size]], dtype=torch.float32)
    assert torch.allclose(pf.Sphere().retract(x), torch.full_like(x, 0.5**0.5))


@pytest.mark.parametrize("size", [1e-44, 1e-25, 1e25, 3e38])
def test_spheres_of_any_size(size):
    """Retraction, tangent part, check and gradients; squares of such points are 0 or infinite."""
    x = torch.tensor([[3.0, -4.0], [0.0, 1.0]], dtype=torch.float32) * size
    unit = torch.tensor([[0.6, -0.8], [0.0, 1.0]], dtype=torch.float32)
    tolerance = 1e-6 if size > 1e-38 else 0.05  # denormal numbers have few digits
    x = x.clamp(-3e38, 3e38)
    unit = torch.nn.functional.normalize(x.double(), dim=-1).float() if size > 1e38 else unit
    v = torch.ones_like(x)
    tangent = v - (v * unit).sum(-1, keepdim=True) * unit
    assert torch.allclose(pf.Sphere().retract(x), unit, atol=tolerance)
    assert torch.allclose(pf.Sphere().tangent(x, v), tangent, atol=2 * tolerance)
    if 1e-38 < size < 1e38:
        pf.Sphere(radius=5 * size).check("x", x[:1])
        z = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(pf.Sphere().retract(z)[:, 0].sum(), z)
        expected = (torch.tensor([1.0, 0.0]).float() - unit[:, :1] * unit) / x.double().norm(
            dim=-1, keepdim=True
        )
        assert torch.allclose(slope.double() * size, expected * size, atol=1e-5)


def test_retraction_keeps_its_bits():
    """Scaling by powers of two rounds nothing."""
    x = 10 ** torch.linspace(-20, 20, 50)[:, None] * torch.randn(50, 3)
    assert torch.equal(pf.Sphere().retract(x), x * (1 / x.norm(dim=-1, keepdim=True)))


def test_the_retraction_of_the_origin_is_nan():
    assert pf.Sphere().retract(torch.zeros(1, 2)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "n, power, strength", [(9, 0.8, -2.0), (1030, 0.5, 1.0), (1030, 1.0, 3.0)], ids=str
)
def test_a_decay_is_the_function_it_says(n, power, strength, dtype):
    """The field and its gradients, up to the rounding of sums over n atoms; 1030^2 is many."""
    mu, x = measure(n, 4).to(dtype), torch.randn(n, 4, dtype=dtype)

    def results(influence):
        atoms, queries = mu.atoms.clone().requires_grad_(), x.clone().requires_grad_()
        out = pf.fields.CuckerSmale(influence)(mu.moved(atoms), queries)
        return out, *torch.autograd.grad(out.square().sum(), (atoms, queries))

    found = results(pf.fields.Decay(power, strength))
    written = results(lambda r: strength / (1 + r.square()) ** power)
    for f, w in zip(found, written, strict=True):
        assert (f - w).norm() < (4 + n**0.5) * torch.finfo(dtype).eps * w.norm()


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_flocks_of_a_configuration(exponent):
    """Also those whose influence does not decay, with exponent 0."""
    from pushforward._command.configuring import _fields as schema, field_of

    choice = schema.CuckerSmale(kind="CuckerSmale", strength=2.0, exponent=exponent)
    field = field_of(choice, 4, torch.float64)
    mu = measure(5, 4)
    expected = pf.fields.CuckerSmale(lambda r: 2 * (1 + r.square()) ** -exponent)
    assert worst(field(mu, mu.atoms), expected(mu, mu.atoms)) < 1e-14


def test_flocks_say_their_influence():
    """Two runs with different influences must not be taken for one."""
    names = [repr(pf.fields.CuckerSmale(f)) for f in (None, pf.fields.Decay(1.0, 3.0), torch.exp)]
    assert names == [
        "CuckerSmale()",
        "CuckerSmale(Decay(power=1.0, strength=3.0))",
        "CuckerSmale(exp)",
    ]
