r"""Many narrow heads instead of a wide one.

An average of heads of dimension two reaches every relation on finitely many points: with keys on a
circle, a head of dimension two takes any one atom per query. Results carry no gradients.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._tools.checks import check_mass, check_shape, check_sizes, check_sums
from .._tools.exact import assignment
from ._one_head import check_rows, live_atoms, rounding

_MARGIN = 40.0
r"""By how much a one-hot head prefers its atom to all others together: $e^{-40}<10^{-17}$."""


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
        >>> heads = pf.approximation.realise_heads(torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
        >>> heads.weights, heads.choices.tolist()
        (tensor([0.2500, 0.7500]), [[0, 0], [1, 0]])
    """
    check_sizes(heads=heads)
    check_rows(matrix)
    if weights is None:
        weights = torch.ones_like(matrix[0])
    check_mass("weights", weights, weights.log())
    log_b = weights.double().log().log_softmax(-1)
    live_atoms(matrix, log_b)
    rows = matrix.double() / matrix.double().sum(1, keepdim=True)
    found = _exactly(rows, rounding(matrix)) if heads is None else _rounded(rows, heads)
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
        >>> heads = pf.approximation.birkhoff(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
        >>> heads.weights, heads.choices.tolist()
        (tensor([0.7500, 0.2500]), [[0, 1], [1, 0]])
    """
    check_rows(matrix)
    n = len(matrix)
    check_shape("matrix", matrix, (n, n), "Other matrices have heads by `realise_heads`.")
    fix = "A coupling of two uniform measures is one times n."
    check_sums("columns", matrix.sum(0), matrix.dtype, fix)
    choices, shares = _permutations(matrix.double().cpu().numpy(), rounding(matrix))
    log_b = torch.full_like(matrix[0], -math.log(n), dtype=torch.float64)
    found = (torch.as_tensor(t, device=matrix.device) for t in (choices, shares))
    return _one_hot_heads(matrix, log_b, *found)


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
    rest, n = rest.copy(), len(rest)
    choices: list[np.ndarray] = []
    shares: list[float] = []
    while True:
        here = rest > noise
        # a single missing entry costs more than n entries of the size of the noise
        value = np.where(here, np.log(np.where(here, rest, 1)), -40.0 * n)
        at = np.arange(n), assignment(-value)
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
    sharpness, tail = _sharpness(log_b[live], rounding(matrix))
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
