r"""Doubly stochastic scalings of many small matrices, each to a tolerance.

Sinkhorn's iteration may need thousands of steps where logits are spread. Here a few of them only
start Newton's method on the convex dual, which needs a handful.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .._tools.checks import check_tensor
from .._tools.once import refuse_second_derivative
from .._tools.precision import full_precision, widen

SWEEPS = 8
"""Sinkhorn iterations before Newton's method."""

QUICK = 12
"""Newton steps in the precision of the logits; what is left then is annealed in float64."""

LIMIT = 4.0
"""The most by which a Newton step moves a potential away from the average of its neighbours."""

SMALL = 16
"""Up to this size the batch is the innermost axis, and elimination by hand beats LAPACK."""

CHUNK = 2**21
"""Entries that a processor scales together: a batch beyond its caches is slower in one piece."""


@dataclass(frozen=True)
class DoublyStochastic:
    """A batch of scaled matrices, each with what was reached."""

    matrix: Float[Tensor, "*b n n"]
    """Rows and columns sum to one, up to the residual; of the dtype of the logits."""

    residual: Float[Tensor, "*b"]
    """The largest error of a row sum or column sum; of half precision, before rounding to it."""

    converged: Bool[Tensor, "*b"]
    """Whether the residual is within the tolerance, and the mask allows a scaling."""

    steps: int
    """Newton steps that the slowest matrix took."""


def doubly_stochastic(
    logits: Float[Tensor, "*b n n"], *, tol: float = 1e-6, max_steps: int = 200
) -> DoublyStochastic:
    r"""The doubly stochastic $\mathrm{diag}(e^f)\,e^L\,\mathrm{diag}(e^g)$ of logits $L$.

    A logit of $-\infty$ is a mask. The scaling exists if and only if the pattern has *total
    support*: each entry that is not masked lies on a diagonal without masked entries (Sinkhorn
    and Knopp, 1967). Matrices without one, and those with NaN, are flagged in `converged`.

    Up to the rounding of logits, an entry is within `n * residual` of the exact one: the
    difference is a flow that carries the excess of rows and columns, and no edge of an electrical
    network carries more than all of it. The gradient is that of the exact scaling, once.

    Args:
        logits: square matrices. Half precision is computed in float32 and rounded at the end.
        tol: the largest error of a row sum or column sum; float32 reaches 1e-6, float64 1e-12.
        max_steps: Newton steps at most; matrices that need more are flagged.

    Examples:
        >>> result = pf.doubly_stochastic(torch.tensor([[0.0, 1.0], [2.0, 7.0]]))
        >>> result.matrix
        tensor([[0.8808, 0.1192],
                [0.1192, 0.8808]])
        >>> bool(result.converged)
        True
    """
    _check(logits, tol, max_steps)
    *batch, n, _ = logits.shape
    flat = widen(logits).reshape(math.prod(batch), n, n)
    with full_precision(logits):
        matrix, residual, converged, steps = _Scaling.apply(flat, float(tol), max_steps)
    matrix = matrix.to(logits.dtype).view(logits.shape)
    return DoublyStochastic(matrix, residual.view(batch), converged.view(batch), steps)


def _check(logits: Tensor, tol: float, max_steps: int) -> None:
    check_tensor("logits", logits)
    if not logits.is_floating_point():
        raise ValueError(
            f"`logits` must be floating point, got {logits.dtype}. Convert with `logits.float()`."
        )
    if logits.ndim < 2 or logits.shape[-1] != logits.shape[-2] or logits.shape[-1] == 0:
        raise ValueError(
            f"`logits` must be square matrices of shape (..., n, n), got {tuple(logits.shape)}. "
            "Only as many rows as columns can all sum to one: pad or drop some."
        )
    if not tol > 0:
        raise ValueError(f"`tol` must be positive, got {tol}. Float32 reaches 1e-6.")
    if not (isinstance(max_steps, int) and max_steps >= 0):
        raise ValueError(f"`max_steps` must be a whole number, not negative, got {max_steps!r}.")


