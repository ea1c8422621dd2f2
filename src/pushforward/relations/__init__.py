r"""Relations between two measures: conditionals, couplings, other masses, and signed ones.

A relation is a density $e^{A+f\oplus g}$ against $\mu\otimes\nu$, both normalised. It is lazy: it
consists of scores and two potentials, and only `matrix()` forms a matrix. A type has only the
methods that make sense for it; conversions are explicit. A normaliser makes a relation of scores.
"""

from ._joint import Joint as Joint
from ._masses import Masses as Masses, Signed as Signed
from ._normalisers import (
    Bilinear as Bilinear,
    DualSoftmax as DualSoftmax,
    Exponential as Exponential,
    Hardmax as Hardmax,
    Normaliser as Normaliser,
    Sigmoid as Sigmoid,
    Softmax as Softmax,
)
from ._probabilities import Conditional as Conditional, Coupling as Coupling
from ._relate import relate as relate
from ._relation import Relation as Relation
from ._sinkhorn import Exact as Exact, Sinkhorn as Sinkhorn
