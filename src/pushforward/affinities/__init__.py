r"""Affinities $A(x,y)$, and the scores $A_{ij}$ they give to the atoms of two measures.

Scores can be integrated over the keys and over the queries. Points with a dot product stream
through the two reductions; a matrix, a function of pairs, or a function of other scores go tile by
tile. Sinkhorn and all relations see only the interface `Scores`.
"""

from ._affinity import Affinity, Dot, PointAffinity, SquaredDistance, scores
from ._given import Encoded, Matrix, Pairs
from ._points import Features, PointScores
from ._scores import Kernel, Scores, mean_of
from ._tiles import Layout, TileScores

__all__ = [
    "Affinity", "Dot", "Encoded", "Features", "Kernel", "Layout", "Matrix", "Pairs",
    "PointAffinity", "PointScores", "Scores", "SquaredDistance", "TileScores", "mean_of", "scores",
]  # fmt: skip
