r"""Which atoms went where, decoded from the masses: subset sums.

If all subset sums of the weights $a_i$ differ, as for the generic measures $\mathcal P^*$ of
[A, Lem. 1], the masses of $f(\mu)=\sum_ia_i\delta_{y_i}$ determine which atoms each image consists
of. No push-forward produces a mass that is not a subset sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LIMIT = 32
"""The largest number of atoms; each half of them has $2^{16}$ subset sums."""


@dataclass(frozen=True)
class Decoding:
    """Which input atoms each output mass consists of.

    Args:
        owner: for every input atom, the output it is part of; None if the masses do not determine
            it.
        residual: the largest distance of an output mass from the sums of the input masses.
        problem: why there is no owner.
    """

    owner: np.ndarray | None
    residual: float
    problem: str | None = None


def decode(masses: np.ndarray, sums: np.ndarray, tol: float) -> Decoding:
    """Find for every output mass the subset of the input masses that sums to it [A, eq. 15].

    Meet in the middle: all subset sums of each half of the input masses are listed, and for every
    sum of the left half a binary search finds its complement in the right one. Time and memory
    grow as the square root of the number of subsets.

    Args:
        masses: of the inputs, positive.
        sums: masses of the outputs, positive.
        tol: how far a sum may be from an output mass.

    Raises:
        ValueError: for more than `LIMIT` inputs.
    """
    n = len(masses)
    if n > LIMIT:
        raise ValueError(
            f"Masses of at most {LIMIT} atoms are decoded, got {n}: the sums of more are too "
            "close together. Recover by excess mass: "
            "`pf.recover(f, by=pf.representation.Excess())`."
        )
    left, right = _sums(masses[: n // 2]), _sums(masses[n // 2 :])
    order = np.argsort(right, kind="stable")
    ranked = right[order]
    owner, residual = np.full(n, -1), 0.0
    for j, total in enumerate(sums):
        wanted = total - left  # what the right half must add to each sum of the left half
        after = np.searchsorted(ranked, wanted).clip(0, len(ranked) - 1)
        before = (after - 1).clip(0)
        closer = abs(ranked[before] - wanted) < abs(ranked[after] - wanted)
        nearest = np.where(closer, before, after)
        gaps = abs(ranked[nearest] - wanted)
        i = int(gaps.argmin())
        residual = max(residual, float(gaps[i]))
        if gaps[i] > tol:
            return Decoding(None, residual, "no subset")
        # More than one pair of sums within the tolerance: the masses do not identify the atoms.
        within = np.searchsorted(ranked, wanted + tol, "right")
        within -= np.searchsorted(ranked, wanted - tol, "left")
        if within.sum() > 1:
            return Decoding(None, residual, "several subsets")
        rest = int(order[nearest[i]])
        members = _members(i) + [n // 2 + k for k in _members(rest)]
        if (owner[members] >= 0).any():
            return Decoding(None, residual, "subsets overlap")
        owner[members] = j
    if (owner < 0).any():
        return Decoding(None, residual, "mass is missing")
    return Decoding(owner, residual)


def _sums(masses: np.ndarray) -> np.ndarray:
    """All subset sums; bit k of the index is set if mass k is in the subset."""
    sums = np.zeros(1)
    for mass in masses:
        sums = np.concatenate([sums, sums + mass])
    return sums


def _members(subset: int) -> list[int]:
    """The positions of the bits that are set."""
    return [k for k in range(subset.bit_length()) if subset >> k & 1]
