"""Figures of pages as plain data, which `assets/charts.js` draws in a browser."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

Style = Literal[
    "line", "dots", "dashed", "stems", "area", "bars", "paths", "extreme", "refuted"
]  # fmt: skip
"""A curve that was measured; single points; theory or a bound; masses; an area under a curve;
bars from zero; thin lines, parted where a coordinate is not a number; one point with its value;
what is refuted."""

Span = tuple[float, float]
"""The ends of an axis."""

MOST = 200
"""Points of a series: a page holds more than a hundred figures."""

SHARE: Span = (0.0, 1.0)
"""The axis of a share or of a ratio to a bound, whatever the data."""


def cosines(values: Iterable[float]) -> Span:
    """The axis of cosines: from 0 to 1, or from -1 if some are negative.

    Args:
        values: the cosines.
    """
    return (-1.0, 1.0) if any(v < 0 for v in values) else (0.0, 1.0)


@dataclass(frozen=True)
class Series:
    """One curve or cloud of a figure.

    Args:
        name: its label.
        x: first coordinates.
        y: second coordinates, as many; in a figure with rows, the numbers of the rows.
        style: how it is drawn.
        error: one standard error of each second coordinate, drawn as a band.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    style: Style = "line"
    error: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The series as data that JSON can hold."""
        data = {"name": self.name, "style": self.style, "x": _numbers(self.x)}
        errors = {"error": _numbers(self.error)} if self.error else {}
        return {**data, "y": _numbers(self.y), **errors}


@dataclass(frozen=True)
class Guide:
    """A dashed line with its word: a bound, a criterion, where rounding ends.

    Args:
        at: where it is.
        label: what it says.
        axis: `"y"` for a level, `"x"` for a vertical line.
        allowed: the side of it that is shaded as allowed, if any.
    """

    at: float
    label: str
    axis: Literal["x", "y"] = "y"
    allowed: Literal["", "below", "above"] = ""

    def to_dict(self) -> dict[str, Any]:
        """The line as data that JSON can hold."""
        return {"at": self.at, "label": self.label, "axis": self.axis, "allowed": self.allowed}


@dataclass(frozen=True)
class Figure:
    """A figure with two axes, or with named rows in the place of the vertical axis.

    An axis without a given range covers the data: whole decades if it is logarithmic, where zeros
    have a place of their own; with zero if the data would otherwise look more different than they
    are.

    Args:
        title: what is drawn.
        x: the label of the horizontal axis.
        y: the label of the vertical axis.
        series: what is drawn, at most four.
        log: which axes are logarithmic: `""`, `"x"`, `"y"` or `"xy"`.
        caption: how to read it, in a sentence.
        x_range: the ends of the horizontal axis, for a quantity whose range is known.
        y_range: the same of the vertical axis.
        ticks: values on the horizontal axis with their labels.
        guides: dashed lines.
        rows: names of rows; a row without a point was not tried.
        percent: whether the values (of rows, or of the vertical axis) are shares, to be written
            in per cent.
        square: whether both axes are the same quantity, with units of the same length.

    Examples:
        >>> curve = pf.pictures.series("entropy", [1, 2, 3], [0.9, 0.7, 0.6])
        >>> heads = pf.pictures.Figure("Heads", "layer", "entropy", (curve,), y_range=(0, 1))
        >>> heads.to_dict()["y_range"]
        (0, 1)
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log: str = ""
    caption: str = ""
    _: KW_ONLY
    x_range: Span | None = None
    y_range: Span | None = None
    ticks: tuple[tuple[float, str], ...] = ()
    guides: tuple[Guide, ...] = ()
    rows: tuple[str, ...] = ()
    percent: bool = False
    square: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The figure as data that JSON can hold, without what is left at its default."""
        data: dict[str, Any] = {
            "title": self.title, "x": self.x, "y": self.y, "log": self.log,
            "caption": self.caption, "series": [s.to_dict() for s in self.series],
        }  # fmt: skip
        for field in fields(self)[len(data) :]:
            value = getattr(self, field.name)
            if value != field.default:
                data[field.name] = value
        if self.guides:
            data["guides"] = [g.to_dict() for g in self.guides]
        return data


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Matrices of multiples of a neutral value, one shown at a time.

    Colours are the same in all of them: the neutral value is plain, an eighth of it and eight
    times it are the two ends. The numbers stand in the cells where there are few.

    Args:
        title: what is drawn.
        x: what the columns are.
        y: what the rows are.
        names: the name of each matrix.
        cells: the matrices, as rows of multiples of the neutral value.
        caption: how to read it.
    """

    title: str
    x: str
    y: str
    names: tuple[str, ...]
    cells: tuple[Sequence[Sequence[float]], ...]
    caption: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The matrices as data that JSON can hold, with two digits."""
        return {
            "kind": "heat", "title": self.title, "x": self.x, "y": self.y,
            "caption": self.caption, "names": list(self.names),
            "cells": [[_numbers(row, 2) for row in matrix] for matrix in self.cells],
        }  # fmt: skip


Chart = Figure | HeatMap
"""What a page can draw."""


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


def _numbers(values: Iterable[float], digits: int = 6) -> list[float | None]:
    """Numbers with so many digits, None where they are not finite."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]
