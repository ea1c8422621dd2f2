"""Distances of all pairs of points."""

import torch
from torch import Tensor

FEW = 4
"""Coordinates up to which a GPU writes all differences; `torch.cdist` is far slower there."""


def distance_matrix(x: Tensor, y: Tensor) -> Tensor:
    """All distances $|x_i-y_j|$.

    They come from differences: PyTorch's default, $|x|^2+|y|^2-2xy$, loses half the digits.
    """
    if x.is_cuda and x.shape[-1] <= FEW:
        return (x[..., :, None, :] - y[..., None, :, :]).norm(dim=-1)
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
