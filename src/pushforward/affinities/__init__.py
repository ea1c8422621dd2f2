r"""Affinities $A(x,y)$, and the scores $A_{ij}$ they give to the atoms of two measures.

Scores can be integrated over the keys and over the queries. Points with a dot product stream
through the two reductions; a matrix, a function of pairs, or a function of other scores go tile by
tile. Sinkhorn and all relations see only the interface `Scores`.
"""

from ._affinity import (
    Affinity as Affinity,
    Dot as Dot,
    PointAffinity as PointAffinity,
    SquaredDistance as SquaredDistance,
    scores as scores,
)
from ._given import Encoded as Encoded, Matrix as Matrix, Pairs as Pairs
from ._points import Features as Features, PointScores as PointScores
from ._scores import Kernel as Kernel, Scores as Scores, mean_of as mean_of
from ._tiles import TileScores as TileScores
