"""The fused implementation: its exponential, registers of every size, precision, threads."""

import dataclasses
import importlib.util

import pytest
import torch
from implementations import HERE
from torch.library import opcheck

import pushforward as pf
from pushforward import ops
from pushforward.ops import _fused, _radial, _reductions
from pushforward.ops.compiled import _vectors

fused = pytest.mark.skipif("fused" not in HERE, reason="needs llvmlite, of the extra `fast`")


def gradients(op, tensors, impl, upstream, times=None):
    """The result and the gradients in everything."""
    tensors = [t.clone().requires_grad_() for t in tensors]
    out = getattr(ops, op)(*tensors, impl=impl, times=times)
    return [out.detach(), *torch.autograd.grad(out, tensors, upstream.to(out.dtype))]


@fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_two_atoms_give_the_logistic_function(dtype):
    """With values 0 and 1: 1 / (1 + e^-s), until e^s leaves the numbers.

    The factor log2(e) in float32 is wrong by 0.11 eps, which an exponent of size s multiplies.
    """
    eps, lowest = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    s = torch.cat([torch.linspace(-80, 80, 5001), torch.tensor([-200.0, -1e4, -1e6])]).to(dtype)
    q, k, v = s[:, None], torch.tensor([[0.0], [1.0]]).to(dtype), torch.eye(2).to(dtype)
    got = ops.average(q, k, v, torch.zeros(2).to(dtype), impl="fused")[:, 1].double()
    expected = s.double().sigmoid()
    assert ((got / expected - 1)[:-3].abs() < (4 + 0.12 * s.abs()[:-3]) * eps).all()
    assert (got[-3:] <= expected[-3:] + lowest).all() and (got[-2:] == 0).all()


@fused
@pytest.mark.parametrize(
    ("register", "vectors", "dtype"),
    [(16, 4, torch.float32), (16, 1, torch.float64), (32, 3, torch.float32),
     (64, 4, torch.float64)],
)  # fmt: skip
def test_tiles_of_every_size(monkeypatch, register, vectors, dtype):
    """Other registers than those at hand; the compiler splits what is too long."""
    machine = dataclasses.replace(_vectors.machine(), register=register, vectors=vectors)
    monkeypatch.setattr(_fused, "machine", lambda: machine)
    q, k, v, bias = torch.randn(2, 37, 3), torch.randn(2, 131, 3), torch.randn(2, 131, 5), None
    bias = torch.randn(2, 131).masked_fill(torch.rand(2, 131) < 0.2, -torch.inf)
    times = torch.rand(2, 37), torch.rand(2, 131)
    tensors = [t.to(dtype) for t in (q, k, v, bias)]
    eps = torch.finfo(dtype).eps
    for clock in (None, times):
        got, expected = (
            gradients("average", t, impl, torch.ones(2, 37, 5), clock)
            for t, impl in ((tensors, "fused"), ([q, k, v, bias], "reference"))
        )
        for a, b in zip(got, expected, strict=True):
            assert (a - b).norm() < 16 * eps * b.norm()


@fused
@pytest.mark.parametrize("op", ["average", "log_integral"])
@pytest.mark.parametrize("d", [2, 3, 16, 64])
def test_float32_is_float32_accurate(op, d):
    """Scores up to 40: 2e-6 over everything and 1e-5 in each row, results and gradients."""
    m, n = 70, 3000
    q, k, v, bias = torch.randn(m, d), torch.randn(n, d), torch.randn(n, d), torch.randn(n)
    q *= 38 / (q @ k.mT).abs().max()
    chosen = [q, k, v, bias] if op == "average" else [q, k, bias]
    upstream = torch.randn(m, d) if op == "average" else torch.randn(m)
    near = [t.float() for t in chosen]
    exact = gradients(op, [t.double() for t in near], "reference", upstream)
    dense = gradients(op, near, "reference", upstream)
    for e, a, r in zip(exact, gradients(op, near, "fused", upstream), dense, strict=True):
        error, reference = (a - e).norm(), (r - e).norm()
        assert error <= max(2e-6 * e.norm(), 2 * reference)
    out, result = exact[0].view(m, -1), gradients(op, near, "fused", upstream)[0].view(m, -1)
    assert ((result - out).norm(dim=1) <= 1e-5 * out.norm(dim=1)).all()


