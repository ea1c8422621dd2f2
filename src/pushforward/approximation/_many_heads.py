r"""Many heads of dimension two instead of one wide head.

With keys on a circle, a head of dimension two selects any one key for every query. So an average
of such heads approximates every conditional on finitely many points, and a weighted average
represents it. There are $m$ queries and $n$ keys. Results carry no gradients.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .._tools.checks import (
    check_floating,
    check_mass,
    check_optional_sizes,
    check_same,
    check_shape,
    check_sums,
)
from .._tools.exact import assignment
from ._one_head import check_rows, live_atoms, rounding

POLISH = 100
"""Sinkhorn steps at most that normalise a matrix which is doubly stochastic to 1e-5."""

_MARGIN = 40.0
r"""A one-hot head gives all other keys together at most $e^{-40}<10^{-17}$ of the weight."""


@dataclass(frozen=True, eq=False)
class Heads:
    r"""Weighted heads of dimension two whose average approximates a target, row by row.

    Args:
        q: queries of each head, to be used with `Dot(1.0)`.
        k: keys, the same for all heads.
        weights: weights of the heads, with sum one.
        choices: the key $j_h(i)$ that head $h$ selects for query $i$.
        bound: an upper bound of the total variation between rows of the target and of the average.
        tail: the part of `bound` that is there because heads are only almost one-hot.
    """

    q: Float[Tensor, "h m 2"]
    k: Float[Tensor, "n 2"]
    weights: Float[Tensor, " h"]
    choices: Int[Tensor, "h m"]
    bound: float
    tail: float


@torch.no_grad()
def realise_heads(
    matrix: Float[Tensor, "m n"],
    heads: int | None = None,
    *,
    weights: Float[Tensor, " n"] | None = None,
) -> Heads:
    r"""Softmax heads of dimension two whose average is a row-stochastic matrix; it may have zeros.

    Keys lie on the circle, $k_j=(\cos\theta_j,\sin\theta_j)$ with $\theta_j=2\pi j/n$, and
    $q^h_i=\lambda k_{j_h(i)}$ makes head $h$ select one key for each query. With

    $$\lambda=\frac{40+\log(1/b_{\min}-1)}{1-\cos(2\pi/n)}$$

    all other keys together get less than $e^{-40}$, the tail. If `heads` is a number $H$, equal
    heads round the rows to multiples of $1/H$ by largest remainders, with total variation at most
    $n/4H$. Otherwise weighted heads, at most $m(n-1)+1$ of them, are exact: between two
    consecutive levels of the distribution functions of all rows, each row selects a single key.

    Args:
        matrix: $P\ge0$, with rows of sum one.
        heads: $H$; by default as many weighted heads as an exact average needs.
        weights: $b$ of the context, by default uniform.

    Examples:
        >>> heads = pf.approximation.realise_heads(torch.tensor([[0.25, 0.75], [1.0, 0.0]]))
        >>> heads.weights, heads.choices.tolist()
        (tensor([0.2500, 0.7500]), [[0, 0], [1, 0]])
    """
    check_optional_sizes(heads=heads)
    check_floating("matrix", matrix, "(m, n)", 2)
    if weights is None:
        weights = torch.ones_like(matrix[0])
    check_floating("weights", weights, "(n,)", 1)
    check_shape("weights", weights, matrix.shape[1:], "One per column of the matrix.")
    for what in ("dtype", "device"):
        check_same(what, ("matrix", matrix), ("weights", weights))
    check_rows(matrix)
    check_mass("weights", weights, weights.log())
    log_b = weights.double().log().log_softmax(-1)
    live_atoms(matrix, log_b)
    rows = matrix.double() / matrix.double().sum(1, keepdim=True)
    if heads is None:
        choices, shares = _exact_choices(rows, rounding(matrix))
    else:
        choices, shares = _rounded_choices(rows, heads)
    return _one_hot_heads(matrix, log_b, choices, shares)


@torch.no_grad()
def birkhoff(matrix: Float[Tensor, "n n"]) -> Heads:
    r"""Sinkhorn heads of dimension two whose average is a doubly stochastic matrix.

    By Birkhoff's theorem at most $(n-1)^2+1$ weighted permutations are enough. Each step subtracts
    the largest possible multiple of a permutation, which leaves a matrix on a face of lower
    dimension. A permutation $\sigma$ is the head $q_i=\lambda k_{\sigma(i)}$ of `realise_heads`.
    Its scores depend on $\theta_{\sigma(i)}-\theta_j$ alone, so all columns have the same sum, and
    for uniform marginals Sinkhorn and softmax agree.

    Args:
        matrix: a doubly stochastic matrix: rows and columns have sum one.

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
    exact = _polished(matrix.double().cpu().numpy(), rounding(matrix))
    permutations, shares = _permutations(exact, rounding(matrix))
    log_b = torch.full_like(matrix[0], -math.log(n), dtype=torch.float64)
    choices = torch.as_tensor(permutations, device=matrix.device)
    return _one_hot_heads(matrix, log_b, choices, torch.as_tensor(shares, device=matrix.device))


