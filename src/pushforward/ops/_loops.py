r"""The loops of the fused reductions: values, gradients in the queries, gradients in the atoms.

All three sweep over pairs in one way. Points of one side ("rows") stand in the lanes of vectors, a
tile of them at a time. Points of the other side ("columns") come one by one, their coordinates
broadcast, so that a sum over columns never leaves its lane. A block of columns fits into the first
cache, where it takes three steps:

1. the scores of all pairs, a small matrix product in registers;
2. their exponentials, in place;
3. sums over the columns of the block, another small matrix product.

Sums start anew in each block and are added up afterwards. So rounding errors grow with the number
of blocks, not of columns.

The table of a function has the first and the last tile, tiles in a batch, rows, columns, an
address for scratch, and then the addresses of its arrays, all contiguous. `bounds` says for each
tile how many columns it sees; with a mask, `seen` says it for each query.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf

from ._vectors import Compiled, Machine, Program, Value, Variable

BLOCK = 64
"""Columns in a block."""

UNROLLED = 16
"""Dot products up to this width are written out."""

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
        """The next addresses in the table."""
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
        """Rows of width `d` into lanes; the last row stands in for rows beyond the end."""
        with self.loop(0, self.number(self.width)) as lane:
            row = self.smaller(row0 + lane, self.rows - 1)
            with self.loop(0, self.number(d)) as c:
                value = self.read(self.at(source, row * d + c), kind)
                self.write(value, self.at(target, c * self.width + lane))

    def turn_back(self, source: Value, d: int, target: Value, row0: Value) -> None:
        """Lanes into rows of width `d`, up to the end."""
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
                held = [self.variables(0.0) for _ in places]
                with self.loop(0, self.number(d)) as c:
                    self._multiply(self.load(tile, c), [self.at(b, c) for b in bases], held)
                sums = [[x.get() for x in xs] for xs in held]
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
        """Add a row times each factor to the variables."""
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
        """Zeros in `d` rows of a tile."""
        with self.loop(0, self.number(d)) as c:
            self.store(self.same(0.0), sums, c)


def _change(variables: list[Variable], values: Tile) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.set(value)


def _values(variables: list[Variable]) -> Tile:
    return [variable.get() for variable in variables]


@cache
def forward(bits: int, machine: Machine, d: int, e: int, masked: bool) -> Compiled:
    """Averages, largest scores, and sums of exponentials."""
    s = Sweep(bits, machine)
    q, k, v, bias, bounds, seen, out, tops, totals = s.pointers(9)
    queries, scores, sums, line = (s.scratch(i) for i in (d, BLOCK, e, 1))
    low, zero = s.constant(-inf, "vec"), s.constant(0.0, "vec")
    with s.loop(s.start, s.stop) as item:
        b, row0 = item // s.tiles, (item % s.tiles) * s.width
        first, bound = b * s.rows, s.read(s.at(bounds, item, 8), "i64")
        keys, values = (s.at(t, b * s.columns * w) for t, w in ((k, d), (v, e)))
        biases = s.at(bias, b * s.columns)
        s.turn(s.at(q, first * d), row0, d, queries)
        ends = _in_lanes(s, s.at(seen, first), row0, line) if masked else []
        s.clear(sums, e)
        top, total = s.variables(-inf), s.variables(0.0)
        with s.loop(0, bound, BLOCK) as j0:
            count = s.smaller(bound - j0, s.number(BLOCK))
            new = [s.variable(t.get()) for t in top]

            def keep(place: Value, column: Value, dots: Tile) -> None:
                shift = s.splat(s.read(s.at(biases, j0 + column)))
                x = [dot + shift for dot in dots]
                if masked:
                    index = s.splat(s.integer(j0 + column))
                    hidden = [s.compare("sle", end, index) for end in ends]
                    x = [s.select(h, low, y) for h, y in zip(hidden, x, strict=True)]
                _change(new, [s.larger(n.get(), y) for n, y in zip(new, x, strict=True)])
                s.store(x, scores, place)

            s.products(queries, d, s.at(keys, j0 * d), count, keep)
            shift = [s.select(s.compare("oeq", n, low), zero, n) for n in _values(new)]
            rescale = [s.exp(t - x) for t, x in zip(_values(top), shift, strict=True)]
            part = s.variables(0.0)
            with s.loop(0, count) as j:
                p = [s.exp(x - y) for x, y in zip(s.load(scores, j), shift, strict=True)]
                _change(part, [a + x for a, x in zip(_values(part), p, strict=True)])
                s.store(p, scores, j)
            triples = zip(_values(total), rescale, _values(part), strict=True)
            _change(total, [s.fma(*triple) for triple in triples])
            s.gather(scores, s.at(values, j0 * e), e, count, sums, rescale)
            _change(top, _values(new))
        nothing = s.compare("eq", bound, s.number(0))
        one = s.constant(1.0, "vec")
        instead = one if masked else s.select(nothing, one, zero)  # 0 / 0 is NaN
        divisor = [s.select(s.compare("oeq", t, zero), instead, t) for t in _values(total)]
        with s.loop(0, s.number(e)) as c:
            s.store([x / t for x, t in zip(s.load(sums, c), divisor, strict=True)], sums, c)
        s.turn_back(sums, e, s.at(out, first * e), row0)
        for variables, target in ((top, tops), (total, totals)):
            s.store(_values(variables), line, 0)
            s.turn_back(line, 1, s.at(target, first), row0)
    return s.compiled()


def _in_lanes(s: Sweep, source: Value, row0: Value, line: Value, kind: str = "ints") -> Tile:
    """One number of each row."""
    s.turn(source, row0, 1, line, "int" if kind == "ints" else "num")
    return s.load(line, 0, kind)


@cache
def backward_queries(bits: int, machine: Machine, d: int, e: int, masked: bool) -> Compiled:
    r"""Gradients $q'_i=\sum_jP_{ij}(\langle o'_i,v_j\rangle+\lambda_i)\,k_j$.

    Here $P=e^{S-t}$ with the largest scores $t$; the caller has divided $o'$ and $\lambda$ by the
    sums of exponentials.
    """
    s = Sweep(bits, machine)
    q, k, v, bias, bounds, seen, tops, upstream, slopes, out = s.pointers(10)
    queries, scores, given, inner, sums, line = (s.scratch(i) for i in (d, BLOCK, e, BLOCK, d, 1))
    low = s.constant(-inf, "vec")
    with s.loop(s.start, s.stop) as item:
        b, row0 = item // s.tiles, (item % s.tiles) * s.width
        first, bound = b * s.rows, s.read(s.at(bounds, item, 8), "i64")
        keys, values = (s.at(t, b * s.columns * w) for t, w in ((k, d), (v, e)))
        biases = s.at(bias, b * s.columns)
        s.turn(s.at(q, first * d), row0, d, queries)
        s.turn(s.at(upstream, first * e), row0, e, given)
        ends = _in_lanes(s, s.at(seen, first), row0, line) if masked else []
        top, slope = (_in_lanes(s, s.at(t, first), row0, line, "vec") for t in (tops, slopes))
        s.clear(sums, d)
        with s.loop(0, bound, BLOCK) as j0:
            count = s.smaller(bound - j0, s.number(BLOCK))

            def keep(place: Value, column: Value, dots: Tile) -> None:
                shift = s.splat(s.read(s.at(biases, j0 + column)))
                x = [dot + shift - t for dot, t in zip(dots, top, strict=True)]
                if masked:
                    index = s.splat(s.integer(j0 + column))
                    hidden = [s.compare("sle", end, index) for end in ends]
                    x = [s.select(h, low, y) for h, y in zip(hidden, x, strict=True)]
                s.store(x, scores, place)

            s.products(queries, d, s.at(keys, j0 * d), count, keep)
            if e:
                products = lambda place, _, dots: s.store(dots, inner, place)
                s.products(given, e, s.at(values, j0 * e), count, products)
            with s.loop(0, count) as j:
                factor = slope
                if e:
                    factor = [x + y for x, y in zip(s.load(inner, j), slope, strict=True)]
                p = [s.exp(x) for x in s.load(scores, j)]
                s.store([x * y for x, y in zip(p, factor, strict=True)], scores, j)
            s.gather(scores, s.at(keys, j0 * d), d, count, sums)
        s.turn_back(sums, d, s.at(out, first * d), row0)
    return s.compiled()


@cache
def backward_atoms(bits: int, machine: Machine, d: int, e: int, masked: bool) -> Compiled:
    r"""Gradients in keys, values and bias, with the same $P$; atoms stand in the lanes.

    $v'_j=\sum_iP_{ij}o'_i$, $k'_j=\sum_iS'_{ij}q_i$ and $b'_j=\sum_iS'_{ij}$, where
    $S'_{ij}=P_{ij}(\langle o'_i,v_j\rangle+\lambda_i)$.
    """
    s = Sweep(bits, machine)
    q, k, v, bias, bounds, seen, tops, upstream, slopes, dk, dv, db = s.pointers(12)
    want_k, want_v = (s.argument(18 + i, "i64") for i in range(2))
    atoms, values, scores, inner, sums_k, sums_v, line = (
        s.scratch(i) for i in (d, e, BLOCK, BLOCK, d, e, 1)
    )
    low = s.constant(-inf, "vec")
    with s.loop(s.start, s.stop) as item:
        b, row0 = item // s.tiles, (item % s.tiles) * s.width
        first, bound = b * s.rows, s.read(s.at(bounds, item, 8), "i64")
        queries, given = (s.at(t, b * s.columns * w) for t, w in ((q, d), (upstream, e)))
        top, slope, end = (s.at(t, b * s.columns) for t in (tops, slopes, seen))
        s.turn(s.at(k, first * d), row0, d, atoms)
        s.turn(s.at(v, first * e), row0, e, values)
        shift = _in_lanes(s, s.at(bias, first), row0, line, "vec")
        index = [s.ramp(row0 + r * s.lanes) for r in range(s.vectors)] if masked else []
        s.clear(sums_k, d)
        s.clear(sums_v, e)
        total = s.variables(0.0)
        with s.loop(0, bound, BLOCK) as j0:
            count = s.smaller(bound - j0, s.number(BLOCK))

            def keep(place: Value, column: Value, dots: Tile) -> None:
                t = s.splat(s.read(s.at(top, j0 + column)))
                x = [dot + y - t for dot, y in zip(dots, shift, strict=True)]
                if masked:
                    last = s.splat(s.read(s.at(end, j0 + column), "int"))
                    hidden = [s.compare("sle", last, i) for i in index]
                    x = [s.select(h, low, y) for h, y in zip(hidden, x, strict=True)]
                s.store(x, scores, place)

            def keep_inner(place: Value, column: Value, dots: Tile) -> None:
                more = s.splat(s.read(s.at(slope, j0 + column)))
                s.store([dot + more for dot in dots], inner, place)

            s.products(atoms, d, s.at(queries, j0 * d), count, keep)
            s.products(values, e, s.at(given, j0 * e), count, keep_inner)
            part = s.variables(0.0)
            with s.loop(0, count) as j:
                p = [s.exp(x) for x in s.load(scores, j)]
                ds = [x * y for x, y in zip(p, s.load(inner, j), strict=True)]
                _change(part, [a + x for a, x in zip(_values(part), ds, strict=True)])
                s.store(p, scores, j)
                s.store(ds, inner, j)
            _change(total, [a + x for a, x in zip(_values(total), _values(part), strict=True)])
            if e:
                with s.when(s.compare("ne", want_v, s.number(0))):
                    s.gather(scores, s.at(given, j0 * e), e, count, sums_v)
            with s.when(s.compare("ne", want_k, s.number(0))):
                s.gather(inner, s.at(queries, j0 * d), d, count, sums_k)
        s.turn_back(sums_k, d, s.at(dk, first * d), row0)
        s.turn_back(sums_v, e, s.at(dv, first * e), row0)
        s.store(_values(total), line, 0)
        s.turn_back(line, 1, s.at(db, first), row0)
    return s.compiled()


@cache
def radial(bits: int, machine: Machine, d: int, e: int) -> Compiled:
    r"""Sums $o_i=\sum_j\psi(|x_i-y_j|^2)\,v_j$ with $\psi(s)=(1+s)^{-1/2}$."""
    s = Sweep(bits, machine)
    x, y, v, out = s.pointers(4)
    points, factors, sums = (s.scratch(i) for i in (d, BLOCK, e))
    with s.loop(s.start, s.stop) as item:
        b, row0 = item // s.tiles, (item % s.tiles) * s.width
        s.turn(s.at(x, b * s.rows * d), row0, d, points)
        others, values = (s.at(t, b * s.columns * w) for t, w in ((y, d), (v, e)))
        s.clear(sums, e)
        with s.loop(0, s.columns, BLOCK) as j0:
            count = s.smaller(s.columns - j0, s.number(BLOCK))
            with s.loop(0, count) as j:
                _, near = _decay(s, points, s.at(others, (j0 + j) * d), d)
                s.store(near, factors, j)
            s.gather(factors, s.at(values, j0 * e), e, count, sums)
        s.turn_back(sums, e, s.at(out, b * s.rows * e), row0)
    return s.compiled()


@cache
def radial_gradient(bits: int, machine: Machine, d: int, e: int) -> Compiled:
    r"""Gradients $x'_i=2\sum_j\psi'(|x_i-y_j|^2)\,\langle o'_i,v_j\rangle\,(x_i-y_j)$."""
    s = Sweep(bits, machine)
    x, y, upstream, v, out = s.pointers(5)
    points, given, inner, sums, part = (s.scratch(i) for i in (d, e, BLOCK, d, d))
    with s.loop(s.start, s.stop) as item:
        b, row0 = item // s.tiles, (item % s.tiles) * s.width
        first = b * s.rows
        s.turn(s.at(x, first * d), row0, d, points)
        s.turn(s.at(upstream, first * e), row0, e, given)
        others, values = (s.at(t, b * s.columns * w) for t, w in ((y, d), (v, e)))
        s.clear(sums, d)
        with s.loop(0, s.columns, BLOCK) as j0:
            count = s.smaller(s.columns - j0, s.number(BLOCK))
            keep = lambda place, _, dots: s.store(dots, inner, place)
            s.products(given, e, s.at(values, j0 * e), count, keep)
            s.clear(part, d)
            with s.loop(0, count) as j:
                place = s.at(others, (j0 + j) * d)
                square, near = _decay(s, points, place, d)
                slope = [n / q * f for n, q, f in zip(near, square, s.load(inner, j), strict=True)]

                def add(c: Value) -> None:
                    apart = _apart(s, points, place, c)
                    triples = zip(slope, apart, s.load(part, c), strict=True)
                    s.store([s.fma(*triple) for triple in triples], part, c)

                s.repeat(d, add)
            with s.loop(0, s.number(d)) as c:
                pairs = zip(s.load(sums, c), s.load(part, c), strict=True)
                s.store([total - more for total, more in pairs], sums, c)
        s.turn_back(sums, d, s.at(out, first * d), row0)
    return s.compiled()


def _apart(s: Sweep, points: Value, other: Value, c: Value) -> Tile:
    """One coordinate of the differences."""
    coordinate = s.splat(s.read(s.at(other, c)))
    return [p - coordinate for p in s.load(points, c)]


def _decay(s: Sweep, points: Value, other: Value, d: int) -> tuple[Tile, Tile]:
    """One plus squared distances, and the inverse roots of it."""
    squares = s.variables(1.0)

    def add(c: Value) -> None:
        apart = _apart(s, points, other, c)
        _change(squares, [s.fma(t, t, q) for t, q in zip(apart, _values(squares), strict=True)])

    s.repeat(d, add)
    one = s.constant(1.0, "vec")
    return _values(squares), [one / s.root(q) for q in _values(squares)]
