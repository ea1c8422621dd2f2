r"""What kind of map is it? [A, Thm. 1] for a black box.

A continuous map $f$ between measures is the push-forward by a continuous in-context map,
$f(\mu)=G(\mu,\cdot)_\sharp\mu$, exactly when (B1) it preserves supports and (B2) the regular part
of its derivative is uniformly continuous. Both can be refuted by calling $f$; neither can be
proved that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor

from .._tools.checks import check_callable, check_flags, check_seed, check_sizes
from .._tools.output import bar, ticker
from ..flows import Euclidean
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._errors import BlackBoxError
from ._measure_maps import Witness, change_by_rewriting, mass_residual
from ._small_mass import add_mass
from .boxes import MapBox, image_distance, why_unusable
from .continuity import (
    PRECISION,
    Continuity,
    InMeasure,
    Law,
    Moves,
    Outcome,
    Pair,
    Region,
    Search,
    continuity,
    continuity_in_measure,
    measured,
    steepest,
)

TICKS = 52
"""Steps of the progress bar: paths, distances of the search and of the zoom, starts of
`steepest`."""

REPEATS = 3
"""How often it is tested that the map can be called and gives the same result again."""


class Verdict(Enum):
    """The kinds of maps between measures that `characterise` distinguishes.

    `str(verdict)` is the sentence that reports show.

    Examples:
        >>> print(pf.representation.Verdict.SPLITS_ATOMS)
        splits or re-weights atoms (B1)
        >>> pf.representation.Verdict.SPLITS_ATOMS.refuted
        True
    """

    IN_CONTEXT = "in-context map (not refuted)"
    NOT_A_MEASURE_MAP = "depends on more than the measure"
    JUMPS = "not continuous in the measure"
    SPLITS_ATOMS = "splits or re-weights atoms (B1)"
    NOT_CONTINUOUS = "no continuous in-context map (B2)"
    UNKNOWN = "could not be characterised"

    def __str__(self) -> str:
        return self.value

    @property
    def refuted(self) -> bool:
        """Whether a map of this kind is no continuous in-context map."""
        return self not in (Verdict.IN_CONTEXT, Verdict.UNKNOWN)


@dataclass(frozen=True, eq=False)
class LipschitzBounds:
    """Bounds of a Lipschitz constant in $W_1$.

    Args:
        lower: the largest quotient found on a pair of measures.
        upper: certified by a formula; infinite if there is none.
        radius: of the ball around the origin on which they hold.
        pair: the measures that show the lower bound.
    """

    lower: float
    upper: float
    radius: float
    pair: Pair | None


@dataclass(frozen=True, eq=False)
class Characterisation:
    """What kind of map it is, with the evidence.

    Args:
        verdict: what kind of map it is.
        reason: why that is unknown, if it is.
        witness: measures that refute it, None if nothing was refuted.
        lipschitz: bounds of its Lipschitz constant, None if the tests ended before.
        deviation: the largest change when a measure is written in another way, in units of the
            tolerance.
        residual: the largest distance of an output mass from the sums of input masses.
        in_measure: whether it is continuous in the measure.
        continuity: the result of the search for a jump of the image of a small mass.
        seed: of all random numbers.
    """

    verdict: Verdict
    reason: str = ""
    witness: Witness | None = None
    lipschitz: LipschitzBounds | None = None
    deviation: float = math.nan
    residual: float = math.nan
    in_measure: InMeasure | None = None
    continuity: Continuity | None = None
    seed: int = 0

    @property
    def refuted(self) -> bool:
        """Whether it is no continuous in-context map."""
        return self.verdict.refuted

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self.reason}" if self.reason else str(self.verdict)]
        if self.witness is not None:
            draws = "" if self.witness.drawn else " (on a measure that is not a draw of `law`)"
            lines.append(f"  because {self.witness.what}{draws}")
        if self.in_measure is not None and self.verdict is not Verdict.JUMPS:
            lines.append(f"  in the measure: {self.in_measure}")
        if self.continuity is not None:
            c = self.continuity
            lines.append(
                f"  images of points at distance h differ by about h^{1 - c.exponent:.2f} "
                f"(standard error {c.error:.2f}), down to h = {c.smallest[0]:.0e} and mass "
                f"{c.smallest[1]:.0e}"
            )
            if c.holder:
                lines.append(f"  like a Hölder continuous map of exponent {1 - c.exponent:.2f}")
            if c.slow:
                lines.append(
                    f"  slower than any power of h: {c.kept:.0%} of a gap is left over six decades"
                )
            lines += [f"  steepest slope, mass {eta:.0e}: {steep:.3g}" for eta, steep in c.table]
        if self.lipschitz is not None:
            k = self.lipschitz
            upper = "no bound is certified" if math.isinf(k.upper) else f"at most {k.upper:.4g}"
            lines.append(
                f"  Lipschitz in W1 on the ball of radius {k.radius:.3g}: at least {k.lower:.4g}, "
                f"{upper}"
            )
        return "\n".join(lines)


def characterise(
    f: MeasureMap | InContextMap,
    law: Law,
    *,
    size: int = 12,
    seed: int = 0,
    progress: bool | None = None,
) -> Characterisation:
    r"""Determine what kind of map between measures a black box is [A, Thm. 1].

    Tested in this order: can it be called, and does it give the same result again; does it depend
    on the measure alone, not on how it is written; is it continuous in the measure; does it
    preserve supports (B1); does the image of a small mass jump (B2). The first test that fails is
    the verdict. An in-context map with a certified Lipschitz bound is continuous, and cannot fail
    the tests of that.

    Args:
        f: `Measure` to `Measure`, one at a time; or an in-context map.
        law: `law(n, generator)` draws a measure of `n` atoms, of the kind you care about.
        size: `n`, the atoms of a draw.
        seed: of all random numbers.
        progress: whether to show a bar; by default at a terminal, after a second.

    Examples:
        >>> law = lambda n, g: pf.Measure(2 * torch.rand(n, 2, generator=g).double() - 1)
        >>> report = pf.characterise(pf.representation.zoo.bayes, law, size=6)
        >>> print(report.verdict)
        splits or re-weights atoms (B1)
    """
    check_sizes(size=size)
    check_seed(seed)
    check_flags(progress=progress)
    check_callable("law", law, "a function that draws a Measure, `law(n, generator)`")
    example = _draw(law, size, torch.Generator().manual_seed(0))
    box = MapBox(f, example)
    generator = torch.Generator().manual_seed(seed)

    def cast(n: int, g: torch.Generator) -> Measure:
        return _draw(law, n, g, example.dim).to(example.dtype if box.dtype is None else box.dtype)

    with torch.no_grad(), bar("characterise", TICKS, progress) as show:
        try:
            report = _tested(box, cast, size, generator, ticker(show))
        except BlackBoxError as error:
            report = Characterisation(Verdict.UNKNOWN, str(error))
    return replace(report, seed=seed)


def _draw(law: Law, n: int, generator: torch.Generator, dim: int | None = None) -> Measure:
    """One measure of a law, of the same dimension as the others."""
    try:
        mu = law(n, generator)
    except TypeError as error:
        raise TypeError(
            "`law` must take a number of atoms and a generator, `law(n, generator)`, got an error "
            f"from that call: {error}"
        ) from error
    if not isinstance(mu, Measure):
        raise TypeError(
            f"`law` must return a Measure, got {type(mu).__name__}. Make one with "
            "`pf.Measure(points)`."
        )
    if mu.batch_shape or mu.dim != (dim or mu.dim):
        raise ValueError(f"`law` must draw single measures of one dimension, got {mu}.")
    return mu.strip().normalise()


def _tested(
    box: MapBox, law: Law, size: int, generator: torch.Generator, tick: Callable[[], None]
) -> Characterisation:
    """All tests, in their order."""
    draw = lambda: law(size, generator)
    reason = _why_unusable(box, draw)
    if reason is not None:
        return Characterisation(Verdict.UNKNOWN, reason)
    deviation, witness = change_by_rewriting(box, draw, generator)
    if witness is not None:
        return Characterisation(Verdict.NOT_A_MEASURE_MAP, "", witness, deviation=deviation)
    points = torch.cat([draw().atoms for _ in range(8)])
    region = Region.around(points, box.manifold)
    known = Characterisation(Verdict.UNKNOWN, deviation=deviation)
    if not region.size > 0:
        return replace(known, reason="all measures that `law` draws are one point")
    in_measure = _in_measure(box, law, size, region, generator, tick)
    known = replace(known, in_measure=in_measure)
    if in_measure.pair is not None:
        witness = Witness(f"it {in_measure}", *in_measure.pair, drawn=False)
        return replace(known, verdict=Verdict.JUMPS, witness=witness)
    residual, witness = mass_residual(box, draw, region, generator)
    known = replace(known, residual=residual)
    if witness is not None:
        return replace(known, verdict=Verdict.SPLITS_ATOMS, witness=witness)
    search = Search(box.images(), law, size, region, generator, tick)
    precision = PRECISION.get(points.dtype, PRECISION[torch.float32])
    found = continuity(search, precision)
    bounds = _bounds(box, search, found)
    known = replace(known, lipschitz=bounds, continuity=found)
    if bounds.upper < math.inf:
        return replace(known, verdict=Verdict.IN_CONTEXT)
    if not found.refuted:
        if in_measure.outcome is Outcome.UNRESOLVED:
            slow = "it closes gaps slower than any power, " if found.slow else ""
            reason = f"{slow}whether it is continuous in the measure is not resolved"
            return replace(known, reason=reason)
        return replace(known, verdict=Verdict.IN_CONTEXT)
    known = replace(known, witness=_jump(search, found))
    if points.dtype == torch.float64:
        return replace(known, verdict=Verdict.NOT_CONTINUOUS)
    name = str(points.dtype).removeprefix("torch.")
    return replace(
        known,
        reason=f"it jumps, or is steeper than {found.slope:.2g}, which {name} cannot distinguish; "
        "use float64",
    )


def _in_measure(
    box: MapBox,
    law: Law,
    size: int,
    region: Region,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> InMeasure:
    """Whether the map is continuous in the measure."""
    if region.low.dtype != torch.float64:
        return InMeasure(Outcome.NOT_TRIED, "float32 cannot tell a jump from a slope; use float64")
    if _certified(box, region.radius) < math.inf:
        return InMeasure(Outcome.NOT_TRIED, "a Lipschitz bound is certified")
    return continuity_in_measure(box.pushes, law, size, region, generator, tick)


def _why_unusable(box: MapBox, draw: Callable[[], Measure]) -> str | None:
    """Why nothing can be concluded from the map's values, None if something can."""
    dims = set()
    for _ in range(REPEATS):
        mu, other = draw(), draw()
        reason = why_unusable(box, mu, other)
        if reason is not None:
            return reason
        dims.add(box.push(mu).dim)
    if len(dims) > 1:
        return f"the dimension of its images varies: {sorted(dims)}"
    return None


