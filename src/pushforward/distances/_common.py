"""What all distances share."""

import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import check_same, holds
from ..measures import Measure

Distance = Float[Tensor, "*b"]


def pair(mu: Measure, nu: Measure, *, equal: bool = True) -> tuple[Measure, Measure]:
    """Two measures that can be compared: normalised, in float64, with one batch shape."""
    for m in (mu, nu):
        if not isinstance(m, Measure):
            raise TypeError(f"Expected two Measures, got {type(m).__name__}.")
    if mu.dim != nu.dim:
        raise ValueError(f"Measures must share their space, got R^{mu.dim} and R^{nu.dim}.")
    for what in ("dtype", "device"):
        check_same(what, ("mu", mu.atoms), ("nu", nu.atoms))
    a, b = mu.mass.detach(), nu.mass.detach()
    slack = 16 * torch.finfo(a.dtype).eps * max(mu.n, nu.n) ** 0.5
    if equal and not holds(((a - b).abs() <= slack * torch.maximum(a, b)).all()):
        raise ValueError(
            f"Measures must have equal masses, got {_show(a)} and {_show(b)}. Compare "
            "`mu.normalise()` and `nu.normalise()`, or use `wasserstein(mu, nu, p=1)`."
        )
    batch = torch.broadcast_shapes(mu.batch_shape, nu.batch_shape)
    wide = lambda m: Measure.unchecked(
        m.atoms.double().expand(*batch, m.n, m.dim),
        m.log_weights.double().log_softmax(-1).expand(*batch, m.n),
    )
    return wide(mu), wide(nu)


def _show(mass: Tensor) -> str:
    return f"{mass.item():g}" if mass.ndim == 0 else f"{mass.flatten()[:3].tolist()}"


def root(value: Tensor, p: float) -> Tensor:
    """The p-th root, 0 with gradient 0 where rounding left nothing."""
    if p == 1:
        return value
    good = value > 0
    return torch.where(good, torch.where(good, value, 1) ** (1 / p), 0)


def distance_matrix(x: Tensor, y: Tensor) -> Tensor:
    """All distances, from differences: the default matmul formula loses half the digits."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
