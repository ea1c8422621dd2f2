r"""What kind of map is it? Theorem 1 for a black box.

A continuous map $f$ between measures is the push-forward by a continuous in-context map,
$f(\mu)=G(\mu,\cdot)_\sharp\mu$, exactly when (B1) it preserves supports and (B2) the regular part
of its derivative is uniformly continuous. Both can be refuted from outside, neither proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._tools.checks import check_callable, check_seed, check_sizes
from .._tools.output import bar
from ..maps import Euclidean, InContextMap
from ..measures import Measure, MeasureMap
from ._black_box import BlackBoxError, guarded, with_probe
from ._measure_maps import Witness, draw, insane, wrong_for_measures, wrong_masses
from ._views import embedded, manifold_of, widened
from .continuity import (
    PRECISION,
    BlackBox,
    Box,
    Continuity,
    Herd,
    Law,
    Pair,
    Search,
    Ticker,
    continuity,
    quotient,
    steepest,
)
from .zoo import DISCONTINUOUS, IN_CONTEXT, NO_MEASURE_MAP, SPLITS

UNKNOWN = "could not be characterised"

TICKS = 40
"""Scales of the search, of the closer look, and starts of the search for a steep pair."""


@dataclass(frozen=True, eq=False)
class Constant:
    """What is known of a Lipschitz constant in $W_1$.

    Args:
        lower: seen on a pair of measures.
        upper: certain, infinite if no formula says so.
        radius: of the ball around the origin that this is about.
        pair: the measures that show the lower bound.
    """

    lower: float
    upper: float
    radius: float
    pair: Pair | None


@dataclass(frozen=True, eq=False)
class Characterisation:
    """The answer, with all that was seen.

    Args:
        verdict: what kind of map it is.
        witness: measures that show it, None if nothing was refuted.
        lipschitz: what is known of its Lipschitz constant, None where it was not looked for.
        deviation: the worst change by another way to write a measure, 1 being allowed.
        residual: the largest distance of an output mass from the sums of input masses.
        continuity: what the search for a discontinuity saw.
        seed: of all that was random.
    """

    verdict: str
    witness: Witness | None = None
    lipschitz: Constant | None = None
    deviation: float = math.nan
    residual: float = math.nan
    continuity: Continuity | None = None
    seed: int = 0

    @property
    def refuted(self) -> bool:
        """Whether it is no continuous in-context map."""
        return self.verdict in (NO_MEASURE_MAP, SPLITS, DISCONTINUOUS)

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.witness is not None:
            draws = "" if self.witness.drawn else " (on a measure that is no draw of the law)"
            lines.append(f"  because {self.witness.what}{draws}")
        if self.continuity is not None:
            c = self.continuity
            lines.append(
                f"  gaps fall as h^{1 - c.exponent:.2f} (standard error {c.error:.2f}), looked at "
                f"down to h = {c.smallest[0]:.0e}, eta = {c.smallest[1]:.0e}"
            )
            if c.holder:
                lines.append(f"  looks Hoelder continuous, of exponent {1 - c.exponent:.2f}")
            for eta, steep in c.table:
                lines.append(f"  K({eta:.0e}) = {steep:.3g}")
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
    dim: int,
    *,
    seed: int = 0,
    progress: bool | None = None,
) -> Characterisation:
    r"""Say what kind of map between measures a black box is.

    In this order: whether it can be called at all; whether it depends on the measure alone, not on
    how it is written; whether it keeps masses together (B1); whether a small mass can be made to
    jump (B2). The first that fails is the verdict. An in-context map with a certified Lipschitz
    bound cannot fail the last.

    Args:
        f: `Measure` to `Measure`, one at a time; or an in-context map.
        law: `law(generator)` draws a measure of the kind you care about.
        dim: of its points.
        seed: of all that is random.
        progress: whether to show a bar; by default at a terminal, for what takes over a second.

    Examples:
        >>> law = lambda g: pf.Measure(2 * torch.rand(6, 2, generator=g).double() - 1)
        >>> report = pf.characterise(pf.representation.zoo.bayes, law, dim=2)
        >>> report.verdict
        'splits or re-weights atoms (B1)'
    """
    check_sizes(dim=dim)
    check_seed(seed)
    check_callable("law", law, "a function that draws a Measure, `law(generator)`")
    generator = torch.Generator().manual_seed(seed)
    mu = draw(law, torch.Generator().manual_seed(0), dim)
    f, dtype = widened(f, mu)
    given, law = law, lambda g: given(g).to(dtype)
    call = guarded(embedded(f))
    with torch.no_grad(), bar("characterise", TICKS, progress) as tick:
        reason = insane(call, law, generator, dim)
        if reason is not None:
            return Characterisation(f"{UNKNOWN}: {reason}", seed=seed)
        try:
            return _characterise(f, call, law, dim, seed, generator, Ticker(tick))
        except BlackBoxError as error:
            return Characterisation(f"{UNKNOWN}: {error}", seed=seed)


def _characterise(f, call, law, dim, seed, generator, tick) -> Characterisation:
    deviation, witness = wrong_for_measures(call, law, generator, dim)
    if witness is not None:
        return Characterisation(NO_MEASURE_MAP, witness, None, deviation, seed=seed)
    residual, witness = wrong_masses(call, law, generator, dim)
    if witness is not None:
        return Characterisation(SPLITS, witness, None, deviation, residual, seed=seed)
    draws = [draw(law, generator, dim) for _ in range(8)]
    box = Box.around(torch.cat([mu.atoms for mu in draws]), manifold_of(f))
    if not box.size > 0:
        return Characterisation(
            f"{UNKNOWN}: all draws of the law are one point", None, None, deviation, residual,
            seed=seed,
        )  # fmt: skip
    upper = _certified(f, box.radius)
    search = Search(BlackBox(call, draws[0]), law, box, generator, tick)
    precision = PRECISION.get(draws[0].dtype, PRECISION[torch.float32])
    noise = 64 * torch.finfo(draws[0].dtype).eps * max(1.0, box.size)
    found = continuity(search, precision, box.size, noise)
    herd, h, _ = found.witness
    ends = [end[0] for end in search.ends(herd, h)]
    pairs = [steepest(call, law, box, generator, tick), *_seen(call, herd, ends)]
    pair = max((p for p in pairs if p is not None), key=lambda p: p.ratio, default=None)
    constant = Constant(0.0 if pair is None else pair.ratio, upper, box.radius, pair)
    refuted = found.refuted and math.isinf(upper)
    if refuted and draws[0].dtype != torch.float64:
        name = str(draws[0].dtype).removeprefix("torch.")
        return Characterisation(
            f"{UNKNOWN}: it jumps, or is steeper than {found.slope:.2g}, and {name} cannot tell; "
            "give it float64",
            _jump(found, ends), constant, deviation, residual, found, seed,
        )  # fmt: skip
    verdict = DISCONTINUOUS if refuted else IN_CONTEXT
    witness = _jump(found, ends) if refuted else None
    return Characterisation(verdict, witness, constant, deviation, residual, found, seed)


def _certified(f: object, radius: float) -> float:
    if not isinstance(f, InContextMap):
        return math.inf
    if manifold_of(f) != Euclidean():  # those hold on the manifold only
        return math.inf
    try:
        return f.lipschitz(radius).measure
    except NotImplementedError:
        return math.inf


def _seen(call: MeasureMap, herd: Herd, ends: list[Tensor]) -> list[Pair | None]:
    """The steepest place of the search as pairs of measures, with a point of several masses."""
    mu = Measure.unchecked(herd.atoms[0], herd.logs[0])
    with_mass = lambda eta: (with_probe(mu, x, eta)[0] for x in ends)
    return [quotient(call, *with_mass(eta)) for eta in (0.5, 0.1, 1e-2, 1e-3)]


def _jump(found: Continuity, ends: list[Tensor]) -> Witness:
    herd, h, eta = found.witness
    mu = Measure.unchecked(herd.atoms[0], herd.logs[0])
    return Witness(
        f"a mass of {eta:.0e} that moves by {h:.1e} has its image move by {float(herd.gap):.2g}",
        mu, None, ends[0], ends[1], eta, bool(herd.drawn[0]),
    )  # fmt: skip
