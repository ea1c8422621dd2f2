r"""Normalisers: how an affinity becomes a relation.

A normaliser makes of the scores $A$ a density $e^{A'+f(x)+g(y)}$ against $\mu\otimes\nu$. What it
has to find out about the two measures as wholes is a potential $g$ on the keys; the rest follows
query by query, so that a relation can be evaluated anywhere.
"""

from .hard import Hard as Hard
from .interface import TOL as TOL, Found as Found, Normaliser as Normaliser
from .pointwise import (
    DualSoftmax as DualSoftmax,
    Hardmax as Hardmax,
    Linear as Linear,
    Sigmoid as Sigmoid,
    Softmax as Softmax,
    Unnormalised as Unnormalised,
)
from .predicted import Memory as Memory, Predicted as Predicted
from .sinkhorn import Sinkhorn as Sinkhorn, floor as floor
