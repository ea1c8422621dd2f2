"""Doubly stochastic scalings: sums, the exact matrix, masks, gradients."""

import itertools
import math

import pytest
import torch

from pushforward.sinkhorn import _small, doubly_stochastic

INF = math.inf
EYE = torch.eye(3, dtype=torch.bool)


def normal(*shape, std=1.0, dtype=torch.float64):
    return std * torch.randn(*shape, dtype=dtype)


def errors(matrix):
    """The larger error of rows and columns of each matrix, in float64."""
    matrix = matrix.double()
    return torch.maximum(*((matrix.sum(a) - 1).abs().amax(-1) for a in (-1, -2)))


def sinkhorn(logits, steps=60):
    """The same limit by plain iterations in the log domain, which mild logits soon reach."""
    for _ in range(steps):
        logits = logits.log_softmax(-1).log_softmax(-2)
    return logits.exp()


def has_total_support(allowed):
    """By all permutations."""
    n, covered = len(allowed), torch.zeros_like(allowed)
    for columns in itertools.permutations(range(n)):
        if allowed[range(n), columns].all():
            covered[range(n), columns] = True
    return bool((covered == allowed).all() and allowed.any())


@pytest.mark.parametrize("std", [1, 2, 4, 8])
def test_a_hundred_thousand_without_a_failure(std):
    """Rows and columns of every matrix within 1e-6, in float32."""
    result = doubly_stochastic(normal(100_000, 4, 4, std=std, dtype=torch.float32))
    assert result.converged.all()
    assert errors(result.scaled).max() <= 1e-6
    torch.testing.assert_close(result.residual.double(), errors(result.scaled), rtol=1e-6, atol=0)


@pytest.mark.parametrize("std", [1, 8])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 17, 33, 64])
def test_sizes_on_both_sides_of_every_switch(n, std):
    result = doubly_stochastic(normal(100, n, n, std=std, dtype=torch.float32))
    assert result.converged.all()
    assert errors(result.scaled).max() <= 1e-6


@pytest.mark.parametrize("n", [3, 20])
def test_is_the_limit_of_sinkhorn(n):
    logits = normal(2, 5, n, n, std=0.5)
    result = doubly_stochastic(logits, tol=1e-12)
    assert result.residual.shape == result.converged.shape == (2, 5)
    assert result.residual.max() <= 1e-12
    torch.testing.assert_close(result.scaled, sinkhorn(logits), rtol=0, atol=1e-11)


def test_two_by_two_is_a_logistic_function():
    logits = normal(1000, 2, 2, std=5)
    diagonal = logits[:, 0, 0] + logits[:, 1, 1] - logits[:, 0, 1] - logits[:, 1, 0]
    matrix = doubly_stochastic(logits, tol=1e-12).scaled
    torch.testing.assert_close(matrix[:, 0, 0], (diagonal / 2).sigmoid(), rtol=0, atol=2e-12)


@pytest.mark.parametrize("n", [2, 5, 33])
def test_entries_are_within_n_residuals(n):
    """The bound of the docstring, with what rounding logits of size 30 adds."""
    logits = normal(200, n, n, std=8, dtype=torch.float32)
    result = doubly_stochastic(logits)
    exact = doubly_stochastic(logits.double(), tol=1e-13).scaled
    error = (result.scaled - exact).abs().amax((-1, -2))
    assert (error <= n * result.residual + 30 * torch.finfo(torch.float32).eps).all()


