"""Which relations attention approximates: constructions with their bounds, and ranks."""

from ._many_heads import Heads as Heads, birkhoff as birkhoff, realise_heads as realise_heads
from ._one_head import (
    Realisation as Realisation,
    realise as realise,
    realise_conditional as realise_conditional,
    realise_coupling as realise_coupling,
    rounding as rounding,
)
from ._rules import (
    EntropicCoupling as EntropicCoupling,
    GaussianConditional as GaussianConditional,
    QuantileCoupling as QuantileCoupling,
    SoftNearest as SoftNearest,
)
from ._theorems import (
    Hats as Hats,
    SinkhornApproximation as SinkhornApproximation,
    SoftmaxApproximation as SoftmaxApproximation,
    relation_distance as relation_distance,
    sup_error as sup_error,
)
