r"""Which relations one head represents exactly: the rank of a centred logarithm [B, §4].

The scores $\langle q_i,k_j\rangle$ of a head of dimension $d$ have rank at most $d$. A normaliser
adds constants to rows (softmax) or to rows and columns (Sinkhorn), and centring removes them. So a
target is the relation of a head of dimension $d$ if and only if its centred logarithm has rank at
most $d$. There are $m$ queries and $n$ keys. Results carry no gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_floating,
    check_kind,
    check_optional_sizes,
    check_same,
    check_shape,
    check_sums,
)
from ..relations import Conditional, Coupling


@dataclass(frozen=True, eq=False)
class Realisation:
    r"""One head for a target $P$, with lower bounds for the error of any head of its dimension.

    With $L=\log P$, centred as the normaliser requires, and its singular values
    $\sigma_1\ge\sigma_2\ge\dots$, `bound` is $\tau_d=\bigl(\sum_{i>d}\sigma_i^2\bigr)^{1/2}$. By
    the theorem of Eckart and Young every head of dimension $d$ has at least this error in the
    centred Frobenius norm, and this head attains it: `gap` equals `bound` up to rounding.
    Conversely, rows differ by at most $\tanh(\mathtt{gap}/\sqrt8)$ in total variation (softmax),
    couplings by at most $\mathtt{gap}/\sqrt8$ (Sinkhorn).

    Args:
        q: queries, to be used with `Dot(1.0)`.
        k: keys.
        rank: the number of $\sigma_i$ above rounding error. From this dimension on heads are
            exact.
        gap: the error $\|\log P-\log\hat P\|_F$ of this head, centred.
        bound: $\tau_d$, the least possible `gap` in this dimension.
        entry_gap: $p_{\min}\bigl(1-e^{-\tau_d/\sqrt{mn}}\bigr)$, a lower bound for
            $\max_{ij}|P-\hat P|_{ij}$: an error of $e$ in every entry changes logarithms by at
            most $-\log(1-e/p_{\min})$.
    """

    q: Float[Tensor, "m d"]
    k: Float[Tensor, "n d"]
    rank: int
    gap: float
    bound: float
    entry_gap: float


def realise(target: Conditional | Coupling, head_dim: int | None = None) -> Realisation:
    r"""The best single head for a relation, in the centred norm of logarithms.

    A conditional $P>0$ in a context with weights $b$ is the relation of a softmax head of
    dimension $d$ if and only if $d\ge\operatorname{rank}\bigl(\log(P/\mathbf 1b^\top)J_n\bigr)$; a
    coupling $\pi>0$ is that of a Sinkhorn head if and only if
    $d\ge\operatorname{rank}(J_m\log\pi\,J_n)$, where $J_n=I-\frac1n\mathbf{11}^\top$ [B, §4]. In
    fewer dimensions the best head comes from the truncated singular value decomposition. Targets
    in general position need $\min(m,n-1)$ and $\min(m,n)-1$ dimensions.

    Args:
        target: the relation, positive wherever both points have mass.
        head_dim: $d$; by default the rank, for an exact head.

    Examples:
        >>> mu = pf.Measure(torch.randn(9, 4))
        >>> kappa = pf.relate(mu, mu, normaliser=pf.Softmax())
        >>> head = pf.realise(kappa)
        >>> head.rank, head.bound, pf.realise(kappa, 3).bound > 0
        (4, 0.0, True)
        >>> again = pf.relate(mu, mu, affinity=pf.Encoded(head.q, head.k))
        >>> torch.allclose(again.matrix(), kappa.matrix(), rtol=1e-4)
        True
    """
    if isinstance(target, Coupling):
        return realise_coupling(target.matrix(), head_dim)
    check_kind("target", target, Conditional, "A Coupling will do too: `pf.relate` makes both.")
    return realise_conditional(target.matrix(), target.log_b, head_dim)


@torch.no_grad()
def realise_conditional(
    matrix: Float[Tensor, "m n"], log_weights: Float[Tensor, " n"], head_dim: int | None = None
) -> Realisation:
    r"""The best softmax head, from the singular vectors of $\log(P/\mathbf 1b^\top)J_n$ [B, §4].

    Args:
        matrix: $P$, with rows of sum one.
        log_weights: $\log b$ of the context; atoms of zero mass get the key 0.
        head_dim: $d$; by default the rank.

    Examples:
        >>> P = torch.tensor([[0.1, 0.9], [0.5, 0.5]])
        >>> head = pf.approximation.realise_conditional(P, torch.zeros(2))
        >>> torch.allclose((head.q @ head.k.mT).softmax(-1), P)
        True
    """
    check_rows(matrix)
    live = live_atoms(matrix, log_weights)
    block = matrix[:, live]
    _check_positive(block, "`(1 - 1e-6) * P + 1e-6 * b`, b being the context's weights")
    logs = block.double().log() - log_weights[live].double()
    all_queries = torch.ones_like(matrix[:, 0], dtype=torch.bool)
    return _realise(block, logs, _centre_rows, (all_queries, live), head_dim)


@torch.no_grad()
def realise_coupling(matrix: Float[Tensor, "m n"], head_dim: int | None = None) -> Realisation:
    r"""The best Sinkhorn head, from the singular vectors of $J_m\log\pi\,J_n$ [B, §4].

    Sinkhorn's potentials absorb every function of one point alone, so the marginals of $\pi$ do
    not enter: Sinkhorn of the head's scores with these marginals gives $\pi$ back.

    Args:
        matrix: $\pi$, of any total mass; points of zero mass get the query or key 0.
        head_dim: $d$; by default the rank.

    Examples:
        >>> pi = torch.tensor([[0.1, 0.4], [0.3, 0.2]])
        >>> head = pf.approximation.realise_coupling(pi)
        >>> head.rank, head.gap < 1e-6
        (1, True)
    """
    check_matrix(matrix)
    rows, columns = matrix.sum(1) > 0, matrix.sum(0) > 0
    block = matrix[rows][:, columns]
    _check_positive(block, "`(1 - 1e-6) * pi + 1e-6 * a[:, None] * b`, a and b its marginals")
    return _realise(block, block.double().log(), _centre, (rows, columns), head_dim)


def _realise(
    block: Tensor,
    logs: Tensor,
    centre: Callable[[Tensor], Tensor],
    live: tuple[Tensor, Tensor],
    head_dim: int | None,
) -> Realisation:
    """Factor the centred logarithms of the part with mass; the other points get zeros."""
    check_optional_sizes(head_dim=head_dim)
    centred = centre(logs)
    u, s, vh = torch.linalg.svd(centred, full_matrices=False)
    largest = max(block.double().log().abs().max().item(), logs.abs().max().item())
    s = s * (s > _noise(block, largest))
    rank = int((s > 0).sum())
    d = max(rank, 1) if head_dim is None else head_dim
    root = s[:d].sqrt()
    q, k = (u[:, :d] * root).to(block.dtype), (vh.mT[:, :d] * root).to(block.dtype)
    bound = s[d:].norm().item()
    return Realisation(
        q=_scattered(q, live[0], d),
        k=_scattered(k, live[1], d),
        rank=rank,
        gap=(centred - centre(q.double() @ k.double().mT)).norm().item(),
        bound=bound,
        entry_gap=-block.min().item() * math.expm1(-bound / math.sqrt(logs.numel())),
    )


@torch.no_grad()
def conditional_rank(matrix: Float[Tensor, "m n"]) -> int | None:
    r"""The numerical rank of $\log P$ with centred rows: the least dimension of a softmax head.

    Columns that are zero are left out: those keys have no mass.

    Args:
        matrix: $P\ge0$, a conditional.

    Returns:
        The rank, or None if some remaining entry is zero: then no head is exact.

    Examples:
        >>> q, k = torch.randn(8, 2), torch.randn(6, 2)
        >>> pf.approximation.conditional_rank((q @ k.mT).softmax(-1))
        2
        >>> pf.approximation.conditional_rank(torch.eye(3)) is None
        True
    """
    check_matrix(matrix)
    block = matrix[:, (matrix > 0).any(0)]
    if not bool((block > 0).all()):
        return None
    logs = block.double().log()
    s = torch.linalg.svdvals(_centre_rows(logs))
    return int((s > _noise(block, logs.abs().max().item())).sum())


def _noise(block: Tensor, largest_log: float) -> float:
    """A bound for singular values that come from rounding in the target.

    The logarithm of an entry has an error of about one rounding unit times its size; the Frobenius
    norm of such errors is at most the square root of the number of entries times that.
    """
    return rounding(block) * (1 + largest_log) * math.sqrt(block.numel())


def _centre_rows(logs: Tensor) -> Tensor:
    return logs - logs.mean(1, keepdim=True)


def _centre(logs: Tensor) -> Tensor:
    return _centre_rows(logs) - _centre_rows(logs).mean(0, keepdim=True)


def _scattered(x: Tensor, live: Tensor, d: int) -> Tensor:
    """Rows of `x` at the points with mass, padded to width `d`, and zeros elsewhere."""
    full = x.new_zeros(len(live), d)
    full[live, : x.shape[1]] = x
    return full


def rounding(matrix: Tensor) -> float:
    """A relative error that counts as rounding in the dtype of a matrix."""
    return 4 * torch.finfo(matrix.dtype).eps


def live_atoms(matrix: Tensor, log_weights: Tensor) -> Tensor:
    """Which atoms of the context have mass; the matrix must be zero at all others."""
    check_shape("weights", log_weights, matrix.shape[1:], "One per column of the matrix.")
    check_same("device", ("matrix", matrix), ("weights", log_weights))
    live = log_weights > -torch.inf
    if (matrix[:, ~live] > 0).any():
        raise ValueError(
            "A head gives no weight to atoms of zero mass, got a target that does. Give these "
            "atoms a positive weight."
        )
    return live


def check_matrix(matrix: Tensor) -> None:
    """Raise unless `matrix` is one matrix of masses."""
    check_floating("matrix", matrix, "(m, n)", 2)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(
            f"`matrix` must have shape (m, n), got {tuple(matrix.shape)}. Take one relation of a "
            "batch at a time."
        )
    if not ((matrix >= 0) & (matrix < torch.inf)).all() or not (matrix > 0).any():
        raise ValueError(
            "`matrix` must be non-negative, finite and not all zero, got other values. Give "
            "masses, not logarithms."
        )


def check_rows(matrix: Tensor) -> None:
    """Raise unless rows are probabilities."""
    check_matrix(matrix)
    fix = "Divide by `matrix.sum(1, keepdim=True)`."
    check_sums("rows", matrix.sum(1), matrix.dtype, fix)


def _check_positive(block: Tensor, mixture: str) -> None:
    zeros = int((block == 0).sum())
    if zeros:
        raise ValueError(
            f"A head relates every two points, so its target must be positive, got {zeros} zeros. "
            f"Add a small positive part: {mixture}. Many heads can do without: `realise_heads`."
        )
