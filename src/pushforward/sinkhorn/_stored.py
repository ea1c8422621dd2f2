"""A kernel in memory."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from .._tools.tiles import row_tiles
from ..affinities import Kernel, Scores


class StoredKernel(Kernel):
    r"""The matrix $e^{A_{ij}+f_i+g_j}$ in memory: integrals become products with it.

    Near the potentials of a coupling it is its density, neither large nor small where there is
    mass, and an integral costs a pass over memory instead of an exponential per pair. Results are
    those of the scores themselves as long as biases stay near $g$, those of the other side near
    $f$. No gradients.

    Args:
        matrix: $e^{A+f+g}$.
        f: the potential on the queries.
        g: the potential on the keys.
        careful: whether products are summed in the dtype of what is integrated, not of the matrix.
    """

    def __init__(self, matrix: Tensor, f: Tensor, g: Tensor, careful: bool = False):
        self.matrix, self.f, self.g, self.careful = matrix, f, g, careful

    @classmethod
    def absorb(cls, scores: Scores, f: Tensor, g: Tensor, dtype: torch.dtype) -> StoredKernel:
        """Exponentiate scores and potentials, minus infinity for none, tile by tile."""
        matrix = _room(scores, dtype)
        for rows in scores.cuts():
            tile = (scores.tile(rows) + f[..., rows, None]).add_(g[..., None, :])
            matrix[..., rows, :] = tile.exp_()
        f, g = (p.masked_fill(p == -torch.inf, 0) for p in (f, g))
        return cls(matrix, f, g)

    @classmethod
    def normal(cls, scores: Scores, log_b: Tensor, g: Tensor, dtype: torch.dtype) -> StoredKernel:
        """With the $f$ for which rows integrate to one, found in the same pass."""
        matrix = _room(scores, dtype)
        f = torch.empty(scores.shape[:-1], dtype=scores.dtype, device=scores.device)
        dead = log_b == -torch.inf
        alive, weights = g.masked_fill(dead, -torch.inf)[..., None, :], log_b.exp()[..., None]
        for rows in scores.cuts():
            tile = scores.tile(rows) + alive
            top = tile.amax(-1, keepdim=True)
            top = top.masked_fill(top == -torch.inf, 0)
            mass = tile.sub_(top).exp_() @ weights
            matrix[..., rows, :] = tile.div_(mass.clamp_min(torch.finfo(tile.dtype).tiny))
            # Small results kept one by one would split the heap: each tile would be a new one.
            f[..., rows] = -(top + mass.log()).masked_fill(mass == 0, 0)[..., 0]
        return cls(matrix, f, g.masked_fill(dead, 0))

    @property
    def rounding(self) -> float:
        """A marginal error above what the rounding of its entries and products makes.

        Careful products leave that of the entries, of half a unit in the last place each.
        """
        return (1 if self.careful else 1e3) * torch.finfo(self.matrix.dtype).eps

    def with_care(self) -> StoredKernel:
        """The same matrix with careful products."""
        return StoredKernel(self.matrix, self.f, self.g, careful=True)

    @property
    def T(self):
        """Transposed."""
        return StoredKernel(self.matrix.mT, self.g, self.f, self.careful)

    def over_keys(self, bias):
        """One product."""
        weights, top = self._weights(bias)
        return self._times(weights).log() + top - self.f

    def average(self, v, bias):
        """A product for each column; 0 where nothing is seen."""
        weights, _ = self._weights(bias)
        mass = self._times(weights)
        total = torch.stack([self._times(weights * column) for column in v.unbind(-1)], -1)
        return torch.where(mass > 0, 1 / torch.where(mass > 0, mass, 1), 0)[..., None] * total

    def _weights(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        bias = bias - self.g
        top = bias.amax(-1, keepdim=True)
        return (bias - top).exp(), top

    def _times(self, x: Tensor) -> Tensor:
        """The product with a vector.

        In float32 it is summed in pieces: in one go, thousands of positive terms on a CPU lose
        10^-6 of their sum, always downwards.
        """
        if self.careful:
            return self._times_carefully(x)
        matrix, y = self.matrix, x.to(self.matrix.dtype)
        times = torch.mv if matrix.ndim == 2 else lambda a, b: (a @ b[..., None])[..., 0]
        if matrix.dtype == torch.float64 or matrix.device.type != "cpu":
            return times(matrix, y).to(x.dtype)
        piece = 1024 if matrix.stride(-1) == 1 else 256
        cuts = [slice(i, i + piece) for i in range(0, matrix.shape[-1], piece)]
        return torch.stack([times(matrix[..., c], y[..., c]).to(x.dtype) for c in cuts]).sum(0)

    def _times_carefully(self, x: Tensor) -> Tensor:
        """Converted piece by piece, results in one place (see `normal`)."""
        matrix, y = self.matrix, x[..., None]
        *batch, m, n = matrix.shape
        total = x.new_zeros(*batch, m, 1)
        if matrix.stride(-1) == 1:
            for c in row_tiles(m, prod(batch) * n, matrix.device):
                total[..., c, :] = matrix[..., c, :].to(x.dtype) @ y
        else:
            for c in row_tiles(n, prod(batch) * m, matrix.device):
                total += matrix[..., c].to(x.dtype) @ y[..., c, :]
        return total[..., 0]


def _room(scores: Scores, dtype: torch.dtype) -> Tensor:
    """Room for all scores; on a CPU from NumPy, which asks for huge pages where they are given.

    Touching so much memory for the first time then takes a quarter of the time.
    """
    if scores.device.type != "cpu":
        return torch.empty(scores.shape, dtype=dtype, device=scores.device)
    kind = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    return torch.from_numpy(np.empty(scores.shape, kind))
