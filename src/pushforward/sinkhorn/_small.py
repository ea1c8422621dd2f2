r"""Doubly stochastic scalings of many small matrices, each to a tolerance.

Where logits are spread, Sinkhorn's iteration may need thousands of steps. Here a few of its steps
are only the start of Newton's method on the convex dual, which then needs a handful.

Layout: inside this file a batch of matrices has the axes (row, column, batch). For small matrices
the batch is also the innermost axis in memory, so that every operation runs over long contiguous
lines; larger ones stay as they come, a permuted view of (batch, row, column). `_batch_last` and
`_batch_first` convert, `_reduce` and `_select` work on both.

On an NVIDIA GPU small matrices go to kernels with the same method (`ops.kernels`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import ops
from .._tools.checks import check_floating, check_number, check_whole
from .._tools.once import refuse_second_derivative
from .._tools.precision import full_precision, widen

SINKHORN_STEPS = 8
"""Sinkhorn iterations before Newton's method."""

NEWTON_STEPS = 12
"""Newton steps in the precision of the logits. Matrices that need more are annealed in float64."""

LIMIT = 4.0
"""The most that a Newton step moves a potential away from the average of its neighbours."""

SMALL = 16
"""Up to this size the batch is the innermost axis in memory, and a written-out elimination is
faster than LAPACK."""

LARGEST, WITH_GRADIENT = 64, 32
"""The most rows of matrices that kernels scale, without a gradient and with one."""

NEGLIGIBLE = -60.0
"""The logarithm of entries that add nothing to a sum of any precision."""

CHUNK = 2**21
"""Entries that a CPU scales together: batches that exceed its caches are faster in pieces."""


@dataclass(frozen=True)
class DoublyStochastic:
    """A batch of scaled matrices, and how accurate each one is."""

    scaled: Float[Tensor, "*b n n"]
    """The scaled matrices, in the dtype of the logits: rows and columns sum to one, up to the
    residual."""

    residual: Float[Tensor, "*b"]
    """The largest error of a row sum or column sum. For half precision, before rounding to it."""

    converged: Bool[Tensor, "*b"]
    """Whether the residual is within the tolerance, and a scaling exists for the mask."""

    newton_steps: Int[Tensor, ""]
    """Newton steps that the slowest matrix took."""

    @property
    def steps(self) -> int:
        """The same as a number. Reading it waits for a GPU; nothing else does."""
        return int(self.newton_steps)


def doubly_stochastic(
    logits: Float[Tensor, "*b n n"], *, tol: float = 1e-6, max_steps: int = 200
) -> DoublyStochastic:
    r"""The doubly stochastic $\mathrm{diag}(e^f)\,e^L\,\mathrm{diag}(e^g)$ of logits $L$.

    A logit of $-\infty$ is a mask. The scaling exists if and only if the pattern has *total
    support*: each entry that is not masked lies on a diagonal without masked entries (Sinkhorn
    and Knopp 1967). Matrices without one, and those with NaN, are flagged in `converged`.

    Up to the rounding of logits, an entry is within `n * residual` of the exact one: the
    difference is a flow that carries the excess of rows and columns, and no edge of an electrical
    network carries more than all of it. The gradient is that of the exact scaling, and it can be
    taken once.

    Args:
        logits: square matrices. Half precision is computed in float32 and rounded at the end.
        tol: the largest error of a row sum or column sum; float32 reaches 1e-6, float64 1e-12.
        max_steps: Newton steps at most; matrices that need more are flagged. More than 12 are
            needed where powers of logits underflow.

    Examples:
        >>> result = pf.doubly_stochastic(torch.tensor([[0.0, 1.0], [2.0, 7.0]]))
        >>> result.scaled
        tensor([[0.8808, 0.1192],
                [0.1192, 0.8808]])
        >>> bool(result.converged)
        True
    """
    _check(logits, tol, max_steps)
    *batch, n, _ = logits.shape
    flat = widen(logits).reshape(math.prod(batch), n, n)
    kernels = _kernels(flat)
    with full_precision(logits):
        scale = _scaled if kernels is None else kernels.doubly_stochastic
        matrix, residual, converged, steps = scale(flat, float(tol), max_steps)
    scaled = matrix.to(logits.dtype).view(logits.shape)
    return DoublyStochastic(scaled, residual.view(batch), converged.view(batch), steps)


