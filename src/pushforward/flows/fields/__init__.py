r"""Velocity fields $V_t[\mu](x)$ of Vlasov equations: in-context maps without a skip.

Any in-context map is a field. Those here are the ones of the theory: attention, interactions of
pairs, second-order systems, and layers that follow each other in time.
"""

from ._attention import SelfAttention as SelfAttention
from ._field import (
    Layers as Layers,
    Projected as Projected,
    Sum as Sum,
    adopt as adopt,
    at_time as at_time,
    manifold_of as manifold_of,
    of_transformer as of_transformer,
)
from ._hold import copied as copied
from ._interactions import (
    CuckerSmale as CuckerSmale,
    Harmonic as Harmonic,
    Kuramoto as Kuramoto,
    Linear as Linear,
    Pairwise as Pairwise,
    SecondOrder as SecondOrder,
    by_tiles as by_tiles,
    halves as halves,
)
