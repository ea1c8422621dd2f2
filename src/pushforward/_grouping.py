"""Which points are one and the same: labels, and sums over equal labels."""

import numpy as np
import torch
from torch import Tensor


def label_points(points: Tensor, tol: float) -> tuple[Tensor, Tensor]:
    """A label for each point `(n, d)`, equal for points to be merged, and a member of each group.

    Points joined by a chain of steps of length at most `tol` are merged. Labels follow the
    lexicographic order of the groups' first points.
    """
    rows, label = points.unique(dim=0, return_inverse=True)
    if tol > 0:
        label = _chains(rows.double().cpu().numpy(), tol).to(label.device)[label]
    members = torch.arange(len(points), device=label.device)
    first = torch.full((int(label.max()) + 1,), len(points), device=label.device)
    return label, first.scatter_reduce(0, label, members, "amin")


def _chains(rows: np.ndarray, tol: float) -> Tensor:
    """Connected components of the graph of near points, numbered by their first member."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    near = cKDTree(rows).query_pairs(tol, output_type="ndarray")
    graph = coo_array((np.ones(len(near)), near.T), shape=(len(rows), len(rows)))
    component = connected_components(graph, directed=False)[1]
    _, first, joined = np.unique(component, return_index=True, return_inverse=True)
    return torch.as_tensor(np.argsort(np.argsort(first))[joined])


def logsumexp_by_label(values: Tensor, label: Tensor, count: int) -> Tensor:
    """Log-sum-exp of the values that share a label."""
    top = values.detach().new_full((count,), -torch.inf)
    top = top.scatter_reduce(0, label, values.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, label, (values - top[label]).exp())
    return top + total.log()
