r"""Which relations one head can realise: the rank of a logarithm.

Scores $\langle q_i,k_j\rangle$ of a head of dimension $d$ have rank $d$, and a normaliser adds
constants to rows (softmax) or to rows and columns (Sinkhorn). So the rank that counts is that of
the logarithm of the target, centred accordingly. Results carry no gradients.
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
    check_same,
    check_shape,
    check_sizes,
    check_sums,
)
from ..relations import Conditional, Coupling


@dataclass(frozen=True, eq=False)
class Realisation:
    r"""One head for a target $P$, and how near any head of its dimension can come.

    With $L=\log P$ centred as the normaliser sees it and $\sigma_1\ge\sigma_2\ge\dots$ its
    singular values, `bound` is $\tau_d=\bigl(\sum_{i>d}\sigma_i^2\bigr)^{1/2}$. By Eckart and
    Young no head of dimension $d$ leaves less in the centred norm, and this one leaves just that,
    `gap`, up to rounding. In the other direction rows differ by at most
    $\tanh(\mathtt{gap}/\sqrt8)$ in total variation (softmax), the couplings by at most
    $\mathtt{gap}/\sqrt8$ (Sinkhorn).

    Args:
        q: queries, to be used with `Dot(1.0)`.
        k: keys.
        rank: how many $\sigma_i$ exceed what rounding in the target can make; from this dimension
            on the head is exact.
        gap: the centred norm $\|\log P-\log\hat P\|_F$ left by this head.
        bound: $\tau_d$, which no head of this dimension can go below.
        entry_gap: $p_{\min}\bigl(1-e^{-\tau_d/\sqrt{nm}}\bigr)$, which $\max_{ij}|P-\hat P|_{ij}$
            cannot go below: an error of $e$ in every entry changes logarithms by at most
            $-\log(1-e/p_{\min})$.
    """

    q: Float[Tensor, "n d"]
    k: Float[Tensor, "m d"]
    rank: int
    gap: float
    bound: float
    entry_gap: float


def realise(target: Conditional | Coupling, head_dim: int | None = None) -> Realisation:
    r"""The best single head for a relation, in the centred norm of logarithms.

    A conditional $P>0$ in a context of weights $b$ is that of a softmax head of dimension $d$ if
    and only if $d\ge\operatorname{rank}\bigl(\log(P/\mathbf 1b^\top)J\bigr)$, a coupling $\pi>0$
    that of a Sinkhorn head if and only if $d\ge\operatorname{rank}(J\log\pi\,J)$, where
    $J=I-\frac1m\mathbf{11}^\top$. Below that rank the head is the truncated singular value
    decomposition. Targets in general position need $\min(n,m-1)$ and $\min(n,m)-1$ dimensions.

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
    matrix: Float[Tensor, "n m"], log_weights: Float[Tensor, " m"], head_dim: int | None = None
) -> Realisation:
    r"""The best softmax head: singular vectors of $\log(P/\mathbf 1b^\top)J$.

    Args:
        matrix: $P$, of rows with sum one.
        log_weights: $\log b$ of the context; atoms of zero mass get the key 0.
        head_dim: $d$; by default the rank.
    """
    check_rows(matrix)
    live = live_atoms(matrix, log_weights)
    block = matrix[:, live]
    _check_positive(block, "`(1 - 1e-6) * P + 1e-6 * b`, b being the context's weights")
    logs = block.double().log() - log_weights[live].double()
    everyone = torch.ones_like(matrix[:, 0], dtype=torch.bool)
    return _realise(block, logs, _centre_rows, (everyone, live), head_dim)


@torch.no_grad()
def realise_coupling(matrix: Float[Tensor, "n m"], head_dim: int | None = None) -> Realisation:
    r"""The best Sinkhorn head: singular vectors of $J\log\pi\,J$.

    The potentials absorb whatever depends on one point alone, so that marginals do not matter:
    normalised to those of $\pi$, the head has its scores.

    Args:
        matrix: $\pi$, of any total mass; points of zero mass get the query or key 0.
        head_dim: $d$; by default the rank.
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
    """Factor the centred logarithms of what has mass; the other points get zeros."""
    check_sizes(head_dim=head_dim)
    centred = centre(logs)
    u, s, vh = torch.linalg.svd(centred, full_matrices=False)
    # entries carry a relative error of about one rounding unit times the size of their exponent
    size = 1 + max(block.double().log().abs().max().item(), logs.abs().max().item())
    s = s * (s > rounding(block) * size * math.sqrt(logs.numel()))
    rank = int((s > 0).sum())
    d = max(rank, 1) if head_dim is None else head_dim
    root = s[:d].sqrt()
    q, k = (u[:, :d] * root).to(block.dtype), (vh.mT[:, :d] * root).to(block.dtype)
    bound = s[d:].norm().item()
    return Realisation(
        q=_placed(q, live[0], d),
        k=_placed(k, live[1], d),
        rank=rank,
        gap=(centred - centre(q.double() @ k.double().mT)).norm().item(),
        bound=bound,
        entry_gap=-block.min().item() * math.expm1(-bound / math.sqrt(logs.numel())),
    )


def _centre_rows(logs: Tensor) -> Tensor:
    return logs - logs.mean(1, keepdim=True)


def _centre(logs: Tensor) -> Tensor:
    return _centre_rows(logs) - _centre_rows(logs).mean(0, keepdim=True)


def _placed(x: Tensor, live: Tensor, d: int) -> Tensor:
    """Rows of `x` at the live places, of width `d`, and zeros elsewhere."""
    full = x.new_zeros(len(live), d)
    full[live, : x.shape[1]] = x
    return full


def rounding(matrix: Tensor) -> float:
    """What counts as rounding beside one."""
    return 4 * torch.finfo(matrix.dtype).eps


def live_atoms(matrix: Tensor, log_weights: Tensor) -> Tensor:
    """Where the context has mass; the matrix must have none elsewhere."""
    check_shape("weights", log_weights, matrix.shape[1:], "One per column of the matrix.")
    check_same("device", ("matrix", matrix), ("weights", log_weights))
    live = log_weights > -torch.inf
    if (matrix[:, ~live] > 0).any():
        raise ValueError(
            "A head gives nothing to atoms of zero mass, got a target that does. Give these atoms "
            "a positive weight."
        )
    return live


def check_matrix(matrix: Tensor) -> None:
    """Raise unless `matrix` holds masses."""
    check_floating("matrix", matrix, "(n, m)", 2)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(
            f"`matrix` must have shape (n, m), got {tuple(matrix.shape)}. Take one relation of a "
            "batch at a time."
        )
    if not ((matrix >= 0) & (matrix < torch.inf)).all() or not (matrix > 0).any():
        raise ValueError(
            "`matrix` must be non-negative, finite and not all zero, and it is not. Give masses, "
            "not logarithms."
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
            f"Mix in a floor: {mixture}. Many heads can do without: `realise_heads`."
        )
