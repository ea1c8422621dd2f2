"""Which relations attention can approximate: paper B.

The two universal approximation theorems as constructions with error bounds, and the ranks that
decide which relations one head, or many heads, represent exactly.
"""

from ._hats import Hats
from ._many_heads import Heads, birkhoff, realise_heads
from ._one_head import (
    Realisation,
    conditional_rank,
    realise,
    realise_conditional,
    realise_coupling,
)
from ._rules import GaussianConditional, QuantileCoupling, SoftNearest
from ._theorems import SinkhornApproximation, SoftmaxApproximation, relation_distance

__all__ = [
    "GaussianConditional", "Hats", "Heads", "QuantileCoupling", "Realisation",
    "SinkhornApproximation", "SoftNearest", "SoftmaxApproximation", "birkhoff", "conditional_rank",
    "realise", "realise_conditional", "realise_coupling", "realise_heads", "relation_distance",
]  # fmt: skip
