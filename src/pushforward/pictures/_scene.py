"""What is drawn of a moving cloud: which coordinates, under which names, at which times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy import ndarray

from ..measures import Measure

SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

VIEW = (0.6, 0.38)
"""The angles from which a sphere is seen unless most of the mass is elsewhere: the turn about the
vertical axis, and the height of the eye."""


@dataclass(frozen=True)
class Space:
    """Where the points of a cloud live, as far as a picture must know it.

    Args:
        radius: of the sphere they lie on, None if there is none.
        period: of the coordinates that are angles.
        angles: how many coordinates are angles, the first ones.
        pairs: whether the points are pairs of a position and a velocity.
    """

    radius: float | None = None
    period: float = 1.0
    angles: int = 0
    pairs: bool = False


@dataclass(frozen=True)
class Scene:
    """A moving cloud as it is drawn.

    A `line` is drawn against time, a `plane` as it is, a `sphere` as a ball that is looked at. The
    masses sum to one. `radius` is that of the sphere or circle that points move on, and `periods`
    has the period of each coordinate that is an angle. `note` says what is left out.
    """

    kind: Literal["line", "plane", "sphere"]
    axes: tuple[str, ...]
    times: ndarray
    points: ndarray
    masses: ndarray
    radius: float | None = None
    periods: tuple[float | None, ...] = ()
    note: str = ""

    @property
    def equal(self) -> bool:
        """Whether both axes of a plane have the same unit, so that shapes are true."""
        return self.axes[-1] not in ("v", "ω") and len(set(self.periods)) == 1

    def between(self, start: ndarray, end: ndarray, share: ndarray) -> ndarray:
        """Points on the way, along great circles on a sphere, the short way round for angles."""
        if self.radius is not None:
            return along_circles(start, end, share)
        return start + share * self.short_way(end - start)

    def short_way(self, step: ndarray) -> ndarray:
        """Steps from point to point, of at most half a period in every angle."""
        step = step.copy()
        for axis, period in enumerate(self.periods):
            if period is not None:
                step[..., axis] -= period * np.round(step[..., axis] / period)
        return step

    def limits(self) -> list[tuple[float, float]]:
        """The ends of each axis, with a little room; equally long if the axes share their unit."""
        ends = []
        for axis, period in enumerate(self.periods):
            x = self.points[..., axis]
            pad = 0.04 * float(x.max() - x.min()) or 1.0
            ends.append((0.0, period) if period else (float(x.min()) - pad, float(x.max()) + pad))
        if self.kind == "plane" and self.radius is not None:
            return [(-1.08 * self.radius, 1.08 * self.radius)] * 2
        if self.kind == "plane" and self.equal:
            half = max(high - low for low, high in ends) / 2
            ends = [((low + high) / 2 - half, (low + high) / 2 + half) for low, high in ends]
        return ends


def along_circles(start: ndarray, end: ndarray, share: ndarray) -> ndarray:
    """Points on the shorter arcs between points of a sphere around the origin."""
    radius = np.linalg.norm(start, axis=-1, keepdims=True)
    a, b = start / radius, end / np.linalg.norm(end, axis=-1, keepdims=True)
    cosine = (a * b).sum(-1, keepdims=True)
    side = b - cosine * a
    sine = np.linalg.norm(side, axis=-1, keepdims=True)
    angle = np.arctan2(sine, cosine) * share
    return radius * (a * np.cos(angle) + side / np.where(sine > 0, sine, 1) * np.sin(angle))


def scene(
    times: ndarray,
    measures: Sequence[Measure],
    space: Space,
    frames: Sequence[int] | None = None,
    atoms: ndarray | None = None,
) -> Scene:
    """What is drawn of a path.

    Args:
        times: one for each measure.
        measures: the same atoms at each time, not batched; read one after the other.
        space: where the points live.
        frames: the times that are drawn, all by default.
        atoms: the atoms with mass that are drawn, all by default.
    """
    first = measures[0]
    if first.batch_shape:
        raise ValueError("A picture shows one measure, got a batch. Flow `mu[k]` alone.")
    chosen = range(len(measures)) if frames is None else frames
    alive = (first.log_weights > -np.inf).cpu().numpy().nonzero()[0]
    alive = alive if atoms is None else alive[atoms]
    masses = first.normalise().weights.detach().cpu().double().numpy()[alive]
    clouds = [_points(measures[k])[alive] for k in chosen]
    points = np.stack(clouds)
    told = ""
    if space.pairs and points.shape[-1] > 2:
        points, space = points[..., : points.shape[-1] // 2], replace(space, pairs=False)
        told = "Points are pairs of a position and a velocity. Their positions are drawn. "
    drawn = _drawn(points, masses / masses.sum(), space)
    shown = np.asarray(times, float)[list(chosen)]
    kind, axes, points, periods, radius, note = drawn
    note = (told + note).strip()
    return Scene(kind, axes, shown, points, masses / masses.sum(), radius, periods, note)


def key_frames(whole: Scene, most: int = 24) -> list[int]:
    """The times from which all others are interpolated best, first and last among them.

    One after the other, the time is added at which the error is largest.

    Args:
        whole: the scene at all times; a sample of its points is enough.
        most: how many times at most.
    """
    count = len(whole.times)
    keys = [0, count - 1] if count > 1 else [0]
    while len(keys) < min(most, count):
        error = interpolation_errors(whole, keys)
        worst = int(error.argmax())
        # Where nothing moves any more, the longest pause is parted, so that no time is far away.
        if error[worst] <= 1e-6 * np.abs(whole.points).max():
            gap = int(np.diff(whole.times[keys]).argmax())
            inside = range(keys[gap] + 1, keys[gap + 1])
            worst = inside[len(inside) // 2] if inside else -1
        if worst < 0:
            break
        keys = sorted({*keys, worst})
    return keys


def interpolation_errors(whole: Scene, keys: Sequence[int]) -> ndarray:
    """At every time, the largest distance of a point from where it is between the key frames."""
    errors = np.zeros(len(whole.times))
    for first, last in zip(keys[:-1], keys[1:], strict=True):
        for k in range(first + 1, last):
            ends = whole.times[last] - whole.times[first]
            share = np.asarray((whole.times[k] - whole.times[first]) / ends)
            there = whole.between(whole.points[first], whole.points[last], share)
            errors[k] = np.linalg.norm(whole.short_way(whole.points[k] - there), axis=-1).max()
    return errors


def joined(points: ndarray, masses: ndarray, tol: float) -> tuple[ndarray, ndarray]:
    """Marks of points: those within `tol` of a heavier mark are part of it, so area stays mass."""
    order = np.argsort(-masses, kind="stable")
    places, weights = np.empty_like(points), np.zeros(len(points))
    count = 0
    for k in order:
        near = np.abs(places[:count] - points[k]).max(-1) < tol
        at = int(near.argmax()) if near.any() else count
        if at == count:
            places[count] = points[k]
            count += 1
        weights[at] += masses[k]
    return places[:count], weights[:count]


def best_view(points: ndarray, masses: ndarray) -> tuple[float, float]:
    """The angles from which most mass of a cloud on a sphere is in front, the usual ones first."""
    unit = points / np.linalg.norm(points, axis=-1, keepdims=True)
    views = [VIEW, *((turn, VIEW[1]) for turn in np.arange(0, 2 * np.pi, np.pi / 8))]
    seen = [float(masses @ np.minimum(seen_from(unit, *view)[:, 2], 0.4)) for view in views]
    best = int(np.argmax(seen))
    return VIEW if seen[best] < seen[0] + 0.05 else (float(views[best][0]), views[best][1])


def seen_from(points: ndarray, turn: float, height: float) -> ndarray:
    """Coordinates to the right, upwards, and towards the eye."""
    x, y, z = np.moveaxis(points, -1, 0)
    right = np.cos(turn) * x + np.sin(turn) * y
    away = np.cos(turn) * y - np.sin(turn) * x
    up = np.cos(height) * z + np.sin(height) * away
    near = np.sin(height) * z - np.cos(height) * away
    return np.stack([right, up, near], -1)


def numbered(letter: str, count: int) -> Iterator[str]:
    """Names of coordinates, such as x₁ and x₂."""
    return (letter + str(k + 1).translate(SUBSCRIPTS) for k in range(count))


def _points(mu: Measure) -> ndarray:
    return mu.atoms.detach().cpu().double().numpy()


Drawn = tuple[
    Literal["line", "plane", "sphere"],
    tuple[str, ...],
    ndarray,
    tuple[float | None, ...],
    float | None,
    str,
]
"""Kind, axes, points, periods, radius and note of a scene."""


def _drawn(points: ndarray, masses: ndarray, space: Space) -> Drawn:
    """The coordinates that are drawn of points `(s, n, d)`."""
    d = points.shape[-1]
    if space.radius is not None and d in (2, 3):
        x = tuple(numbered("x", d))
        return "plane" if d == 2 else "sphere", x, points, (None,) * d, space.radius, ""
    if space.angles:
        angles = min(space.angles, d)
        others = ["ω"] if d == 2 * angles == 2 else list(numbered("x", d - angles))
        names = [*(numbered("θ", angles) if angles > 1 else ["θ"]), *others]
        periods = (*[space.period] * angles, *[None] * (d - angles))[:2]
        note = "" if d <= 2 else f"Of {d} coordinates the first two are drawn."
        kind: Literal["line", "plane"] = "line" if d == 1 else "plane"
        return kind, tuple(names[:2]), points[..., :2], periods, None, note
    if d == 1:
        return "line", ("x",), points, (None,), None, ""
    if d == 2:
        axes = ("x", "v") if space.pairs else ("x₁", "x₂")
        return "plane", axes, points, (None, None), None, ""
    flat, shares = _principal(points, masses)
    names = [f"{nth} principal axis" for nth in ("first", "second")]
    share = f"{100 * shares.sum():.3g} % of the variance"
    note = f"The first two principal axes of {d} coordinates are drawn, {share}."
    return "plane", tuple(names), flat, (None, None), None, note


def _principal(points: ndarray, masses: ndarray) -> tuple[ndarray, ndarray]:
    """Coordinates along the two axes of largest variance over all times, and its shares."""
    times, _, d = points.shape
    centre = np.einsum("n,snd->d", masses, points) / times
    away = points - centre
    covariance = np.einsum("n,snd,sne->de", masses, away, away) / times
    values, vectors = np.linalg.eigh(covariance)
    axes = vectors[:, :-3:-1]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), range(2)])
    total = max(float(values.sum()), np.finfo(float).tiny)
    return away @ axes, values[:-3:-1] / total
