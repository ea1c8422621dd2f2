r"""Sinkhorn: the potentials $f,g$ of a coupling $e^{A+f\oplus g}\,\mu\otimes\nu$.

A `Problem` is a pair of marginals. `alternate` takes some steps, `solve` goes to a tolerance,
`differentiable` adds the gradients of the solution, and `diagnose` tells which allowed pairs can
carry mass. `doubly_stochastic` scales many small matrices at once.
"""

from ._extrapolate import PotentialHistory as PotentialHistory, Starts as Starts
from ._gradients import differentiable as differentiable
from ._masks import diagnose as diagnose
from ._problem import (
    Problem as Problem,
    centre as centre,
    integral as integral,
    rebalanced as rebalanced,
    tilted as tilted,
)
from ._small import DoublyStochastic as DoublyStochastic, doubly_stochastic as doubly_stochastic
from ._solve import Settings as Settings, solve as solve
from ._steps import alternate as alternate
from ._stored import StoredKernel as StoredKernel
