r"""(B2) for a black box: refuted, or not.

The largest gap found at distance $h$ is fitted by $h^{1-p}$. If it does not vanish fast enough,
the places found are looked at again at scales down to $10^{-11}$, for probes of several masses
$\eta$: a steep map has a steepest slope $K$ that does not depend on $\eta$; where $K(\eta)$ grows
as $\eta\to0$, or a gap stays open, no continuous $G$ can be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..._tools.fits import line_slope
from ._search import RATIO, Herd, Scale, Search

LIPSCHITZ_LIKE = 0.8
"""Exponents up to this are those of a continuous map."""

FEW = 4
"""Places that are looked at more closely where each look is a call of its own."""

GROWS = 0.2
r"""Exponents of $K(\eta)$ above this are those of no continuous map."""


@dataclass(frozen=True)
class Precision:
    """What a dtype can resolve.

    Args:
        hs: distances of the search.
        least_eta: the smallest mass.
        fit: distances from which on the exponent is fitted.
        zoom: the smallest distance.
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
    r"""What the search says about continuity.

    Args:
        refuted: whether no continuous $G$ can be.
        exponent: $p$ in gap $\sim h^{1-p}$.
        error: its standard error.
        slope: the largest quotient seen, a lower bound of the Lipschitz constant of $G$ in $x$.
        table: pairs $(\eta,K(\eta))$ of the zoom, empty if there was none.
        growth: the exponent of $K$ in $1/\eta$, NaN without a zoom.
        open: whether gaps stayed open at the smallest distance for most masses.
        scales: what was found at each distance.
        smallest: the smallest distance and mass looked at.
        witness: the candidate that shows it, and the distance and mass at which it does.
    """

    refuted: bool
    exponent: float
    error: float
    slope: float
    table: tuple[tuple[float, float], ...]
    growth: float
    open: bool
    scales: tuple[Scale, ...]
    smallest: tuple[float, float]
    witness: tuple[Herd, float, float]

    @property
    def holder(self) -> bool:
        """Whether it looks continuous but not Lipschitz."""
        return not self.refuted and 0.1 < self.exponent <= LIPSCHITZ_LIKE


def continuity(search: Search, precision: Precision, scale: float, noise: float) -> Continuity:
    """Search, fit, and look closer where that does not settle it.

    Args:
        search: the black box and where to look.
        precision: what its dtype resolves.
        scale: the size of the box, by which distances are multiplied.
        noise: gaps up to this are rounding.
    """
    hs = [scale * h for h in precision.hs]
    scales = search.scales(hs, precision.least_eta)
    late = [s for s in scales if s.h <= scale * precision.fit] or scales[-3:]
    quotients = [max(s.gap, noise) / s.h for s in late]
    exponent, error = line_slope([-math.log(s.h) for s in late], [math.log(q) for q in quotients])
    if late[-1].gap <= 2 * noise:
        exponent, error = 0.0, 0.0
    steepest = max(scales, key=lambda s: s.gap / s.h)
    slope = steepest.gap / steepest.h
    best = (steepest.best, steepest.h, steepest.eta)
    smallest = (hs[-1], min(s.eta for s in scales))
    if exponent <= LIPSCHITZ_LIKE:
        return Continuity(
            False, exponent, error, slope, (), math.nan, False, tuple(scales), smallest, best
        )
    places, opened = _zoom(search, scales, precision.etas, scale * precision.zoom, noise)
    table = []
    for eta in precision.etas:  # each mass at the places that any of them found
        steepness = 0.0
        for place, h in places:
            herd = place.with_eta(eta)
            herd.gap = search.gaps(herd, h)
            steepness = max(steepness, float(herd.gap) / h)
            if float(herd.gap) / h > slope:
                slope, best = float(herd.gap) / h, (herd, h, eta)
        table.append((eta, steepness))
    growth, recent = _growth(table), _growth(table[-3:])
    # A slope that has stopped growing is bounded, unless the smallest distance stops it.
    largest = max(s.gap for s in scales)
    limited = table[-1][1] * scale * precision.zoom > 0.05 * largest
    grows = growth > GROWS and (recent > GROWS or limited)
    smallest = (scale * precision.zoom, precision.etas[-1])
    return Continuity(
        grows or opened, exponent, error, slope, tuple(table), growth, opened,
        tuple(scales), smallest, best,
    )  # fmt: skip


Place = tuple[Herd, float]
"""A candidate and the distance at which it is steep."""


def _zoom(
    search: Search, scales: list[Scale], etas: tuple[float, ...], end: float, noise: float
) -> tuple[list[Place], bool]:
    """From all places found, down to the smallest distance, made better on the way.

    The steepest place for each mass, and whether gaps stayed open for most of them.
    """
    herds: dict[int, Herd] = {}
    # The last places come from the first; one call each, all of them would take long.
    waiting = list(scales) if search.caller.batched else list(scales[-FEW:])
    h = waiting[0].h
    best: dict[float, tuple[float, Place]] = {}
    trail: list[dict[float, float]] = []
    while h > end:
        while waiting and waiting[0].h >= h * (1 - 1e-9):
            place = waiting.pop(0).best
            size = place.atoms.shape[1]
            for eta in etas:
                one = place.with_eta(eta)
                herds[size] = herds[size].joined(one) if size in herds else one
        before, h = h, max(h / RATIO, end)
        herds = {k: search.refine(search.cut(v, before, h), h) for k, v in herds.items()}
        trail.append({})
        search.tick()
        for eta in etas:
            tops = [_top(herd, eta) for herd in herds.values()]
            top = max(tops, key=lambda herd: float(herd.gap))
            gap = trail[-1][eta] = float(top.gap)
            if gap > 4 * noise and gap / h > best.get(eta, (0.0,))[0]:
                best[eta] = gap / h, (top, h)
    before_last = trail[max(-3, -len(trail))]
    open_gaps = [t > 16 * noise and t > 0.5 * before_last[eta] for eta, t in trail[-1].items()]
    places = [place for _, place in best.values()] or [(scales[-1].best, scales[-1].h)]
    return places, sum(open_gaps) > len(etas) / 2


def _top(herd: Herd, eta: float) -> Herd:
    """The candidate of a mass with the largest gap."""
    of_mass = (herd.eta / eta - 1).abs() < 1e-3
    return herd.pick(herd.gap.masked_fill(~of_mass, -1).argmax()[None])


def _growth(table: Sequence[tuple[float, float]]) -> float:
    r"""The exponent of $K$ in $1/\eta$; 0 where masses do not matter and there is but one."""
    if len(table) < 2:
        return 0.0
    return line_slope(
        [-math.log(eta) for eta, _ in table], [math.log(max(k, 1e-300)) for _, k in table]
    )[0]
