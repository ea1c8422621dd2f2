r"""Everything about a kernel in memory: the matrix, and the cache that the solver keeps of it.

Near the solution the matrix $e^{A_{ij}+f_i+g_j}$ is the density of the plan, neither large nor
small where there is mass. An integral is then a product with a matrix, which costs a pass over
memory instead of an exponential per pair.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.tiles import row_tiles
from .._tools.types import Bias, Images, Values
from ..affinities import Kernel, PointScores, Scores
from ..ops import runnable
from ._problem import Point, Problem, step

MEMORY = {"cpu": 1 << 30, "cuda": 1 << 33}
"""Bytes a stored kernel may take by default. Beyond, every step forms its scores again."""

RADIUS = {torch.float32: 30.0, torch.float64: 300.0}
"""How far potentials may move from those of a stored kernel. Entries that underflowed, which are
below $e^{-87}$ and $e^{-700}$, then still do not matter."""

FLOAT32_TOL, FLOAT32_SIZE = 1e-6, 1 << 22
"""A kernel with more entries is stored in float32 if the tolerance is not smaller. Rounding the
entries causes a marginal error of 1.2e-7, and a product reads half the bytes."""


STREAMED = 1 << 23
"""From this many pairs on, fast reductions in float32 form all scores again faster than a stored
kernel is made and read."""

WIDEST = {"fused": 16, "triton": 256}
"""Coordinates of points up to which that holds."""


class StoredKernel(Kernel):
    r"""The matrix $e^{A_{ij}+f_i+g_j}$ in memory: integrals become products with it.

    Integrals over keys agree with those of the scores as long as the bias stays near $g$, and
    integrals over queries as long as it stays near $f$. There are no gradients.

    Args:
        matrix: $e^{A+f+g}$.
        f: the potential of the queries.
        g: the potential of the keys.
        careful: whether products are summed in the dtype of what is integrated, not of the matrix.
    """

    def __init__(self, matrix: Tensor, f: Tensor, g: Tensor, careful: bool = False) -> None:
        self.matrix, self.f, self.g, self.careful = matrix, f, g, careful

    @classmethod
    def absorb(cls, scores: Scores, f: Tensor, g: Tensor, dtype: torch.dtype) -> StoredKernel:
        """The kernel at two potentials, which are minus infinity where there is no mass."""
        matrix = _allocate(scores, dtype)
        for rows in scores.cuts():
            tile = (scores.tile(rows) + f[..., rows, None]).add_(g[..., None, :])
            matrix[..., rows, :] = tile.exp_()
        f, g = (p.masked_fill(p == -torch.inf, 0) for p in (f, g))
        return cls(matrix, f, g)

    @classmethod
    def normal(cls, scores: Scores, log_b: Tensor, g: Tensor, dtype: torch.dtype) -> StoredKernel:
        """The kernel at `g` and the $f$ that makes rows integrate to one, in a single pass."""
        matrix = _allocate(scores, dtype)
        f = torch.empty(scores.shape[:-1], dtype=scores.dtype, device=scores.device)
        no_mass = log_b == -torch.inf
        potential = g.masked_fill(no_mass, -torch.inf)[..., None, :]
        weights = log_b.exp()[..., None]
        for rows in scores.cuts():
            tile = scores.tile(rows) + potential
            top = tile.amax(-1, keepdim=True)
            top = top.masked_fill(top == -torch.inf, 0)
            mass = tile.sub_(top).exp_() @ weights
            matrix[..., rows, :] = tile.div_(mass.clamp_min(torch.finfo(tile.dtype).tiny))
            # Written into one tensor: a list of small results between the large tiles would
            # fragment the heap, and every tile would need new memory.
            f[..., rows] = -(top + mass.log()).masked_fill(mass == 0, 0)[..., 0]
        return cls(matrix, f, g.masked_fill(no_mass, 0))

    @property
    def rounding(self) -> float:
        """A bound on the marginal error due to rounding.

        Careful products leave the rounding of the entries, half a unit in the last place each.
        """
        return (1 if self.careful else 1e3) * torch.finfo(self.matrix.dtype).eps

    def with_care(self) -> StoredKernel:
        """The same matrix with careful products."""
        return StoredKernel(self.matrix, self.f, self.g, careful=True)

    @property
    def T(self) -> StoredKernel:
        return StoredKernel(self.matrix.mT, self.g, self.f, self.careful)

    def over_keys(self, bias: Bias) -> Float[Tensor, "*o m"]:
        """One product."""
        weights, top = self._weights(bias)
        return self._times(weights).log() + top - self.f

    def average(self, v: Values, bias: Bias) -> Images:
        """One product for each column of `v`; 0 for queries without a key."""
        weights, _ = self._weights(bias)
        mass = self._times(weights)
        total = torch.stack([self._times(weights * column) for column in v.unbind(-1)], -1)
        return torch.where(mass > 0, 1 / torch.where(mass > 0, mass, 1), 0)[..., None] * total

    def _weights(self, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The weights `exp(bias - g)`, scaled to a maximum of one, and the log of that scale."""
        bias = bias - self.g
        top = bias.amax(-1, keepdim=True)
        return (bias - top).exp(), top

    def _times(self, x: Tensor) -> Tensor:
        """The product with a vector.

        In float32 on a CPU it is summed in pieces: in one piece, sums of thousands of positive
        terms come out too small by a relative 10^-6.
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
        """The product in the dtype of `x`: the matrix is converted a tile at a time."""
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


def _allocate(scores: Scores, dtype: torch.dtype) -> Tensor:
    """Memory for all scores.

    On a CPU it comes from NumPy, which asks the system for huge pages: touching so much memory for
    the first time then takes a quarter of the time.
    """
    if scores.device.type != "cpu":
        return torch.empty(scores.shape, dtype=dtype, device=scores.device)
    kind = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    return torch.from_numpy(np.empty(scores.shape, kind))


def _streams(scores: Scores) -> bool:
    """Whether forming the scores in every step is faster than storing the kernel."""
    if not isinstance(scores, PointScores) or scores.shape.numel() < STREAMED:
        return False
    found = runnable(scores.device, scores.dtype) if scores.dtype == torch.float32 else ()
    width = scores.keys.points.shape[-1]
    fast = [impl for impl in found if width <= WIDEST.get(impl, -1)]
    return bool(fast) and scores.impl in (None, *fast)


def _fits(scores: Scores, dtype: torch.dtype, memory: int | None) -> bool:
    """Whether the kernel takes no more than `memory` bytes."""
    if memory is None:
        memory = MEMORY["cpu" if scores.device.type == "cpu" else "cuda"]
    return scores.shape.numel() * dtype.itemsize <= memory


def stored_at(
    scores: Scores, problem: Problem, f: Tensor, g: Tensor, memory: int | None = None
) -> Kernel:
    """The kernel at the potentials of a solution, in memory if it fits; else the scores."""
    if not _fits(scores, scores.dtype, memory):
        return scores
    f = f.masked_fill(problem.log_a == -torch.inf, -torch.inf)
    g = g.masked_fill(problem.log_b == -torch.inf, -torch.inf)
    kernel = StoredKernel.absorb(scores, f, g, scores.dtype)
    # At atoms with a tiny part of the mass the density may overflow.
    return kernel if bool(kernel.matrix.isfinite().all()) else scores


class KernelCache:
    """The kernel that the solver iterates on: stored near the current potential, or the scores.

    `tol` is the marginal error that the solver must reach, `memory` and `scores_rounding` are as
    in `Settings`.
    """

    def __init__(
        self, scores: Scores, problem: Problem, tol: float, memory: int | None,
        scores_rounding: float = 0.0,
    ) -> None:  # fmt: skip
        memory = 0 if memory is None and _streams(scores) else memory
        self.scores, self.problem, self.tol, self.memory = scores, problem, tol, memory
        self.scores_rounding = scores_rounding
        float32 = tol >= FLOAT32_TOL and scores.shape.numel() > FLOAT32_SIZE
        self._dtype: torch.dtype | None = torch.float32 if float32 else scores.dtype
        self._kernel: StoredKernel | None = None
        self._outdated = False

    def at(self, g: Tensor) -> Kernel:
        """The stored kernel, made anew at `g` if it was left; the scores if it does not fit."""
        if self._outdated:
            self.exact()  # drop the old kernel first: memory has room for one
        dtype = self._dtype
        if self._kernel is None and dtype is not None and _fits(self.scores, dtype, self.memory):
            self._kernel = StoredKernel.normal(self.scores, self.problem.log_b, g, dtype)
        return self.scores if self._kernel is None else self._kernel

    def exact(self) -> Kernel:
        """The scores themselves; a stored kernel is dropped."""
        self._kernel, self._outdated = None, False
        return self.scores

    @property
    def inner_tol(self) -> float:
        """The error to reach on this kernel: less than `tol` by what its rounding may hide.

        The rounding of the scores counts only while it leaves a quarter of `tol`: a step or two
        with a kernel in memory cost less than measuring the plan, which forms all scores again.
        """
        if self._kernel is None:
            return self.tol
        tol = self.tol
        if self._kernel.matrix.dtype != self.scores.dtype:
            tol -= 2 * torch.finfo(self._kernel.matrix.dtype).eps
        return tol - self.scores_rounding if self.scores_rounding <= 0.75 * self.tol else tol

    @property
    def rounding(self) -> float:
        """Relative rounding error of the entries, beyond that of the scores' own integrals."""
        return 0.0 if self._kernel is None else torch.finfo(self._kernel.matrix.dtype).eps

    def covers(self, point: Point) -> bool:
        """Whether the kernel is accurate at a point; if not, it will be made anew."""
        if self._kernel is None:
            return True
        log_a, log_b = self.problem.log_a, self.problem.log_b
        distance = torch.stack([
            _distance(point.f, self._kernel.f, log_a),
            _distance(point.g, self._kernel.g, log_b),
            _distance(point.image, self._kernel.g, log_b),
        ]).amax()  # fmt: skip
        if bool(distance <= RADIUS[self._kernel.matrix.dtype]):  # false for NaN
            return True
        self._outdated = True
        return False

    def verify(self, point: Point) -> Point:
        """The point with a marginal error that includes rounding.

        A kernel with the dtype of the scores is verified by one step on the scores. For a kernel
        of float32 beside scores of float64 there is a way without exponentials: its entries are
        right to half a unit in the last place, so the error in careful products plus a bound on
        what that rounding changes is a bound on the true one.
        """
        kernel = self._kernel
        if kernel is None or self.tol >= kernel.rounding:
            return point
        if kernel.matrix.dtype == self.scores.dtype:
            return step(self.scores, self.problem, point.g)
        kernel = kernel.with_care()
        point = step(kernel, self.problem, point.g)
        return point._replace(marginal_error=point.marginal_error + kernel.rounding)

    def more_precise(self) -> None:
        """Store in the dtype of the scores from now on, or not at all if that was done already."""
        self._dtype = None if self._dtype == self.scores.dtype else self.scores.dtype
        self.exact()


def _distance(p: Tensor, q: Tensor, logs: Tensor) -> Tensor:
    """The largest difference of two potentials where there is mass."""
    return (p - q).masked_fill(logs == -torch.inf, 0).abs().amax()
