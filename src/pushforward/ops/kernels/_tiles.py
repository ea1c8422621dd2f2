"""Sizes of tiles by pass, precision and width.

Those of the two reductions are the fastest of those tried on an H200.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

NARROW = 4
"""Points and values of at most this width run on the ordinary arithmetic units."""

Pass = Literal["forward", "queries", "keys"]
"""The forward pass, and the gradients of queries and of keys."""


class Tile(NamedTuple):
    """Queries and keys of a tile, warps of a program, stages of its pipeline."""

    rows: int
    columns: int
    warps: int
    stages: int


NARROW_TILES: dict[Pass, Tile] = {
    "forward": Tile(16, 128, 4, 3),
    "queries": Tile(16, 64, 4, 3),
    "keys": Tile(32, 32, 4, 3),
}

HALF_TILES: dict[Pass, dict[int, Tile]] = {
    "forward": {
        16: Tile(64, 128, 4, 3),
        64: Tile(128, 64, 4, 3),
        128: Tile(128, 64, 8, 2),
        256: Tile(64, 64, 8, 2),
    },
    "queries": {64: Tile(64, 64, 4, 3), 256: Tile(64, 32, 4, 2)},
    "keys": {64: Tile(32, 64, 4, 3), 256: Tile(32, 64, 4, 2)},
}
"""For points in half precision, up to each width."""

SPLIT_TILES: dict[Pass, dict[int, Tile]] = {
    "forward": {16: Tile(64, 128, 4, 3), 64: Tile(64, 64, 4, 2), 256: Tile(64, 32, 4, 2)},
    "queries": {64: Tile(64, 32, 4, 2), 256: Tile(32, 32, 4, 1)},
    "keys": {64: Tile(32, 64, 4, 2), 256: Tile(32, 32, 4, 1)},
}
"""For points in float32, which are split into halves."""


def tile_of(which: Pass, d: int, e: int, *, half: bool) -> Tile:
    """The tile for points of width `d` and values of width `e`."""
    width = max(d, e)
    if width <= NARROW:
        return NARROW_TILES[which]
    tiles = (HALF_TILES if half else SPLIT_TILES)[which]
    return next(tile for widest, tile in tiles.items() if width <= widest)


RADIAL_WIDTH = 8
"""The largest width of values of decaying sums, whose points have at most `NARROW` coordinates."""

GROUP = 4
"""Tiles that these read one after another, so that addresses are computed once."""

Radial = Literal["sums", "gradient", "both"]
"""Decaying sums, the gradient in points, and both at once."""

RADIAL_TILES: dict[Radial, dict[int, Tile]] = {
    "sums": {3: Tile(16, 128, 4, 3), 4: Tile(8, 128, 4, 3), 8: Tile(8, 64, 4, 3)},
    "gradient": {3: Tile(16, 64, 4, 3), 8: Tile(8, 64, 4, 3)},
    "both": {3: Tile(16, 64, 4, 3), 8: Tile(8, 64, 4, 3)},
}
"""For values up to each width, as large as registers allow."""


def radial_tile(which: Radial, e: int) -> Tile:
    """The tile for values of width `e`."""
    return next(tile for widest, tile in RADIAL_TILES[which].items() if e <= widest)
