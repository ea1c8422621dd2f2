r"""Velocity fields $V_t[\mu](x)$ of Vlasov equations: in-context maps without a skip.

Any in-context map is a field. Here are those of the theory: attention, interactions of pairs,
second-order systems, and layers that follow each other in time; and what a field of your own
subclasses (`Field`, `TimeDependent`).
"""

from ...maps import Causal, storable
from ._attention import SelfAttention
from ._field import (
    Field,
    Layers,
    Sum,
    Tangent,
    TimeDependent,
    at_time,
    is_second_order,
    manifold_of,
    of_transformer,
    summands,
)
from ._interactions import Kuramoto, Linear, Pairwise, by_rows
from ._manifolds import Euclidean, Manifold, Sphere, Torus, projection_lipschitz
from ._second_order import CuckerSmale, Decay, SecondOrder, halves

__all__ = [
    "CuckerSmale", "Decay", "Euclidean", "Field", "Kuramoto", "Layers", "Linear", "Manifold",
    "Pairwise", "SecondOrder", "SelfAttention", "Sphere", "Sum", "Tangent", "TimeDependent",
    "Torus", "at_time", "by_rows", "halves", "is_second_order", "manifold_of", "of_transformer",
    "projection_lipschitz", "summands",
]  # fmt: skip

for _cls in (CuckerSmale, Decay, Euclidean, Linear, Sphere, Torus):
    storable(_cls)
storable(SelfAttention, arguments=lambda field: {"mask": Causal() if field.causal else None})
storable(Kuramoto, arguments=lambda field: {"dim": field.manifold.axes})
