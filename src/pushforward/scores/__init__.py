r"""Scores $A(q_i,k_j)$ between two clouds: what can be integrated over either side.

One small interface, several implementations. Points with a dot product stream through the two
reductions; a dense matrix, a function of pairs, or a function of other scores go tile by tile; a
stored kernel is the exponential of any of them, kept in memory. Sinkhorn and all relations see
only the interface.
"""

from .interface import TILE as TILE, Kernel as Kernel, Scores as Scores
from .points import Placed as Placed, PointScores as PointScores
from .stored import StoredKernel as StoredKernel
from .tiles import (
    CalledScores as CalledScores,
    DenseScores as DenseScores,
    MappedScores as MappedScores,
    TopScores as TopScores,
    softmax as softmax,
)
