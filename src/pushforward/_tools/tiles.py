"""Large matrices: distances of all pairs, and work on some rows at a time, in bounded memory."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

TILE = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Entries of a tile: fits the cache of a CPU, keeps a GPU busy."""

FEW = 4
"""Coordinates up to which a GPU writes all differences; `torch.cdist` is far slower there."""


def distance_matrix(x: Tensor, y: Tensor) -> Tensor:
    """All distances $|x_i-y_j|$.

    They come from differences: PyTorch's default, $|x|^2+|y|^2-2xy$, loses half the digits.
    """
    few = x.shape[-1] <= FEW and x.numel() * y.shape[-2] <= TILE["cuda"]
    if x.is_cuda and few:
        return (x[..., :, None, :] - y[..., None, :, :]).norm(dim=-1)
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


def row_tiles(
    rows: int, row_size: int, device: torch.device, *, entries: int | None = None
) -> list[slice]:
    """Slices that cover the rows of a matrix, of at most `entries`, by default `TILE`, each.

    A row has `row_size` entries, batch axes included.
    """
    most = TILE["cpu" if device.type == "cpu" else "cuda"] if entries is None else entries
    step = max(1, most // max(1, row_size))
    return [slice(start, start + step) for start in range(0, rows, step)]


def over_tiles(part: Callable[[slice], Tensor], tiles: list[slice]) -> Iterator[Tensor]:
    """The value of `part` on each tile; `backward` recomputes tiles instead of storing them.

    A single tile is stored, because recomputing it would save nothing.
    """
    recompute = torch.is_grad_enabled() and len(tiles) > 1
    for tile in tiles:
        yield checkpoint(part, tile, use_reentrant=False) if recompute else part(tile)
