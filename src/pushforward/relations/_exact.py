"""The coupling of least cost."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .._tools.exact import assignment, transport
from ..affinities import DenseScores
from ._normaliser import Found, Normaliser


@dataclass(frozen=True)
class Exact(Normaliser):
    r"""The coupling of least cost $\int c\,d\pi$, $c=-A$: what Sinkhorn tends to as
    $\varepsilon\to0$.

    With equal numbers of atoms of equal weights it is a permutation, found as a linear sum
    assignment by SciPy, else an exact transport plan, found by POT. It is piecewise constant in
    the points, so its gradients in them are zero, and it relates atoms only.
    """  # noqa: D205

    two_sided: ClassVar[bool] = True
    pointwise: ClassVar[bool] = False
    keeps = "both"

    def find(self, scores, log_a, log_b, start=None):
        """The plan, as scores of its own."""
        with torch.no_grad():
            a, b = (logs.double().exp() for logs in (log_a, log_b))
            *batch, m, n = scores.shape
            fold = lambda t, *shape: t.expand(*batch, *shape).reshape(-1, *shape).cpu().numpy()
            costs = -scores.unit * scores.matrix()
            each = zip(fold(costs.double(), m, n), fold(a, m), fold(b, n), strict=True)
            plans = torch.stack([_exact_plan(*problem) for problem in each])
            plan = plans.reshape(*batch, m, n).to(log_b.device)
            product = a[..., :, None] * b[..., None, :]
            density = torch.where(plan > 0, plan / torch.where(product > 0, product, 1), 0)
        return Found(scores=DenseScores(density.log().to(log_b.dtype), scores.unit, costs))


def _exact_plan(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> Tensor:
    """A coupling of least cost, of NumPy arrays."""
    forbidden = np.isposinf(cost)
    finite = cost[np.isfinite(cost)]
    cost = np.where(forbidden, 1 + len(cost) * np.ptp(finite) + finite.max(), cost)
    plan = _least_cost(cost, a, b)
    if plan[forbidden].sum() > 1e-12:
        raise ValueError(
            "No coupling of these marginals lives on the allowed pairs. Allow more pairs, or give "
            "other marginals."
        )
    return torch.from_numpy(plan)


def _least_cost(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """By assignment where atoms are equal, by a transport problem elsewhere."""
    n = len(a)
    equal = len(b) == n and all(np.allclose(w, 1 / n, rtol=1e-6, atol=0) for w in (a, b))
    if not equal:
        return transport(a, b, cost).masses
    plan = np.zeros_like(cost)
    plan[np.arange(n), assignment(cost)] = a
    return plan
