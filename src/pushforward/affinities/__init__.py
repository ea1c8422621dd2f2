r"""Affinities $A(q,k)$, and the scores $A_{ij}$ they give two clouds of points.

Scores can be integrated over either side. Points with a dot product stream through the two
reductions; a matrix, a function of pairs, or a function of other scores go tile by tile. Sinkhorn
and all relations see only the interface `Scores`.
"""

from ._affinity import (
    Affinity as Affinity,
    Dot as Dot,
    Slopes as Slopes,
    SquaredDistance as SquaredDistance,
    scores as scores,
)
from ._points import Features as Features, PointScores as PointScores
from ._scores import Kernel as Kernel, Scores as Scores, mean_of as mean_of
from ._tiles import TileScores as TileScores
