r"""A small mass at a point, $\mu_\eta=(1-\eta)\mu+\eta\delta_x$, and the limit $\eta\to0$."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .._tools.checks import check_same, check_shape, check_values_finite
from ..measures import Measure, check_measures

ETA = {torch.float32: 1e-3, torch.float64: 1e-6}
r"""Masses at which the error of the extrapolation, of order $\eta^2$, meets rounding."""


def check_single(mu: Measure) -> None:
    """Raise unless `mu` is one measure, not a batch."""
    check_measures(mu=mu)
    if mu.batch_shape:
        raise ValueError(f"`mu` must be one measure, got a batch {mu.batch_shape}: take `mu[k]`.")


def check_point(mu: Measure, x: Tensor) -> None:
    """Raise unless `x` is one finite point of the space of `mu`."""
    check_shape("x", x, (mu.dim,), "One point, without further axes.")
    for what in ("dtype", "device"):
        check_same(what, ("mu", mu.atoms), ("x", x))
    check_values_finite(x=x)


def weights_array(mu: Measure) -> np.ndarray:
    """The weights as a NumPy array in float64."""
    return mu.weights.detach().double().cpu().numpy()


def add_mass(mu: Measure, x: Tensor, eta: float) -> tuple[Measure, int]:
    r"""$(1-\eta)\mu+\eta\delta_x$ with $\mu$ normalised, and the index of the atom at $x$.

    If $x$ is an atom already, the mass is added to that atom.
    """
    mu = mu.strip().normalise()
    at = (mu.atoms == x).all(-1).nonzero()
    old = mu.log_weights + torch.log1p(torch.tensor(-eta, dtype=mu.log_weights.dtype))
    extra = torch.full_like(old[:1], eta).log()
    if len(at):
        k = int(at[0])
        more = torch.logaddexp(old[k : k + 1], extra)
        return Measure.unchecked(mu.atoms, torch.cat([old[:k], more, old[k + 1 :]]), mu.times), k
    atoms = torch.cat([mu.atoms, x[None]])
    return Measure.unchecked(atoms, torch.cat([old, extra])), mu.n


def default_eta(mu: Measure) -> float:
    """A mass small enough for the dtype, and at most a hundredth of the lightest atom."""
    lightest = float(mu.strip().normalise().weights.detach().min())
    return min(ETA.get(mu.dtype, ETA[torch.float32]), lightest / 100)


def richardson(value: Callable[[float], Tensor], eta: float) -> Tensor:
    r"""The limit at $\eta=0$ of a function that is smooth in $\eta$, up to $O(\eta^2)$.

    Richardson's extrapolation $2v(\eta/2)-v(\eta)$.
    """
    first, second = value(eta), value(eta / 2)
    return 2 * second - first
