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

from functools import cache
from math import inf

from ._sweep import BLOCK, Sweep, Tile, change, values_of
from ._vectors import Compiled, Machine, Value


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
                change(new, [s.larger(n.get(), y) for n, y in zip(new, x, strict=True)])
                s.store(x, scores, place)

            s.products(queries, d, s.at(keys, j0 * d), count, keep)
            shift = [s.select(s.compare("oeq", n, low), zero, n) for n in values_of(new)]
            rescale = [s.exp(t - x) for t, x in zip(values_of(top), shift, strict=True)]
            part = s.variables(0.0)
            with s.loop(0, count) as j:
                p = [s.exp(x - y) for x, y in zip(s.load(scores, j), shift, strict=True)]
                change(part, [a + x for a, x in zip(values_of(part), p, strict=True)])
                s.store(p, scores, j)
            triples = zip(values_of(total), rescale, values_of(part), strict=True)
            change(total, [s.fma(*triple) for triple in triples])
            s.gather(scores, s.at(values, j0 * e), e, count, sums, rescale)
            change(top, values_of(new))
        nothing = s.compare("eq", bound, s.number(0))
        one = s.constant(1.0, "vec")
        instead = one if masked else s.select(nothing, one, zero)  # 0 / 0 is NaN
        divisor = [s.select(s.compare("oeq", t, zero), instead, t) for t in values_of(total)]
        with s.loop(0, s.number(e)) as c:
            s.store([x / t for x, t in zip(s.load(sums, c), divisor, strict=True)], sums, c)
        s.turn_back(sums, e, s.at(out, first * e), row0)
        for variables, target in ((top, tops), (total, totals)):
            s.store(values_of(variables), line, 0)
            s.turn_back(line, 1, s.at(target, first), row0)
    return s.compiled()


def _in_lanes(s: Sweep, source: Value, row0: Value, line: Value, kind: str = "ints") -> Tile:
    """Load one number for each row of the tile, such as its bias, into the lanes."""
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
    r"""Gradients in keys, values and bias, with the same $P$; each lane has an atom.

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
                change(part, [a + x for a, x in zip(values_of(part), ds, strict=True)])
                s.store(p, scores, j)
                s.store(ds, inner, j)
            change(total, [a + x for a, x in zip(values_of(total), values_of(part), strict=True)])
            if e:
                with s.when(s.compare("ne", want_v, s.number(0))):
                    s.gather(scores, s.at(given, j0 * e), e, count, sums_v)
            with s.when(s.compare("ne", want_k, s.number(0))):
                s.gather(inner, s.at(queries, j0 * d), d, count, sums_k)
        s.turn_back(sums_k, d, s.at(dk, first * d), row0)
        s.turn_back(sums_v, e, s.at(dv, first * e), row0)
        s.store(values_of(total), line, 0)
        s.turn_back(line, 1, s.at(db, first), row0)
    return s.compiled()
