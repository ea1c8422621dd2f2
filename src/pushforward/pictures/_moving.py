"""Trajectories and films of moving clouds with matplotlib."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .._tools.checks import check_number, check_path
from .._tools.output import atomic_file
from ._figures import BLUE, GREY, RED, new_figure
from ._scene import Scene, best_view, joined, seen_from

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PATHS = 1000
"""The most trajectories that are drawn, and the most points that are drawn as joined marks."""

AREA = 3600.0
"""The area of a mark with all the mass, in square points."""

FAR = 0.3
"""The strength of what is on the far side of a sphere."""

FILMS = {".gif": "gif", ".webp": "webp", ".mp4": "mp4"}
"""Suffixes of films."""


def trajectories(shown: Scene) -> Figure:
    """Paths of points: against time in one dimension, in the plane, or on the sphere.

    The marks at the end have areas in proportion to their masses, and marks that coincide are
    joined.

    Args:
        shown: what is drawn.

    Examples:
        >>> mu = pf.Measure(torch.randn(9, 2))
        >>> figure = pf.flow(pf.Pointwise(lambda x: -x), mu, t1=1.0, save=4).plot()
    """
    figure, axes = _axes(shown, (6, 4) if shown.kind == "line" else (5, 5))
    from matplotlib.collections import LineCollection

    places, near = _places(shown)
    count = shown.points.shape[1]
    some = np.linspace(0, count - 1, min(count, PATHS)).round().astype(int)
    faint = float(np.clip(40 / len(some), 0.05, 0.5))
    begin, end = (f"t = {shown.times[k]:g}" for k in (0, -1))
    for front in (False, True):
        seen = np.where((near == front)[..., None], places, np.nan)
        lines = [_unbroken(shown, seen[:, k], shown.points[:, k]) for k in some]
        pale = 1 if front else FAR
        style: dict[str, Any] = {
            "colors": BLUE,
            "linewidths": 0.7,
            "alpha": faint * pale,
            "zorder": 2,
        }
        axes.add_collection(LineCollection(lines, **style))
        if shown.kind != "line":
            name = begin if front else None
            size, strength = (2.5, pale) if count <= PATHS else (1.2, 0.25 * pale)
            axes.plot(*seen[0].T, ".", color=GREY, ms=size, alpha=strength, zorder=3, label=name)
    _marks(axes, places[-1], shown.masses, near[-1], RED, _tolerance(axes), end)
    if shown.kind == "line":
        axes.set_xlabel("t")
    else:
        axes.legend(frameon=False, fontsize=8, loc="upper right")
    told = [shown.note] if shown.note else []
    if count > PATHS:
        told.append(f"Lines of {PATHS:,} of {count:,} points.")
    axes.set_title(" ".join(told), fontsize=7, color=GREY, loc="left")
    return figure


def animate(shown: Scene, file: str | PathLike, *, seconds: float = 5.0) -> None:
    """Write a film of a moving cloud, one picture for each time.

    Args:
        shown: what is drawn.
        file: the file to write, `*.gif`, `*.webp` or `*.mp4`.
        seconds: the duration of the film.
    """
    check_number("seconds", seconds)
    check_path("file", file)
    kind = FILMS.get(Path(file).suffix.lower())
    if kind is None:
        raise ValueError(f"`file` must end in .gif, .webp or .mp4, got {str(file)!r}.")
    figure, axes = _axes(shown, (4, 4))
    from matplotlib.animation import FFMpegWriter, FuncAnimation, PillowWriter

    if kind == "mp4" and not FFMpegWriter.isAvailable():
        raise RuntimeError(
            "A film in .mp4 needs the program ffmpeg, which is not on the path. Install it "
            "(`apt-get install ffmpeg`, `conda install ffmpeg`), or write .webp or .gif."
        )
    places, near = _places(shown)
    if shown.kind == "line":
        axes.set_xlabel("t")
    tol = _tolerance(axes)

    def draw(k: int) -> list[Any]:
        for old in axes.collections[:]:
            if old.get_gid() == "marks":
                old.remove()
        axes.set_title(f"t = {shown.times[k]:.3g}", fontsize=9)
        return _marks(axes, places[k], shown.masses, near[k], BLUE, tol)

    rate = max(1, round(len(places) / seconds))
    writer = FFMpegWriter(fps=rate) if kind == "mp4" else PillowWriter(fps=rate)
    moving = FuncAnimation(figure, draw, frames=len(places), init_func=lambda: [])
    with atomic_file(file) as draft:
        moving.save(draft, writer)


def _axes(shown: Scene, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure with the ground of a scene: named axes, or a ball."""
    figure = new_figure(size)
    axes = figure.add_subplot()
    if shown.kind == "sphere":
        _ball(axes, shown)
        return figure, axes
    figure.subplots_adjust(left=0.17, bottom=0.13)
    limits = shown.limits()
    if shown.kind == "line":
        ends = float(shown.times.min()), float(shown.times.max())
        limits, names = [ends, *limits], ("t", *shown.axes)
    else:
        names = shown.axes
        if shown.equal:
            axes.set_aspect("equal")
        if shown.radius is not None:
            angles = np.linspace(0, 2 * np.pi, 181)
            axes.plot(*(shown.radius * np.stack([np.cos(angles), np.sin(angles)])),
                      color=GREY, lw=0.6, zorder=1)  # fmt: skip
    axes.set(xlim=limits[0], ylim=limits[1], xlabel=names[0], ylabel=names[1])
    axes.locator_params(nbins=6)
    for axis, period in zip((axes.xaxis, axes.yaxis)[2 - len(shown.periods) :], shown.periods,
                            strict=True):  # fmt: skip
        if period is not None and abs(period - 2 * np.pi) < 1e-9:
            axis.set_ticks([k * np.pi / 2 for k in range(5)], ["0", "π/2", "π", "3π/2", "2π"])
    return figure, axes


