"""Which relations attention can approximate: paper B.

The two universal approximation theorems as constructions with error bounds, and the ranks that
decide which relations one head, or many heads, represent exactly.
"""

from ._hats import Hats as Hats
from ._many_heads import Heads as Heads, birkhoff as birkhoff, realise_heads as realise_heads
from ._one_head import (
    Realisation as Realisation,
    conditional_rank as conditional_rank,
    realise as realise,
    realise_conditional as realise_conditional,
    realise_coupling as realise_coupling,
)
from ._rules import (
    GaussianConditional as GaussianConditional,
    QuantileCoupling as QuantileCoupling,
    SoftNearest as SoftNearest,
)
from ._theorems import (
    SinkhornApproximation as SinkhornApproximation,
    SoftmaxApproximation as SoftmaxApproximation,
    relation_distance as relation_distance,
)