def _bounds(box: MapBox, search: Search, found: Continuity) -> LipschitzBounds:
    """The certified bound, and the steepest pair of two searches."""
    region, generator = search.region, search.generator
    response = image_distance(box)
    starts = [(mu, None) for mu in _starts(search)]
    moves = Moves(weights=True)
    pairs = steepest(response, starts, region, generator, moves=moves, tick=search.tick)
    # The widest gap of the other search as pairs of measures, with several masses at the point.
    mu, ends = _witness_pair(search, found)
    for eta in (0.5, 0.1, 1e-2, 1e-3):
        first, second = (add_mass(mu, x, eta)[0] for x in ends)
        with suppress(BlackBoxError):  # the map may refuse such a measure
            pairs.append(measured(response, first, second))
    shown = [pair for pair in pairs if pair.response > 0]
    pair = max(shown, key=lambda p: p.ratio, default=None)
    upper = _certified(box, region.radius)
    return LipschitzBounds(0.0 if pair is None else pair.ratio, upper, region.radius, pair)


def _starts(search: Search) -> list[Measure]:
    """Draws of the law, and measures at which attention is known to be steep.

    Those have one atom far out and all others half way: the distant atom takes most of the
    attention, and a small move of it moves the images of all others.
    """
    region, generator = search.region, search.generator
    drawn = [search.law(search.size, generator).strip().normalise() for _ in range(4)]
    n, d, dtype = drawn[0].n, drawn[0].dim, drawn[0].dtype
    steep = []
    for _ in range(2):
        u = torch.randn(d, generator=generator, dtype=torch.float64)
        far = (region.high - region.low) / 2 * (u / u.abs().max()).to(region.low)
        shares = torch.cat([torch.ones(1, 1), torch.full((max(1, n - 1), 1), 0.5)]).to(far)
        steep.append(Measure(((region.low + region.high) / 2 + far * shares).to(dtype)))
    return drawn + steep


def _certified(box: MapBox, radius: float) -> float:
    """The Lipschitz bound that the formula of an in-context map gives, infinite without one."""
    # Bounds of maps on a manifold hold on the manifold only, and the search may leave it.
    if box.gamma is None or box.manifold != Euclidean():
        return math.inf
    try:
        return box.gamma.lipschitz(radius).measure
    except NotImplementedError:
        return math.inf


def _witness_pair(search: Search, found: Continuity) -> tuple[Measure, list[Tensor]]:
    """The context and the two points of the steepest gap."""
    candidate = found.witness.candidate
    mu = Measure.unchecked(candidate.atoms[0], candidate.log_weights[0])
    return mu, [end[0] for end in search.ends(candidate, found.witness.h)]


def _jump(search: Search, found: Continuity) -> Witness:
    gap, (mu, ends) = found.witness, _witness_pair(search, found)
    return Witness(
        f"when a mass of {gap.eta:.0e} moves by {gap.h:.1e}, its image moves by {gap.gap:.2g}",
        mu, None, ends[0], ends[1], gap.eta, bool(gap.candidate.drawn[0]),
    )  # fmt: skip
