"""Gradients of relations: implicit, through the steps, finite differences."""

import math

import pytest
import torch
from related import related

import pushforward as pf


def gradients(normaliser, *, through):
    """A function of points, weights and values, and its arguments."""
    nodes = torch.randn(7, 9)
    values = torch.randn(9, 2)

    def f(x, y, a, b, v):
        mu, nu = pf.Measure(x, a), pf.Measure(y, b)
        pi = pf.relate(
            mu, nu, affinity=pf.Encoded(x, y, pf.SquaredDistance(0.8)), normaliser=normaliser
        )
        if through == "matrix":
            return (pi.matrix() * nodes).sum()
        if through == "apply":
            return pi.apply(v).square().sum()
        if through == "transpose":
            return pi.transpose().apply(x).square().sum()
        if through == "potentials":
            f, g = pi.potentials
            return (f * nodes[:, 0]).sum() + (g * nodes[0]).sum()
        return pi.cost() + 0.3 * pi.mutual_information() + 0.1 * pi.entropy()

    args = (
        torch.randn(7, 2), torch.randn(9, 2), torch.rand(7) + 0.1, torch.rand(9) + 0.1, values,
    )  # fmt: skip
    return f, [t.requires_grad_() for t in args]


THROUGH = ["matrix", "apply", "transpose", "potentials", "information"]


@pytest.mark.parametrize("through", THROUGH)
@pytest.mark.parametrize(
    "normaliser",
    [
        pf.Sinkhorn(tol=1e-13),
        pf.Sinkhorn(steps=7),
        pf.Sinkhorn(tol=1e-13, slack=(1.0, 2.0)),
        pf.Sinkhorn(tol=1e-13, slack=(math.inf, 0.5)),
    ],
    ids=["implicit", "unrolled", "unbalanced", "one side"],
)
def test_gradients_against_finite_differences(normaliser, through):
    f, args = gradients(normaliser, through=through)
    if not normaliser.balanced and through in ("potentials", "information"):
        pytest.skip("not defined on masses without marginals")
    grads = torch.autograd.grad(f(*args), args, allow_unused=True)
    eps = 1e-5
    for i, (arg, grad) in enumerate(zip(args, grads, strict=True)):
        if grad is None:
            continue
        way = torch.randn_like(arg)
        with torch.no_grad():
            slope = (
                f(*args[:i], arg + eps * way, *args[i + 1 :])
                - f(*args[:i], arg - eps * way, *args[i + 1 :])
            ) / (2 * eps)
        assert float((grad * way).sum()) == pytest.approx(slope.item(), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("through", THROUGH)
def test_implicit_and_unrolled_agree(through):
    torch.manual_seed(1)
    implicit, args = gradients(pf.Sinkhorn(tol=1e-13), through=through)
    torch.manual_seed(1)
    unrolled, _ = gradients(pf.Sinkhorn(steps=400), through=through)
    a, b = (torch.autograd.grad(f(*args), args, allow_unused=True) for f in (implicit, unrolled))
    for x, y in zip(a, b, strict=True):
        assert (x is None) == (y is None)
        assert x is None or torch.allclose(x, y, atol=1e-8, rtol=1e-6)


def test_implicit_gradients_are_first_order():
    f, args = gradients(pf.Sinkhorn(tol=1e-10), through="apply")
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(f(*args), args, create_graph=True, allow_unused=True)


def test_zero_mass_atoms_have_no_say_in_gradients():
    x, y = torch.randn(4, 2, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    mu = pf.Measure(x, torch.tensor([0.2, 0.0, 0.5, 0.3]))
    nu = pf.Measure(y, torch.tensor([0.0, 0.3, 0.3, 0.2, 0.2]))
    pi = related(mu, nu)
    gx, gy = torch.autograd.grad(pi.matrix().square().sum(), (x, y))
    assert (gx[1] == 0).all() and (gy[0] == 0).all()
    assert torch.isfinite(gx).all() and torch.isfinite(gy).all()
    row = pi.apply(y.detach())[1]  # a relation can be asked where there is no mass
    assert torch.isfinite(row).all()


@pytest.mark.parametrize("even", [True, False], ids=["even", "weighted"])
@pytest.mark.parametrize("p", [1, 2])
def test_gradients_of_an_exact_cost(even, p):
    """In points and weights, against finite differences and against `wasserstein`."""
    torch.manual_seed(5)
    x, y = torch.randn(5, 2, requires_grad=True), torch.randn(5 if even else 4, 2)
    w = torch.ones(5) if even else torch.rand(5) + 0.5
    w.requires_grad_()
    power = lambda mu, nu, x, y: -((x - y).norm(dim=-1) ** p)
    nu = pf.Measure(y)

    def cost(x, w):
        mu = pf.Measure(x, w)
        return pf.relate(mu, nu, affinity=pf.Pairs(power), normaliser=pf.relations.Exact()).cost()

    if not even:  # the cost of equal weights has a corner there: its duals are not unique
        assert torch.autograd.gradcheck(cost, (x, w), eps=1e-7, atol=1e-5)
    assert torch.autograd.gradcheck(lambda x: cost(x, w.detach()), x, eps=1e-7, atol=1e-5)
    ours = torch.autograd.grad(cost(x, w), (x, w))
    distance = pf.wasserstein(pf.Measure(x, w / w.sum()), nu, p=p) ** p
    theirs = torch.autograd.grad(distance, (x, w))
    for a, b in zip(ours[:1] if even else ours, theirs, strict=False):
        assert torch.allclose(a, b, atol=1e-9)


def test_gradients_of_an_exact_cost_of_points_in_a_batch():
    x, y = torch.randn(3, 6, 2, requires_grad=True), torch.randn(3, 6, 2)
    pi = pf.relate(
        pf.Measure(x),
        pf.Measure(y),
        affinity=pf.SquaredDistance(0.3),
        normaliser=pf.relations.Exact(),
    )
    (ours,) = torch.autograd.grad(pi.cost().sum(), x, retain_graph=True)
    value = (pf.wasserstein(pf.Measure(x), pf.Measure(y), p=2) ** 2).sum()
    (theirs,) = torch.autograd.grad(value, x)
    assert torch.allclose(ours, theirs, atol=1e-9)
    (back,) = torch.autograd.grad(pi.transpose().cost().sum(), x, retain_graph=True)
    assert torch.allclose(back, theirs, atol=1e-9)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(pi.cost().sum(), x, create_graph=True)


def test_gradients_of_the_cost_of_the_nearest():
    """Of the joint of `Hardmax`: the chosen keys are fixed, their costs are not."""
    x, y = torch.randn(6, 2, requires_grad=True), torch.randn(4, 2)
    mu = pf.Measure(x)
    kappa = pf.relate(
        mu, pf.Measure(y), affinity=pf.SquaredDistance(1.0), normaliser=pf.relations.Hardmax()
    )
    (grad,) = torch.autograd.grad(kappa.joint(mu).cost(), x)
    nearest = y[torch.cdist(x, y).argmin(-1)]
    assert torch.allclose(grad, 2 * (x - nearest).detach() / 6, atol=1e-9)
