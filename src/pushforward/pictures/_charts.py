"""Pictures as plain data of Plotly, so that an audit needs no Plotly to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BLUE, RED, GREY = "#2b6cb0", "#c05621", "#718096"

Plot = dict[str, Any]


def plot(
    title: str,
    x: str,
    y: str,
    traces: Sequence[Mapping[str, Any]],
    *,
    caption: str = "",
    **layout: Any,
) -> Plot:
    """A figure: traces under a title, with axes named.

    Args:
        title: what it shows.
        x: what is on the first axis.
        y: what is on the second.
        traces: what is drawn.
        caption: how to read it, in a sentence.
        layout: anything else that Plotly knows, over what stands here.
    """
    above = 48 if "updatemenus" in layout else 12
    base = {
        "title": {"text": title, "font": {"size": 15}, "x": 0, "xanchor": "left", "yref": "paper",
                  "y": 1, "yanchor": "bottom", "pad": {"b": above}},
        "xaxis": {"title": {"text": x}, "automargin": True, **layout.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, "automargin": True, **layout.pop("yaxis", {})},
        "margin": {"l": 50, "r": 16, "t": 36 + above, "b": 50},
        "legend": {"orientation": "h", "y": -0.25},
        "font": {"size": 12},
        "colorway": [BLUE, RED, GREY, "#2f855a", "#6b46c1", "#b7791f"],
    }  # fmt: skip
    drawn = [dict(t) for t in traces]
    return {"data": drawn, "layout": {**base, **layout}, "caption": caption}


def dots(
    x: Sequence[float], y: Sequence[float], name: str, *, line: bool = True, **more: Any
) -> Plot:
    """Points, joined by a line or not."""
    mode = "lines+markers" if line else "markers"
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), "name": name, **more}


def guide(x: Sequence[float], y: Sequence[float], name: str) -> Plot:
    """A dashed line to compare with."""
    style = {"dash": "dash", "color": GREY}
    return {
        "type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "name": name,
        "line": style,
    }  # fmt: skip


def ticks(values: Sequence[float]) -> Plot:
    """A logarithmic axis, labelled at some values."""
    return {"type": "log", "tickvals": list(values), "ticktext": [str(v) for v in values]}


def log(*series: Sequence[float]) -> Plot:
    """A logarithmic axis for some values, labelled at powers of ten where they span several."""
    values = [v for values in series for v in values if v > 0]
    wide = bool(values) and max(values) > 100 * min(values)
    return {"type": "log", "exponentformat": "power", **({"dtick": 1} if wide else {})}
