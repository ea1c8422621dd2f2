"""Weighted clouds: made from other data, and the same measure written in other ways."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._tools.checks import (
    check_finite,
    check_floating,
    check_mass,
    check_number,
    check_same,
    check_shape,
    check_values_finite,
    check_whole,
    holds,
)
from .._tools.linkage import label_points
from .._tools.precision import full_precision, safe_log, wide, widen
from .._tools.types import Points, Times, Weights


class Cloud(NamedTuple):
    """What a measure stores."""

    atoms: Points
    """The points."""
    log_weights: Weights
    """Logarithms of their weights, minus infinity for no mass."""
    times: Times | None
    """One per atom, or None."""

    def select(self, index: Tensor) -> Cloud:
        """The atoms of one measure at an index or a mask, in that order."""
        times = None if self.times is None else self.times[..., index]
        return Cloud(self.atoms[..., index, :], self.log_weights[..., index], times)


def cover(cloud: Cloud) -> Cloud:
    """Overwrite what is stored at atoms without mass by a copy of the heaviest atom.

    A copy, rather than zeros, because a function that is defined on the support need not be
    defined at 0, and a NaN would come back through its gradient.
    """
    atoms, log_weights, times = cloud
    dead = log_weights == -torch.inf
    if holds(~dead.any(), unknown=False):
        return cloud
    heaviest = log_weights.detach().argmax(-1, keepdim=True)
    spare = atoms.detach().gather(-2, heaviest[..., None].expand(*heaviest.shape, atoms.shape[-1]))
    if times is not None:
        times = torch.where(dead, times.gather(-1, heaviest), times)
    return Cloud(torch.where(dead[..., None], spare, atoms), log_weights, times)


def strip(cloud: Cloud) -> Cloud:
    """The atoms of one measure that have mass."""
    live = cloud.log_weights > -torch.inf
    return cloud if holds(live.all()) else cloud.select(live)


def merge(cloud: Cloud, tol: float) -> Cloud:
    """The canonical form of one measure: points joined by steps up to `tol` become one atom."""
    atoms, logs, times = strip(cloud)
    x = widen(atoms)
    label, first = label_points(atoms.detach(), times, tol)
    mass = _logsumexp_by_label(logs, label, len(first))
    share = (logs - mass[label]).exp()[:, None]
    base = x[first]
    # Barycentres are formed relative to a member, so that equal points keep their very bits.
    merged = base + torch.zeros_like(base).index_add(0, label, share * (x - base[label]))
    return Cloud(merged.to(atoms.dtype), mass, None if times is None else times[first])


def split(cloud: Cloud, parts: int | Sequence[float], atom: int | None) -> Cloud:
    """The same measures with all atoms, or one, replaced by several at the same point."""
    whole = isinstance(parts, int) and not isinstance(parts, bool)
    if isinstance(parts, int):
        shares = [1 / parts] * parts if whole and parts > 0 else []
    else:
        listed = isinstance(parts, Sequence) and all(isinstance(p, Real) for p in parts)
        shares = [float(p) for p in parts] if listed else []
    if not shares or not min(shares) >= 0 or not abs(sum(shares) - 1) <= 1e-9:
        raise ValueError(
            f"`parts` must be a positive count or shares that sum to one, got {parts!r}."
        )
    n = cloud.log_weights.shape[-1]
    whole = isinstance(atom, Integral) and not isinstance(atom, bool)
    if atom is not None and not (whole and -n <= atom < n):
        raise ValueError(f"`atom` must index one of {n} atoms, got {atom!r}.")
    indices = torch.arange(n, device=cloud.atoms.device)
    log_shares = safe_log(torch.tensor(shares, dtype=torch.float64)).to(cloud.log_weights)
    counts, offset = torch.full_like(indices, len(shares)), log_shares.repeat(n)
    if atom is not None:
        counts = torch.ones_like(indices)
        counts[atom] = len(shares)
        before, after = atom % n, n - 1 - atom % n
        zeros = torch.zeros_like(offset[:n])
        offset = torch.cat([zeros[:before], log_shares, zeros[:after]])
    copied = cloud.select(indices.repeat_interleave(counts))
    return copied._replace(log_weights=copied.log_weights + offset)


def _logsumexp_by_label(values: Tensor, label: Tensor, count: int) -> Tensor:
    """Log-sum-exp of the values that share a label."""
    top = values.detach().new_full((count,), -torch.inf)
    top = top.scatter_reduce(0, label, values.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, label, (values - top[label]).exp())
    return top + total.log()


def gaussian_nodes(mean: Tensor | float, cov: Tensor | float, order: int) -> Cloud:
    r"""Gauss-Hermite nodes and weights of $\mathcal N(m,\Sigma)$."""
    mean = _corner("mean", mean)
    d = mean.shape[-1]
    check_whole("order", order)
    if not isinstance(cov, Tensor):
        check_number("cov", cov)
        cov = float(cov) * torch.eye(d).to(mean).expand(*mean.shape, d)
    check_shape("cov", cov, (*mean.shape, d), "One row and column per coordinate of `mean`.")
    for what in ("dtype", "device"):
        check_same(what, ("mean", mean), ("cov", cov))
    if not 1 <= order <= 180 or order**d > 10**7:
        raise ValueError(
            f"`order` must lie in 1..180 with at most 10^7 nodes, got {order}^{d} nodes. "
            "Lower it, or use `Measure(torch.randn(n, d))`."
        )
    with full_precision(cov):
        root, info = torch.linalg.cholesky_ex(widen(cov))
        skew = (cov - cov.mT).abs().amax((-2, -1)) > 1e-4 * cov.abs().amax((-2, -1))
    if not holds((info == 0).all() & ~skew.any() & mean.isfinite().all()):
        raise ValueError(
            "`mean` must be finite and `cov` symmetric positive definite, got others. "
            "Add a small multiple of the identity to a singular covariance."
        )
    z, logs = (torch.from_numpy(t).to(root) for t in gauss_hermite(order, d))
    with full_precision(root):
        atoms = (mean[..., None, :] + z @ root.mT).to(mean.dtype)
    return Cloud(atoms, logs.expand(atoms.shape[:-1]), None)


def gauss_hermite(order: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes `(order**dim, dim)` and log-weights of the standard normal law, a tensor product."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    logs = np.log(weights) - np.log(weights.sum())
    product = lambda axis: np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), -1).reshape(-1, dim)
    return product(nodes), product(logs).sum(-1)


def _corner(name: str, given: Tensor | float) -> Tensor:
    """A point; a number means one dimension."""
    if isinstance(given, Tensor):
        check_floating(name, given, "(..., d)", 1)
        if not given.shape[-1]:
            raise ValueError(f"`{name}` must have a coordinate, got shape {tuple(given.shape)}.")
        return given
    check_finite(name, given)
    return torch.tensor([float(given)])


def grid_centres(low: Tensor | float, high: Tensor | float, size: int) -> Tensor:
    """Centres `(size**d, d)` of the cells of a box."""
    low = _corner("low", low)
    high = _corner("high", high) if isinstance(high, Tensor) else _corner("high", high).to(low)
    check_whole("size", size)
    for what in ("dtype", "device"):
        check_same(what, ("low", low), ("high", high))
    check_shape("high", high, low.shape, "One number per coordinate of `low`.")
    if low.ndim != 1 or not low.numel() or not holds((high > low).all()):
        raise ValueError(
            f"`low` and `high` must be corners of shape (d,) with low < high, got {low.tolist()} "
            f"and {high.tolist()}."
        )
    check_values_finite(low=low, high=high)
    ticks = (torch.arange(size, dtype=low.dtype, device=low.device) + 0.5) / size
    cells = torch.cartesian_prod(*[ticks] * len(low)).reshape(-1, len(low))
    return low + (high - low) * cells


def stack(clouds: Sequence[Cloud]) -> Cloud:
    """Clouds of unequal sizes along a new first axis, padded with copies without mass."""
    sizes = [cloud.log_weights.shape[-1] for cloud in clouds]
    slots = torch.arange(max(sizes), device=clouds[0].atoms.device)
    padded = [c.select(slots.clamp(max=n - 1)) for c, n in zip(clouds, sizes, strict=True)]
    logs = [
        c.log_weights.masked_fill(slots >= n, -torch.inf)
        for c, n in zip(padded, sizes, strict=True)
    ]
    times = [c.times for c in padded if c.times is not None]
    atoms = torch.stack([c.atoms for c in padded])
    return Cloud(atoms, torch.stack(logs), torch.stack(times) if times else None)


def mixture(clouds: Sequence[Cloud], weights: Tensor | None) -> Cloud:
    """All atoms side by side, each cloud scaled by its weight."""
    if weights is None:
        weights = torch.full((len(clouds),), 1 / len(clouds)).to(clouds[0].log_weights)
    check_shape("weights", weights, (len(clouds),), "One per measure.")
    check_same("device", ("measures[0]", clouds[0].atoms), ("weights", weights))
    logs = safe_log(weights.to(clouds[0].log_weights))
    check_mass("weights", weights, logs)
    joined = torch.cat([c.log_weights + log for c, log in zip(clouds, logs, strict=True)], -1)
    times = [c.times for c in clouds if c.times is not None]
    atoms = torch.cat([c.atoms for c in clouds], -2)
    return cover(Cloud(atoms, joined, torch.cat(times, -1) if times else None))


def draw(cloud: Cloud, size: int, generator: torch.Generator | None) -> Cloud:
    """Independent draws from the normalised measures, by inverting the distribution function."""
    atoms, log_weights, times = cloud
    cdf = log_weights.detach().double().softmax(-1).cumsum(-1)
    device = cdf.device if generator is None else generator.device
    shape = (*cdf.shape[:-1], size)
    u = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
    index = torch.searchsorted(cdf, u.to(cdf.device) * cdf[..., -1:], right=True)
    drawn = atoms.gather(-2, index[..., None].expand(*shape, atoms.shape[-1]))
    logs = torch.full_like(drawn[..., 0], -math.log(size), dtype=log_weights.dtype)
    return Cloud(drawn, logs, None if times is None else times.gather(-1, index))


def given_log_weights(
    atoms: Tensor, weights: Tensor | None, log_weights: Tensor | None
) -> tuple[Tensor, tuple[str, Tensor] | None]:
    """Log-weights of atoms in their dtype, and the argument they come from with its name.

    Without weights every atom gets the same share, and there is no such argument.
    """
    if weights is not None and log_weights is not None:
        raise ValueError("Give `weights` or `log_weights`, not both.")
    if weights is not None:
        if isinstance(weights, Tensor) and not weights.is_floating_point():
            weights = weights.to(wide(atoms.dtype))  # counts
        return safe_log(_fitting("weights", weights, atoms)), ("weights", weights)
    if log_weights is not None:
        return _fitting("log_weights", log_weights, atoms), ("log_weights", log_weights)
    share = -math.log(atoms.shape[-2])
    return torch.full_like(atoms[..., 0], share, dtype=wide(atoms.dtype)), None


def _fitting(name: str, given: Tensor, atoms: Tensor) -> Tensor:
    """Weights or log-weights that fit the atoms, in the dtype of log-weights."""
    check_floating(name, given, "(..., n)", 1)
    check_shape(name, given, atoms.shape[:-1], "One per atom.")
    check_same("device", ("atoms", atoms), (name, given))
    if given.dtype != wide(atoms.dtype):
        check_same("dtype", ("atoms", atoms), (name, given))
    return given.to(wide(atoms.dtype))
