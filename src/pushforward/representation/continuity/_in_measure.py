r"""Is a map continuous in the measure? A jump is looked for on paths, by bisection.

Of a gap between the images at two ends of an interval, the wider half has at least half (triangle
inequality). So gap / width never falls as an interval is halved: a jump keeps its gap down to the
last bit, and what is $L$-Lipschitz closes at a width of $c/L$. The procedure:

1. *Ends.* On every mixture: does an atom still matter when its mass vanishes? If images at masses
   from $e^{-690}$ down to $e^{-10^{12}}$, which only logarithms can hold, all keep their distance
   from the image without the atom, the map jumps.
2. *Bisection.* All intervals whose gap is above a floor are halved, level by level, the widest
   first, until floats resolve no smaller step.
3. *Judgement.* An interval that is still open is a jump if its gap is as wide as it was a million
   steps further out (no power of the width above 0.008 does that, nor a logarithm), if the map is
   flat on both sides (so that it is not noise), and if gap / $W_1$ is beyond $10^{10}$.
4. Otherwise it is not resolved, and said to be so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from ..._tools.exact import transport
from ...measures import Measure
from ._paths import Mixture, Motion, Path, draw_paths
from ._region import Law, Region

Pushes = Callable[[Sequence[Measure]], Sequence[Measure | None]]
"""The images of many measures, None where the map fails."""

DRAWS = 8
"""Draws from which the size of images is taken."""

FLOOR = 0.01
"""Gaps up to this share of the size of images are not looked at: solvers have tolerances."""

PLATEAU = 0.9
"""A jump keeps at least this share of its gap over six decades."""

CLEAN = 0.2
"""Beside a jump, images move by at most this share of its gap."""

STEEPEST = 10.0
"""The logarithm, to base ten, of a slope beyond which a clean gap is called a jump; in units of
the size of images over the size of the region."""

LIGHT, LIGHTER, LIGHTEST = 80.0, 690.0, (1e3, 1e4, 1e6, 1e9, 1e12)
"""Minus the logarithms of vanishing masses; the last only log-weights can hold."""

UNDERFLOW = (700.0, 760.0)
"""Where a mass that a map computes in float64 becomes zero."""

NEGLIGIBLE = 1e-18
"""Masses below this do not count in a distance of images."""

BEAM = ((4, 24, 3), (8, 12, 2), (16, 6, 1), (math.inf, 4, 1))
"""Up to which level of bisection how many intervals are kept, of each kind of path and of one."""

JUDGED = 12
"""Open intervals that are judged."""


class Outcome(Enum):
    """What the search for a jump along paths of measures has shown."""

    NOT_REFUTED = "not refuted"
    JUMPS = "jumps"
    UNRESOLVED = "not resolved"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, eq=False)
class InMeasure:
    r"""What is known about the continuity of a map in the measure.

    Args:
        outcome: the result.
        detail: what was seen, in words.
        log_quotient: $\log_{10}$ of the largest quotient of distances of images and of measures
            that was seen; a lower bound of a Lipschitz constant, if there is one.
        pair: two measures that show a jump, None if there is none.
        calls: measures that the map was called with.
    """

    outcome: Outcome
    detail: str = ""
    log_quotient: float = -math.inf
    pair: tuple[Measure, Measure] | None = None
    calls: int = 0

    @property
    def quotient(self) -> str:
        """The largest quotient in words, also where no float holds it."""
        return power_of_ten(self.log_quotient)

    def __str__(self) -> str:
        match self.outcome:
            case Outcome.JUMPS:
                return f"jumps, or is steeper than {self.quotient}: {self.detail}"
            case Outcome.NOT_REFUTED:
                return (
                    f"no jump on {self.calls} measures along paths; the largest quotient of "
                    f"distances seen is {self.quotient}"
                )
        return f"{self.outcome.value}: {self.detail}"


def power_of_ten(logarithm: float) -> str:
    """A number given by its decimal logarithm, with two digits."""
    if logarithm == -math.inf:
        return "0"
    if abs(logarithm) < 300:
        return f"{10**logarithm:.2g}"
    return f"1e{math.floor(logarithm)}"


class Image(NamedTuple):
    """The image of a measure, without negligible masses."""

    points: np.ndarray
    masses: np.ndarray


def continuity_in_measure(
    pushes: Pushes,
    law: Law,
    size: int,
    region: Region,
    generator: torch.Generator,
    tick: Callable[[], None] = lambda: None,
) -> InMeasure:
    """Look for a jump of a map between measures along mixtures and motions.

    Args:
        pushes: the map, for many measures at once.
        law: `law(n, generator)` draws a measure.
        size: `n`, the atoms of a draw.
        region: where points may be, in float64.
        generator: of all random numbers.
        tick: called now and then.

    Examples:
        >>> law = lambda n, g: pf.Measure(torch.rand(n, 1, generator=g, dtype=torch.float64))
        >>> maximum = lambda mu: mu.moved(mu.atoms + mu.atoms.amax(-2, keepdim=True))
        >>> ends = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> region = pf.representation.continuity.Region.around(ends)
        >>> generator = torch.Generator().manual_seed(0)
        >>> pushes = lambda measures: [maximum(mu) for mu in measures]
        >>> pf.representation.continuity.continuity_in_measure(
        ...     pushes, law, 5, region, generator
        ... ).outcome
        <Outcome.JUMPS: 'jumps'>
    """
    draws = [law(size, generator).strip().normalise() for _ in range(DRAWS)]
    images = [as_image(out) for out in pushes(draws)]
    known = [image for image in images if image is not None]
    if len(known) < len(images):
        return InMeasure(Outcome.UNRESOLVED, "the map fails on draws of the law", calls=DRAWS)
    scale = _size(known, draws)
    search = _Bisection(pushes, FLOOR * scale, math.log(scale / region.size))
    found = search.run(draw_paths(law, size, region, generator), tick)
    failures = sum(image is None for image in search.images.values())
    if found["outcome"] is Outcome.NOT_REFUTED and 2 * failures > search.calls:
        detail = f"the map fails on {failures} of {search.calls} measures along paths"
        found = {"outcome": Outcome.UNRESOLVED, "detail": detail}
    return InMeasure(**found, calls=DRAWS + search.calls)


def _size(images: Sequence[Image], draws: Sequence[Measure]) -> float:
    """The usual spread of an image or distance of two, whichever is larger; above rounding."""
    centre = lambda image: Image((image.masses @ image.points)[None], np.ones(1))
    spread = median(distance(image, centre(image)) for image in images)
    apart = median(distance(a, b) for a, b in pairwise(images))
    largest = max(float(np.abs(image.points).max()) for image in images)
    largest = max(largest, *(float(mu.atoms.abs().max()) for mu in draws))
    rounding = 1e4 * torch.finfo(torch.float64).eps * largest
    return max(spread, apart, rounding / FLOOR)


def as_image(out: Measure | None) -> Image | None:
    """Points and masses of an image as arrays; None if the map failed."""
    if out is None:
        return None
    points = out.atoms.detach().double().cpu().numpy()
    masses = out.normalise().weights.detach().double().cpu().numpy()
    counts = masses > NEGLIGIBLE
    points, masses = points[counts], masses[counts]
    return Image(points, masses / masses.sum())


def distance(a: Image | None, b: Image | None) -> float:
    """Exact $W_1$ of two images, NaN where the map failed."""
    if a is None or b is None:
        return math.nan
    cost = np.linalg.norm(a.points[:, None] - b.points[None], axis=-1)
    if 1 in cost.shape:  # from or to one point: there is nothing to choose
        return float(a.masses @ cost @ b.masses)
    return float((transport(a.masses, b.masses, cost).masses * cost).sum())


def change(a: Image | None, b: Image | None, transferred: float, floor: float) -> float:
    """How far images differ beyond what a transfer of mass between inputs explains.

    It is $W_1$, or a bound of it by which atom $i$ goes to atom $i$, where images have as many
    atoms: mass that changes places is then free up to what was transferred. Nothing is solved
    where that bound is below the floor.
    """
    if a is None or b is None or a.points.shape != b.points.shape:
        return distance(a, b)
    width = float(np.linalg.norm(np.ptp(np.concatenate([a.points, b.points]), axis=0)))
    stay = np.minimum(a.masses, b.masses)
    bound = float(stay @ np.linalg.norm(a.points - b.points, axis=-1))
    bound += width * max(0.0, float(np.abs(a.masses - b.masses).sum()) / 2 - transferred)
    return bound if bound <= floor else min(bound, distance(a, b))


class _Interval(NamedTuple):
    """A part of a path, and how far the images of its ends differ."""

    gap: float
    path: Path
    s: float
    t: float


def _widest(intervals: Iterable[_Interval], level: int) -> list[_Interval]:
    """The widest gaps, some of each kind of path and a few of one path."""
    most, each = next(row[1:] for row in BEAM if level < row[0])
    kept: list[_Interval] = []
    count: Counter[object] = Counter()
    for interval in sorted(intervals, key=lambda c: c.gap, reverse=True):
        kind, path = type(interval.path), id(interval.path)
        if count[kind] < most and count[path] < each:
            kept.append(interval)
            count.update((kind, path))
    return kept


class _Bisection:
    """The search on all paths.

    Args:
        pushes: the map.
        floor: gaps up to this are not looked at.
        log_unit: the logarithm of the size of images over the size of the region.
    """

    def __init__(self, pushes: Pushes, floor: float, log_unit: float) -> None:
        self.pushes, self.floor, self.log_unit = pushes, floor, log_unit
        self.images: dict[tuple[Path, float], Image | None] = {}
        self.log_steepest, self.doubt = -math.inf, ""
        self.flat_end: dict[tuple[Path, float], bool] = {}
        """Whether images have settled at $e^{-690}$, by path and end of the path."""

    @property
    def calls(self) -> int:
        """Measures that the map was called with."""
        return len(self.images)

    def run(self, paths: Iterable[Path], tick: Callable[[], None]) -> dict:
        """The result, as arguments of `InMeasure`."""
        intervals: list[_Interval] = []
        for number, path in enumerate(paths):
            nodes = list(path.nodes)
            if isinstance(path, Mixture):
                jump, deeper = self._ends(path)
                if jump is not None:
                    return jump
                nodes = sorted([*nodes, *deeper])
            intervals += self._intervals(path, nodes)
            if number % 10 == 9:
                tick()
        survivors = self._bisect(_widest(intervals, 0), tick)
        for interval in _widest(survivors, 8)[:JUDGED]:
            jump = self._judged(interval)
            if jump is not None:
                return jump
        log_quotient = self.log_steepest / math.log(10)
        outcome = Outcome.UNRESOLVED if self.doubt else Outcome.NOT_REFUTED
        return {"outcome": outcome, "detail": self.doubt, "log_quotient": log_quotient}

    def _ask(self, wanted: Iterable[tuple[Path, float]]) -> None:
        """Call the map at all places where it was not called yet."""
        new = list(dict.fromkeys(place for place in wanted if place not in self.images))
        if new:
            outs = self.pushes([path.at(t) for path, t in new])
            self.images.update(zip(new, map(as_image, outs), strict=True))

    def _distance(self, path: Path, s: float, t: float) -> float:
        self._ask([(path, s), (path, t)])
        return distance(self.images[path, s], self.images[path, t])

    def _ends(self, path: Mixture) -> tuple[dict | None, list[float]]:
        """Does a vanishing mass matter? A jump, or further parameters to look at."""
        deeper: list[float] = []
        self._ask([(path, t) for t in (*path.nodes, -math.inf, math.inf)])
        for sign in (-1.0, 1.0):
            end = sign * math.inf
            gap, before = (self._distance(path, end, sign * v) for v in (LIGHTER, LIGHT))
            if not gap > self.floor:
                continue
            settled = gap >= PLATEAU * before
            self.flat_end[path, sign] = settled
            gaps = [self._distance(path, end, sign * v) for v in LIGHTEST]
            if settled and min(gaps) >= PLATEAU * gap:
                what = f"an atom of mass e^-{LIGHTER:g} to e^-{LIGHTEST[-1]:g} moves the image by"
                return {
                    "outcome": Outcome.JUMPS, "detail": f"{what} {gap:.2g}",
                    "log_quotient": LIGHTER / math.log(10) - 1,
                    "pair": (path.at(sign * LIGHTER), path.at(end)),
                }, []  # fmt: skip
            if any(map(math.isnan, gaps)):
                self.doubt = (
                    f"an atom of mass e^-{LIGHTER:g} moves the image by {gap:.2g}, and lighter "
                    "ones give no result"
                )
            deeper += [sign * v for v in LIGHTEST]
        return None, deeper

    def _intervals(self, path: Path, nodes: Sequence[float]) -> list[_Interval]:
        """The open intervals between nodes of a path.

        A motion moves images all along; what counts is how much a gap exceeds the usual one.
        """
        self._ask([(path, t) for t in nodes])
        gaps = [self._change(path, s, t) for s, t in pairwise(nodes)]
        known = [gap for gap in gaps if not math.isnan(gap)]
        usual = median(known) if known and isinstance(path, Motion) else 0.0
        ends = zip(gaps, pairwise(nodes), strict=True)
        return [_Interval(gap - usual, path, s, t) for gap, (s, t) in ends if gap > self.floor]

    def _change(self, path: Path, s: float, t: float) -> float:
        a, b = self.images[path, s], self.images[path, t]
        return change(a, b, path.transferred(s, t), self.floor)

    def _bisect(self, intervals: list[_Interval], tick: Callable[[], None]) -> list[_Interval]:
        """Halve intervals until they close or floats resolve no less; those still open."""
        survivors: list[_Interval] = []
        level = 0
        while intervals:
            middles = [(i.path, (i.s + i.t) / 2) for i in intervals]
            self._ask(middles)
            halves: list[_Interval] = []
            for interval, (path, middle) in zip(intervals, middles, strict=True):
                for s, t in ((interval.s, middle), (middle, interval.t)):
                    gap = self._change(path, s, t)
                    if not gap > self.floor:
                        continue
                    half = _Interval(gap, path, s, t)
                    done = t - s <= 2 * path.least_step(t)
                    (survivors if done else halves).append(half)
                    steep = math.log(gap) - path.log_distance(s, t)
                    self.log_steepest = max(self.log_steepest, steep)
            level += 1
            intervals = _widest(halves, level)
            if level % 10 == 0:
                tick()
        return survivors

    def _judged(self, interval: _Interval) -> dict | None:
        """A jump, if an interval that is still open is a clean one."""
        _, path, s, t = interval
        step = path.least_step(t)
        low, high = path.span
        before = lambda steps: max(low, s - steps * step)
        after = lambda steps: min(high, t + steps * step)
        near = (3, 10, 100, 1000)
        self._ask([(path, f(k)) for k in (*near, 1e6) for f in (before, after)])
        gap = self._distance(path, s, t)
        wider = self._distance(path, before(1e6), after(1e6))
        beside = [self._distance(path, s, before(k)) for k in near]
        beside += [self._distance(path, t, after(k)) for k in near]
        steep = math.log(gap) - path.log_distance(s, t)
        # Where a map computes with weights, not with their logarithms, they become 0 at e^-745.
        underflows = UNDERFLOW[0] < abs(t) < UNDERFLOW[1] and not self.flat_end.get(
            (path, math.copysign(1.0, t)), True
        )
        kind = "a mixture" if isinstance(path, Mixture) else "a motion"
        seen = (
            f"along {kind} the image moves by {gap:.2g} within the least step that floats "
            f"resolve, by {wider:.2g} over a million of them, and by {max(beside):.1g} beside it"
        )
        steep_enough = (steep - self.log_unit) / math.log(10) > STEEPEST
        clean = gap >= PLATEAU * wider and max(beside) <= CLEAN * gap
        if clean and steep_enough and not underflows:
            return {
                "outcome": Outcome.JUMPS, "detail": seen,
                "log_quotient": steep / math.log(10), "pair": (path.at(s), path.at(t)),
            }  # fmt: skip
        self.doubt = self.doubt or seen
        return None
