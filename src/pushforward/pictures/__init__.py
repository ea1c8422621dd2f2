"""Pictures: relations and moving clouds by matplotlib, charts of pages by Plotly."""

from ._charts import BLUE, GREY, RED, dots, guide, log, plot, ticks
from ._figures import animate, graph, heatmap, rates, trajectories, transported
from ._page import page

__all__ = [
    "BLUE", "GREY", "RED", "animate", "dots", "graph", "guide", "heatmap", "log", "page", "plot",
    "rates", "ticks", "trajectories", "transported",
]  # fmt: skip
