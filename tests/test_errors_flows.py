"""Wrong inputs of fields, solvers and flows: what the messages say."""

import re

import pytest
import torch

import pushforward as pf

pytestmark = pytest.mark.unhooked

X, MU = torch.ones(3, 2, dtype=torch.float64), pf.Measure(torch.ones(3, 2, dtype=torch.float64))
LINE = pf.Measure(torch.ones(3, 1))
TIMED = pf.Measure(torch.ones(3, 2, dtype=torch.float64), times=torch.tensor([1.0, 2.0, 3.0]))
ones = lambda *shape: torch.ones(*shape, dtype=torch.float64)
NAN, INF = torch.nan, torch.inf
GAMMA, E = pf.Attention(2).double(), torch.eye(2, dtype=torch.float64)

CASES = {
    "a field that is a function": (
        lambda: pf.flow(torch.sin, MU, t1=1.0),
        "pf.Pointwise(function)",
    ),
    "a field that is a function of a measure and points": (
        lambda: pf.flow(lambda m, x: -x, MU, t1=1.0),
        "`evaluate(self, mu, x)` of a subclass of `pf.InContextMap`",
    ),
    "a bound of a flow that depends on time": (
        lambda: pf.Flow(pf.fields.Layers([GAMMA, pf.Attention(2)]), t1=1.0).lipschitz(1.0),
        "a bound is known with `Euler` and `LieSplit` only. Use one of them.",
    ),
    "a sphere on a line": (
        lambda: pf.flow(pf.fields.Tangent(pf.Pointwise(torch.sin), pf.Sphere()), LINE, t1=1.0),
        "needs dimension 2 or more, got `mu` in dimension 1",
    ),
    "the origin on a sphere": (
        lambda: pf.flow(
            pf.fields.SelfAttention(E, E, E, manifold=pf.Sphere()),
            pf.Measure(0 * X).push(pf.Sphere().retract),
            t1=1.0,
        ),
        "the origin, which has no nearest point",
    ),
    "a flow of points": (lambda: pf.flow(GAMMA, X, t1=1.0), "pf.Measure(points)"),
    "no time": (lambda: pf.Flow(GAMMA, t1=0.0), "`t1` must differ from `t0`, got t0 = t1 = 0"),
    "infinite time": (lambda: pf.Flow(GAMMA, t1=INF), "must be finite"),
    "a solver by name": (lambda: pf.Flow(GAMMA, t1=1.0, solver="rk4"), "pf.RK4(steps=100)"),
    "no steps of a solver": (lambda: pf.RK4(steps=0), "at least 1, got 0"),
    "more saved than steps": (
        lambda: pf.flow(GAMMA, MU, t1=1.0, solver=pf.Euler(5), save=10),
        "there are 5 steps",
    ),
    "saved between steps": (
        lambda: pf.flow(GAMMA, MU, t1=1.0, solver=pf.Euler(4), save=[0.3]),
        "multiples of 0.25 from 0 to 1, got 0.3",
    ),
    "saved at no time": (
        lambda: pf.flow(GAMMA, MU, t1=1.0, solver=pf.Euler(4), save=[NAN]),
        "finite times, got [nan]",
    ),
    "a way to save that is none": (
        lambda: pf.flow(GAMMA, MU, t1=1.0, save="all"),
        "list of times",
    ),
    "an end that is no number": (lambda: pf.Flow(GAMMA, t1=NAN), "must be a number, got NaN"),
    "saved too late": (
        lambda: pf.flow(GAMMA, MU, t1=1.0, solver=pf.Dopri5(), save=[2.0]),
        "times from 0 to 1",
    ),
    "a velocity elsewhere": (
        lambda: pf.Flow(pf.Pointwise(torch.sin, dim=2, out_dim=3), t1=1.0),
        "from R^2 to R^3",
    ),
    "a velocity of another shape": (
        lambda: pf.flow(pf.Pointwise(lambda x: x[..., :1]), MU, t1=1.0),
        "expected (3, 2), got (3, 1)",
    ),
    "a flow of cross-attention": (
        lambda: pf.Flow(pf.Attention(2, context_dim=3), t1=1.0),
        "moves its context",
    ),
    "splitting one field": (
        lambda: pf.flow(GAMMA, MU, t1=1.0, solver=pf.flows.LieSplit(2)),
        "pf.fields.Sum(...)",
    ),
    "points off the sphere": (
        lambda: pf.flow(pf.fields.SelfAttention(E, E, E, manifold=pf.Sphere()), MU, t1=1.0),
        "mu.push(pf.Sphere(radius=1.0).retract)",
    ),
    "matrices that do not fit": (
        lambda: pf.fields.SelfAttention(E, E, ones(3, 3)),
        "got Q (2, 2), K (2, 2), V (3, 3)",
    ),
    "a kernel of numbers": (
        lambda: pf.flow(pf.fields.Pairwise(lambda x, y: (x - y).norm(dim=-1)), MU, t1=1.0),
        "one vector per pair",
    ),
    "odd tokens of a second-order system": (
        lambda: pf.flow(pf.fields.CuckerSmale(), pf.Measure(ones(3, 3)), t1=1.0),
        "of even dimension, got 3",
    ),
    "layers that differ": (
        lambda: pf.fields.Layers([pf.Attention(4, heads=2), pf.Attention(4, heads=4)]),
        "of one kind, with the same heads",
    ),
    "fields of other spaces": (
        lambda: pf.fields.Sum(pf.Attention(2), pf.Attention(3)),
        "share their space",
    ),
    "no energy": (
        lambda: pf.flow(pf.Pointwise(torch.sin), MU, t1=1.0).energy(),
        "has no energy known here",
    ),
    "no gradient flow": (
        lambda: pf.fields.SelfAttention(E, E, ones(2, 2)).energy(MU),
        "V = c Q^T K",
    ),
    "a Gaussian under a sigmoid": (
        lambda: pf.flows.gaussian(
            pf.fields.SelfAttention(E, E, E, normaliser=pf.relations.Sigmoid()), ones(2), E, t1=1.0
        ),
        "does not keep Gaussians Gaussian",
    ),
    "an adjoint of splitting": (
        lambda: pf.Flow(
            pf.fields.Sum(GAMMA, pf.MLP(2, 3).double()),
            t1=1.0,
            solver=pf.flows.LieSplit(2),
            gradients=pf.flows.Adjoint(),
        ),
        "no continuous adjoint",
    ),
    "a transformer with a read-out": (
        lambda: pf.fields.of_transformer(pf.Transformer(2, depth=2, out_dim=3)),
        "no `width`, `out_dim`",
    ),
    "clusters of a batch": (
        lambda: pf.flows.clusters(pf.Measure(ones(2, 3, 1)), 0.1),
        "take `mu[k]`",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    call, words = CASES[name]
    kinds = (ValueError, TypeError, IndexError, NotImplementedError)
    with pytest.raises(kinds, match=re.escape(words)):
        call()