def _rounded_choices(rows: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    r"""Largest remainders: `heads` equal one-hot choices per row.

    If $r$ heads remain after rounding down, the $n$ remainders sum to $r$ and the largest $r$ of
    them to at least $r^2/n$, so that total variation is at most $(r-r^2/n)/H\le n/4H$.
    """
    counts = (heads * rows).floor()
    remaining = heads - counts.sum(1, keepdim=True)
    position = (counts - heads * rows).argsort(dim=1, stable=True).argsort(dim=1)
    levels = (counts + (position < remaining)).cumsum(1)
    middles = torch.arange(heads).to(rows) + 0.5
    return _quantiles(levels, middles), torch.full_like(middles, 1 / heads)


def _exact_choices(rows: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Weighted one-hot choices between consecutive levels of the rows' distribution functions."""
    levels = rows.cumsum(1)
    levels = levels / levels[:, -1:]
    edges = torch.cat([levels.new_zeros(1), levels.flatten()]).unique()
    shares = edges.diff()
    kept = shares > noise
    middles = (edges[:-1] + shares / 2)[kept]
    return _quantiles(levels, middles), shares[kept] / shares[kept].sum()


def _quantiles(levels: Tensor, middles: Tensor) -> Tensor:
    """The key of each row at each level, one row of the result per level."""
    return torch.searchsorted(levels, middles.expand(len(levels), -1).contiguous()).mT


def _polished(matrix: np.ndarray, noise: float) -> np.ndarray:
    """The matrix, normalised if its sums are off by more than rounding: a certificate of 1e-6."""
    for _ in range(POLISH):
        if max(abs(matrix.sum(axis) - 1).max() for axis in (0, 1)) <= noise * len(matrix):
            break
        matrix = matrix / matrix.sum(0)
        matrix = matrix / matrix.sum(1, keepdims=True)
    return matrix


def _permutations(rest: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Permutations and their shares, subtracting one of largest product at a time.

    All entries of a permutation are above `noise`, and its least entry becomes 0 exactly, so the
    bound on the number of steps holds in spite of rounding.
    """
    rest, n = rest.copy(), len(rest)
    choices: list[np.ndarray] = []
    shares: list[float] = []
    while True:
        present = rest > noise
        # One absent entry must cost more than n present ones of the size of the noise.
        value = np.where(present, np.log(np.where(present, rest, 1)), -40.0 * n)
        at = np.arange(n), assignment(-value)
        share = rest[at].min()
        if share <= noise:
            return np.array(choices), np.array(shares) / np.sum(shares)
        rest[at] -= share
        choices.append(at[1])
        shares.append(share)


def _one_hot_heads(matrix: Tensor, log_b: Tensor, choices: Tensor, shares: Tensor) -> Heads:
    """Heads on the circle for given choices, and the bound of their error."""
    h, (m, n) = len(shares), matrix.shape
    live = log_b > -torch.inf
    angles = 2 * math.pi * (live.cumsum(0) - 1) / live.sum()
    circle = torch.stack([angles.cos(), angles.sin()], -1) * live[:, None]
    sharpness, tail = _sharpness(log_b[live], rounding(matrix))
    average = matrix.new_zeros(m, n, dtype=torch.float64)
    average.scatter_add_(1, choices.mT, shares.expand(m, h))
    error = (matrix.double() - average).abs().sum(1).max().item() / 2
    return Heads(
        q=(sharpness * circle[choices]).to(matrix.dtype),
        k=circle.to(matrix.dtype),
        weights=shares.to(matrix.dtype),
        choices=choices,
        bound=error + tail,
        tail=tail,
    )


def _sharpness(log_b: Tensor, noise: float) -> tuple[float, float]:
    r"""$\lambda$, and a bound for the weight that such a head gives to the other keys.

    The bound is $\frac{1-b_t}{b_t}e^{-\lambda(1-\cos(2\pi/n))}$. Scores of size $\lambda$ have
    rounding errors below `noise` times $\lambda$, which are subtracted from the separation.
    """
    n = len(log_b)
    if n == 1:
        return 0.0, 0.0
    separation = 2 * math.sin(math.pi / n) ** 2 - 2 * noise
    if separation <= 2 * noise:
        raise ValueError(
            f"{n} atoms on a circle are too close for this precision. Give the matrix in float64."
        )
    least = log_b.min().item()
    odds = math.log1p(-math.exp(least)) - least
    return (_MARGIN + odds) / separation, math.exp(-_MARGIN)
