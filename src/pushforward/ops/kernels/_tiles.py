"""Sizes of tiles by pass, precision and width, and how many programs take Sinkhorn steps.

Those of the two reductions are the fastest of those tried on an H200.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

NARROW = 4
"""Points and values of at most this width run on the ordinary arithmetic units."""

Pass = Literal["forward", "log", "queries", "keys"]
"""The forward pass, the same without values, and the gradients of queries and of keys."""


class Tile(NamedTuple):
    """A tile, and the program that works on it.

    Args:
        rows: queries.
        columns: keys.
        warps: warps of the program.
        stages: stages of its pipeline.
        registers: how many a thread may take at most, where such a limit lets more programs fit
            and still moves nothing to memory; None for no limit.
    """

    rows: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None


NARROW_TILES: dict[Pass, dict[int, Tile]] = {
    "log": {NARROW: Tile(16, 128, 4, 3)},
    "forward": {2: Tile(16, 128, 4, 3), NARROW: Tile(8, 128, 4, 3)},
    "queries": {NARROW: Tile(8, 128, 4, 3)},
    "keys": {2: Tile(64, 16, 4, 3, 128), 3: Tile(64, 16, 4, 3, 160), NARROW: Tile(32, 32, 4, 3)},
}
"""For at most `NARROW` coordinates, up to each width."""

GROUP = 4
"""Tiles of narrow points that are read one after another, so that addresses are computed once."""

HALF_TILES: dict[Pass, dict[int, Tile]] = {
    "forward": {
        16: Tile(64, 128, 4, 3),
        64: Tile(128, 64, 4, 3),
        128: Tile(128, 64, 8, 2),
        256: Tile(64, 64, 8, 2),
    },
    "queries": {64: Tile(128, 64, 4, 3), 256: Tile(64, 32, 4, 2)},
    "keys": {16: Tile(64, 128, 4, 3), 64: Tile(64, 64, 4, 3), 256: Tile(32, 64, 4, 2)},
}
"""For wide points in half precision, up to each width."""

SPLIT_TILES: dict[Pass, dict[int, Tile]] = {
    "log": {16: Tile(64, 128, 4, 3), 64: Tile(128, 128, 4, 2), 256: Tile(64, 32, 4, 2)},
    "forward": {16: Tile(64, 128, 4, 3), 64: Tile(64, 64, 4, 3), 256: Tile(64, 32, 4, 2)},
    "queries": {
        16: Tile(64, 64, 4, 3),
        32: Tile(64, 64, 4, 2),
        64: Tile(128, 64, 8, 3),
        128: Tile(128, 32, 8, 2),
        256: Tile(64, 32, 4, 1),
    },
    "keys": {
        32: Tile(64, 64, 4, 3),
        64: Tile(64, 64, 4, 2),
        128: Tile(32, 128, 8, 2),
        256: Tile(32, 64, 4, 1),
    },
}
"""For wide points in float32, which are split into halves."""

TOGETHER = 64
"""Up to this width one launch finds gradients of keys and of values, in float32.

