"""The solver behind couplings: memory of a stored kernel, starts, and what a problem is."""

import math
import weakref
from dataclasses import replace

import pytest
import torch

import pushforward as pf
from pushforward.sinkhorn import (
    Problem,
    Settings,
    StoredKernel,
    alternate,
    differentiable,
    rebalanced,
    solve,
)


def problem(m=40, n=50, eps=0.05):
    """Scores and marginals of two clouds in a square, with gradients."""
    x, y = torch.rand(m, 2, requires_grad=True), torch.rand(n, 2, requires_grad=True)
    log_a, log_b = torch.randn(m).log_softmax(-1), torch.randn(n).log_softmax(-1)
    scores = pf.affinities.scores(pf.SquaredDistance(eps), x, y, log_b)
    return scores, Problem(log_a, log_b), (x, y)


def test_memory_bounds_what_is_stored(monkeypatch):
    """Just enough bytes store the kernel, one less streams; the result is the same."""
    scores, marginals, _ = problem()
    stored, store = [], StoredKernel.normal
    monkeypatch.setattr(StoredKernel, "normal", lambda *args: stored.append(None) or store(*args))
    enough, settings = 40 * 50 * 8, Settings(1e-9, 500)
    ends = {}
    for memory, fits in ((None, True), (enough, True), (enough - 1, False), (0, False)):
        stored.clear()
        ends[memory] = solve(scores.detach(), marginals, replace(settings, memory=memory))
        assert bool(stored) == fits, memory
        assert ends[memory].residual <= 1e-9
    assert torch.equal(ends[None].g, ends[enough].g) and torch.equal(ends[0].g, ends[enough - 1].g)
    assert torch.allclose(ends[0].g, ends[None].g, atol=1e-8)


def test_there_is_one_kernel_in_memory_at_a_time(monkeypatch):
    """Far from the solution kernels are stored again and again, each after the last is freed."""
    x, y = 3 * torch.randn(50, 2), 3 * torch.randn(40, 2) + 5
    log_a, log_b = (torch.full((n,), -math.log(n)) for n in (50, 40))
    scores = pf.affinities.scores(pf.SquaredDistance(0.02), x, y, log_b)
    kernels, store = [], StoredKernel.normal

    def normal(*args):
        assert all(kernel() is None for kernel in kernels)
        kernel = store(*args)
        kernels.append(weakref.ref(kernel))
        return kernel

    monkeypatch.setattr(StoredKernel, "normal", normal)
    solve(scores, Problem(log_a, log_b), Settings(1e-3, 200, anneal=False))
    assert len(kernels) > 1


def test_gradients_do_not_depend_on_the_memory(monkeypatch):
    scores, marginals, points = problem()
    g = solve(scores.detach(), marginals, Settings(1e-12, 500)).g
    value = lambda memory: differentiable(scores, marginals, g, memory).square().sum()
    stored = torch.autograd.grad(value(None), points, retain_graph=True)
    monkeypatch.setattr(StoredKernel, "absorb", None)  # an error if it were called
    streamed = torch.autograd.grad(value(0), points)
    for a, b in zip(stored, streamed, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("slack", [(math.inf, math.inf), (2.0, math.inf), (1.0, 3.0)])
def test_plain_steps_increase_the_dual_value(slack):
    """So the safeguard of the acceleration never rejects one."""
    scores, marginals, _ = problem()
    scores, marginals = scores.detach(), replace(marginals, slack=slack)
    g, values = torch.randn(50), []
    for _ in range(20):
        values.append(marginals.dual(marginals.rows(scores, g), g))
        g = alternate(scores, marginals, g, 1)
    gains = torch.stack(values).diff()
    assert (gains > -1e-13).all() and gains[0] > 1e-3


def test_a_single_component_is_balanced_already():
    _, marginals, _ = problem()
    assert rebalanced(marginals) is marginals.log_b
    one = replace(marginals, parts=(torch.zeros(40).long(), torch.zeros(50).long()))
    assert torch.allclose(rebalanced(one), marginals.log_b, atol=1e-14)
