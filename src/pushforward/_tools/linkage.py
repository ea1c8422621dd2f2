"""Which points are one and the same: labels, and sums over equal labels."""

import numpy as np
import torch
from torch import Tensor


def label_points(points: Tensor, times: Tensor | None, tol: float) -> tuple[Tensor, Tensor]:
    """A label for each point `(n, d)`, equal for points to be merged, and a member of each group.

    Points joined by a chain of steps of length at most `tol` are merged, points at different times
    never. Labels follow the lexicographic order of the groups' first points.
    """
    rows = points.double() + 0.0  # -0.0 becomes 0.0
    if times is not None:
        moment = times.unique(return_inverse=True)[1]
        rows = torch.cat([rows, (moment * max(1.0, 4 * tol))[:, None].to(rows)], -1)
    rows, label = rows.unique(dim=0, return_inverse=True)
    if tol > 0:
        label = torch.as_tensor(_chains(rows.cpu().numpy(), tol), device=label.device)[label]
    members = torch.arange(len(points), device=label.device)
    first = torch.full((int(label.max()) + 1,), len(points), device=label.device)
    return label, first.scatter_reduce(0, label, members, "amin")


def logsumexp_by_label(values: Tensor, label: Tensor, count: int) -> Tensor:
    """Log-sum-exp of the values that share a label."""
    top = values.detach().new_full((count,), -torch.inf)
    top = top.scatter_reduce(0, label, values.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, label, (values - top[label]).exp())
    return top + total.log()


def _chains(rows: np.ndarray, tol: float) -> np.ndarray:
    """Connected components of the graph of near points, numbered by their first member.

    All points of a cubic cell of diagonal `tol` are near each other, so only pairs of cells are
    looked at: a dense cluster of any size costs the few cells it covers.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    side = tol / np.sqrt(rows.shape[1])
    corners, cell = np.unique(np.floor(rows / side), axis=0, return_inverse=True)
    order = np.argsort(cell, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(cell))[:-1])
    reach = 2 * np.sqrt(rows.shape[1]) * (1 + 1e-9)
    pairs = cKDTree(corners).query_pairs(reach, output_type="ndarray")
    joined = [(i, j) for i, j in pairs if _touch(rows[groups[i]], rows[groups[j]], tol)]
    i, j = np.array(joined, dtype=int).reshape(-1, 2).T
    graph = coo_array((np.ones(len(i)), (i, j)), shape=(len(corners), len(corners)))
    component = connected_components(graph, directed=False)[1][cell]
    _, first, number = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def _touch(a: np.ndarray, b: np.ndarray, tol: float) -> bool:
    """Whether two clouds come within `tol` of each other."""
    from scipy.spatial import cKDTree

    if len(a) * len(b) <= 4096:
        return bool((((a[:, None] - b[None]) ** 2).sum(-1) <= tol**2).any())
    large, small = (a, b) if len(a) > len(b) else (b, a)
    return bool(cKDTree(large).query(small, distance_upper_bound=2 * tol)[0].min() <= tol)
