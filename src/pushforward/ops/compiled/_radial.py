r"""The loops of sums that decay with the distance: $\psi(s)=(1+s)^{-p}$ of its square.

The power $p$ is 1/2, a root and a division, or 1, a division.
"""

from __future__ import annotations

from functools import cache

from ._sweep import BLOCK, Sweep, Tile, change, values_of
from ._vectors import Compiled, Machine, Value


@cache
def radial(bits: int, machine: Machine, d: int, e: int, power: float) -> Compiled:
    r"""Sums $o_i=\sum_j\psi(|x_i-y_j|^2)\,v_j$ with $\psi(s)=(1+s)^{-p}$."""
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
                _, near = _decay(s, points, s.at(others, (j0 + j) * d), d, power)
                s.store(near, factors, j)
            s.gather(factors, s.at(values, j0 * e), e, count, sums)
        s.turn_back(sums, e, s.at(out, b * s.rows * e), row0)
    return s.compiled()


@cache
def radial_gradient(bits: int, machine: Machine, d: int, e: int, power: float) -> Compiled:
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
                square, near = _decay(s, points, place, d, power)
                slope = [n / q * f for n, q, f in zip(near, square, s.load(inner, j), strict=True)]

                def add(c: Value) -> None:
                    apart = _apart(s, points, place, c)
                    triples = zip(slope, apart, s.load(part, c), strict=True)
                    s.store([s.fma(*triple) for triple in triples], part, c)

                s.repeat(d, add)
            with s.loop(0, s.number(d)) as c:
                pairs = zip(s.load(sums, c), s.load(part, c), strict=True)
                s.store([total - more * (2 * power) for total, more in pairs], sums, c)
        s.turn_back(sums, d, s.at(out, first * d), row0)
    return s.compiled()


def _apart(s: Sweep, points: Value, other: Value, c: Value) -> Tile:
    """One coordinate of the differences."""
    coordinate = s.splat(s.read(s.at(other, c)))
    return [p - coordinate for p in s.load(points, c)]


def _decay(s: Sweep, points: Value, other: Value, d: int, power: float) -> tuple[Tile, Tile]:
    """One plus squared distances, and the inverse of it or of its root."""
    squares = s.variables(1.0)

    def add(c: Value) -> None:
        apart = _apart(s, points, other, c)
        change(squares, [s.fma(t, t, q) for t, q in zip(apart, values_of(squares), strict=True)])

    s.repeat(d, add)
    one = s.constant(1.0, "vec")
    root = s.root if power == 0.5 else lambda q: q
    return values_of(squares), [one / root(q) for q in values_of(squares)]
