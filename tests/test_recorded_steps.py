"""The gradient of Sinkhorn steps by one pass, against autograd through the steps one by one."""

import math
from dataclasses import replace

import pytest
import torch
from implementations import HERE
from torch.utils.checkpoint import checkpoint

import pushforward as pf
from pushforward.affinities import Features, PointScores
from pushforward.sinkhorn import Problem, alternate

FAST = [impl for impl in HERE if impl != "reference"]
inf = math.inf


def cloud(*shape, dead=False):
    """Points, and log-weights; every fifth atom may have no mass."""
    x, logs = torch.randn(*shape), torch.randn(shape[:-1])
    if dead:
        logs[..., ::5] = -torch.inf
    return [x, logs.log_softmax(-1)]


def case(q, k, eps=None, masses=(), start=0.3, shown=False, **options):
    """Leaves, and a function of them, an implementation and a number of steps."""
    symmetric = q is k
    times = options.pop("times", None)
    leaves = [*q, *([] if symmetric else k), start * torch.randn(k[1].shape), *masses]
    slack = options.pop("slack", (inf, inf))

    def f(leaves, impl, steps):
        x, log_a, *rest = leaves
        y, log_b, g, *log_masses = (x, log_a, *rest) if symmetric else rest
        offset = lambda x: None if eps is None else -x.square().sum(-1) / eps
        scale = 0.7 if eps is None else 2 / eps
        scores = PointScores(
            Features(x, offset(x)), Features(y, offset(y)), scale, impl=impl, times=times
        )
        problem = Problem(
            log_a, log_b, slack, symmetric=symmetric, log_masses=tuple(log_masses) or None
        )
        g = alternate(scores, problem, g, steps)
        if not shown:  # the potential of an atom without mass is no part of the plan
            g = g.masked_fill(log_b == -torch.inf, 0)
        way = torch.randn(g.shape, generator=torch.Generator().manual_seed(0)).to(g)
        return (g * way).sum() + g.square().sum()

    return leaves, f


def gradients(made, impl, steps, dtype=torch.float64):
    leaves, f = made
    leaves = [t.detach().to(dtype).requires_grad_() for t in leaves]
    grads = torch.autograd.grad(f(leaves, impl, steps), leaves, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, grads, strict=True)]


def error(found, exact):
    """The largest error of a gradient, relative to the largest of the gradients."""
    size = max(x.norm() for x in exact)
    return max(((a - b).norm() / size).item() for a, b in zip(found, exact, strict=True))


