"""Kernels that scale many small matrices, against the CPU in float64, on a GPU or interpreted."""

import math

import interpreter
import pytest
import torch

import pushforward as pf
from pushforward.sinkhorn import _small, doubly_stochastic

ON_GPU = interpreter.on_gpu()

pytestmark = pytest.mark.unhooked  # checks of shapes would wrap the kernels themselves

gpu_only = pytest.mark.skipif(not ON_GPU, reason="too many for the interpreter")

INF = math.inf
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
both = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def _there(device, monkeypatch):
    """Kernels run here, and memory that nothing was written to is NaN."""
    if ON_GPU and device == "cpu":
        pytest.skip("on a machine with a GPU these tests run with --device cuda")
    if not ON_GPU:
        monkeypatch.setattr(_small, "_kernels", lambda logits: pf.ops.implementation("triton"))
    torch.set_default_dtype(torch.float32)
    interpreter.poison(monkeypatch)


def by_torch(logits, tol):
    """The path without kernels, in float64."""
    return _small._scaled(logits.detach().double(), tol, 200)


def errors(matrix):
    matrix = matrix.double()
    return torch.maximum(*((matrix.sum(a) - 1).abs().amax(-1) for a in (-1, -2)))


def compare(logits):
    """Matrices and gradients as exact as their tolerance, and true certificates."""
    dtype, n = logits.dtype, logits.shape[-1]
    tol = TOLERANCE[dtype]
    logits = logits.clone().requires_grad_()
    result = doubly_stochastic(logits, tol=tol)
    matrix, _, converged, _ = by_torch(logits, 1e-12)
    assert torch.equal(result.converged, converged)
    torch.testing.assert_close(
        result.residual.double(), errors(result.scaled), rtol=1e-6, atol=n * 1e-16
    )
    assert (result.residual[result.converged] <= tol).all()
    off = (result.scaled.detach().double() - matrix)[converged].abs().amax((-1, -2))
    size = logits.detach().masked_fill(~logits.isfinite(), 0).abs().amax().item()
    rounding = 2 * size * torch.finfo(dtype).eps
    assert (off <= n * result.residual[converged] + rounding + 1e-12 * n).all()
    up = torch.randn(logits.shape, dtype=dtype, device=logits.device)
    (grad,) = torch.autograd.grad(result.scaled, logits, up)
    # The same formula at the same matrix, so that only its own rounding counts.
    want = _small._pull_back(result.scaled.detach().double(), up.double())
    close = dict(rtol=0, atol=max(1e-11, 2 * torch.finfo(dtype).eps))
    good = result.converged
    torch.testing.assert_close(grad[good].double(), want[good], **close)
    return result


def draw(count, n, std, dtype):
    return (std * torch.randn(count, n, n, dtype=torch.float64)).to(dtype)


@both
@pytest.mark.parametrize(
    ("n", "std"), [(1, 1), (2, 8), (3, 30), (7, 30), (11, 8), (18, 4), (33, 2)]
)
def test_sizes_and_spreads(n, std, dtype):
    compare(draw(3 if n < 10 else 1, n, std, dtype))


@both
def test_huge_logits_and_shifts(dtype):
    logits = 1e4 * torch.randn(3, 4, 4, dtype=dtype)
    assert doubly_stochastic(logits).converged.all()
    shifts = 1e4 * torch.randn(3, 4, 1, dtype=dtype)
    near = doubly_stochastic(draw(3, 4, 1, dtype) + shifts)
    assert near.converged.all() and near.steps <= 1


CYCLE = [[0.0, -100, -300], [-300, 0, 50], [50, -300, 0]]
"""The identity and a cycle, of equal weight; the exponential of -100 underflows in float32."""


def test_a_power_that_vanishes_counts():
    result = doubly_stochastic(torch.tensor([CYCLE, [[0.0] * 3] * 3]))
    half = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    assert (result.scaled[0] - half).abs().max() < 1e-6 and result.converged.all()
    few = doubly_stochastic(torch.tensor([CYCLE]), max_steps=3)  # too few to know
    assert not few.converged.any()


PATTERNS = {
    "blocks": (torch.block_diag(torch.ones(3, 3), torch.ones(2, 2)) > 0, True),
    "cycle": (torch.eye(9).roll(1, 0) + torch.eye(9) > 0, True),
    "Hessenberg": (torch.ones(6, 6).triu(-1) > 0, True),
    "causal": (torch.ones(4, 4).tril() > 0, False),
    "a block too flat": (torch.ones(6, 6).index_fill(0, torch.arange(4), 0) > 0, False),
    "nothing": (torch.zeros(3, 3) > 0, False),
    "nothing of one": (torch.zeros(1, 1) > 0, False),
}


