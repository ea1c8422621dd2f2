"""Sinkhorn: potentials of couplings, their gradients, masks, and many small matrices at once."""

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