def test_rows_and_columns_may_be_shifted():
    logits = normal(50, 6, 6)
    shifts = normal(50, 6, 1, std=1e3) + normal(50, 1, 6, std=1e3) + 1e4
    matrix = doubly_stochastic(logits, tol=1e-12).scaled
    # The shifted logits are rounded by 1e4 * 1e-16.
    shifted = doubly_stochastic(logits + shifts, tol=1e-12).scaled
    torch.testing.assert_close(shifted, matrix, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits_give_the_best_assignment(dtype):
    logits = normal(20, 5, 5, std=1e4, dtype=dtype)
    result = doubly_stochastic(logits)
    orders = torch.tensor(list(itertools.permutations(range(5))))
    best = orders[logits[:, torch.arange(5), orders].sum(-1).argmax(-1)]
    assert result.converged.all()
    assert (result.scaled.argmax(-1) == best).all()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_converges_exactly_on_total_support(n):
    allowed = torch.rand(200, n, n) < torch.rand(200, 1, 1)
    result = doubly_stochastic(normal(200, n, n, std=3).masked_fill(~allowed, -INF))
    want = torch.tensor([has_total_support(pattern) for pattern in allowed])
    assert 20 < want.sum() < 180
    assert (result.converged == want).all()
    assert result.scaled.isfinite().all()
    assert (result.scaled[~allowed] == 0).all()


PATTERNS = {
    "blocks": (torch.block_diag(torch.ones(9, 9), torch.ones(11, 11)) > 0, True),
    "cycle": (torch.eye(20).roll(1, 0) + torch.eye(20) > 0, True),
    "Hessenberg": (torch.ones(20, 20).triu(-1) > 0, True),
    "causal": (torch.ones(8, 8).tril() > 0, False),
    "a block too flat": (torch.ones(20, 20).index_fill(0, torch.arange(11), 0) > 0, False),
    "nothing": (torch.zeros(3, 3) > 0, False),
    "nothing of one": (torch.zeros(1, 1) > 0, False),
}


@pytest.mark.parametrize(("allowed", "exists"), PATTERNS.values(), ids=PATTERNS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks(allowed, exists, dtype):
    logits = normal(30, *allowed.shape, std=4, dtype=dtype).masked_fill(~allowed, -INF)
    result = doubly_stochastic(logits)
    assert (result.converged == exists).all()
    assert result.scaled.isfinite().all() and result.residual.isfinite().all()


def test_one_bad_matrix_is_flagged_alone():
    logits = normal(5, 4, 4)
    logits[1, 2, 3], logits[2, 0, 0], logits[3, 1] = math.nan, INF, -INF
    result = doubly_stochastic(logits)
    assert result.converged.tolist() == [True, False, False, False, True]
    assert result.residual[1:3].isnan().all()


def test_few_steps_are_flagged():
    result = doubly_stochastic(normal(100, 8, 8, std=8), max_steps=2)
    assert result.steps == 2
    assert not result.converged.all()
    assert (result.converged == (errors(result.scaled) <= 1e-6)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = normal(100, 5, 5, std=4, dtype=dtype).requires_grad_()
    result = doubly_stochastic(logits)
    assert result.scaled.dtype == dtype and result.residual.dtype == torch.float32
    assert result.converged.all()
    assert (result.scaled == doubly_stochastic(logits.float()).scaled.to(dtype)).all()
    result.scaled.float().square().sum().backward()
    assert logits.grad.dtype == dtype and logits.grad.isfinite().all()


def test_chunks_change_nothing(monkeypatch):
    logits = normal(50, 5, 5, std=4).requires_grad_()
    up = normal(50, 5, 5)
    run = lambda: (
        result := doubly_stochastic(logits),
        torch.autograd.grad(result.scaled, logits, up),
    )
    whole, (grad,) = run()
    monkeypatch.setattr("pushforward.sinkhorn._small.CHUNK", 200)
    parts, (grads,) = run()
    torch.testing.assert_close(parts.scaled, whole.scaled, rtol=0, atol=1e-6)
    torch.testing.assert_close(grads, grad, rtol=0, atol=1e-5)


def test_empty_batch():
    logits = torch.empty(0, 2, 3, 3, requires_grad=True)
    result = doubly_stochastic(logits)
    assert result.scaled.shape == (0, 2, 3, 3) and result.residual.shape == (0, 2)
    result.scaled.sum().backward()
    assert logits.grad.shape == logits.shape


@pytest.mark.parametrize("n", [1, 2, 4, 18])
def test_gradcheck(n):
    logits = normal(2, n, n, std=1.5).requires_grad_()
    exact = lambda x: doubly_stochastic(x, tol=1e-13).scaled
    assert torch.autograd.gradcheck(exact, logits, fast_mode=n > 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [4, 20])
def test_gradient_is_that_of_unrolled_sinkhorn(n, dtype):
    logits, up = normal(5, n, n, std=0.5), normal(5, n, n)
    want = _gradient(sinkhorn, logits, up)
    got = _gradient(lambda x: doubly_stochastic(x.to(dtype)).scaled, logits, up)
    # The matrix is off by n * 1e-6 at most, the gradient by a few times that.
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


def _gradient(f, logits, up):
    logits = logits.clone().requires_grad_()
    return torch.autograd.grad((f(logits) * up).sum(), logits)[0]


@pytest.mark.parametrize("n", [5, 20])
def test_blocks_have_the_gradients_of_each(n):
    """Also where nothing couples them; and none beyond the mask, whatever comes from above."""
    blocks = [normal(n, n, std=2), normal(n + 1, n + 1, std=2)]
    allowed = torch.block_diag(*map(torch.ones_like, blocks)) > 0
    logits = torch.block_diag(*blocks).masked_fill(~allowed, -INF).requires_grad_()
    logs = doubly_stochastic(logits, tol=1e-12).scaled.log()
    logs.masked_fill(~allowed, 0).sin().sum().backward()
    parts = [block.requires_grad_() for block in blocks]
    for part in parts:
        doubly_stochastic(part, tol=1e-12).scaled.log().sin().sum().backward()
    want = torch.block_diag(*(part.grad for part in parts))
    torch.testing.assert_close(logits.grad, want, rtol=0, atol=1e-9)


def test_differentiable_once():
    logits = normal(3, 3).requires_grad_()
    matrix = doubly_stochastic(logits).scaled
    with pytest.raises(NotImplementedError, match="differentiable once"):
        torch.autograd.grad(matrix[0, 0], logits, create_graph=True)


def test_autocast_changes_nothing():
    logits = normal(10, 20, 20, std=4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        result = doubly_stochastic(logits)
    assert (result.scaled == doubly_stochastic(logits).scaled).all()


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: doubly_stochastic(torch.ones(3, 4)), r"\(\.\.\., n, n\), got \(3, 4\)"),
        (lambda: doubly_stochastic(torch.ones(3)), r"got \(3,\)"),
        (lambda: doubly_stochastic(torch.ones(2, 0, 0)), r"got \(2, 0, 0\)"),
        (lambda: doubly_stochastic(EYE), "floating point, got torch.bool"),
        (lambda: doubly_stochastic(EYE.double(), tol=0.0), "positive, got 0"),
        (lambda: doubly_stochastic(EYE.double(), max_steps=-1), "whole number"),
    ],
)
def test_errors_say_what_came_and_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("n", [4, 20])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf], ids=str)
def test_logits_that_are_not_finite_are_flagged(n, wrong):
    """Their matrix is NaN and has not converged; the others of the batch are as without them."""
    logits = torch.randn(3, n, n)
    good = doubly_stochastic(logits[[0, 2]]).scaled
    logits[1, 2, 3] = wrong
    result = doubly_stochastic(logits.requires_grad_())
    assert result.converged.tolist() == [True, False, True]
    assert result.scaled[1].isnan().any() and result.residual[1].isnan()
    assert torch.allclose(result.scaled[[0, 2]], good, atol=1e-9)
    (grad,) = torch.autograd.grad(result.scaled.square().sum(), logits)
    assert grad[[0, 2]].isfinite().all()


