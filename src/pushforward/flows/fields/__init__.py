r"""Velocity fields $V_t[\mu](x)$ of Vlasov equations: in-context maps without a skip.

Any in-context map is a field. Here are those of the theory: attention, interactions of pairs,
second-order systems, and layers that follow each other in time; and what a field of your own
subclasses (`Field`, `TimeDependent`).
"""

from ._attention import SelfAttention as SelfAttention
from ._field import (
    Field as Field,
    Layers as Layers,
    Sum as Sum,
    Tangent as Tangent,
    TimeDependent as TimeDependent,
    at_time as at_time,
    is_second_order as is_second_order,
    manifold_of as manifold_of,
    of_transformer as of_transformer,
    summands as summands,
)
from ._interactions import (
    Kuramoto as Kuramoto,
    Linear as Linear,
    Pairwise as Pairwise,
    by_rows as by_rows,
)
from ._manifolds import (
    Euclidean as Euclidean,
    Manifold as Manifold,
    Sphere as Sphere,
    Torus as Torus,
    projection_lipschitz as projection_lipschitz,
)
from ._second_order import CuckerSmale as CuckerSmale, SecondOrder as SecondOrder, halves as halves
