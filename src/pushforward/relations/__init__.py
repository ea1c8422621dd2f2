r"""Relations between two measures: conditionals, couplings, other masses, and signed ones.

A relation is a density $e^{A+f\oplus g}$ against $\mu\otimes\nu$, both normalised. It is lazy: it
consists of scores and two potentials, and only `matrix()` forms a matrix. A type has only the
methods that make sense for it; conversions are explicit. A normaliser makes a relation of scores.
"""

from ._masses import Joint, Masses, Signed
from ._normalisers import Bilinear, DualSoftmax, Exponential, Hardmax, Normaliser, Sigmoid, Softmax
from ._probabilities import Conditional, Coupling
from ._relate import check_start, relate
from ._relation import Relation
from ._sinkhorn import Exact, Sinkhorn

__all__ = [
    "Bilinear", "Conditional", "Coupling", "DualSoftmax", "Exact", "Exponential", "Hardmax",
    "Joint", "Masses", "Normaliser", "Relation", "Sigmoid", "Signed", "Sinkhorn", "Softmax",
    "check_start", "relate",
]  # fmt: skip
