"""Pictures: relations and moving clouds by matplotlib, figures and the frame of our pages."""

from ._charts import SHARE, Chart, Figure, Guide, HeatMap, Series, cosines, series
from ._figures import animate, graph, heatmap, rates, trajectories, transported
from ._frame import MEASURED, STATUS, chip, figure, formula, frame, mark, typeset

__all__ = [
    "Chart", "Figure", "Guide", "HeatMap", "MEASURED", "SHARE", "STATUS", "Series", "animate",
    "chip", "cosines", "figure", "formula", "frame", "graph", "heatmap", "mark", "rates", "series",
    "trajectories", "transported", "typeset",
]  # fmt: skip
