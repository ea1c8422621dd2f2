r"""Relations between two measures: conditionals, couplings, other masses, and signed ones.

A relation is a density $e^{A+f\oplus g}$ against $\mu\otimes\nu$, both normalised. It is lazy: two
potentials and the scores, no matrix, until one is asked for. What is not defined on a type does
not exist on it; conversions are explicit.
"""

from .build import build as build
from .interface import Relation as Relation, aligned_weights as aligned_weights
from .others import Affinities as Affinities, Signed as Signed
from .probabilities import Conditional as Conditional, Coupling as Coupling
