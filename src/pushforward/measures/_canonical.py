"""One measure, many ways to write it: cover, strip, merge and split a weighted cloud."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._tools.checks import holds
from .._tools.linkage import label_points
from .._tools.precision import safe_log, widen
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
    if isinstance(parts, int):
        shares = [1 / parts] * parts if parts > 0 else []
    else:
        shares = [float(p) for p in parts]
    if not shares or not min(shares) >= 0 or not abs(sum(shares) - 1) <= 1e-9:
        raise ValueError(
            f"`parts` must be a positive count or shares that sum to one, got {parts}."
        )
    n = cloud.log_weights.shape[-1]
    if atom is not None and not -n <= atom < n:
        raise ValueError(f"`atom` must index one of {n} atoms, got {atom}.")
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