def _check(logits: Tensor, tol: float, max_steps: int) -> None:
    check_floating("logits", logits, "(..., n, n)", 0)
    if logits.ndim < 2 or logits.shape[-1] != logits.shape[-2] or logits.shape[-1] == 0:
        raise ValueError(
            f"`logits` must be square matrices of shape (..., n, n), got {tuple(logits.shape)}. "
            "Rows and columns can all sum to one only if there are as many of both."
        )
    check_number("tol", tol)
    check_whole("max_steps", max_steps, least=0)


def _kernels(logits: Tensor) -> Any:
    """The kernels for small matrices on a GPU; None where there are none for these."""
    wanted = logits.requires_grad and torch.is_grad_enabled()
    if not logits.is_cuda or logits.shape[-1] > (WITH_GRADIENT if wanted else LARGEST):
        return None
    try:
        return ops.implementation("triton")
    except ImportError:
        return None


def _scaled(logits: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Matrices, residuals, whether converged, and steps, by operations of PyTorch."""
    *found, steps = _Scaling.apply(logits, tol, max_steps)
    return *found, torch.tensor(steps)


class _Scaling(torch.autograd.Function):
    """The scaling, with the gradient of the exact one."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, tol: float, max_steps: int
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        matrix, residual, converged, steps = _scale(logits, tol, max_steps)
        ctx.save_for_backward(matrix)
        ctx.mark_non_differentiable(residual, converged)
        return matrix, residual, converged, steps

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        """Solve the linearised constraints, unless a graph of that is requested."""
        refuse_second_derivative(
            "This scaling is differentiable once: its gradient holds the matrix fixed"
        )
        (matrix,) = ctx.saved_tensors
        with full_precision(matrix):
            back = list(map(_pull_back, _chunks(matrix), _chunks(grad)))
        return torch.cat(back), None, None


def _pull_back(matrix: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the logits for the gradient of the scaled matrices."""
    # dP = P * (dL + df 1' + 1 dg'), where (df, dg) keeps the sums r of rows and c of columns:
    #     H (df; dg) = -(rows(P dL); columns(P dL)),   H = [diag(r) P; P' diag(c)].
    # H is symmetric, so <G, dP> = <P * (G - u 1' - 1 v'), dL> with
    #     H (u; v) = (rows(P G); columns(P G)).
    # Eliminating u leaves the Laplacian diag(c) - P' diag(1/r) P. Its null space, the constants,
    # shifts u and v against each other and does not change the gradient. It is solved in float64,
    # because blocks may be coupled weakly; a coupling below its rounding has no influence.
    P, G = _batch_last(matrix.double()), _batch_last(grad.double())
    # At masked entries the incoming gradient may be anything, such as the slope of log at zero.
    G = torch.where(P > 0, G, 0)
    root = _positive(_reduce(torch.sum, P, 1)).sqrt()
    Q = P / root
    rows, columns = _reduce(torch.sum, Q * G, 1), _reduce(torch.sum, P * G, 0)
    v = _solve_laplacian(Q, (columns - _reduce(torch.sum, Q * rows, 0))[0], math.inf)
    u = (rows - _reduce(torch.sum, Q * v, 1)) / root
    return _batch_first(P * (G - u - v)).to(matrix.dtype)


def _scale(logits: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Matrices, residuals, whether converged, and steps, for a batch with one axis."""
    steps_first = min(NEWTON_STEPS, max_steps)
    first = [
        _newton(_sinkhorn(_batch_last(chunk)), tol / 2, steps_first) for chunk in _chunks(logits)
    ]
    matrices, residuals, counts = zip(*first, strict=True)
    matrix, residual, steps = torch.cat(matrices), torch.cat(residuals), max(counts)
    # A margin below the tolerance: sums taken in another order round differently.
    lost = _vanishing(logits)
    seen = lost.nonzero()[:, 0]
    if len(seen):
        lost[seen] = ~_negligible(matrix[seen], logits[seen])
    left = ((residual > 0.7 * tol) | lost).nonzero()[:, 0]
    if len(left) and max_steps > NEWTON_STEPS:
        better, solved, more = _anneal(logits[left].double(), tol / 2, max_steps - steps)
        left, steps = left[solved], steps + more
        matrix[left] = better.to(matrix.dtype)
        residual[left] = _residual(matrix[left].permute(1, 2, 0))
        lost[left] = False
    converged = (residual <= tol) & ~lost
    # `not >` and not `<=`: with NaN in the logits the masks are checked too.
    if len(logits) and not logits.amin() > -torch.inf:
        converged &= _total_support(matrix, logits > -torch.inf, residual)
    return matrix, residual, converged, steps


def _vanishing(logits: Tensor) -> Tensor:
    """Which matrices have an allowed logit whose exponential, relative to its row, underflows.

    Its entry may be large once columns are scaled. Annealing keeps it, because it begins hot.
    """
    lowest = math.log(torch.finfo(logits.dtype).tiny)
    if logits.numel() and logits.amin() - logits.amax() > lowest:
        return torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    relative = logits - logits.amax(-1, keepdim=True)
    return ((relative < lowest) & (logits > -torch.inf)).flatten(1).any(1)


def _negligible(matrix: Tensor, logits: Tensor) -> Tensor:
    r"""In which matrices the entries that vanished are nothing in the scaling found, either.

    A scaling $P=e^{f_i+L_{ij}+g_j}$ has $P_{ij}=P_{il}P_{kj}/P_{kl}$ times
    $e^{L_{ij}-L_{il}-L_{kj}+L_{kl}}$. Here $l$ is the largest entry of row $i$ and $k$ that of
    column $j$. Where $P_{kl}$ vanished, nothing is known.
    """
    logits = (logits - logits.amax(-1, keepdim=True)).double()
    tiny = torch.finfo(matrix.dtype).tiny
    gone = (logits < math.log(tiny)) & (logits > -torch.inf)
    of_pairs = matrix.double().log() - logits  # f + g
    potentials = torch.where((matrix > tiny) & ~gone, of_pairs, torch.nan)
    columns, rows = matrix.argmax(-1), matrix.argmax(-2)
    of_row = potentials.gather(-1, columns[..., None])
    of_column = potentials.gather(-2, rows[..., None, :])
    across = potentials.gather(-2, rows[..., None].expand_as(matrix))  # (j, l): row k of j
    across = across.gather(-1, columns[..., None, :].expand_as(matrix)).mT  # (i, j)
    found = logits + of_row + of_column - across
    return (~gone | (found < NEGLIGIBLE)).flatten(1).all(1)


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    """Pieces of a batch that fit the caches of a CPU."""
    return x.split(max(1, CHUNK // x.shape[-1] ** 2)) if x.is_cpu else (x,)


def _batch_last(x: Tensor) -> Tensor:
    """A view with axes (row, column, batch); small matrices are copied into that order."""
    x = x.permute(1, 2, 0)
    return x.contiguous() if len(x) <= SMALL else x


def _batch_first(x: Tensor) -> Tensor:
    """A view with axes (batch, row, column)."""
    return x.permute(2, 0, 1)


def _reduce(operation: Callable[..., Tensor], x: Tensor, axis: int, **options: Any) -> Tensor:
    """Reduce an axis to length one; the result has the memory layout of `x`."""
    if x.stride(2) == 1:
        return operation(x, axis, keepdim=True, **options)
    return operation(_batch_first(x), axis + 1, keepdim=True, **options).permute(1, 2, 0)


def _select(P: Tensor, index: Tensor) -> Tensor:
    """Some matrices of a batch, in its memory layout."""
    if P.stride(2) == 1:
        return P.index_select(2, index)
    return _batch_first(P)[index].permute(1, 2, 0)


def _positive(x: Tensor) -> Tensor:
    """Sums to divide by: an empty row has the sum 0, and stays zero when divided."""
    return x.clamp_(min=torch.finfo(x.dtype).tiny)


def _normalise_rows(P: Tensor) -> Tensor:
    """Divide rows by their sums, in place."""
    return P.div_(_positive(_reduce(torch.sum, P, 1)))


def _sinkhorn_step(P: Tensor) -> Tensor:
    """Normalise columns, then rows, in place."""
    return _normalise_rows(P.div_(_positive(_reduce(torch.sum, P, 0))))


def _residual(P: Tensor) -> Tensor:
    """The largest error of a row sum or column sum."""
    errors = [_reduce(torch.sum, P, a, dtype=torch.float64).sub_(1).abs_() for a in (0, 1)]
    return torch.maximum(*(e.amax((0, 1)) for e in errors)).to(P.dtype)


def _sinkhorn(logits: Tensor) -> Tensor:
    """Some Sinkhorn iterations.

    No logarithms are needed: floating-point numbers of very different sizes are equally precise.
    """
    largest = _reduce(torch.amax, logits, 1).clamp_(min=torch.finfo(logits.dtype).min)
    P = _normalise_rows((logits - largest).exp_())
    for _ in range(SINKHORN_STEPS):
        _sinkhorn_step(P)
    return P


def _newton(P: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, int]:
    r"""Bring column sums within `tol` of one: the matrices, their residuals, the steps taken.

    If rows sum to one, the column factors $e^x$ sought minimise the convex function
    $h(x)=\sum_i\log\sum_jP_{ij}e^{x_j}-\sum_jx_j$. With column sums $c$, its gradient at $x=0$ is
    $c-1$ and its Hessian $\mathrm{diag}(c)-P^\top P$, so a Newton step solves
    $(\mathrm{diag}(c)-P^\top P)\,x=1-c$. The step is applied to the matrix itself, in place, and
    the next one starts again at $x=0$: a matrix computed from accumulated potentials would have
    the rounding of their sum.
    """
    matrix, residual = P.new_empty(P.shape[2], *P.shape[:2]), P.new_empty(P.shape[2])
    index = torch.arange(P.shape[2], device=P.device)
    for step in range(max_steps + 1):
        minus_gradient = 1 - _reduce(torch.sum, P, 0)[0]
        live = (minus_gradient.abs().amax(0) > tol) & (step < max_steps)
        keep = live.nonzero()[:, 0]
        # Converged matrices are taken out, but only once they are a quarter of the batch:
        # copying the others costs time too.
        if len(keep) <= 0.75 * P.shape[2]:
            done = (~live).nonzero()[:, 0]
            finished = _select(P, done)
            matrix[index[done]] = _batch_first(finished)
            residual[index[done]] = _residual(finished)
            if not len(keep):
                break
            P, index, minus_gradient = _select(P, keep), index[keep], minus_gradient[:, keep]
        x = _solve_laplacian(P, minus_gradient, LIMIT)
        # Full Newton steps first, which are fastest near the solution. Matrices that are not done
        # after some of them get damped steps, which always descend.
        if step >= NEWTON_STEPS // 2:
            # Along x the dual h has |h'''| <= s h'', s the spread of x, and h'(0) <= -h''(0), so
            # that h'(t) <= h''(0) ((exp(st) - 1) / s - 1) <= 0 up to t = log(1 + s) / s.
            spread = x.amax(0) - x.amin(0)
            x = x * torch.where(spread > 0, spread.log1p() / spread, 1)
        # A Sinkhorn step after each Newton step is cheap and never increases h.
        _sinkhorn_step(_normalise_rows(P.mul_((x - x.amax(0)).exp_())))
    return matrix, residual, step


def _solve_laplacian(P: Tensor, b: Tensor, limit: float) -> Tensor:
    r"""Solve $Ax=b$ for the Laplacian $A$ of the graph of columns with weights $P^\top P$.

    By elimination each $x_j$ is an average of later ones plus a term of its own. These terms are
    limited: between blocks that are nearly separate they are huge, or mere rounding, and without a
    limit they would spoil the step for the others. With $A=LDL^\top$ the result is $x=L^{-\top}z$,
    where $z$ has the signs of $y=L^{-1}b$ and $|z_k|\le|y_k|/D_{kk}$. So still $b^\top x\ge x^\top
    Ax$, as without the limit: the step remains a direction of descent.
    """
    return (_eliminate if len(P) <= SMALL else _factorise)(P, b, limit)


def _eliminate(P: Tensor, b: Tensor, limit: float) -> Tensor:
    """Gaussian elimination for the whole batch at once, without subtractions.

    The pivot of a Laplacian is the sum of the weights to the remaining columns. Computed so,
    instead of by differences from the diagonal, no digit is lost.
    """
    W = P[0][:, None] * P[0]
    for row in P[1:]:
        W.addcmul_(row[:, None], row)
    x, shares = b.clone(), []
    for k in range(len(P) - 1):
        weights = W[k, k + 1 :]
        pivot = weights.sum(0).clamp_(min=torch.finfo(P.dtype).eps)
        share = weights / pivot
        W[k + 1 :, k + 1 :].addcmul_(weights[:, None], share)
        x[k + 1 :].addcmul_(share, x[k])
        x[k].div_(pivot)
        shares.append(share)
    x.clamp_(-limit, limit)
    x[-1] = 0  # a constant is free: the last potential is set to zero
    for k in reversed(range(len(P) - 1)):
        x[k].add_((shares[k] * x[k + 1 :]).sum(0))
    return x


def _factorise(P: Tensor, b: Tensor, limit: float) -> Tensor:
    """The same by Cholesky factors, the last potential set to zero."""
    P = _batch_first(P)
    A = P.mT @ P
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    diagonal.zero_()
    weights = A.sum(-1)
    A.neg_()
    # Slightly more than the rounding is added, so that the matrix stays positive.
    diagonal.copy_(weights.add_(4 * torch.finfo(P.dtype).eps))
    factor, info = torch.linalg.cholesky_ex(A[:, :-1, :-1])
    pivots = factor.diagonal(dim1=-2, dim2=-1)[..., None]
    z = torch.linalg.solve_triangular(factor, b.T[:, :-1, None], upper=False)
    z = (z / pivots).clamp_(-limit, limit) * pivots
    x = torch.linalg.solve_triangular(factor.mT, z, upper=True)[..., 0]
    # Where the factorisation failed there is no Newton step, only the Sinkhorn step after it.
    x = torch.where((info == 0)[:, None], x, 0)
    return torch.nn.functional.pad(x, (0, 1)).T


def _anneal(logits: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, int]:
    """Solve from a high temperature down to 1: the solved matrices, their indices, the steps.

    Halving the temperature squares the entries. Squares of a row or column that sums to one sum to
    at least 1/n, so each temperature starts near its solution, however large the logits are.
    """
    largest = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    logits = logits - largest
    spread = torch.where(logits > -torch.inf, -logits, 0).amax().item()
    halvings = max(0, math.ceil(math.log2(max(spread, 1.0) / 8)))
    P = _sinkhorn(_batch_last(logits / 2.0**halvings))
    index, steps = torch.arange(len(logits), device=P.device), 0
    for left in reversed(range(halvings + 1)):
        goal = 1e-3 if left else tol
        matrix, residual, more = _newton(P, goal, min(4 * NEWTON_STEPS, max_steps - steps))
        good = (residual <= 2 * goal).nonzero()[:, 0]
        matrix, index, steps = matrix[good], index[good], steps + more
        P = _sinkhorn_step(_normalise_rows(_batch_last(matrix).square()))
    return matrix, index, steps


def _total_support(matrix: Tensor, allowed: Tensor, residual: Tensor) -> Tensor:
    """Whether all allowed entries lie on allowed diagonals, for nearly doubly stochastic matrices.

    Entries larger than twice the error of all rows together do, and they contain such a diagonal.
    Consider the graph of rows and columns with edges from rows to columns along allowed entries,
    and back along those large entries. An entry is on a diagonal if and only if a path leads from
    its column to its row.
    """
    n = matrix.shape[-1]
    error = residual.clamp(min=torch.finfo(matrix.dtype).eps)
    large = (matrix > (2 * n * error).clamp(max=0.5 / n**2)[:, None, None]).mT.float()
    identity = torch.eye(n, dtype=large.dtype, device=large.device)
    reach = (allowed.float() @ large + identity).clamp(max=1)  # from row to row, in one step
    for _ in range((n - 1).bit_length()):  # squaring doubles the length of the paths
        reach = (reach @ reach).clamp(max=1)
    path_back = (large @ reach).mT > 0
    return (path_back | ~allowed).all(-1).all(-1)
