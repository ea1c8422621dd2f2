"""Pictures: relations and moving clouds by matplotlib, charts of pages by Plotly."""

from ._charts import BLUE, GREY, RED, dots, guide, log, plot, ticks
from ._figures import graph, heatmap, rates, transported
from ._film import Curve, film
from ._frame import STATUS, chip, formula, frame, mark
from ._moving import animate, trajectories
from ._page import page
from ._scene import Scene, Space, interpolation_errors, key_frames, scene

__all__ = [
    "Curve", "Scene", "Space", "film", "interpolation_errors", "key_frames", "scene",
    "BLUE", "GREY", "RED", "STATUS", "animate", "chip", "dots", "formula", "frame", "graph",
    "guide", "heatmap", "log", "mark", "page", "plot", "rates", "ticks", "trajectories",
    "transported",
]  # fmt: skip
