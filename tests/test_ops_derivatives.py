"""What fast implementations of the reductions refuse: second derivatives, transforms."""

import pytest
import torch
from implementations import HERE

from pushforward import ops

FAST = [impl for impl in HERE if impl != "reference"]


def inputs():
    """Three queries; six atoms with values and log-weights."""
    return [torch.randn(3, 2), torch.randn(6, 2), torch.randn(6, 2), torch.randn(6)]


OPERATIONS = {
    "average": lambda q, k, v, b, impl: ops.average(q, k, v, b, impl=impl),
    "causal average": lambda q, k, v, b, impl: ops.average(
        q, k, v, b, times=(torch.arange(3), torch.zeros(6).long()), impl=impl
    ),
    "log-integral": lambda q, k, v, b, impl: ops.log_integral(q, k, b, impl=impl),
}


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", OPERATIONS)
def test_second_derivatives_of_fast_reductions_are_refused(name, impl):
    f = lambda *args: OPERATIONS[name](*args, impl)
    tensors = [t.requires_grad_() for t in inputs()]
    for wanted in (0, 1, 3):
        (first,) = torch.autograd.grad(
            f(*tensors).square().sum(), tensors[wanted], create_graph=True
        )
        with pytest.raises(NotImplementedError, match="no second derivative.*reference"):
            torch.autograd.grad(first.sum(), tensors[0])


@pytest.mark.parametrize("impl", FAST)
@pytest.mark.parametrize("name", OPERATIONS)
def test_fast_reductions_under_torch_func(name, impl):
    """The streamed average has its Jacobian; the others say what to use."""
    q, *rest = inputs()
    f = lambda q: OPERATIONS[name](q, *rest, impl)
    exact = lambda q: ops.average(q, *rest, impl="reference")
    if name == "average" and impl == "streamed":
        jacobian = torch.func.jacrev(f)(q)
        assert torch.allclose(jacobian, torch.func.jacrev(exact)(q), atol=1e-12)
        with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
            torch.func.hessian(f)(q)
        return
    for transform in (
        lambda: torch.func.jacrev(f)(q),
        lambda: torch.func.grad(lambda q: f(q).sum())(q),
        lambda: torch.autograd.functional.jacobian(f, q, vectorize=True),
    ):
        with pytest.raises(NotImplementedError, match="no derivative under `torch.func`"):
            transform()


@pytest.mark.parametrize("power", [0.5, 1.0, 2.3])
def test_decaying_sums_and_their_derivatives(power):
    """Against the formula, with a leading axis that is broadcast; sums of nothing are empty."""
    x, y, v = (torch.randn(s).requires_grad_() for s in ((2, 3, 2), (4, 2), (4, 3)))
    sums = lambda x, y, v: ops.decaying_sum(x, y, v, power=power)
    square = (x[:, :, None] - y).square().sum(-1)
    exact = ((1 + square) ** -power) @ v
    assert (sums(x, y, v) - exact).abs().max() < 1e-14
    assert torch.autograd.gradcheck(sums, (x, y, v))
    assert sums(x[:, :0], y, v).shape == (2, 0, 3)
