"""The kernels of decaying sums against tiles: on a GPU with `--device cuda`, else interpreted."""

import interpreter
import pytest
import torch

from pushforward import ops
from pushforward.ops import _radial

ON_GPU = interpreter.on_gpu()

pytestmark = pytest.mark.unhooked  # checks of shapes would wrap the kernels themselves


@pytest.fixture(autouse=True)
def _there(device):
    if ON_GPU and device == "cpu":
        pytest.skip("on a machine with a GPU these tests run with --device cuda")
    torch.set_default_dtype(torch.float32)


def decaying(m, n, d, e, batch=()):
    """Points and terms of a decaying sum; points of one side are views across rows."""
    return [torch.randn(*batch, d, m).mT, torch.randn(*batch, n, d), torch.randn(*batch, n, e)]


def decayed(run, tensors, power, dtype):
    """The sums and their gradients, in the first derivatives of all tensors."""
    tensors = [t.detach().to(dtype).requires_grad_() for t in tensors]
    out = run(*tensors, power)
    upstream = torch.linspace(-1, 2, out.numel()).sin().view_as(out).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, tensors, upstream)]


def compare_decay(tensors, power, most=3.0):
    """At most a few times the error of float32 tiles, or some roundings of the whole result.

    A power multiplies the relative error of its base, and its own factors are rounded, twice each.
    """
    kernels = pytest.importorskip("pushforward.ops.kernels")
    exact = decayed(_radial._by_tiles, tensors, power, torch.float64)
    dense = decayed(_radial._by_tiles, tensors, power, torch.float32)
    found = decayed(kernels.decaying_sum, tensors, power, torch.float32)
    for e, d, f in zip(exact, dense, found, strict=True):
        assert f.dtype == torch.float32 and f.shape == d.shape and f.isfinite().all()
        allowed = 2**-23 * (2 + 2 * power) * e.norm()
        assert (f - e).norm() <= most * (d - e).norm() + allowed


DECAYING = {
    "parts of a sum": (5, 1100, 2, 3, 0.5),
    "parts of a gradient": (560, 3, 3, 5, 1.0),
    "one coordinate": (3, 40, 1, 1, 0.3),
    "the widest": (9, 33, 4, 8, 6.4),
    "no coordinate": (4, 5, 0, 2, 1.0),
    "no atoms": (3, 0, 2, 2, 0.5),
    "no sums": (0, 3, 2, 2, 0.5),
    "whole and large": (9, 33, 2, 2, 5.0),
}


@pytest.mark.parametrize("case", DECAYING.values(), ids=DECAYING)
def test_decaying_sums(case):
    """Whatever is not written is NaN, as empty tensors are filled with it here."""
    torch.use_deterministic_algorithms(True)
    try:
        compare_decay(decaying(*case[:-1]), case[-1])
    finally:
        torch.use_deterministic_algorithms(False)


def test_decaying_sums_with_any_leading_axes():
    x, y, v = decaying(5, 7, 2, 3, batch=(2, 1, 2))
    compare_decay([x, y[:1], v[0, 0, 0]], 0.5)


def test_decaying_sums_far_from_the_origin():
    """Distances are those of differences: of points that are exact there, nothing is lost."""
    x, y, v = (torch.randint(9, (n, 2)) / 8.0 for n in (6, 50, 50))
    kernels = pytest.importorskip("pushforward.ops.kernels")
    near, far = (kernels.decaying_sum(x + shift, y + shift, v, 0.5) for shift in (0, 2.0**19))
    assert torch.equal(near, far)


def test_the_operator_of_decaying_sums_is_registered_right():
    from pushforward.ops import kernels
    from pushforward.ops.kernels import _decay as decay

    x, y, v = (t[None, None].requires_grad_() for t in decaying(5, 9, 2, 2))
    torch.library.opcheck(decay.decaying_sum, (x, y, v, 1.0))
    (first,) = torch.autograd.grad(decay.decaying_sum(x, y, v, 1.0).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.sum(), x)
    only_v = decay.decaying_sum(x.detach(), y.detach(), v, 1.0)
    expected = decayed(_radial._by_tiles, [x, y, v], 1.0, torch.float64)[3]
    upstream = torch.linspace(-1, 2, only_v.numel()).sin().view_as(only_v)
    assert (torch.autograd.grad(only_v, v, upstream)[0] - expected).abs().max() < 1e-6
    compiled = torch.compile(kernels.decaying_sum, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, y, v, 1.0), only_v)


@pytest.mark.skipif(not ON_GPU, reason="too large for the interpreter")
@pytest.mark.parametrize("power", [0.5, 1.0, 2.3])
@pytest.mark.parametrize("widths", [(1, 1), (2, 3), (3, 4), (4, 8)], ids=str)
@pytest.mark.parametrize("sizes", [(1000, 4099), (63, 70_001), (4097, 1129)], ids=str)
def test_large_decaying_sums(sizes, widths, power):
    """And the kernels are the default: the bits are theirs."""
    from pushforward.ops import kernels

    tensors = decaying(*sizes, *widths, batch=(2,))
    compare_decay(tensors, power)
    chosen = ops.decaying_sum(*tensors, power=power)
    assert torch.equal(chosen, kernels.decaying_sum(*tensors, power))


@pytest.mark.skipif(not ON_GPU, reason="too large for the interpreter")
def test_more_decaying_sums_than_a_grid_has_rows():
    compare_decay(decaying(4, 4, 2, 3, batch=(70_000,)), 0.5)
