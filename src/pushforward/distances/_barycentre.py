"""Barycentres of measures for the distance $W_2$."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_floating,
    check_generator,
    check_mass,
    check_optional_sizes,
    check_same,
    check_shape,
    check_sizes,
)
from .._tools.exact import transport
from .._tools.precision import safe_log
from .._tools.warn import warn
from ..measures import Measure, check_measures, listed

ROUNDING = 1e-12
"""Moves below this share of the size of the cloud count as none."""


def barycentre(
    measures: Sequence[Measure] | Measure,
    weights: Float[Tensor, " parts"] | None = None,
    *,
    size: int | None = None,
    start: Measure | None = None,
    steps: int = 100,
    generator: torch.Generator | None = None,
) -> Measure:
    r"""A measure in the middle of others, minimising $\sum_k\lambda_kW_2^2(\nu,\mu_k)$.

    The atoms of $\nu$ are free and their weights are fixed. Each step finds the optimal plans from
    $\nu$ to all $\mu_k$, exactly, and moves every atom to the mean of the points that it is sent
    to. The objective decreases with each step, in general to a local minimum, which depends on
    the start. On the line it is the minimum: the quantile function of $\nu$ is the best fit to
    $\sum_k\lambda_kF_k^{-1}$. There are no gradients.

    Args:
        measures: the $\mu_k$ in one space, each with its weights and taken at mass one: a sequence
            of single measures, or a batch.
        weights: the $\lambda_k\ge0$, normalised to sum one; equal by default.
        size: number of atoms of $\nu$, of equal weights; it starts from draws from the mixture
            $\sum_k\lambda_k\mu_k$.
        start: a measure to start from instead, whose weights are kept.
        steps: after so many steps without standing still it warns.
        generator: draws the atoms it starts from.

    Examples:
        >>> a, b = pf.Measure([[0.0], [1.0]]), pf.Measure([[4.0], [9.0]])
        >>> pf.distances.barycentre([a, b], size=2).merge().atoms.flatten()
        tensor([2., 5.])
    """
    clouds = _checked(measures)
    first = clouds[0]
    shares = _shares(weights, len(clouds), first)
    check_sizes(steps=steps)
    check_optional_sizes(size=size)
    check_generator(generator)
    if start is not None and size is None:
        (start,) = _checked([start], "start", first)
    elif size is not None and start is None:
        mixed = Measure.mixture([m.normalise() for m in clouds], shares)
        start = mixed.sample(size, generator=generator)
    else:
        raise ValueError(
            "Give `size`, a number of atoms, or `start`, a measure, got "
            f"{'neither' if size is None else 'both'}."
        )
    x, b = _arrays(start)
    atoms = _fixed_point(x, b, [_arrays(m) for m in clouds], shares.double().cpu().numpy(), steps)
    return start.normalise().moved(torch.as_tensor(atoms).to(first.atoms))


def _fixed_point(
    x: np.ndarray,
    b: np.ndarray,
    clouds: list[tuple[np.ndarray, np.ndarray]],
    shares: np.ndarray,
    steps: int,
) -> np.ndarray:
    """Atoms that the plans to all clouds send to themselves in the mean."""
    size = max(np.ptp(np.concatenate([y for y, _ in clouds]), axis=0).max(), 1e-300)
    for _ in range(steps):
        moved = np.zeros_like(x)
        for (y, a), share in zip(clouds, shares, strict=True):
            cost = (((x[:, None] - y[None]) / size) ** 2).sum(-1)
            moved += share * (transport(b, a, cost).masses @ y) / b[:, None]
        move, x = np.abs(moved - x).max(), moved
        if move <= ROUNDING * (size + np.abs(x).max()):
            return x
    warn(
        f"The barycentre still moved by {move:.1e} after {steps} steps. Raise `steps`, or take "
        "the result as it is."
    )
    return x


def _arrays(mu: Measure) -> tuple[np.ndarray, np.ndarray]:
    """Atoms and normalised weights in float64."""
    weights = mu.log_weights.detach().double().softmax(-1)
    return mu.atoms.detach().double().cpu().numpy(), weights.cpu().numpy()


def _checked(
    measures: Sequence[Measure] | Measure, name: str = "measures", like: Measure | None = None
) -> list[Measure]:
    """Single measures without zero masses and times, that share space, dtype and device."""
    if isinstance(measures, Measure) and not measures.batch_shape:
        raise ValueError(f"`{name}` must be several measures, got one. Give a list or a batch.")
    found = listed(name, measures)
    for mu in found:
        check_measures(**{name: mu})
        first = found[0] if like is None else like
        if mu.batch_shape:
            raise ValueError(
                f"`{name}` must be single measures, got one of batch shape {mu.batch_shape}."
            )
        if mu.dim != first.dim:
            raise ValueError(f"Measures must share their space, got R^{first.dim} and R^{mu.dim}.")
        for what in ("dtype", "device"):
            check_same(what, ("measures[0]", first.atoms), (name, mu.atoms))
    return [Measure.unchecked(m.atoms, m.log_weights) for m in (mu.strip() for mu in found)]


def _shares(weights: Tensor | None, count: int, first: Measure) -> Tensor:
    r"""The $\lambda_k$, of sum one."""
    if weights is None:
        return torch.full((count,), 1 / count).to(first.log_weights)
    check_floating("weights", weights, "(parts,)", 1)
    check_shape("weights", weights, (count,), "One per measure.")
    check_same("device", ("measures[0]", first.atoms), ("weights", weights))
    weights = weights.detach().to(first.log_weights)
    check_mass("weights", weights, safe_log(weights))
    return weights / weights.sum()
