r"""(B2) for a black box: refuted, or not [A, Thm. 1].

A continuous $G$ exists only if the image $y_\eta(x)$ of a small mass $\eta$ at $x$ has a limit as
$\eta\to0$ that is continuous in $x$. A jump cannot be seen, only a steep slope; what separates the
two is what happens as distances $h$ and masses $\eta$ become small:

1. *Search.* At distances $h$ from 0.3 down to $10^{-6}$ of the box, with masses $\eta\ll h$, find
   the widest gap $|y_\eta(x)-y_\eta(x+hu)|$ over contexts, points and directions (`Search`).
2. *Fit.* Fit the gaps by $h^{1-p}$. If $p$ is at most 0.8, gaps close: a continuous map ($p=0$:
   Lipschitz; $0<p<1$: Hölder of exponent $1-p$). Not refuted.
3. *Zoom.* Otherwise the map may jump, or be steeper than the smallest distance resolves. From
   every widest gap go on to distances of $2\cdot10^{-11}$, with several masses from $10^{-5}$ to
   $10^{-13}$, improving candidates on the way.
4. *Compare masses.* $K(\eta)$ is the largest quotient gap/h that any candidate of the zoom shows
   with mass $\eta$. A steep but continuous map has a largest slope that does not depend on the
   mass: $K$ stops growing. Refuted if $K$ grows like a power of $1/\eta$ up to the smallest
   masses, or if gaps do not close at all for most masses: a jump keeps its gap over six decades
   of $h$. A modulus such as $1/\log(1/h)$ loses more than half of it, and is not refuted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from ..._tools.fits import line_slope
from ._candidates import Candidates, WidestGap
from ._search import RATIO, Search

LARGEST_CONTINUOUS = 0.8
"""Exponents p up to this belong to continuous maps; fits of continuous ones stay below it."""

LEAST_HOLDER = 0.1
"""Exponents p from this on are reported as Hölder continuous, not Lipschitz."""

FEW = 4
"""Gaps that the zoom starts from if every candidate takes calls of its own."""

JUMP_KEEPS = 0.8
"""A jump keeps at least this share of its gap over the last decades of h."""

DECADES = 6
"""Over so many decades of h, where the dtype has as many."""

GROWS = 0.2
r"""If $K(\eta)$ grows faster than $\eta^{-0.2}$, no continuous map has it."""


@dataclass(frozen=True)
class Precision:
    """Distances and masses that a dtype resolves, distances in units of the box.

    Args:
        hs: distances of the search.
        least_eta: the smallest mass.
        fit: the exponent is fitted at distances up to this.
        zoom: the smallest distance of the zoom.
        etas: masses of the zoom.
    """

    hs: tuple[float, ...]
    least_eta: float
    fit: float
    zoom: float
    etas: tuple[float, ...]


PRECISION = {
    torch.float64: Precision(
        tuple(0.3 / RATIO**k for k in range(12)), 1e-13, 3e-3, 2e-11,
        (1e-5, 1e-7, 1e-9, 1e-11, 1e-13),
    ),
    torch.float32: Precision(
        tuple(0.3 / RATIO**k for k in range(6)), 1e-5, 0.1, 1e-4, (1e-2, 1e-3, 1e-4, 1e-5)
    ),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Continuity:
    r"""What the search found out about continuity.

    Args:
        refuted: whether no continuous $G$ exists.
        exponent: $p$ in gap $\sim h^{1-p}$.
        error: its standard error.
        slope: the largest quotient gap/h, a lower bound of the Lipschitz constant of $G$ in $x$.
        witness: the gap that shows this quotient.
        gaps: the widest gap at each distance of the search.
        table: pairs $(\eta,K(\eta))$ of the zoom, empty if there was none.
        growth: the exponent of $K$ in $1/\eta$, NaN without a zoom.
        kept: the share of the gap that is left over the last decades of the zoom, for a typical
            mass; NaN without a zoom.
        smallest: the smallest distance and the smallest mass.
    """

    refuted: bool
    exponent: float
    error: float
    slope: float
    witness: WidestGap
    gaps: tuple[WidestGap, ...]
    table: tuple[tuple[float, float], ...]
    growth: float
    kept: float
    smallest: tuple[float, float]

    @property
    def holder(self) -> bool:
        """Whether the gaps are those of a continuous map that is not Lipschitz."""
        return not self.refuted and LEAST_HOLDER < self.exponent <= LARGEST_CONTINUOUS

    @property
    def slow(self) -> bool:
        """Whether gaps close, but slower than any power of h that could be told from a jump."""
        return not self.refuted and self.kept > 10 ** (-DECADES * GROWS)


def continuity(search: Search, precision: Precision) -> Continuity:
    """Search for a jump, fit an exponent, and zoom in if that does not decide.

    Args:
        search: the map and where to search.
        precision: distances and masses that its dtype resolves.
    """
    scale, noise = search.region.size, search.region.noise
    hs = [scale * h for h in precision.hs]
    gaps = tuple(search.widest_gaps(hs, precision.least_eta))
    exponent, error = _exponent(gaps, scale * precision.fit, noise)
    witness = max(gaps, key=_quotient)
    if exponent <= LARGEST_CONTINUOUS:
        smallest = (hs[-1], min(g.eta for g in gaps))
        return Continuity(
            False, exponent, error, _quotient(witness), witness, gaps, (), math.nan, math.nan,
            smallest,
        )  # fmt: skip
    end = scale * precision.zoom
    steepest, kept = _zoom(search, gaps, precision, end)
    table = []
    for eta in precision.etas:
        # Each mass at the steepest candidate of every mass: the maximum over the same candidates.
        same = [_measured(search, found, eta) for found in steepest]
        table.append((eta, max(map(_quotient, same))))
        witness = max([witness, *same], key=_quotient)
    growth, recent = _growth(table), _growth(table[-3:])
    # A K that has stopped growing belongs to a bounded slope; unless it stopped because gaps as
    # wide as those of the search do not fit into the smallest distance.
    limited = table[-1][1] * end > 0.05 * max(g.gap for g in gaps)
    grows = growth > GROWS and (recent > GROWS or limited)
    return Continuity(
        grows or kept >= JUMP_KEEPS, exponent, error, _quotient(witness), witness, gaps,
        tuple(table), growth, kept, (end, precision.etas[-1]),
    )  # fmt: skip


def _quotient(found: WidestGap) -> float:
    return found.gap / found.h


def _exponent(gaps: Sequence[WidestGap], largest: float, noise: float) -> tuple[float, float]:
    """The exponent p of gap ~ h^(1-p) at small distances, and its standard error."""
    late = [g for g in gaps if g.h <= largest] or gaps[-3:]
    if late[-1].gap <= 2 * noise:  # the gap has closed
        return 0.0, 0.0
    quotients = [max(g.gap, noise) / g.h for g in late]
    return line_slope([-math.log(g.h) for g in late], [math.log(q) for q in quotients])


def _measured(search: Search, found: WidestGap, eta: float) -> WidestGap:
    """The same candidate with another mass."""
    candidate = found.candidate.with_eta(eta)
    candidate.gap = search.gaps(candidate, found.h)
    return WidestGap(found.h, eta, float(candidate.gap), candidate)


def _zoom(
    search: Search, gaps: Sequence[WidestGap], precision: Precision, end: float
) -> tuple[list[WidestGap], float]:
    """From every widest gap down to the smallest distance, with every mass.

    Returns the steepest candidate for each mass, and the share of a gap that is left over the last
    decades, for the median mass.
    """
    etas, noise = precision.etas, search.region.noise
    # Late candidates descend from early ones. If calls are slow, the last few have to do.
    waiting = list(gaps) if search.images.batched else list(gaps[-FEW:])
    batches: dict[int, Candidates] = {}
    steepest: dict[float, WidestGap] = {}
    widest: dict[float, WidestGap] = {}
    h = waiting[0].h
    while h > end:
        while waiting and waiting[0].h >= h * (1 - 1e-9):
            candidate = waiting.pop(0).candidate
            n = candidate.atoms.shape[1]
            for eta in etas:
                one = candidate.with_eta(eta)
                batches[n] = batches[n].joined(one) if n in batches else one
        before, h = h, max(h / RATIO, end)
        batches = {n: search.refine(search.cut(b, before, h), h) for n, b in batches.items()}
        search.tick()
        for eta in etas:
            best = max((_widest(b, eta) for b in batches.values()), key=lambda b: float(b.gap))
            found = WidestGap(h, eta, float(best.gap), best)
            widest[eta] = found
            # Gaps near rounding have meaningless quotients.
            steeper = eta not in steepest or _quotient(found) > _quotient(steepest[eta])
            if found.gap > 4 * noise and steeper:
                steepest[eta] = found
    kept = [_kept(search, found) for found in widest.values()]
    return list(steepest.values()) or [gaps[-1]], median(kept)


def _kept(search: Search, found: WidestGap) -> float:
    """The share of a gap that is left of the one at a much larger distance, on the same line."""
    if found.gap <= 16 * search.region.noise:
        return 0.0
    # Not too far: there the smooth part of a map would count.
    far = min(10.0**DECADES * found.h, 1e-2 * search.region.size)
    candidate = found.candidate
    begin = search.region.clamp(candidate.x - (far - found.h) / 2 * candidate.u)
    wide = float(search.gaps(replace(candidate, x=begin), far))
    return found.gap / wide if wide > 0 else 1.0


def _widest(batch: Candidates, eta: float) -> Candidates:
    """Of the candidates with a given mass the one with the widest gap."""
    with_mass = (batch.eta / eta - 1).abs() < 1e-3
    return batch.pick(batch.gap.masked_fill(~with_mass, -1).argmax()[None])


def _growth(table: Sequence[tuple[float, float]]) -> float:
    r"""The exponent of $K$ in $1/\eta$; 0 if there is only one mass."""
    if len(table) < 2:
        return 0.0
    return line_slope(
        [-math.log(eta) for eta, _ in table], [math.log(max(k, 1e-300)) for _, k in table]
    )[0]
