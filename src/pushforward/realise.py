r"""Which relations a head can realise: the rank of a logarithm, or many narrow heads instead.

Scores $\langle q_i,k_j\rangle$ of a head of dimension $d$ have rank $d$, and a normaliser adds
constants to rows (softmax) or to rows and columns (Sinkhorn). So the rank that counts is that of
the logarithm of the target, centred accordingly. Where one head is too narrow, an average of heads
of dimension two reaches every relation on finitely many points. Results carry no gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ._checks import check_floating, check_kind, check_mass, check_same, check_shape, check_sizes
from .relations import Conditional, Coupling

_MARGIN = 40.0
r"""By how much a one-hot head prefers its atom to all others together: $e^{-40}<10^{-17}$."""


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


@dataclass(frozen=True, eq=False)
class Heads:
    r"""Weighted heads of dimension two whose average is a target, row by row.

    Args:
        q: queries of each head, to be used with `Dot(1.0)`.
        k: keys, the same for all heads.
        weights: of the heads, of sum one.
        choices: the atom $j_h(i)$ that query $i$ takes in head $h$.
        bound: the total variation between a row of the target and of the average is at most this.
        tail: the part of it that is due to heads being almost, not quite, one-hot.
    """

    q: Float[Tensor, "h n 2"]
    k: Float[Tensor, "m 2"]
    weights: Float[Tensor, " h"]
    choices: Int[Tensor, "h n"]
    bound: float
    tail: float


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
        >>> kappa = pf.relate(mu.atoms, mu.atoms, mu, mu, normaliser=pf.Softmax())
        >>> head = pf.realise(kappa)
        >>> head.rank, head.bound, pf.realise(kappa, 3).bound > 0
        (4, 0.0, True)
        >>> options = dict(affinity=pf.Dot(1.0), normaliser=pf.Softmax())
        >>> again = pf.relate(head.q, head.k, mu, mu, **options)
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
    _check_rows(matrix)
    live = _live_atoms(matrix, log_weights)
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
    _check_matrix(matrix)
    rows, columns = matrix.sum(1) > 0, matrix.sum(0) > 0
    block = matrix[rows][:, columns]
    _check_positive(block, "`(1 - 1e-6) * pi + 1e-6 * a[:, None] * b`, a and b its marginals")
    return _realise(block, block.double().log(), _centre, (rows, columns), head_dim)


@torch.no_grad()
def realise_heads(
    matrix: Float[Tensor, "n m"],
    heads: int | None = None,
    *,
    weights: Float[Tensor, " m"] | None = None,
) -> Heads:
    r"""Softmax heads of dimension two whose average is a row-stochastic matrix; it may have zeros.

    Keys lie on the circle, $k_j=(\cos\theta_j,\sin\theta_j)$ with $\theta_j=2\pi j/m$, and
    $q^h_i=\lambda k_{j_h(i)}$ makes head $h$ look at one atom. With

    $$\lambda=\frac{40+\log(1/b_{\min}-1)}{1-\cos(2\pi/m)}$$

    all other atoms together get less than $e^{-40}$, the tail. A number $H$ of equal heads rounds
    rows to multiples of $1/H$ by largest remainders: total variation at most $m/4H$. Else weighted
    heads, at most $n(m-1)+1$ of them, are exact: between two consecutive levels of all the rows'
    distribution functions every row stays at one atom.

    Args:
        matrix: $P\ge0$, of rows with sum one.
        heads: $H$; by default as many weighted heads as an exact average takes.
        weights: $b$ of the context, by default uniform.

    Examples:
        >>> heads = pf.realise_heads(torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
        >>> heads.weights, heads.choices.tolist()
        (tensor([0.2500, 0.7500]), [[0, 0], [1, 0]])
    """
    check_sizes(heads=heads)
    _check_rows(matrix)
    if weights is None:
        weights = torch.ones_like(matrix[0])
    check_mass("weights", weights, weights.log())
    log_b = weights.double().log().log_softmax(-1)
    _live_atoms(matrix, log_b)
    rows = matrix.double() / matrix.double().sum(1, keepdim=True)
    found = _exactly(rows, _noise(matrix)) if heads is None else _rounded(rows, heads)
    return _one_hot_heads(matrix, log_b, *found)


@torch.no_grad()
def birkhoff(matrix: Float[Tensor, "n n"]) -> Heads:
    r"""Sinkhorn heads of dimension two whose average is a doubly stochastic matrix.

    At most $(n-1)^2+1$ weighted permutations: each step takes the least entry of a permutation out
    of what is left, which moves the rest to a face of lower dimension. A permutation
    $\sigma$ is the head $q_i=\lambda k_{\sigma(i)}$ of `realise_heads`. Its scores depend on
    $\theta_{\sigma(i)}-\theta_j$ alone, so that all columns have the same sum, and for uniform
    marginals Sinkhorn and softmax agree.

    Args:
        matrix: of rows and columns with sum one.

    Examples:
        >>> heads = pf.birkhoff(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
        >>> heads.weights, heads.choices.tolist()
        (tensor([0.7500, 0.2500]), [[0, 1], [1, 0]])
    """
    _check_rows(matrix)
    n = len(matrix)
    check_shape("matrix", matrix, (n, n), "Other matrices have heads by `realise_heads`.")
    _check_sums("columns", matrix.sum(0), "A coupling of two uniform measures is one times n.")
    choices, shares = _permutations(matrix.double().cpu().numpy(), _noise(matrix))
    log_b = torch.full_like(matrix[0], -math.log(n), dtype=torch.float64)
    found = (torch.as_tensor(t, device=matrix.device) for t in (choices, shares))
    return _one_hot_heads(matrix, log_b, *found)


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
    s = s * (s > _noise(block) * size * math.sqrt(logs.numel()))
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


def _rounded(rows: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    r"""Largest remainders: `heads` equal one-hot choices per row.

    With $r$ places left for fractions of sum $r$, the top $r$ of these sum to at least $r^2/m$, so
    that total variation is at most $(r-r^2/m)/H\le m/4H$.
    """
    counts = (heads * rows).floor()
    left = heads - counts.sum(1, keepdim=True)
    place = (counts - heads * rows).argsort(dim=1, stable=True).argsort(dim=1)
    levels = (counts + (place < left)).cumsum(1)
    middles = torch.arange(heads).to(rows) + 0.5
    return _quantiles(levels, middles), torch.full_like(middles, 1 / heads)


def _exactly(rows: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Weighted one-hot choices between consecutive levels of the rows' distribution functions."""
    levels = rows.cumsum(1)
    levels = levels / levels[:, -1:]
    edges = torch.cat([levels.new_zeros(1), levels.flatten()]).unique()
    shares = edges.diff()
    kept = shares > noise
    middles = (edges[:-1] + shares / 2)[kept]
    return _quantiles(levels, middles), shares[kept] / shares[kept].sum()


def _quantiles(levels: Tensor, middles: Tensor) -> Tensor:
    """The column of each row at each height, one row of the result per height."""
    return torch.searchsorted(levels, middles.expand(len(levels), -1).contiguous()).mT


def _permutations(rest: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Permutations and their shares, by taking out the one of largest product again and again.

    Every matching is on entries above `noise`, and its least entry becomes 0 exactly, so the
    bound on the number of steps survives rounding.
    """
    from scipy.optimize import linear_sum_assignment

    rest, n = rest.copy(), len(rest)
    choices: list[np.ndarray] = []
    shares: list[float] = []
    while True:
        here = rest > noise
        # a single missing entry costs more than n entries of the size of the noise
        value = np.where(here, np.log(np.where(here, rest, 1)), -40.0 * n)
        at = linear_sum_assignment(value, maximize=True)
        share = rest[at].min()
        if share <= noise:
            return np.array(choices), np.array(shares) / np.sum(shares)
        rest[at] -= share
        choices.append(at[1])
        shares.append(share)


def _one_hot_heads(matrix: Tensor, log_b: Tensor, choices: Tensor, shares: Tensor) -> Heads:
    """Heads on the circle for given choices, and what they leave."""
    h, (n, m) = len(shares), matrix.shape
    live = log_b > -torch.inf
    angles = 2 * math.pi * (live.cumsum(0) - 1) / live.sum()
    circle = torch.stack([angles.cos(), angles.sin()], -1) * live[:, None]
    sharpness, tail = _sharpness(log_b[live], _noise(matrix))
    average = matrix.new_zeros(n, m, dtype=torch.float64)
    average.scatter_add_(1, choices.mT, shares.expand(n, h))
    left = (matrix.double() - average).abs().sum(1).max().item() / 2
    return Heads(
        q=(sharpness * circle[choices]).to(matrix.dtype),
        k=circle.to(matrix.dtype),
        weights=shares.to(matrix.dtype),
        choices=choices,
        bound=left + tail,
        tail=tail,
    )


def _sharpness(log_b: Tensor, noise: float) -> tuple[float, float]:
    r"""$\lambda$, and the mass a head of that $\lambda$ leaves to atoms it does not look at.

    At most $\frac{1-b_t}{b_t}e^{-\lambda(1-\cos(2\pi/m))}$. Scores of size $\lambda$ are rounded,
    by less than `noise` each relative to it, which counts against the separation.
    """
    m = len(log_b)
    if m == 1:
        return 0.0, 0.0
    separation = 2 * math.sin(math.pi / m) ** 2 - 2 * noise
    if separation <= 2 * noise:
        raise ValueError(
            f"{m} atoms on a circle are too close for this precision. Give the matrix in float64."
        )
    least = log_b.min().item()
    odds = math.log1p(-math.exp(least)) - least
    return (_MARGIN + odds) / separation, math.exp(-_MARGIN)


def _noise(matrix: Tensor) -> float:
    """What counts as rounding beside one."""
    return 4 * torch.finfo(matrix.dtype).eps


def _live_atoms(matrix: Tensor, log_weights: Tensor) -> Tensor:
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


def _check_matrix(matrix: Tensor) -> None:
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


def _check_rows(matrix: Tensor) -> None:
    _check_matrix(matrix)
    _check_sums("rows", matrix.sum(1), "Divide by `matrix.sum(1, keepdim=True)`.")


def _check_sums(what: str, sums: Tensor, fix: str) -> None:
    """Raise unless sums are one, to half the digits of their dtype."""
    worst = (sums - 1).abs().max().item()
    if worst > torch.finfo(sums.dtype).eps ** 0.5:
        raise ValueError(
            f"The {what} of `matrix` must sum to one, got sums off by up to {worst:.1e}. {fix}"
        )


def _check_positive(block: Tensor, mixture: str) -> None:
    zeros = int((block == 0).sum())
    if zeros:
        raise ValueError(
            f"A head relates every two points, so its target must be positive, got {zeros} zeros. "
            f"Mix in a floor: {mixture}. Many heads can do without: `realise_heads`."
        )
