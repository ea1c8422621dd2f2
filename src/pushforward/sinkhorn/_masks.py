r"""Which pairs a coupling can use: Sinkhorn on patterns of allowed and forbidden pairs.

A pattern has *support* if some coupling of the two marginals lives on it, and *total support* if
every allowed pair carries mass in one. Scalings exist exactly with total support; with support
alone the iteration converges, at the rate $1/k$, to the coupling on the pairs that can carry mass
(Sinkhorn and Knopp for uniform marginals).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._tools.exact import transport

ROUNDING = 1e-6
"""Masses, relative to those around them, that may come from weights rounded to float32."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """What a pattern of allowed pairs allows.

    Args:
        deficit: mass that no coupling can place, in the worst batch element: positive without
            support.
        idle: allowed pairs that carry no mass in any coupling.
        parts: the connected part of each query and of each key, counting the other pairs.
    """

    deficit: float
    idle: Bool[Tensor, "*b m n"]
    parts: tuple[Int[Tensor, "*b m"], Int[Tensor, "*b n"]]


def diagnose(
    allowed: Bool[Tensor, "*#b m n"], log_a: Float[Tensor, "*b m"], log_b: Float[Tensor, "*b n"]
) -> Pattern:
    """Support, total support and parts of a pattern, for normalised weights."""
    batch = torch.broadcast_shapes(allowed.shape[:-2], log_a.shape[:-1], log_b.shape[:-1])
    allowed = allowed.expand(*batch, *allowed.shape[-2:])
    a, b = (logs.detach().double().exp().expand(*batch, logs.shape[-1]) for logs in (log_a, log_b))
    fold = lambda t, axes: t.reshape(-1, *t.shape[-axes:]).cpu()
    found: dict = {}  # batches often share one pattern
    answers = []
    for pattern, x, y in zip(fold(allowed, 2), fold(a, 1), fold(b, 1), strict=True):
        key = tuple(t.numpy().tobytes() for t in (pattern, x, y))
        if key not in found:
            found[key] = _diagnose_one(pattern.numpy(), x.numpy(), y.numpy())
        answers.append(found[key])
    join = lambda k: torch.stack([torch.as_tensor(r[k]) for r in answers]).to(allowed.device)
    idle, rows, columns = (join(k) for k in (1, 2, 3))
    shape = lambda t: t.reshape(*batch, *t.shape[1:])
    return Pattern(max(r[0] for r in answers), shape(idle), (shape(rows), shape(columns)))


def _diagnose_one(allowed, a, b):
    """Deficit, idle pairs and parts of one pattern, in NumPy.

    A transport problem whose cost is 1 on forbidden pairs gives a plan that uses as few of them as
    possible. From a plan without any, mass can be moved on to an allowed pair exactly if the pair
    lies on a cycle: rows to columns along allowed pairs, columns back to rows along pairs in use.
    """
    from scipy.sparse import bmat, csr_array
    from scipy.sparse.csgraph import connected_components

    m, n = allowed.shape
    rows, columns = a > 0, b > 0
    idle = np.zeros((m, n), bool)
    parts_a, parts_b = np.zeros(m, np.int64), np.zeros(n, np.int64)
    live = allowed[np.ix_(rows, columns)]
    x, y = a[rows], b[columns]
    cost = (~live).astype(float)
    plan = transport(x, y, cost).masses
    deficit = float((plan * cost).sum())
    if deficit > ROUNDING:
        return deficit, idle, parts_a, parts_b
    used = csr_array((plan > ROUNDING * np.minimum(x[:, None], y[None, :])) & live)
    graph = bmat([[None, csr_array(live)], [used.T, None]], format="csr")
    _, strong = connected_components(graph, connection="strong")
    idle[np.ix_(rows, columns)] = live & (strong[: len(x), None] != strong[None, len(x) :])
    _, codes = np.unique(strong, return_inverse=True)
    parts_a[rows], parts_b[columns] = codes[: len(x)], codes[len(x) :]
    return 0.0, idle, parts_a, parts_b