@pytest.mark.parametrize(("allowed", "exists"), PATTERNS.values(), ids=PATTERNS.keys())
def test_masks(allowed, exists):
    """Beside a matrix without a mask."""
    logits = torch.randn(3, *allowed.shape)
    allowed = allowed.to(logits.device)
    logits[1:] = logits[1:].masked_fill(~allowed, -INF)
    result = doubly_stochastic(logits, max_steps=20)
    assert result.converged.tolist() == [True, exists, exists]
    assert (result.scaled[1:].masked_fill(allowed, 0) == 0).all()
    assert result.residual.isfinite().all()


@pytest.mark.parametrize("n", [2, 4])
def test_random_masks(n):
    """Judged as without kernels, whose judgement is tested against all permutations."""
    allowed = torch.rand(24, n, n) < 0.3 + 0.6 * torch.rand(24, 1, 1)
    logits = torch.randn(24, n, n).masked_fill(~allowed, -INF)
    _, _, want, _ = by_torch(logits, 1e-6)
    assert 3 < want.sum() < 21
    assert torch.equal(doubly_stochastic(logits, max_steps=20).converged, want)


@both
def test_blocks_that_are_nearly_separate(dtype):
    logits = torch.full((2, 6, 6), -60.0, dtype=dtype)
    for start in (0, 3):
        logits[:, start : start + 3, start : start + 3] = 2 * torch.randn(2, 3, 3, dtype=dtype)
    logits[1, 0, 5] = -10
    compare(logits)


def test_one_bad_matrix_is_flagged_alone():
    logits = torch.randn(5, 4, 4)
    good = doubly_stochastic(logits).scaled[[0, 4]]
    logits[1, 2, 3], logits[2, 0, 0], logits[3, 1] = math.nan, INF, -INF
    result = doubly_stochastic(logits.requires_grad_())
    assert result.converged.tolist() == [True, False, False, False, True]
    assert result.residual[1:3].isnan().all()
    assert torch.allclose(result.scaled[[0, 4]], good, atol=1e-9)
    (grad,) = torch.autograd.grad(result.scaled.square().sum(), logits)
    assert grad[[0, 4]].isfinite().all()


def test_few_steps_are_flagged():
    logits = torch.cat([torch.randn(3, 8, 8), 20 * torch.randn(4, 8, 8)])
    result = doubly_stochastic(logits, max_steps=2)
    assert result.steps == 2 and result.newton_steps.shape == ()
    assert result.converged[:3].all() and not result.converged.all()
    assert torch.equal(result.converged, errors(result.scaled) <= 1e-6)


def test_half_precision_leading_axes_and_strides():
    logits = torch.randn(2, 5, 5, 3).to(torch.bfloat16).mT[..., :3].movedim(0, 1)
    logits = logits.requires_grad_()
    result = doubly_stochastic(logits)
    assert result.scaled.dtype == torch.bfloat16 and result.residual.shape == (5, 2)
    assert torch.equal(result.scaled, doubly_stochastic(logits.float()).scaled.bfloat16())
    result.scaled.float().square().sum().backward()
    assert logits.grad.dtype == torch.bfloat16 and logits.grad.isfinite().all()


def test_no_matrices_at_all():
    logits = torch.empty(0, 2, 3, 3, requires_grad=True)
    result = doubly_stochastic(logits)
    assert result.scaled.shape == (0, 2, 3, 3) and result.converged.shape == (0, 2)
    result.scaled.sum().backward()


def test_the_operator_is_registered_right():
    operator = pf.ops.implementation("triton").scale_matrices
    torch.library.opcheck(operator, (torch.randn(3, 2, 2, requires_grad=True), 1e-6, 20))
    logits = torch.randn(3, 3, requires_grad=True)
    matrix = doubly_stochastic(logits).scaled
    (grad,) = torch.autograd.grad(matrix[0, 0], logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        grad.sum().backward()


def test_compiles_without_a_break():
    f = lambda logits: doubly_stochastic(logits).scaled
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    logits = torch.randn(3, 4, 4)
    assert torch.equal(compiled(logits), f(logits))


@gpu_only
@both
@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 11, 16, 17, 32, 45, 64])
def test_many(n, dtype):
    """Mild and hard ones, with and without masks, in one batch."""
    parts = [draw(1500, n, std, dtype) for std in (1, 4, 30, 60)]
    parts[1][::3, 0, n // 2] = -INF
    compare(torch.cat(parts)[torch.randperm(6000)])


@gpu_only
def test_nothing_waits_for_the_device():
    logits = torch.randn(1000, 8, 8).requires_grad_()
    f = lambda: doubly_stochastic(logits).scaled.sum().backward()
    f()  # compiles
    try:
        torch.cuda.set_sync_debug_mode("error")
        f()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_no_matrix_depends_on_its_neighbours():
    logits = torch.cat([torch.randn(2, 3, 3), 20 * torch.randn(3, 3, 3)])
    whole = doubly_stochastic(logits).scaled
    alone = torch.stack([doubly_stochastic(x).scaled for x in logits])
    assert torch.equal(whole, alone)
