"""What an experiment has to show, as plain data that a page can draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Style = Literal["line", "dots", "dashed", "stems", "area"]
"""A curve that was measured; single points; theory or a bound; masses; an area under a curve."""

MOST = 200
"""Points of a series: a page holds more than a hundred figures."""


@dataclass(frozen=True)
class Series:
    """One curve or cloud of a figure.

    Args:
        name: its label.
        x: first coordinates.
        y: second coordinates, as many.
        style: how it is drawn.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = "line"


@dataclass(frozen=True)
class Figure:
    """A figure with two axes.

    Args:
        title: what is drawn.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        series: what is drawn, at most four.
        log: which axes are logarithmic: `""`, `"x"`, `"y"` or `"xy"`.
        caption: how to read it, in a sentence.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log: str = ""
    caption: str = ""


def series(name: str, x: Iterable[float], y: Iterable[float], style: Style = "line") -> Series:
    """A series of at most `MOST` points, evenly chosen.

    Args:
        name: its label.
        x: first coordinates.
        y: second coordinates.
        style: how it is drawn.
    """
    pairs = [(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    step = max(1, -(-len(pairs) // MOST))
    kept: Sequence[tuple[float, float]] = pairs[::step]
    return Series(name, tuple(a for a, _ in kept), tuple(b for _, b in kept), style)
