"""Certain Lipschitz bounds: never exceeded, and attained where the theory says so."""

import math

import pytest
import torch

import pushforward as pf

RADIUS = 0.8

MAPS = {
    "softmax": lambda: pf.Attention(2, heads=2, head_dim=3),
    "squared distance": lambda: pf.Attention(2, affinity=pf.SquaredDistance(1.5)),
    "linear": lambda: pf.Attention(2, heads=2, normaliser=pf.relations.Bilinear()),
    "linear, squared distance": lambda: pf.Attention(
        2, normaliser=pf.relations.Bilinear(), affinity=pf.SquaredDistance(2.0)
    ),
    "unnormalised": lambda: pf.Attention(2, normaliser=pf.relations.Exponential()),
    "sigmoid": lambda: pf.Attention(2, heads=2, normaliser=pf.relations.Sigmoid(bias=0.3)),
    "field": lambda: pf.fields.SelfAttention(*torch.randn(3, 2, 2).unbind(0)),
    "heads of a field": lambda: pf.fields.SelfAttention(*torch.randn(3, 4, 2, 2).unbind(0)),
    "MLP": lambda: pf.MLP(2, 5, skip=True),
    "tanh MLP": lambda: pf.MLP(2, 5, activation=torch.tanh),
    "affine": lambda: pf.Pointwise(torch.nn.Linear(2, 3)),
    "sequence": lambda: pf.Pointwise(
        torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.SiLU(), torch.nn.Linear(4, 2)), dim=2
    ),
    "residual": lambda: pf.Residual(pf.Attention(2), step=0.5),
    "composition": lambda: pf.Attention(2) @ pf.MLP(2, 3) @ pf.Attention(2),
    "transformer": lambda: pf.Transformer(2, depth=2, heads=2, hidden=4),
    "pre-norm": lambda: pf.Transformer(
        2, depth=1, width=4, hidden=4, block=pf.Block(norm=pf.PreNorm(eps=0.5))
    ),
    "post-norm": lambda: pf.Transformer(
        2, depth=1, width=4, hidden=4, block=pf.Block(norm=pf.PostNorm(eps=0.5))
    ),
    "linear field": lambda: pf.fields.Linear(*torch.randn(2, 2, 2).unbind(0)),
    "sum": lambda: pf.fields.Sum(pf.Attention(2), pf.MLP(2, 3)),
    "flow": lambda: pf.Flow(pf.Attention(2), t1=0.5, solver=pf.RK4(4)),
    "flow of a sum": lambda: pf.Flow(
        pf.fields.Sum(pf.Attention(2), pf.MLP(2, 3)), t1=0.3, solver=pf.Euler(3)
    ),
    "adaptive flow": lambda: pf.Flow(pf.Attention(2), t1=0.3, solver=pf.Dopri5(1e-8)),
}


def in_ball(n, radius=RADIUS, d=2):
    x = torch.randn(n, d)
    return radius * x / x.norm(dim=-1, keepdim=True) * torch.rand(n, 1) ** 0.3


@pytest.mark.parametrize("name", MAPS)
def test_bounds_hold(name):
    """On pairs far apart and near, in points, atoms and weights."""
    gamma = MAPS[name]()
    bound = gamma.lipschitz(RADIUS)
    assert math.isfinite(bound.measure) and bound.radius == RADIUS
    worst = 0.0
    with torch.no_grad():
        for k in range(20 if "flow" in name else 60):  # of flows each takes long
            size = 10.0 ** -(k % 5)
            mu = pf.Measure(in_ball(5), torch.rand(5))
            x = in_ball(4)
            y, z = (p + size * (in_ball(len(p)) - p) for p in (mu.atoms, x))
            nu = pf.Measure(y, mu.weights ** (1 + size * torch.randn(5)))
            a, b = gamma(mu, x), gamma(nu, z)
            moved = (x - z).norm(dim=-1)
            allowed = bound.x * moved + bound.mu * pf.wasserstein(mu.normalise(), nu.normalise())
            worst = max(worst, float(((a - b).norm(dim=-1) / allowed).max()))
            assert float(a.norm(dim=-1).max()) <= bound.reach * (1 + 1e-12)
    assert 1e-4 < worst <= 1


def test_of_measures():
    """W1 of push-forwards, and the constant of Castin, Ablin and Peyre."""
    one = torch.eye(2)
    field = pf.fields.SelfAttention(one, one, one)
    b = RADIUS**2
    assert field.lipschitz(RADIUS).measure <= (1 + 3 * b) * math.exp(2 * b) * (1 + 1e-9)
    for _ in range(30):
        mu, nu = pf.Measure(in_ball(4)), pf.Measure(in_ball(4))
        out = pf.wasserstein(field.push(mu), field.push(nu))
        assert out <= field.lipschitz(RADIUS).measure * pf.wasserstein(mu, nu)


