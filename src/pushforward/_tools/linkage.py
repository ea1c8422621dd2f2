"""Single linkage: groups of points joined by short steps."""

import numpy as np
import torch
from torch import Tensor


def label_points(points: Tensor, times: Tensor | None, tol: float) -> tuple[Tensor, Tensor]:
    """The group of each point `(n, d)`, and the first member of each group.

    Points joined by a chain of steps of length at most `tol` are merged, points at different times
    never. Labels follow the lexicographic order of the groups' first points.
    """
    rows = points.double() + 0.0  # -0.0 becomes 0.0
    if times is not None:
        moment = times.unique(return_inverse=True)[1]
        rows = torch.cat([rows, (moment * max(1.0, 4 * tol))[:, None].to(rows)], -1)
    rows, label = rows.unique(dim=0, return_inverse=True)
    if tol > 0:
        joined = torch.as_tensor(single_linkage(rows.cpu().numpy(), tol), device=label.device)
        label = joined[label]
    members = torch.arange(len(points), device=label.device)
    first = torch.full((int(label.max()) + 1,), len(points), device=label.device)
    return label, first.scatter_reduce(0, label, members, "amin")


def single_linkage(points: np.ndarray, tol: float) -> np.ndarray:
    """Connected components of the graph of pairs within `tol`, numbered by their first member.

    Points are sorted into cubic cells of diagonal `tol`. All points of a cell are within `tol` of
    each other, so the nodes of the graph are cells: a thousand points in one cell are one node,
    not half a million pairs. Two cells can contain points within `tol` of each other only if their
    first members are within three diagonals.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    side = tol / np.sqrt(points.shape[1])
    _, cell = np.unique(np.floor((points - points.min(0)) / side), axis=0, return_inverse=True)
    cell = cell.reshape(-1)
    members = np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell))[:-1])
    firsts = points[[group[0] for group in members]]
    pairs = cKDTree(firsts).query_pairs(3 * tol * (1 + 1e-9), output_type="ndarray")
    near = np.linalg.norm(firsts[pairs[:, 0]] - firsts[pairs[:, 1]], axis=1) <= tol

    def components(links: np.ndarray) -> np.ndarray:
        graph = coo_array((np.ones(len(links)), links.T.astype(int)), shape=(len(members),) * 2)
        return connected_components(graph, directed=False)[1]

    label = components(pairs[near])
    # Only cells that are not joined yet are compared point by point.
    open_pairs = pairs[~near & (label[pairs[:, 0]] != label[pairs[:, 1]])]
    joined = [(i, j) for i, j in open_pairs if _touch(points[members[i]], points[members[j]], tol)]
    links = np.concatenate([pairs[near], np.array(joined, int).reshape(-1, 2)])
    component = components(links)[cell]
    _, first, number = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]


def _touch(a: np.ndarray, b: np.ndarray, tol: float) -> bool:
    """Whether two clouds come within `tol` of each other."""
    from scipy.spatial import cKDTree

    if len(a) * len(b) <= 4096:
        return bool((((a[:, None] - b[None]) ** 2).sum(-1) <= tol**2).any())
    large, small = (a, b) if len(a) > len(b) else (b, a)
    return bool(cKDTree(large).query(small, distance_upper_bound=2 * tol)[0].min() <= tol)