Above, registers do not suffice for both, so each has a launch and the scores are formed twice.
"""

HOPPER_WIDTHS = range(17, 65)
"""Widths at which averages in half precision, and their gradients, are faster in Gluon."""

HOPPER_TILE = Tile(128, 128, 4, 3)
"""The tile of these averages. Two groups of as many warps share the rows."""

HOPPER_LOG_WIDTHS = range(33, 129)
"""Widths at which log-integrals of float32 points are faster in Gluon."""

HOPPER_LOG_TILES = {64: Tile(256, 128, 4, 4), 128: Tile(128, 128, 4, 2)}
"""Tiles of these log-integrals, up to each width."""

HOPPER_GRADIENTS: dict[Pass, Tile] = {"queries": Tile(128, 128, 4, 4), "keys": Tile(64, 128, 4, 4)}
"""Tiles of the gradients in half precision. Two groups of as many warps share queries, or keys."""


def tile_of(which: Pass, d: int, e: int, *, half: bool) -> Tile:
    """The tile for points of width `d` and values of width `e`."""
    width = max(d, e)
    tables = NARROW_TILES if width <= NARROW else HALF_TILES if half else SPLIT_TILES
    if which == "forward" and e == 0 and "log" in tables:
        which = "log"
    tiles = tables[which]
    return next(tile for widest, tile in tiles.items() if width <= widest)


RADIAL_WIDTH = 8
"""The largest width of values of decaying sums, whose points have at most `NARROW` coordinates."""

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


WARPS = 16
"""Warps of one processor that surely fit if each thread takes at most `REGISTERS`."""

REGISTERS = 128


SEPARATE = 1 << 29
"""From this many pairs on, the half-steps of narrow points are launches of their own. Each then
takes longer than the host needs to launch the next. Its programs do not wait for each other, so
they need not all be on the device at once, and `SEPARATE_REGISTERS` are enough for each."""

SEPARATE_REGISTERS = {3: 72, NARROW: 80}
"""For points up to each width: the fewest registers that move nothing to memory in the loop."""


class Plan(NamedTuple):
    """The work on Sinkhorn steps of narrow points.

    Args:
        rows: those of a block.
        columns: how many are read at once.
        group: how often they are, before addresses are computed again.
        warps: warps of a program.
        programs: programs of a problem, which stay for all half-steps. None if each half-step is a
            launch with one program for each block of rows.
        registers: how many a thread takes at most.
    """

    rows: int
    columns: int
    group: int
    warps: int
    programs: int | None
    registers: int


def planned(problems: int, m: int, n: int, d: int, processors: int) -> Plan:
    """The plan whose busiest processor has least to do, for points of width `d`.

    Programs of one problem wait for each other, so all of them must be on the device at once.
    Blocks of 8 rows read their columns twice as often, and few warps hide little of the waiting.
    """
    longest = max(m, n)
    warps = 1 if longest <= 128 else 2 if longest <= 512 else 4
    columns, group = 32 * warps, 4 if warps == 4 else 2
    if warps == 4 and problems * m * n >= SEPARATE:
        registers = next(most for widest, most in SEPARATE_REGISTERS.items() if d <= widest)
        return Plan(16, columns, group, warps, None, registers)

    def load(rows: int, resident: int) -> tuple[float, int, int]:
        blocks = -(-longest // rows)
        programs = max(1, min(blocks, processors * resident // warps // problems))
        busiest = -(-problems * programs // processors)
        cost = busiest * -(-blocks // programs) * rows * (1.1 if rows == 8 else 1.0)
        return cost * (1.2 if busiest * warps <= WARPS // 2 else 1.0), rows, programs

    _, rows, programs = min(load(rows, part) for rows in (16, 8) for part in (16, 12, 8))
    return Plan(rows, columns, group, warps, programs, REGISTERS)


class WidePlan(NamedTuple):
    """A tile, programs on a processor and for a problem, shares of the columns of both sides."""

    tile: Tile
    resident: int
    programs: int
    shares: tuple[int, int]

    @property
    def registers(self) -> int:
        """How many registers a thread may take, so that all programs fit."""
        return min(255, 2048 // (self.resident * self.tile.warps) // 8 * 8)


Resident = tuple[Tile, int]
"""A tile, and how many of its programs a processor holds."""

FEW_STEP_TILES: dict[int, Resident] = {
    16: (Tile(128, 128, 4, 2), 2),
    32: (Tile(64, 128, 4, 2), 3),
    64: (Tile(64, 128, 4, 2), 2),
    128: (Tile(128, 64, 8, 2), 1),
    256: (Tile(64, 64, 4, 2), 1),
}
"""Tiles of steps on wide points up to each width, if they are too few to fill the device."""

STEP_TILES: dict[int, Resident] = FEW_STEP_TILES | {
    16: (Tile(64, 128, 4, 3), 4),
    64: (Tile(128, 128, 4, 2), 2),
}
"""The same for more of them."""

SHARES = 16
"""The largest number of shares of columns, a power of two."""


def wide_planned(
    problems: int, m: int, n: int, d: int, *, halves: int, processors: int, memory: int
) -> WidePlan | None:
    """The plan for points of width `d` on the device; None if no program fits a processor.

    Columns are split among programs where rows are too few to keep all of them busy.

    Args:
        problems: how many there are.
        m: rows of one side.
        n: rows of the other side.
        d: their width, a power of two.
        halves: half-precision numbers for a coordinate, 1 or 2.
        processors: how many the device has.
        memory: bytes of the memory that programs of a processor share.
    """
    few = problems * max(m, n) < 64 * processors
    tiles = FEW_STEP_TILES if few else STEP_TILES
    tile, resident = next(found for widest, found in tiles.items() if d <= widest)
    longest = 1 << max(5, (max(m, n) - 1).bit_length())
    tile = tile._replace(columns=min(tile.columns, longest))
    needed = (tile.rows + tile.stages * tile.columns) * 2 * halves * d + 4096
    resident = min(resident, memory // needed)
    if resident == 0:
        return None
    programs = max(1, processors * resident // problems)

    def divided(rows: int, columns: int) -> int:
        blocks, most = -(-rows // tile.rows), max(1, columns // (2 * tile.columns))
        load = lambda count: -(-blocks * count // programs) / count * (1 + 0.02 * count)
        return min((2**k for k in range(SHARES.bit_length()) if 2**k <= most), key=load)

    shares = divided(m, n), divided(n, m)
    units = max(-(-m // tile.rows) * shares[0], -(-n // tile.rows) * shares[1])
    return WidePlan(tile, resident, min(programs, units), shares)