CASES = {
    "one step": lambda: (case(cloud(20, 2), cloud(14, 2)), 1),
    "many steps": lambda: (case(cloud(20, 2), cloud(14, 2)), 60),
    "dead atoms": lambda: (case(cloud(20, 2, dead=True), cloud(14, 2, dead=True)), 10),
    "potentials of dead atoms": lambda: (
        case(cloud(20, 2, dead=True), cloud(14, 2, dead=True), shown=True),
        2,
    ),
    "slack and masses": lambda: (
        case(
            cloud(9, 3), cloud(14, 3), eps=1.5, slack=(1.0, 2.5),
            masses=(torch.tensor([0.3]), torch.tensor([-0.4])),
        ),
        10,
    ),
    "slack on one side": lambda: (case(cloud(9, 3), cloud(14, 3), eps=1.5, slack=(inf, 2.0)), 3),
    "heads broadcast": lambda: (case(cloud(2, 1, 20, 4), cloud(1, 3, 12, 4, dead=True)), 3),
    "causal": lambda: (
        case(cloud(12, 3), cloud(12, 3), times=(torch.arange(12), torch.arange(12))),
        10,
    ),
    "small temperature": lambda: (case(cloud(20, 3), cloud(14, 3), eps=1e-2), 10),
    "far start": lambda: (case(cloud(20, 3), cloud(14, 3), eps=0.1, start=300.0), 3),
    "symmetric": lambda: (case(x := cloud(2, 15, 3, dead=True), x, eps=1.0), 5),
    "symmetric, shown": lambda: (case(x := cloud(15, 3, dead=True), x, eps=1.0, shown=True), 5),
    "symmetric, slack and masses": lambda: (
        case(
            x := cloud(15, 3), x, eps=1.0, slack=(2.0, 2.0),
            masses=(torch.tensor([0.3]), torch.tensor([0.3])),
        ),
        5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_one_pass_is_autograd_through_the_steps(make, impl, monkeypatch):
    made, steps = make()
    exact = gradients(made, "reference", steps)
    assert error(gradients(made, impl, steps), exact) < 1e-10
    single = lambda: error(
        [g.double() for g in gradients(made, impl, steps, torch.float32)], exact
    )
    found = single()
    monkeypatch.setattr(pf.sinkhorn._alternate, "_recorded", lambda *_: None)
    assert found < 2 * single() + 5e-7  # the same implementation, step by step


@pytest.mark.parametrize("impl", FAST)
def test_points_are_met_once_for_all_steps(impl, monkeypatch):
    """Near potentials are one group; far or large ones have a pass each."""
    reductions, passes = pf.ops.implementation(impl), []
    vjp = reductions.vjp

    def counted(*arguments):
        passes.append(any(arguments[5][:2]))
        return vjp(*arguments)

    monkeypatch.setattr(reductions, "vjp", counted)
    for eps, counts in ((1.0, (20, 1)), (1e-3, (0, 20))):
        passes.clear()
        gradients(case(cloud(20, 2), cloud(14, 2), eps=eps), impl, 10, torch.float32)
        assert (passes.count(False), passes.count(True)) == counts


def test_steps_need_no_kernels(monkeypatch):
    """Without Triton the steps of other implementations are recorded as ever."""
    monkeypatch.setattr(pf.ops._reductions, "_kernels_run", lambda: False)
    grads = gradients(case(cloud(20, 2), cloud(14, 2)), "streamed", 2)
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("impl", FAST)
def test_steps_are_differentiable_once(impl):
    leaves, f = case(cloud(6, 2), cloud(5, 2))
    leaves = [t.requires_grad_() for t in leaves]
    (first,) = torch.autograd.grad(f(leaves, impl, 3), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative.*reference"):
        torch.autograd.grad(first.sum(), leaves[0])
    (first,) = torch.autograd.grad(f(leaves, "reference", 3), leaves[0], create_graph=True)
    torch.autograd.grad(first.sum(), leaves[0])


def test_gradients_that_are_not_wanted():
    """Only weights, or only one cloud; the same as all at once."""
    leaves, f = case(cloud(9, 2), cloud(7, 2), slack=(1.0, 2.0))
    exact = gradients((leaves, f), "streamed", 3)
    for chosen in ([0], [1], [2, 3], [4]):
        some = [t.detach().requires_grad_(i in chosen) for i, t in enumerate(leaves)]
        found = torch.autograd.grad(f(some, "streamed", 3), [some[i] for i in chosen])
        for i, g in zip(chosen, found, strict=True):
            assert torch.allclose(g, exact[i], atol=1e-13)


def test_steps_in_a_checkpoint():
    leaves, f = case(cloud(9, 2), cloud(7, 2))
    exact = gradients((leaves, f), "streamed", 3)
    again = lambda leaves, *rest: checkpoint(f, leaves, *rest, use_reentrant=False)
    assert error(gradients((leaves, again), "streamed", 3), exact) == 0


@pytest.mark.unhooked
def test_the_operators_are_registered_right():
    from pushforward.sinkhorn._alternate import steps_backward, take_steps

    (x, log_a), (y, log_b) = cloud(2, 5, 2), cloud(2, 4, 2)
    inputs = [x, y, log_a, log_b, torch.zeros(2, 4)]
    options = ([], [1.0, 1.0, 1.0], False, "streamed")
    torch.library.opcheck(take_steps, (inputs, *options, 2))
    _, *record = take_steps(inputs, *options, 2)
    torch.library.opcheck(
        steps_backward, (inputs, *options, record, torch.randn(2, 4), [True, True])
    )


def test_half_precision_points_stay_as_they_are():
    (x, log_a), (y, log_b) = cloud(6, 2), cloud(5, 2)
    x, y = (t.bfloat16().requires_grad_() for t in (x, y))
    scores = PointScores(Features(x, None), Features(y, None), 0.7, impl="streamed")
    call = lambda scores: alternate(scores, Problem(log_a, log_b), torch.zeros(5), 3)
    found = torch.autograd.grad(call(scores).square().sum(), (x, y))
    exact = torch.autograd.grad(call(replace(scores, impl="reference")).square().sum(), (x, y))
    for a, b in zip(found, exact, strict=True):
        assert a.dtype == torch.bfloat16 and (a - b).norm() < 0.02 * b.norm()
