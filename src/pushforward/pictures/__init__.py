"""Pictures: relations and moving clouds by matplotlib, charts of pages by Plotly."""

from ._charts import Figure, Series, series
from ._figures import animate, graph, heatmap, rates, trajectories, transported
from ._frame import STATUS, chip, formula, frame, mark
from ._page import page
from ._plotly import BLUE, GREY, RED, dots, guide, log, plot, ticks

__all__ = [
    "BLUE", "Figure", "GREY", "RED", "STATUS", "Series", "animate", "chip", "dots", "formula",
    "frame", "graph", "guide", "heatmap", "log", "mark", "page", "plot", "rates", "series",
    "ticks", "trajectories", "transported",
]  # fmt: skip
