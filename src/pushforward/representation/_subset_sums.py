r"""Which atoms went where, read off the masses: subset sums.

If all subset sums of the weights $a_i$ differ, the masses of $f(\mu)=\sum_ia_i\delta_{y_i}$ say
which atoms each image is made of. A mass that is no subset sum is one that no push-forward makes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LIMIT = 32
"""Atoms that are decoded: $2^{16}$ sums of each half are looked at."""


@dataclass(frozen=True)
class Decoding:
    """What output masses say about input masses.

    Args:
        owner: for every input atom, the output it is part of; None if they do not say.
        residual: the largest distance of an output mass from the sums of the input masses.
        problem: why there is no owner.
        culprit: the output that is to blame.
    """

    owner: np.ndarray | None
    residual: float
    problem: str | None = None
    culprit: int | None = None

    @property
    def refuted(self) -> bool:
        """Whether some output mass is no sum of input masses."""
        return self.problem == "no subset"


def decode(masses: np.ndarray, sums: np.ndarray, tol: float) -> Decoding:
    """Find for every output mass the input masses it is the sum of.

    Both halves of the input masses have their sums listed, and pairs of them are looked for: time
    and memory grow as the square root of the number of subsets.

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
            f"Masses of at most {LIMIT} atoms are decoded, got {n}: beyond, sums are too close to "
            "tell apart. Recover by excess mass: `pf.recover(f, by=pf.representation.Excess())`."
        )
    left, right = _sums(masses[: n // 2]), _sums(masses[n // 2 :])
    order = np.argsort(right, kind="stable")
    ranked = right[order]
    owner, residual = np.full(n, -1), 0.0
    for j, total in enumerate(sums):
        wanted = total - left
        after = np.searchsorted(ranked, wanted).clip(0, len(ranked) - 1)
        before = (after - 1).clip(0)
        closer = abs(ranked[before] - wanted) < abs(ranked[after] - wanted)
        nearest = np.where(closer, before, after)
        gaps = abs(ranked[nearest] - wanted)
        i = int(gaps.argmin())
        residual = max(residual, float(gaps[i]))
        if gaps[i] > tol:
            return Decoding(None, residual, "no subset", j)
        within = np.searchsorted(ranked, wanted + tol, "right")
        within -= np.searchsorted(ranked, wanted - tol, "left")
        if within.sum() > 1:
            return Decoding(None, residual, "several subsets", j)
        rest = int(order[nearest[i]])
        members = _members(i) + [n // 2 + k for k in _members(rest)]
        if (owner[members] >= 0).any():
            return Decoding(None, residual, "subsets overlap", j)
        owner[members] = j
    if (owner < 0).any():
        return Decoding(None, residual, "mass is missing", None)
    return Decoding(owner, residual)


def _sums(masses: np.ndarray) -> np.ndarray:
    """All subset sums; bit k of the index says whether mass k is in."""
    sums = np.zeros(1)
    for mass in masses:
        sums = np.concatenate([sums, sums + mass])
    return sums


def _members(subset: int) -> list[int]:
    """The positions of the bits that are set."""
    return [k for k in range(subset.bit_length()) if subset >> k & 1]
