"""Pictures: relations and moving clouds by matplotlib, figures and the frame of our pages."""

from ._charts import SHARE, Chart, Figure, Guide, HeatMap, Series, cosines, series
from ._figures import graph, heatmap, rates, transported
from ._film import Curve, film
from ._frame import MEASURED, STATUS, chip, figure, formula, frame, mark, typeset
from ._moving import animate, trajectories
from ._scene import Scene, Space, interpolation_errors, key_frames, scene

__all__ = [
    "Chart", "Curve", "Figure", "Guide", "HeatMap", "MEASURED", "SHARE", "STATUS", "Scene",
    "Series", "Space", "animate", "chip", "cosines", "figure", "film", "formula", "frame", "graph",
    "heatmap", "interpolation_errors", "key_frames", "mark", "rates", "scene", "series",
    "trajectories", "transported", "typeset",
]  # fmt: skip