def _ball(axes: Axes, shown: Scene) -> None:
    """A sphere seen from where most of the mass at the end is, with circles and axes."""
    view = best_view(shown.points[-1], shown.masses)
    angles = np.linspace(0, 2 * np.pi, 145)
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    meridians = [
        np.stack([c * circle[:, 0], s * circle[:, 0], circle[:, 1]], -1)
        for c, s in ((np.cos(t), np.sin(t)) for t in np.arange(6) * np.pi / 6)
    ]
    parallels = [
        np.concatenate([np.cos(h) * circle, np.full((len(circle), 1), np.sin(h))], -1)
        for h in np.arange(-2, 3) * np.pi / 6
    ]
    for curve in [*meridians, *parallels]:
        seen = seen_from(curve, *view)
        for front in (False, True):
            x = np.where(((seen[:, 2] >= 0) == front)[:, None], seen[:, :2], np.nan)
            axes.plot(*x.T, color=GREY, lw=0.5, alpha=0.45 if front else 0.2, zorder=1)
    axes.plot(*circle.T, color=GREY, lw=0.8, zorder=1)
    for name, end in zip(shown.axes, seen_from(1.1 * np.eye(3), *view), strict=True):
        axes.text(end[0], end[1], name, ha="center", va="center", fontsize=8, color=GREY,
                  alpha=1 if end[2] >= 0 else 0.5)  # fmt: skip
    axes.set(xlim=(-1.16, 1.16), ylim=(-1.16, 1.16), aspect="equal")
    axes.set_axis_off()
    axes.figure.subplots_adjust(0.02, 0.02, 0.98, 0.94)


def _places(shown: Scene) -> tuple[ndarray, ndarray]:
    """Where points are drawn, `(s, n, 2)`, and which are on the near side."""
    if shown.kind == "line":
        times = np.broadcast_to(shown.times[:, None, None], shown.points.shape)
        places = np.concatenate([times, shown.points], -1)
    elif shown.kind == "plane":
        places = shown.points
    else:
        view = best_view(shown.points[-1], shown.masses)
        seen = seen_from(shown.points / shown.radius, *view)
        return seen[..., :2], seen[..., 2] >= 0
    return places, np.ones(places.shape[:-1], bool)


def _unbroken(shown: Scene, places: ndarray, points: ndarray) -> ndarray:
    """The line of a point, cut where an angle goes on at the other end of its period."""
    step = np.diff(points, axis=0)
    jumps = (np.abs(step - shown.short_way(step)) > 0).any(-1).nonzero()[0]
    return np.insert(places, jumps + 1, np.nan, axis=0)


def _marks(
    axes: Axes,
    places: ndarray,
    masses: ndarray,
    near: ndarray,
    color: str,
    tol: ndarray,
    label: str | None = None,
) -> list[Any]:
    """Marks whose areas are masses, pale on the far side."""
    drawn, unit = [], AREA * (axes.bbox.width / 360) ** 2
    for front in (False, True):
        here = near == front
        x, m = places[here] / tol, masses[here]
        many = len(masses) > PATHS
        x, m = (x, m) if many else joined(x, m, 1.0)
        strength = (0.5 if many else 0.85) * (1 if front else FAR)
        drawn.append(
            axes.scatter(
                x[:, 0] * tol[0], x[:, 1] * tol[1], unit * m, color=color, lw=0,
                alpha=strength, zorder=4, gid="marks", clip_on=False,
            )
        )  # fmt: skip
    if label is not None:
        axes.plot([], [], "o", color=color, ms=5, label=label)
    return drawn


def _tolerance(axes: Axes) -> ndarray:
    """Marks closer than this are one: a share of the picture, in units of the axes."""
    spans = (axes.get_xlim(), axes.get_ylim())
    return np.array([0.004 * abs(high - low) for low, high in spans])
