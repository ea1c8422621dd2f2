r"""Sinkhorn: the potentials $f,g$ of a coupling $e^{A+f\oplus g}\,\mu\otimes\nu$.

A `Problem` is a pair of marginals. `alternate` takes some steps, `solve` goes to a tolerance,
`differentiable` adds the gradients of the solution, and `diagnose` finds which allowed pairs can
carry mass. `doubly_stochastic` scales many small matrices at once.
"""

from ._alternate import alternate
from ._extrapolate import PotentialHistory, Starts
from ._gradients import differentiable
from ._masks import diagnose
from ._problem import Problem, centre, integral, rebalanced, tilted
from ._small import DoublyStochastic, doubly_stochastic
from ._solve import Settings, Solution, solve
from ._stored import StoredKernel

__all__ = [
    "DoublyStochastic", "PotentialHistory", "Problem", "Settings", "Solution", "Starts",
    "StoredKernel", "alternate", "centre", "diagnose", "differentiable", "doubly_stochastic",
    "integral", "rebalanced", "solve", "tilted",
]  # fmt: skip
