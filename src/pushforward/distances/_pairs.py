"""What all distances share: checks of the two measures, roots, matrices of distances."""

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_broadcast, holds
from ..measures import Measure, check_pair

Distance = Float[Tensor, "*b"]

ONCE = "This distance is differentiable once: its gradient holds the optimal plan fixed"
"""Why a second derivative is refused."""

ROUNDING = 16 * torch.finfo(torch.float64).eps
"""Relative differences in float64 that count as rounding."""


def pair(mu: Measure, nu: Measure, *, equal: bool = True) -> tuple[Measure, Measure]:
    """Two measures, checked, normalised, in float64 and with one batch shape.

    `equal` says whether their masses must be equal.
    """
    check_pair(mu, nu)
    if mu.dim != nu.dim:
        raise ValueError(f"Measures must share their space, got R^{mu.dim} and R^{nu.dim}.")
    check_broadcast("the two measures", mu.batch_shape, nu.batch_shape)
    if equal and not holds(same_mass(mu, nu).all()):
        raise ValueError(
            f"Measures must have equal masses, got {_show(mu.mass)} and {_show(nu.mass)}. Compare "
            "`mu.normalise()` and `nu.normalise()`, or use `wasserstein(mu, nu, p=1)`."
        )
    batch = torch.broadcast_shapes(mu.batch_shape, nu.batch_shape)

    def prepared(m: Measure) -> Measure:
        return Measure.unchecked(
            m.atoms.double().expand(*batch, m.n, m.dim),
            m.log_weights.double().log_softmax(-1).expand(*batch, m.n),
        )

    return prepared(mu), prepared(nu)


def same_mass(mu: Measure, nu: Measure) -> Tensor:
    """Whether total masses agree up to rounding.

    They are compared by their logarithms, whose rounding error grows with their size and with the
    root of the number of atoms.
    """
    a, b = (m.log_weights.detach().double().logsumexp(-1) for m in (mu, nu))
    size = max(mu.n, nu.n) ** 0.5 + torch.maximum(a.abs(), b.abs())
    return (a - b).abs() <= 16 * torch.finfo(mu.log_weights.dtype).eps * size


def _show(mass: Tensor) -> str:
    """A mass, or the first few of a batch, for a message."""
    return f"{mass.item():g}" if mass.ndim == 0 else f"{mass.flatten()[:3].tolist()}"


def root(value: Tensor, p: float, floor: Tensor | float = 0.0) -> Tensor:
    """The p-th root of a value above `floor`; 0 with gradient 0 below, where all is rounding."""
    if p == 1:
        return value
    good = value > floor
    return torch.where(good, torch.where(good, value, 1) ** (1 / p), 0)