@fused
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_huge_scores_are_as_good_as_dense_float32(size):
    """Queries and keys of few bits, so that float32 scores are exact: then averages are good."""
    q, k = torch.randint(-4, 5, (40, 3)) * size, torch.randint(-4, 5, (300, 3)) / 4
    v, bias = torch.randn(300, 2), torch.zeros(300)
    near = [t.float() for t in (q, k, v, bias)]
    exact = gradients("average", [q, k, v, bias], "reference", torch.ones(40, 2))
    for a, e in zip(gradients("average", near, "fused", torch.ones(40, 2)), exact, strict=True):
        scale = max(e.norm(), k.norm())  # gradients in queries and keys cancel to nothing
        assert (a - e).norm() <= 1e-5 * scale * (size if e.shape == k.shape else 1)


@fused
def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(_fused, "ALONE", 0)
    q, k, v, bias = (torch.randn(2, 300, w).float() for w in (3, 3, 2, 1))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            tensors = [q, k, v, bias[..., 0]]
            results.append(gradients("average", tensors, "fused", torch.ones(2, 300, 2)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(r, results[0], strict=True))


@fused
@pytest.mark.parametrize("timed", [False, True], ids=["all", "causal"])
def test_operators_and_unwritten_memory(timed):
    """PyTorch's own checks of an operator; and memory that is not written reads as NaN."""
    q, k, v, bias = (torch.randn(2, s, w, requires_grad=True) for s, w in
                     ((5, 3), (7, 3), (7, 2), (7, 1)))  # fmt: skip
    clock = (torch.rand(2, 5), torch.rand(2, 7)) if timed else (None, None)
    args = q, k, v, bias[..., 0], *clock
    torch.use_deterministic_algorithms(True)
    try:
        outputs = [t.detach() for t in _fused.fused_sweep(*args)]
        assert all(t.isfinite().all() or timed for t in outputs)
        opcheck(_fused.fused_sweep, args)
        inputs = [t.detach() for t in args[:4]]
        grads = [torch.ones_like(t) for t in outputs[:2]]
        backward = inputs, *clock, outputs, grads, [True] * 4
        assert all(t.isfinite().all() for t in _fused.fused_sweep_backward(*backward))
        opcheck(_fused.fused_sweep_backward, backward, test_utils="test_schema")
        opcheck(_fused.fused_sweep_backward, backward, test_utils="test_faketensor")
    finally:
        torch.use_deterministic_algorithms(False)


@fused
def test_a_thousand_tiny_problems_and_none():
    q, k, v, b = (
        torch.randn(1000, 4, 2),
        torch.randn(1000, 3, 2),
        torch.randn(3, 1),
        torch.randn(3),
    )
    got, expected = (ops.average(q, k, v, b, impl=i) for i in ("fused", "reference"))
    assert (got - expected).abs().max() < 1e-14
    for empty in (q[:0], q[:, :0]):
        assert ops.average(empty, k[: len(empty)], v, b, impl="fused").shape == (
            *empty.shape[:2], 1)  # fmt: skip


@fused
@pytest.mark.parametrize("power", [0.5, 1])
def test_decaying_sums(power):
    """Compiled loops against tiles in float64; terms of either sign cancel like a random walk."""
    x, y, v = torch.randn(2, 300, 3), torch.randn(2, 2100, 3), torch.randn(2, 2100, 4)
    upstream = torch.randn(2, 300, 4)

    def results(f, dtype):
        tensors = [t.to(dtype).requires_grad_() for t in (x, y, v)]
        out = f(*tensors, power=power)
        return out, *torch.autograd.grad(out, tensors, upstream.to(dtype))

    exact = results(_radial._by_tiles, torch.float64)
    for dtype in (torch.float64, torch.float32):
        for a, e in zip(results(ops.decaying_sum, dtype), exact, strict=True):
            assert (a - e).norm() < 2100**0.5 * torch.finfo(dtype).eps * e.norm()
    few = [t[:1, :9].clone().requires_grad_() for t in (x, y, v)]
    opcheck(_radial.radial_sum, (*few, float(power)))


class TestWithout:
    """Where llvmlite is missing."""

    @pytest.fixture(autouse=True)
    def _without(self, monkeypatch):
        real = importlib.util.find_spec
        missing = lambda name, *rest: None if name == "llvmlite" else real(name, *rest)
        monkeypatch.setattr(_vectors, "find_spec", missing)
        _vectors.available.cache_clear()
        yield
        _vectors.available.cache_clear()

    def test_an_explicit_choice_says_how_to_install_it(self):
        one = torch.ones(1, 1)
        with pytest.raises(ModuleNotFoundError, match=r"pip install pushforward\[fast\]"):
            ops.log_integral(one, one, one[0], impl="fused")

    def test_the_default_streams(self):
        q = torch.zeros(1 << 11, 1)
        assert _reductions.choose(q, q, q) == "streamed"
        assert _reductions.choose(q[:512], q, q) == "reference"
        assert pf.ops.log_integral(q, q[:1], q[0]).eq(0).all()
