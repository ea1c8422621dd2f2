"""Charts as plain data in Plotly's format: Plotly itself is needed only to draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BLUE, RED, GREY = "#2b6cb0", "#c05621", "#718096"

Plot = dict[str, Any]
"""A part of a Plotly figure as a dictionary."""


def plot(
    title: str,
    x: str,
    y: str,
    traces: Sequence[Mapping[str, Any]],
    *,
    caption: str = "",
    **layout: Any,
) -> Plot:
    """A chart: traces under a title, with named axes and a caption.

    Args:
        title: the title.
        x: the name of the horizontal axis.
        y: the name of the vertical axis.
        traces: the traces, in Plotly's format.
        caption: how to read the chart, in a sentence.
        layout: further entries of Plotly's layout, which replace the defaults.
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
    """Points, by default joined by a line; `more` are entries of the trace."""
    mode = "lines+markers" if line else "markers"
    return {"type": "scatter", "mode": mode, "x": list(x), "y": list(y), "name": name, **more}


def guide(x: Sequence[float], y: Sequence[float], name: str) -> Plot:
    """A dashed grey line for comparison."""
    style = {"dash": "dash", "color": GREY}
    return {
        "type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "name": name,
        "line": style,
    }  # fmt: skip


def ticks(values: Sequence[float]) -> Plot:
    """A logarithmic axis with labels at the given values."""
    return {"type": "log", "tickvals": list(values), "ticktext": [str(v) for v in values]}


def log(*series: Sequence[float]) -> Plot:
    """A logarithmic axis, with labels at powers of ten if the given values span several."""
    values = [v for values in series for v in values if v > 0]
    wide = bool(values) and max(values) > 100 * min(values)
    return {"type": "log", "exponentformat": "power", **({"dtick": 1} if wide else {})}
