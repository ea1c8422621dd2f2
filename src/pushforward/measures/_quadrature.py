"""Nodes and weights of numerical integration."""

import numpy as np


def gauss_hermite(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes `(order**dim, dim)` and log-weights of the standard normal law, a tensor product."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    logs = np.log(weights) - np.log(weights.sum())
    product = lambda axis: np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, dim)
    return product(nodes), product(logs).sum(-1)
