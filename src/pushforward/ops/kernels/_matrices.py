"""Doubly stochastic scalings of many small matrices: their launches, and the operator.

The launches follow each other without a wait: each finds on the device what the last one left.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._tools.once import refuse
from ._operators import check_device
from ._split import processors
from .programs import matrices as programs

WHAT = "Scaling small matrices on a GPU"
"""Its name in messages."""

NEWTON_STEPS = 12
"""Newton steps in the precision of the logits. Matrices that need more are annealed in float64."""

ANNEALING_STEPS = 48
"""Newton steps at each temperature."""

WARPS = 16
"""Warps of one processor in launches whose programs take matrices from a list."""


class Tile(NamedTuple):
    """How the threads of a program share its matrices.

    Args:
        rows: threads along rows.
        columns: threads along columns.
        matrices: matrices of a program.
        warps: warps of a program.
    """

    rows: int
    columns: int
    matrices: int
    warps: int = 1

    def options(self, n: int) -> dict[str, Any]:
        """The tile as arguments of a kernel, for matrices of size `n`."""
        size = padded(n)
        return dict(
            R=size // self.rows, RT=self.rows, C=size // self.columns, CT=self.columns,
            B=self.matrices, num_warps=self.warps,
        )  # fmt: skip


TILES = {
    4: Tile(1, 1, 32),
    8: Tile(2, 2, 8),
    16: Tile(4, 4, 2),
    32: Tile(8, 4, 1),
    64: Tile(8, 4, 1, 4),
}
"""For matrices up to each size. A thread has at most 32 entries."""

DOUBLE = {
    4: Tile(1, 1, 32),
    8: Tile(2, 4, 4),
    16: Tile(8, 4, 1),
    32: Tile(8, 4, 1, 2),
    64: Tile(8, 4, 1, 8),
}
"""For float64, where a thread has half as many."""


def padded(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()


def patience(n: int) -> int:
    """How many Sinkhorn steps cost as much as a Newton step, about."""
    return max(8, padded(n))


def tile_of(tiles: dict[int, Tile], n: int) -> Tile:
    """The tile for matrices of size `n`."""
    return next(tile for largest, tile in tiles.items() if n <= largest)


def scale(logits: Tensor, tol: float, max_steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Matrices, residuals, whether converged, and the Newton steps of the slowest."""
    logits = logits.contiguous()
    count, n, _ = logits.shape
    out, residual = logits.new_empty(logits.shape), logits.new_empty(count)
    slow, hard, masked = (logits.new_empty(count, dtype=torch.int32) for _ in range(3))
    lost = torch.empty_like(residual, dtype=torch.int8)
    # How many matrices are in each of these lists, and the most Newton steps.
    counters = logits.new_zeros(4, dtype=torch.int32)
    first, eps, goal = min(NEWTON_STEPS, max_steps), torch.finfo(logits.dtype).eps, tol / 2
    tile = tile_of(DOUBLE if logits.dtype == torch.float64 else TILES, n)
    if count:
        programs.balance[(-(-count // tile.matrices),)](
            logits, out, residual, lost, slow, hard, masked, counters, count, n, 1, goal, tol,
            MORE=patience(n), **tile.options(n),
        )  # fmt: skip
        programs.newton[_grid(logits, tile)](
            out, residual, slow, hard, counters, n, 1, goal, tol, first, eps, **tile.options(n)
        )
    if count and max_steps > NEWTON_STEPS:
        double = tile_of(DOUBLE, n)
        programs.anneal[_grid(logits, double)](
            logits, out, residual, lost, hard, counters, n, 1, goal, first,
            max_steps - first, ANNEALING_STEPS, **double.options(n),
        )  # fmt: skip
    converged = (residual <= tol) & (lost == 0)
    if count:
        programs.support[_grid(logits, tile)](
            logits, out, residual, converged.view(torch.int8), masked, counters, n, 1, eps,
            **tile.options(n),
        )  # fmt: skip
    return out, residual, converged, counters[3].clone()


def gradient(matrix: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of the logits for the gradient of the scaled matrices."""
    count, n, _ = matrix.shape
    out, tile = matrix.new_empty(matrix.shape), tile_of(DOUBLE, n)
    if count:
        programs.gradient[(-(-count // tile.matrices),)](
            matrix, upstream.contiguous(), out, count, n, 1, **tile.options(n)
        )
    return out


def _grid(x: Tensor, tile: Tile) -> tuple[int]:
    """As many programs as run at the same time, and at most one for each tile."""
    wanted = processors(x.device) * WARPS // tile.warps if x.is_cuda else 2
    return (min(wanted, -(-len(x) // tile.matrices)),)


@torch.library.custom_op("pushforward::scale_matrices", mutates_args=())
def scale_matrices(
    logits: Tensor, tol: float, max_steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Matrices, residuals, whether converged, steps, for logits `(count, n, n)`."""
    check_device(WHAT, logits)
    return scale(logits, tol, max_steps)


@scale_matrices.register_fake
def _(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    residual = logits.new_empty(len(logits))
    steps = logits.new_empty((), dtype=torch.int32)
    return logits.new_empty(logits.shape), residual, residual <= 0, steps


@torch.library.custom_op("pushforward::scale_matrices_backward", mutates_args=())
def scale_matrices_backward(matrix: Tensor, upstream: Tensor) -> Tensor:
    """The gradient of the logits."""
    return gradient(matrix, upstream)


@scale_matrices_backward.register_fake
def _(matrix: Tensor, upstream: Tensor) -> Tensor:
    return matrix.new_empty(matrix.shape)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    matrix, residual, converged, steps = output
    ctx.mark_non_differentiable(residual, converged, steps)
    ctx.save_for_backward(matrix)


def _backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor, None, None]:
    return scale_matrices_backward(*ctx.saved_tensors, upstream), None, None


def _second_backward(ctx: Any, *_: Any) -> None:
    refuse("This scaling is differentiable once: its gradient holds the matrix fixed.")


scale_matrices_backward.register_autograd(_second_backward)
scale_matrices.register_autograd(_backward, setup_context=_setup_context)