def test_no_matrices_at_all():
    result = doubly_stochastic(torch.zeros(0, 4, 4, requires_grad=True))
    assert result.scaled.shape == (0, 4, 4) and result.converged.shape == (0,)
    result.scaled.sum().backward()


def test_a_power_that_vanishes_counts():
    """The identity and a cycle, of equal weight; the exponential of -100 underflows in float32."""
    logits = torch.tensor([[0.0, -100, -300], [-300, 0, 50], [50, -300, 0]])
    half = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    for scale, dtype in ((1, torch.float32), (10, torch.float64)):
        result = doubly_stochastic(scale * logits.to(dtype))
        assert (result.scaled - half.to(dtype)).abs().max() < 1e-6 and result.converged
        assert not doubly_stochastic(scale * logits.to(dtype), max_steps=3).converged


def test_masks_by_large_finite_numbers_need_no_annealing(monkeypatch):
    """Entries that vanish are nothing in the scaling either: that can be read off it."""
    logits = torch.randn(50, 4, 4)
    logits[:, 0, 1] = -1e9
    expected = doubly_stochastic(logits.masked_fill(logits < -1e8, -INF))
    monkeypatch.setattr(_small, "_anneal", lambda *_: pytest.fail("annealed"))
    result = doubly_stochastic(logits)
    assert result.converged.all() and (result.scaled - expected.scaled).abs().max() < 2e-6
