"""Pictures: relations and moving clouds by matplotlib, charts of pages by Plotly."""

from ._charts import BLUE, GREY, RED, dots, guide, log, plot, ticks
from ._figures import animate, graph, heatmap, rates, trajectories, transported
from ._frame import STATUS, chip, formula, frame, mark
from ._page import page

__all__ = [
    "BLUE", "GREY", "RED", "STATUS", "animate", "chip", "dots", "formula", "frame", "graph",
    "guide", "heatmap", "log", "mark", "page", "plot", "rates", "ticks", "trajectories",
    "transported",
]  # fmt: skip
