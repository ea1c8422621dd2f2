"""A moving cloud as a page that plays it: particles, curves on the same time, six moments."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy import ndarray

from ._frame import frame
from ._scene import Scene, best_view

DISCS = 1000
"""The most points that are drawn as discs; more are drawn as a density."""

LEVELS = 65535
"""Steps of 16 bits."""

MOMENTS = 6
"""Moments of a page, which are also its printed form."""


@dataclass(frozen=True)
class Curve:
    """A quantity along a path, drawn beside the particles.

    Args:
        title: what is drawn, in words.
        times: at which it is known.
        values: one for each time.
        step: whether it counts something: drawn in steps, on a logarithmic axis.
        caption: how to read it.
    """

    title: str
    times: Sequence[float]
    values: Sequence[float]
    step: bool = False
    caption: str = ""


def film(
    shown: Scene,
    title: str,
    lead: str,
    curves: Sequence[Curve] = (),
    labels: ndarray | None = None,
    facts: Mapping[str, str] | None = None,
) -> str:
    """A page that plays a moving cloud and needs nothing else.

    Args:
        shown: the key frames.
        title: the headline.
        lead: what happens, in a sentence or two.
        curves: quantities on the same axis of time.
        labels: the group of each point, 0 for the heaviest, which decides its colour.
        facts: what the reader should know besides, as names and values.
    """
    data = _data(shown, labels) | {
        "curves": [vars(c) | {"times": list(c.times), "values": list(c.values)} for c in curves]
    }
    assets = files(__package__) / "assets"
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    figures = "".join(_figure(k, c) for k, c in enumerate(curves))
    facts = {**(facts or {}), **({"Note": shown.note} if shown.note else {})}
    rows = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in facts.items() if b)
    turn = shown.kind == "sphere"
    body = f"""<style>{(assets / "flow.css").read_text("utf-8")}</style>
<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>
<noscript><p>A script in this page draws the particles. It is switched off.</p></noscript>
<div class="view"><div><canvas id="cloud" tabindex="0"{' class="turn"' if turn else ""}
 role="{"application" if turn else "img"}" aria-label="{escape(title, True)}"
 aria-describedby="help"></canvas>
<div class="controls noprint"><button class="btn" id="play" type="button">Play</button>
<input id="time" type="range" min="0" max="1" step="any" value="0" aria-label="Time">
<output id="now" for="time"></output>
<label>Speed <select class="btn" id="speed"><option value="0.25">¼</option>
<option value="0.5">½</option><option value="1" selected>1</option><option value="2">2</option>
<option value="4">4</option></select></label></div>
<p class="small noprint" id="help">{_help(shown)}</p></div>
<div class="side">{figures}<div id="masses"></div></div></div>
<section><div class="sh"><h2>Six moments</h2>
<span class="small noprint">Choose one to go there.</span></div><div class="stills"
 id="stills"></div></section>
<section><h2>What is shown</h2><dl class="facts">{rows}</dl>{_numbers(shown, curves)}</section>
<script type="application/json" id="film">{text}</script>
<script>{(assets / "flow.js").read_text("utf-8")}</script>"""
    return frame("pushforward · flow", body)


def _help(shown: Scene) -> str:
    """How to use the picture."""
    how = (
        "Drag to turn, or use the arrow keys. The far side is pale. "
        if shown.kind == "sphere"
        else ""
    )
    many = shown.points.shape[1] > DISCS
    marks = (
        "Stronger colour is more mass. Where much mass is in one place, a disc has its area. "
        if many
        else "The area of a mark is its mass. Marks that coincide are joined. Lines show where "
        "points came from. "
    )
    return (
        f"{how}{marks}On the slider the arrow keys go to the next frame, the page keys six frames "
        "on, and the space bar plays."
    )


def _figure(k: int, curve: Curve) -> str:
    """The frame of a curve, which the script draws."""
    caption = f"<figcaption>{escape(curve.caption)}</figcaption>" if curve.caption else ""
    return (
        f'<figure><p class="ft">{escape(curve.title)}</p><svg class="curve" data-curve="{k}" '
        f'viewBox="0 0 340 170" role="img" aria-label="{escape(curve.title, True)} against time">'
        f"</svg>{caption}</figure>"
    )


def _numbers(shown: Scene, curves: Sequence[Curve]) -> str:
    """The values of all curves at the key frames, as a table that opens."""
    if not curves:
        return ""
    head = "".join(f'<th scope="col">{escape(c.title)}</th>' for c in curves)
    lines = "".join(
        f"<tr><td>{t:.5g}</td>"
        + "".join(f"<td>{np.interp(t, c.times, c.values):.5g}</td>" for c in curves)
        + "</tr>"
        for t in shown.times
    )
    return (
        '<details><summary>Numbers</summary><div class="wide"><table class="num"><thead><tr>'
        f'<th scope="col">time</th>{head}</tr></thead><tbody>{lines}'
        "</tbody></table></div></details>"
    )


def _data(shown: Scene, labels: ndarray | None) -> dict[str, Any]:
    """What the script needs, positions and masses as numbers of 16 bits."""
    many = shown.points.shape[1] > DISCS
    limits = shown.limits()
    if shown.kind == "sphere":
        coordinates, boxes = octahedral(shown.points), [(-1.0, 1.0)] * 2
    else:
        coordinates, boxes = shown.points, limits
    packed = [
        np.round((coordinates[..., k] - low) / (high - low) * LEVELS).clip(0, LEVELS)
        for k, (low, high) in enumerate(boxes)
    ]
    view = (0.0, 0.0)
    if shown.kind == "sphere":
        view = best_view(shown.points[-1], shown.masses)
    top = float(shown.masses.max())
    return {
        "kind": shown.kind, "n": shown.points.shape[1], "axes": shown.axes, "radius": shown.radius,
        "periods": shown.periods, "times": shown.times.tolist(), "box": boxes, "view": view,
        "equal": shown.equal, "points": _bits(np.stack(packed, 1)), "top": top,
        "masses": _bits(np.round(shown.masses / top * LEVELS)), "dense": many,
        "labels": None if labels is None or many else labels.tolist(), "moments": MOMENTS,
    }  # fmt: skip


def octahedral(points: ndarray) -> ndarray:
    """Directions as points of a square: the faces of an octahedron, unfolded."""
    x, y, z = np.moveaxis(points / np.abs(points).sum(-1, keepdims=True), -1, 0)
    sign = lambda t: np.where(t < 0, -1.0, 1.0)
    a = np.where(z < 0, (1 - np.abs(y)) * sign(x), x)
    b = np.where(z < 0, (1 - np.abs(x)) * sign(y), y)
    return np.stack([a, b], -1)


def _bits(values: ndarray) -> str:
    """Whole numbers of 16 bits, low byte first, in base 64."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode("ascii")
