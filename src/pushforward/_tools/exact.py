"""Exact optimal transport between finitely many points: assignment and network simplex."""

from typing import NamedTuple

import numpy as np


class Plan(NamedTuple):
    """An optimal plan and its dual potentials."""

    masses: np.ndarray
    """`(m, n)`, rows and columns summing to the marginals."""
    u: np.ndarray
    """The dual potential on the rows."""
    v: np.ndarray
    """The dual potential on the columns."""


def matching(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The permutation of least total cost, and the dual potentials of rows and columns.

    POT's network simplex with weights of one, in which all sums are exact. SciPy's assignment
    takes ten times as long on thousands of points in the plane that were all moved one way.
    """
    one = np.ones(len(cost))
    plan, u, v = transport(one, one, cost)
    columns = plan.argmax(-1)
    if len(np.unique(columns)) < len(cost):  # not a vertex: never seen
        columns = assignment(cost)
    return columns, u, v


def assignment(cost: np.ndarray) -> np.ndarray:
    """The permutation of least total cost: the column of each row, by SciPy."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ImportError("Exact assignments need SciPy: `pip install scipy`.") from None
    return linear_sum_assignment(cost)[1]


def transport(a: np.ndarray, b: np.ndarray, cost: np.ndarray) -> Plan:
    """A coupling of least cost, by POT's network simplex.

    `a` and `b` are weights of rows and columns of any total mass, normalised here; costs are
    finite.
    """
    try:
        import ot
    except ImportError:
        raise ImportError(
            "Exact transport in more than one dimension needs POT: `pip install POT`."
        ) from None
    plan, log = ot.emd(a / a.sum(), b / b.sum(), cost, numItermax=10**8, log=True)
    if log["warning"] is not None:
        raise RuntimeError(f"POT found no optimal plan: {log['warning']}")
    return Plan(plan, log["u"], log["v"])
