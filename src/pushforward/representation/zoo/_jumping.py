r"""Maps that are not continuous in the measure: each adds to $x$ a number that jumps."""

from __future__ import annotations

import torch

from ...measures import Measure, check_measures


def masked_pooling(mu: Measure) -> Measure:
    r"""$x$ plus the mean of the tokens with $x_1>0$: division by the mass of a part of $\mu$.

    As that mass vanishes the mean has no limit.
    """
    check_measures(mu=mu)
    chosen = (mu.atoms[..., 0] > 0).to(mu.dtype)
    weights = mu.normalise().weights * chosen
    total = weights.sum(-1, keepdim=True)
    mean = (weights[..., None] * mu.atoms).sum(-2) / torch.where(total > 0, total, 1)
    return mu.moved(mu.atoms + mean[..., None, :])


def max_pooling(mu: Measure) -> Measure:
    r"""$x$ plus the largest coordinates of all atoms: an atom of any small mass counts in full."""
    check_measures(mu=mu)
    with_mass = (mu.log_weights > -torch.inf)[..., None]
    largest = mu.atoms.masked_fill(~with_mass, -torch.inf).amax(-2, keepdim=True)
    return mu.moved(mu.atoms + largest)


def min_max_scaling(mu: Measure) -> Measure:
    r"""Coordinates scaled to $[0,1]$ by the extreme atoms, whatever these weigh."""
    check_measures(mu=mu)
    x, with_mass = mu.atoms, (mu.log_weights > -torch.inf)[..., None]
    low = x.masked_fill(~with_mass, torch.inf).amin(-2, keepdim=True)
    high = x.masked_fill(~with_mass, -torch.inf).amax(-2, keepdim=True)
    return mu.moved((x - low) / torch.where(high > low, high - low, 1))


def median_centring(mu: Measure) -> Measure:
    r"""$x$ less the weighted median: it jumps where a gap has half of the mass on either side."""
    check_measures(mu=mu)
    points, order = mu.atoms.sort(-2)
    weights = mu.normalise().weights[..., None].expand_as(points).gather(-2, order)
    first = (weights.cumsum(-2) >= 0.5).to(torch.int8).argmax(-2, keepdim=True)
    return mu.moved(mu.atoms - points.gather(-2, first))


def sign_of_mean(mu: Measure) -> Measure:
    r"""$x$ plus the signs of the coordinates of the barycentre."""
    check_measures(mu=mu)
    return mu.moved(mu.atoms + mu.mean()[..., None, :].sign())


def heaviest_atom(mu: Measure) -> Measure:
    r"""$x$ plus the atom of largest mass: it jumps where two are equally heavy."""
    check_measures(mu=mu)
    merged = mu.atoms[..., :, None, :] == mu.atoms[..., None, :, :]
    weights = (merged.all(-1) * mu.normalise().weights[..., None, :]).sum(-1)
    heaviest = weights.argmax(-1)[..., None, None].expand(*mu.batch_shape, 1, mu.dim)
    return mu.moved(mu.atoms + mu.atoms.gather(-2, heaviest))


def half_space_mass(mu: Measure) -> Measure:
    r"""$x$ plus the mass of $\{x_1>0\}$: it jumps as an atom crosses the boundary."""
    check_measures(mu=mu)
    inside = (mu.atoms[..., 0] > 0).to(mu.dtype)
    return mu.moved(mu.atoms + mu.normalise().integrate(inside)[..., None, None])
