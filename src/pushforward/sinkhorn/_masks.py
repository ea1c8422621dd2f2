r"""Which pairs a coupling can use, given which pairs are allowed.

A pattern of allowed pairs has *support* if some coupling of the two marginals lives on it, and
*total support* if every allowed pair carries mass in one. Scalings exist exactly with total
support. With support alone the iteration still converges, at the rate $1/k$, to the coupling on
the pairs that can carry mass (Sinkhorn and Knopp 1967, for uniform marginals).
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .._tools.exact import transport

ROUNDING = 1e-6
"""A mass this small, relative to those around it, may come from weights rounded to float32."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """What a pattern of allowed pairs permits.

    Args:
        deficit: the mass that no coupling can place, in the worst batch element; positive means
            that there is no support.
        idle: the allowed pairs that carry no mass in any coupling.
        parts: for each query and each key, its connected component in the graph of all allowed
            pairs that are not idle.
    """

    deficit: float
    idle: Bool[Tensor, "*b m n"]
    parts: tuple[Int[Tensor, "*b m"], Int[Tensor, "*b n"]]


def diagnose(
    allowed: Bool[Tensor, "*#b m n"], log_a: Float[Tensor, "*b m"], log_b: Float[Tensor, "*b n"]
) -> Pattern:
    """Support, total support and components of a pattern, for normalised log-weights."""
    batch = torch.broadcast_shapes(allowed.shape[:-2], log_a.shape[:-1], log_b.shape[:-1])
    allowed = allowed.expand(*batch, *allowed.shape[-2:])
    a, b = (logs.detach().double().exp().expand(*batch, logs.shape[-1]) for logs in (log_a, log_b))
    flatten = lambda t, axes: t.reshape(-1, *t.shape[-axes:]).cpu()
    known: dict[tuple[bytes, ...], tuple] = {}  # the elements of a batch often share one pattern
    answers = []
    for pattern, x, y in zip(flatten(allowed, 2), flatten(a, 1), flatten(b, 1), strict=True):
        key = tuple(t.numpy().tobytes() for t in (pattern, x, y))
        if key not in known:
            known[key] = _diagnose_one(pattern.numpy(), x.numpy(), y.numpy())
        answers.append(known[key])

    def batched(arrays: tuple[np.ndarray, ...]) -> Tensor:
        stacked = torch.stack([torch.as_tensor(x) for x in arrays]).to(allowed.device)
        return stacked.reshape(*batch, *stacked.shape[1:])

    deficits, idle, parts_a, parts_b = zip(*answers, strict=True)
    return Pattern(max(deficits), batched(idle), (batched(parts_a), batched(parts_b)))


def _diagnose_one(
    allowed: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Deficit, idle pairs and the components of queries and of keys, for one pattern.

    A transport problem with cost 1 on forbidden pairs gives a plan that uses as few of them as
    possible. If it uses none, mass can be moved onto another allowed pair exactly if the pair lies
    on a cycle of this directed graph: rows to columns along allowed pairs (which may gain mass),
    columns to rows along pairs in use (which may lose some). So the pairs that can carry mass are
    those inside a strongly connected component.
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
    _, component = connected_components(graph, connection="strong")
    of_rows, of_columns = component[: len(x)], component[len(x) :]
    idle[np.ix_(rows, columns)] = live & (of_rows[:, None] != of_columns[None, :])
    _, labels = np.unique(component, return_inverse=True)
    parts_a[rows], parts_b[columns] = labels[: len(x)], labels[len(x) :]
    return 0.0, idle, parts_a, parts_b