@pytest.mark.parametrize("masses", [(1.0, 1.0), (3.0, 3.0), (1.0, 2.0), (0.1, 5.0)], ids=str)
def test_of_measures_of_unequal_masses(masses):
    """W1 adds the difference of masses, which a push-forward keeps: a contraction has 1 then."""
    gamma = pf.MLP(2, 4)
    with torch.no_grad():
        for p in gamma.parameters():
            p.mul_(0.1)
        constant = gamma.lipschitz(1.0).measure
        assert constant < 0.1
        constant = constant if masses[0] == masses[1] else max(1.0, constant)
        for n in (1, 4):
            points = [in_ball(n, 1.0), in_ball(n, 1.0)]
            mu, nu = (
                pf.Measure(x, torch.full((n,), c / n)) for x, c in zip(points, masses, strict=True)
            )
            out = pf.wasserstein(gamma.push(mu), gamma.push(nu))
            assert out <= constant * pf.wasserstein(mu, nu) * (1 + 1e-12)


def test_spheres():
    """The projection turns with the point."""
    field = pf.fields.SelfAttention(*torch.randn(3, 3, 3).unbind(0), manifold=pf.Sphere())
    projected = pf.fields.Tangent(pf.MLP(3, 4), pf.Sphere())
    on = lambda n: pf.Sphere().retract(torch.randn(n, 3))
    for gamma in (field, projected):
        bound = gamma.lipschitz(1.0)
        with torch.no_grad():
            for _ in range(40):
                mu, x = pf.Measure(on(5)), on(6)
                z = pf.Sphere().retract(x + 0.01 * torch.randn(6, 3))
                gap = (gamma(mu, x) - gamma(mu, z)).norm(dim=-1)
                assert (gap <= bound.x * (x - z).norm(dim=-1)).all()


def test_growing_clouds():
    """A flow that grows is bounded as far as its radius is, and not at all where it blows up."""
    grow = pf.fields.Linear(torch.eye(2), torch.zeros(2, 2))
    bound = pf.Flow(grow, t1=1.0, solver=pf.RK4(200)).lipschitz(1.0)
    assert math.e <= bound.x <= math.e * (1 + 1e-9) and math.e <= bound.reach < 1.02 * math.e
    one = torch.eye(2)
    fast = pf.fields.SelfAttention(one, one, one, normaliser=pf.relations.Exponential())
    assert math.isinf(pf.Flow(fast, t1=5.0, solver=pf.RK4(50)).lipschitz(2.0).measure)


def test_what_has_no_bound():
    for gamma in (
        pf.Attention(2, normaliser=pf.Sinkhorn(steps=3)),
        pf.Attention(2, mask=pf.Causal()),
        pf.Pointwise(lambda x: x * x),
        pf.Pointwise(torch.tanh),
        pf.fields.Pairwise(lambda x, y: y - x),
        pf.fields.Kuramoto(1.0, dim=2),
    ):
        with pytest.raises(NotImplementedError, match=r"known|bound"):
            gamma.lipschitz(1.0)
    for wrong, said in ((0.0, "positive"), (-1.0, "positive"), (math.nan, "NaN")):
        with pytest.raises(ValueError, match=said):
            pf.Attention(2).lipschitz(wrong)


def test_fields_that_depend_on_time():
    """The beginning of a step bounds Euler's, and nothing else."""
    grow = lambda a: pf.fields.Linear(a * torch.eye(1), torch.zeros(1, 1))
    field = pf.fields.Layers([grow(0.0), grow(4.0)], t1=1.0)
    with pytest.raises(NotImplementedError, match="depends on time"):
        pf.Flow(field, t1=1.0, solver=pf.RK4(4)).lipschitz(1.0)


def test_nothing_times_infinity_is_nothing():
    steep = pf.Attention(2, normaliser=pf.relations.Exponential())
    bound = pf.Residual(steep, step=0.0).lipschitz(1e3)
    assert (bound.x, bound.mu, bound.reach) == (1.0, 0.0, 1e3)


def test_steep_activations():
    with pytest.raises(NotImplementedError, match="known"):
        pf.MLP(2, 2, activation=torch.nn.Softplus(1.0, 0.0)).lipschitz(1.0)
    slopes = [pf.MLP(1, 1, activation=torch.nn.ELU(a)) for a in (1.0, 3.0)]
    one, three = (
        m.lipschitz(1.0).x / float((m.A1.weight * m.A2.weight).abs().detach()) for m in slopes
    )
    assert one == pytest.approx(1) and three == pytest.approx(3)