class _Scaling(torch.autograd.Function):
    """The scaling, with the gradient of the exact one."""

    @staticmethod
    def forward(ctx, logits: Tensor, tol: float, max_steps: int):
        """Scale, and keep the matrices for the gradient."""
        matrix, residual, converged, steps = _scale(logits, tol, max_steps)
        ctx.save_for_backward(matrix)
        ctx.mark_non_differentiable(residual, converged)
        return matrix, residual, converged, steps

    @staticmethod
    def backward(ctx, grad: Tensor, *_):
        """Solve the linearised constraints, unless a graph of it is asked for."""
        refuse_second_derivative(
            "This scaling is differentiable once: its gradient holds the matrix fixed"
        )
        (matrix,) = ctx.saved_tensors
        with full_precision(matrix):
            back = list(map(_pull_back, _chunks(matrix), _chunks(grad)))
        return torch.cat(back), None, None


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(max(1, CHUNK // x.shape[-1] ** 2)) if x.is_cpu else (x,)


def _pull_back(matrix: Tensor, grad: Tensor) -> Tensor:
    # dP = P * (dL + df 1' + 1 dg'), where (df, dg) keeps the sums r of rows and c of columns:
    #     H (df; dg) = -(rows(P dL); columns(P dL)),   H = [diag(r) P; P' diag(c)].
    # H is symmetric, so <G, dP> = <P * (G - u 1' - 1 v'), dL> with
    #     H (u; v) = (rows(P G); columns(P G)).
    # Eliminating u leaves the Laplacian diag(c) - P' diag(1/r) P. Its null space, the constants,
    # moves u and v against each other and leaves the gradient alone. Float64, since blocks may be
    # coupled weakly; what is coupled by less than its rounding has no say in the gradient.
    P, G = _arrange(matrix.double()), _arrange(grad.double())
    # Beyond the mask anything may come from above: say, the slope of a logarithm at zero.
    G = torch.where(P > 0, G, 0)
    root = _positive(_along(torch.sum, P, 1)).sqrt()
    Q = P / root
    rows, columns = _along(torch.sum, Q * G, 1), _along(torch.sum, P * G, 0)
    v = _solve(Q, (columns - _along(torch.sum, Q * rows, 0))[0], math.inf)
    u = (rows - _along(torch.sum, Q * v, 1)) / root
    return _batch_first(P * (G - u - v)).to(matrix.dtype)


def _scale(logits: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Matrices, residuals, whether converged, and steps, for a batch with one axis."""
    quick = lambda chunk: _newton(_start(_arrange(chunk)), tol / 2, min(QUICK, max_steps))
    matrices, residuals, counts = zip(*map(quick, _chunks(logits)), strict=True)
    matrix, residual, steps = torch.cat(matrices), torch.cat(residuals), max(counts)
    # Not up to the tolerance: whoever adds the entries in another order rounds differently.
    left = (residual > 0.7 * tol).nonzero()[:, 0]
    if len(left) and max_steps > QUICK:
        better, found, more = _anneal(logits[left].double(), tol / 2, max_steps - steps)
        left, steps = left[found], steps + more
        matrix[left] = better.to(matrix.dtype)
        residual[left] = _residual(matrix[left].permute(1, 2, 0))
    converged = residual <= tol
    # Of NaN both comparisons fail: then masks may be looked for in vain.
    if len(logits) and not logits.amin() > -torch.inf:
        converged &= _total_support(matrix, logits > -torch.inf, residual)
    return matrix, residual, converged, steps


def _arrange(x: Tensor) -> Tensor:
    """A view with axes (row, column, batch); small matrices with the batch innermost in memory."""
    x = x.permute(1, 2, 0)
    return x.contiguous() if len(x) <= SMALL else x


def _batch_first(x: Tensor) -> Tensor:
    return x.permute(2, 0, 1)


def _along(reduce: Callable, x: Tensor, axis: int, **options) -> Tensor:
    """Reduce an axis to length one, in the memory layout of the argument."""
    if x.stride(2) == 1:
        return reduce(x, axis, keepdim=True, **options)
    return reduce(_batch_first(x), axis + 1, keepdim=True, **options).permute(1, 2, 0)


def _positive(x: Tensor) -> Tensor:
    """Sums to divide by: those of nothing do no harm."""
    return x.clamp_(min=torch.finfo(x.dtype).tiny)


def _rows(P: Tensor) -> Tensor:
    return P.div_(_positive(_along(torch.sum, P, 1)))


def _sweep(P: Tensor) -> Tensor:
    """One Sinkhorn iteration, in place; it ends with the rows."""
    return _rows(P.div_(_positive(_along(torch.sum, P, 0))))


def _residual(P: Tensor) -> Tensor:
    errors = [_along(torch.sum, P, a, dtype=torch.float64).sub_(1).abs_() for a in (0, 1)]
    return torch.maximum(*(e.amax((0, 1)) for e in errors)).to(P.dtype)


def _start(logits: Tensor) -> Tensor:
    """Some Sinkhorn iterations. They need no logarithms: a float keeps sizes in its exponent."""
    largest = _along(torch.amax, logits, 1).clamp_(min=torch.finfo(logits.dtype).min)
    P = _rows((logits - largest).exp_())
    for _ in range(SWEEPS):
        _sweep(P)
    return P


def _newton(P: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, int]:
    r"""Bring column sums within `tol` of one: the matrices, their residuals, the steps taken.

    At rows that sum to one, column factors $e^x$ minimise the convex
    $\sum_i\log\sum_jP_{ij}e^{x_j}-\sum_jx_j$, with gradient $c-1$ for column sums $c$, and Hessian
    $\mathrm{diag}(c)-P^\top P$. The matrix itself is held and scaled, and `P` is used up: from
    potentials it would come out with the rounding of their sum.
    """
    matrix, residual = P.new_empty(P.shape[2], *P.shape[:2]), P.new_empty(P.shape[2])
    index = torch.arange(P.shape[2], device=P.device)
    for step in range(max_steps + 1):
        gap = 1 - _along(torch.sum, P, 0)[0]
        live = (gap.abs().amax(0) > tol) & (step < max_steps)
        keep = live.nonzero()[:, 0]
        if len(keep) <= 0.75 * P.shape[2]:
            done = (~live).nonzero()[:, 0]
            finished = _take(P, done)
            matrix[index[done]] = _batch_first(finished)
            residual[index[done]] = _residual(finished)
            if not len(keep):
                break
            P, index, gap = _take(P, keep), index[keep], gap[:, keep]
        x = _solve(P, gap, LIMIT)
        if step >= QUICK // 2:
            x = x * _damping(x)
        _sweep(_rows(P.mul_((x - x.amax(0)).exp_())))
    return matrix, residual, step


def _damping(x: Tensor) -> Tensor:
    # Along x the dual h has |h'''| <= s h'' for the spread s of x, and h'(0) <= -h''(0), so that
    # h'(t) <= h''(0) ((exp(st) - 1) / s - 1) <= 0 up to t = log(1 + s) / s: a step that descends.
    spread = x.amax(0) - x.amin(0)
    return torch.where(spread > 0, spread.log1p() / spread, 1)


def _take(P: Tensor, index: Tensor) -> Tensor:
    """Some matrices of a batch, in its memory layout."""
    if P.stride(2) == 1:
        return P.index_select(2, index)
    return _batch_first(P)[index].permute(1, 2, 0)


def _solve(P: Tensor, b: Tensor, limit: float) -> Tensor:
    r"""Solve $Ax=b$ for the Laplacian $A$ of the weights $P^\top P$ between columns.

    By elimination each $x_j$ is an average of later ones plus a term of its own, and the terms are
    limited: blocks that are nearly separate, where they are huge or only rounding, do not hold up
    the others. With $A=LDL^\top$ it is $x=L^{-\top}z$, where $z$ has the signs of $y=L^{-1}b$ and
    $|z_k|\le|y_k|/D_{kk}$. So still $b^\top x\ge x^\top Ax$, as without the limit.
    """
    return (_eliminate if len(P) <= SMALL else _factorise)(P, b, limit)


def _eliminate(P: Tensor, b: Tensor, limit: float) -> Tensor:
    """Without subtractions: the diagonal is the sum of the other weights, so no digit is lost."""
    W = P[0][:, None] * P[0]
    for row in P[1:]:
        W.addcmul_(row[:, None], row)
    x, shares = b.clone(), []
    for k in range(len(P) - 1):
        weights = W[k, k + 1 :]
        total = weights.sum(0).clamp_(min=torch.finfo(P.dtype).eps)
        share = weights / total
        W[k + 1 :, k + 1 :].addcmul_(weights[:, None], share)
        x[k + 1 :].addcmul_(share, x[k])
        x[k].div_(total)
        shares.append(share)
    x.clamp_(-limit, limit)
    x[-1] = 0
    for k in reversed(range(len(P) - 1)):
        x[k].add_((shares[k] * x[k + 1 :]).sum(0))
    return x


def _factorise(P: Tensor, b: Tensor, limit: float) -> Tensor:
    """By Cholesky factors, without the last row and column."""
    P = _batch_first(P)
    A = P.mT @ P
    diagonal = A.diagonal(dim1=-2, dim2=-1)
    diagonal.zero_()
    weights = A.sum(-1)
    A.neg_()
    # A little more than the rounding keeps the matrix positive.
    diagonal.copy_(weights.add_(4 * torch.finfo(P.dtype).eps))
    factor, info = torch.linalg.cholesky_ex(A[:, :-1, :-1])
    pivots = factor.diagonal(dim1=-2, dim2=-1)[..., None]
    z = torch.linalg.solve_triangular(factor, b.T[:, :-1, None], upper=False)
    z = (z / pivots).clamp_(-limit, limit) * pivots
    x = torch.linalg.solve_triangular(factor.mT, z, upper=True)[..., 0]
    # Where the factors failed there is no step, only the Sinkhorn iteration that follows it.
    x = torch.where((info == 0)[:, None], x, 0)
    return torch.nn.functional.pad(x, (0, 1)).T


def _anneal(logits: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, int]:
    """From a high temperature down to 1: the matrices found, their indices, the steps taken.

    Half the temperature squares the entries. Squares of a row or column that sums to one sum to
    at least 1/n, so each temperature starts near its solution, however large the logits.
    """
    largest = logits.amax(-1, keepdim=True).clamp_(min=torch.finfo(logits.dtype).min)
    logits = logits - largest
    spread = torch.where(logits > -torch.inf, -logits, 0).amax().item()
    halvings = max(0, math.ceil(math.log2(max(spread, 1.0) / 8)))
    P = _start(_arrange(logits / 2.0**halvings))
    index, steps = torch.arange(len(logits), device=P.device), 0
    for left in reversed(range(halvings + 1)):
        goal = 1e-3 if left else tol
        matrix, residual, more = _newton(P, goal, min(4 * QUICK, max_steps - steps))
        good = (residual <= 2 * goal).nonzero()[:, 0]
        matrix, index, steps = matrix[good], index[good], steps + more
        P = _sweep(_rows(_arrange(matrix).square()))
    return matrix, index, steps


def _total_support(matrix: Tensor, allowed: Tensor, residual: Tensor) -> Tensor:
    """Whether all allowed entries lie on allowed diagonals, of a nearly doubly stochastic matrix.

    Entries beyond twice the error of all rows do, and contain such a diagonal. Along them one may
    go both ways, along others from row to column only. An entry is on a diagonal if and only if a
    way leads back from its column to its row.
    """
    n = matrix.shape[-1]
    error = residual.clamp(min=torch.finfo(matrix.dtype).eps)
    sure = (matrix > (2 * n * error).clamp(max=0.5 / n**2)[:, None, None]).mT.float()
    here = torch.eye(n, dtype=sure.dtype, device=sure.device)
    reach = (allowed.float() @ sure + here).clamp(max=1)
    for _ in range((n - 1).bit_length()):
        reach = (reach @ reach).clamp(max=1)
    back = (sure @ reach).mT > 0
    return (back | ~allowed).all(-1).all(-1)
