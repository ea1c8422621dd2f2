"""Sweeps over pairs: tiles of rows in the lanes of vectors, against blocks of columns."""

from __future__ import annotations

from collections.abc import Callable

from ._vectors import Machine, Program, Value, Variable

BLOCK = 64
"""Columns in a block."""

UNROLLED = 16
"""Dot products up to this width are written out. Longer ones are sums of such parts, which keeps
their rounding errors smaller."""

GROUP = 4
"""Columns, or sums, that share the load of a row."""

Tile = list[Value]
"""One vector for each group of lanes of a tile."""


class Sweep(Program):
    """A program that takes tiles of rows against blocks of columns."""

    def __init__(self, bits: int, machine: Machine) -> None:
        super().__init__(bits, machine)
        self.start, self.stop, self.tiles, self.rows, self.columns = (
            self.argument(i, "i64") for i in range(5)
        )
        self._used, self._arguments, self._room = self.argument(5, "ptr"), 6, 0

    def pointers(self, number: int) -> list[Value]:
        """The next addresses in the table of arguments."""
        first, self._arguments = self._arguments, self._arguments + number
        return [self.argument(i, "ptr") for i in range(first, first + number)]

    def scratch(self, number: int) -> Value:
        """Room for this many rows of a tile."""
        place = self.at(self._used, self._room)
        self._room += number * self.width
        return place

    def room(self) -> int:
        return self._room

    def load(self, base: Value, row: Value | int, kind: str = "vec") -> Tile:
        """A row of a tile."""
        return [self.read(self._vector(base, row, r), kind) for r in range(self.vectors)]

    def store(self, values: Tile, base: Value, row: Value | int) -> None:
        """Write a row of a tile."""
        for r, value in enumerate(values):
            self.write(value, self._vector(base, row, r))

    def _vector(self, base: Value, row: Value | int, part: int) -> Value:
        return self.at(base, self.number(row) * self.width + part * self.lanes)

    def same(self, number: float) -> Tile:
        """The same number in all lanes."""
        return [self.constant(number, "vec")] * self.vectors

    def variables(self, number: float) -> list[Variable]:
        """A variable for each vector, all of one first value."""
        return [self.variable(x) for x in self.same(number)]

    def turn(self, source: Value, row0: Value, d: int, target: Value, kind: str = "num") -> None:
        """Copy rows of width `d` into lanes, one row to a lane; beyond the end repeat the last."""
        with self.loop(0, self.number(self.width)) as lane:
            row = self.smaller(row0 + lane, self.rows - 1)
            with self.loop(0, self.number(d)) as c:
                value = self.read(self.at(source, row * d + c), kind)
                self.write(value, self.at(target, c * self.width + lane))

    def turn_back(self, source: Value, d: int, target: Value, row0: Value) -> None:
        """Copy lanes back into rows of width `d`, none beyond the end."""
        with self.loop(0, self.smaller(self.number(self.width), self.rows - row0)) as lane:
            with self.loop(0, self.number(d)) as c:
                value = self.read(self.at(source, c * self.width + lane))
                self.write(value, self.at(target, (row0 + lane) * d + c))

    def products(
        self,
        tile: Value,
        d: int,
        columns: Value,
        count: Value,
        finish: Callable[[Value, Value, Tile], None],
    ) -> None:
        """Dot products of a tile with `count` columns of width `d`.

        `finish` takes the place of a column in the block, the column that is there (the last one
        again beyond the end), and its products.
        """
        with self.loop(0, count, GROUP) as j:
            places = [j + g for g in range(GROUP)]
            there = [self.smaller(place, count - 1) for place in places]
            bases = [self.at(columns, column * d) for column in there]
            if 0 < d <= UNROLLED:
                sums = self._written_out(tile, d, bases)
            else:
                totals = [self.variables(0.0) for _ in places]
                with self.loop(0, self.number(d), UNROLLED) as c0:
                    held = [self.variables(0.0) for _ in places]
                    with self.loop(c0, self.smaller(c0 + UNROLLED, self.number(d))) as c:
                        self._multiply(self.load(tile, c), [self.at(b, c) for b in bases], held)
                    for total, part in zip(totals, held, strict=True):
                        pairs = zip(values_of(total), values_of(part), strict=True)
                        change(total, [x + y for x, y in pairs])
                sums = [values_of(total) for total in totals]
            for place, column, values in zip(places, there, sums, strict=True):
                finish(place, column, values)

    def _written_out(self, tile: Value, d: int, bases: list[Value]) -> list[Tile]:
        sums: list[Tile] = []
        for c in range(d):
            row = self.load(tile, c)
            factors = [self.splat(self.read(self.at(base, c))) for base in bases]
            if c == 0:
                sums = [[x * f for x in row] for f in factors]
            else:
                pairs = zip(factors, sums, strict=True)
                sums = [
                    [self.fma(x, f, s) for x, s in zip(row, old, strict=True)] for f, old in pairs
                ]
        return sums

    def _multiply(self, row: Tile, factors: list[Value], held: list[list[Variable]]) -> None:
        """Add to each variable the product of a row and a factor."""
        for place, variables in zip(factors, held, strict=True):
            factor = self.splat(self.read(place))
            for x, s in zip(row, variables, strict=True):
                s.set(self.fma(x, factor, s.get()))

    def gather(
        self,
        factors: Value,
        columns: Value,
        d: int,
        count: Value,
        sums: Value,
        rescale: Tile | None = None,
    ) -> None:
        """Add to `sums`, `d` rows of a tile, the columns of a block times their factors."""

        def add(first: Value, size: int) -> None:
            held = [self.variables(0.0) for _ in range(size)]
            with self.loop(0, count) as j:
                base = self.at(columns, j * d + first)
                self._multiply(
                    self.load(factors, j), [self.at(base, c) for c in range(size)], held
                )
            for c, variables in enumerate(held):
                old, new = self.load(sums, first + c), [x.get() for x in variables]
                scales = rescale or self.same(1.0)
                triples = zip(old, scales, new, strict=True)
                self.store([self.fma(*triple) for triple in triples], sums, first + c)

        whole = d - d % GROUP
        if whole:
            with self.loop(0, self.number(whole), GROUP) as first:
                add(first, GROUP)
        if d % GROUP:
            add(self.number(whole), d % GROUP)

    def repeat(self, d: int, body: Callable[[Value], None]) -> None:
        """What is written by `body` for each of `d` coordinates, written out if they are few."""
        if d <= UNROLLED:
            for i in range(d):
                body(self.number(i))
        else:
            with self.loop(0, self.number(d)) as c:
                body(c)

    def clear(self, sums: Value, d: int) -> None:
        """Set `d` rows of a tile to zero."""
        with self.loop(0, self.number(d)) as c:
            self.store(self.same(0.0), sums, c)


def change(variables: list[Variable], values: Tile) -> None:
    """Write several variables."""
    for variable, value in zip(variables, values, strict=True):
        variable.set(value)


def values_of(variables: list[Variable]) -> Tile:
    """Read several variables."""
    return [variable.get() for variable in variables]
