r"""Is the model the push-forward by a continuous in-context map [A, Thm. 1]?

Tested are whether it depends on the measure alone, condition (B1), condition (B2), and whether the
in-context map that is recovered from unordered outputs is the model's own. What can be tested
depends on the smallest mass that the model takes:

- A model that takes weights is characterised as a map between measures, with masses as small as
  rounding allows.
- In a list of $N$ tokens no mass is below $1/N$. Measured is the slope $K(\eta)$ of the image of
  one token among $1/\eta$; nothing is refuted by it.
- A model of a context and queries gives $G(\mu,x)$ itself: the search is for jumps in $x$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from ...measures import Measure
from ...pictures import Chart
from ...representation import (
    BlackBoxError,
    Characterisation,
    Excess,
    MapBox,
    Population,
    Verdict,
    characterise,
    recover,
)
from ...representation.continuity import (
    GROWS,
    PRECISION,
    RATIO,
    Law,
    Outcome,
    Precision,
    Region,
    Search,
    SearchBudget,
    continuity,
)
from .._case import CLOUD, Case
from .._section import Section, Status
from ._charts import gap_figure, recovered_figure
from ._symmetries import rewriting_tests

CONTINUITY = "continuity in the measure"
"""The name of a check that only models with weights allow."""

ATOMS = 12
"""Tokens of the contexts of the search."""

POINTS = 4
"""Tokens whose images are recovered."""

BUDGET = SearchBudget(starts=24, fresh=4, kept=4, each=1, rounds=1, tries=3)
"""A small search, because a call of a trained model may take long."""

ZOOM = {torch.float64: 1e-7, torch.float32: 1e-4}
"""The smallest distance of tokens in a list."""

ESTIMATES = 30
"""A recovered image this many times its estimated error from the model's own is another one."""


def theorem(case: Case) -> Section:
    """What [A, Thm. 1] says about the model."""
    if case.box.pooled and not case.box.weighted:
        return Section(
            "theorem", "absent",
            "the model has one output for the whole set, so there is no output per token to test",
        )  # fmt: skip
    cloud = case.points(CLOUD)
    if not Region.around(cloud).size > 0:
        reason = "all points are equal, so that none can be moved within the data"
        return Section("theorem", "absent", reason)
    mu = case.context()
    if case.queries is None and not case.box.weighted:
        return _of_lists(case, mu)
    recovered = _recovered(case, mu) if case.queries is None else None
    return _section(case, _characterised(case, mu, cloud), recovered, cloud)


def _of_lists(case: Case, mu: Measure) -> Section:
    """For a model of lists: does it depend on the measure alone, and is (B2) plausible?"""
    baseline = case.baseline(mu)
    changes = {name: test() for name, test in rewriting_tests(case, baseline, mu).items()}
    numbers = {"changes": changes, "tolerance": baseline.tolerance}
    broken = [name for name, change in changes.items() if change > baseline.tolerance]
    if broken:
        lines = [f"{name} changes outputs by {changes[name]:.2g}" for name in broken]
        lines.append("this is expected of a model of sequences, which depends on positions")
        return Section("theorem", "bad", str(Verdict.NOT_A_MEASURE_MAP), lines, numbers)
    recovered = _recovered(case, mu)
    case.tick()
    cloud = case.population.points(CLOUD, case.generator)
    found = _characterised(case, mu, cloud)
    section = _section(case, found, recovered, cloud, baseline.tolerance)
    # Outputs follow their tokens when these are permuted, so that (B1) cannot fail.
    lines = ["(B1) holds: equal tokens have equal outputs", *section.lines]
    return replace(section, lines=lines, numbers={**numbers, **section.numbers})


def _section(
    case: Case,
    found: Characterisation,
    recovered: Recovered | None,
    cloud: Tensor,
    tolerance: float = 0.0,
) -> Section:
    """The section as it is reported.

    Args:
        case: the model.
        found: what kind of map it is.
        recovered: images recovered from unordered outputs, if there are any.
        cloud: points of the data.
        tolerance: the largest change of outputs that counts as none.
    """
    status, verdict = _verdict(case, found, recovered, tolerance)
    lines, numbers = _lines(case, found, cloud), _numbers(found)
    plots: list[Chart] = []
    if found.continuity is not None:
        plots.append(gap_figure([(g.h, g.gap) for g in found.continuity.gaps]))
    if recovered is not None and not found.refuted:
        lines.append(str(recovered))
        if not recovered.problem:
            errors = {"deviation": recovered.deviation, "estimate": recovered.estimate}
            numbers["recovered"] = errors
        if recovered.pairs:
            plots.append(recovered_figure(recovered.pairs))
    tried, skipped = _tried(case, found)
    return Section(
        "theorem", status, verdict, lines, numbers, plots, tried=tried, not_tried=skipped
    )


def _tried(case: Case, found: Characterisation) -> tuple[tuple[str, ...], dict[str, str]]:
    """Whether continuity in the measure was examined, or why not."""
    seen = found.in_measure
    if not case.between_measures:
        return (), {}
    if seen is None:
        return (), {CONTINUITY: "an earlier test decided"}
    if seen.outcome is Outcome.NOT_TRIED and found.lipschitz is not None:
        certified = found.lipschitz.upper < math.inf
        return ((CONTINUITY,), {}) if certified else ((), {CONTINUITY: seen.detail})
    return (CONTINUITY,), {}


def _characterised(case: Case, mu: Measure, cloud: Tensor) -> Characterisation:
    """What kind of map it is.

    Args:
        case: the model.
        mu: a context.
        cloud: points around which the search takes place.
    """
    queries, population = case.queries, case.population
    if case.between_measures:
        box, seed = cast(MapBox, case.box), case.generator.initial_seed()
        f = box.f if box.gamma is None else box.gamma
        return characterise(f, population.context, size=ATOMS, seed=seed, progress=False)
    law: Law = population.context
    if queries is None:
        images, size, precision = case.box.images(), ATOMS, _list_precision(case)
    else:
        # The search varies a measure and a point; here the measure is only where the point begins.
        law = Population(queries).draw
        images, size, precision = case.box.answers_in(mu), 1, _query_precision(case)
    search = Search(images, law, size, Region.around(cloud), case.generator, case.tick, BUDGET)
    found = continuity(search, precision)
    if queries is None or not found.refuted:
        return Characterisation(Verdict.IN_CONTEXT, continuity=found)
    if population.dtype == torch.float64:
        return Characterisation(Verdict.NOT_CONTINUOUS, continuity=found)
    return Characterisation(Verdict.UNKNOWN, continuity=found)


def _list_precision(case: Case) -> Precision:
    """Distances and masses of lists of at most so many tokens."""
    etas = tuple(1 / k for k in (8, 32, 128, 512, 2048) if k <= case.tokens)
    hs = tuple(0.3 / RATIO**k for k in range(5))
    zoom = ZOOM.get(case.population.dtype, ZOOM[torch.float32])
    return Precision(hs, max(1 / 128, 1 / case.tokens), 0.1, zoom, etas)


def _query_precision(case: Case) -> Precision:
    """Distances of queries, which have no mass."""
    full = PRECISION.get(case.population.dtype, PRECISION[torch.float32])
    return Precision(full.hs, 1.0, full.fit, full.zoom, (1.0,))


def _verdict(
    case: Case, found: Characterisation, recovered: Recovered | None, tolerance: float
) -> tuple[Status, str]:
    """The status and the sentence.

    Args:
        case: the model.
        found: what kind of map it is.
        recovered: images recovered from unordered outputs.
        tolerance: the largest change of outputs that counts as none.
    """
    status: Status = "bad" if found.refuted else "good"
    verdict = str(found).splitlines()[0]
    if found.verdict is Verdict.UNKNOWN:
        status = "noted"
    if case.queries is not None:
        return status, _query_verdict(case, found)
    jumps = found.continuity
    if case.between_measures or jumps is None:
        return status, verdict
    if recovered is not None and recovered.deviation > ESTIMATES * recovered.estimate + tolerance:
        return "noted", (
            f"{verdict}, but not continuous in the context: a token of small weight, added where "
            "another token lies, gets another output than that token"
        )
    if jumps.refuted:
        how = f"it jumps as the token moves, or is steeper than {jumps.slope:.2g}"
        if jumps.growth > GROWS:
            how = "its slope grows as the mass of the token falls"
        return "noted", (
            f"{verdict}, but the output of a token seems to jump, which (B2) forbids: {how}"
        )
    return status, verdict


def _query_verdict(case: Case, found: Characterisation) -> str:
    """The sentence for a model of a context and queries."""
    if found.continuity is None or found.verdict is Verdict.IN_CONTEXT:
        return "continuous in the query, in everything that was tried (not refuted)"
    if found.refuted:
        return f"{found.verdict}: its output jumps as the query moves"
    name = str(case.population.dtype).removeprefix("torch.")
    return (
        f"its output jumps as the query moves, or is steeper than {found.continuity.slope:.2g}, "
        f"which {name} cannot distinguish"
    )


@dataclass(frozen=True, eq=False)
class Recovered:
    """Images of tokens, recovered from unordered outputs, against the model's own outputs.

    Args:
        deviation: their largest distance.
        estimate: the estimated error of what is recovered.
        pairs: coordinates of the model's own outputs and of those recovered.
        problem: why nothing could be recovered, empty if it could.
    """

    deviation: float = 0.0
    estimate: float = 0.0
    pairs: list[tuple[float, float]] = field(default_factory=list)
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return (
                "images could not be recovered from unordered outputs: too few tokens, or outputs "
                "too close to each other"
            )
        return (
            f"images recovered from unordered outputs are within {self.deviation:.1e} of the "
            f"model's own (estimated error {self.estimate:.1e})"
        )


def _recovered(case: Case, mu: Measure) -> Recovered | None:
    """The recovered images of some tokens; None if the model has no outputs to compare with."""
    try:
        if not case.box.weighted:
            return _recovered_from_lists(case)
        if isinstance(case.box.outputs(mu), Measure):
            return None
        x = mu.atoms[:POINTS]
        again, errors = recover(case.box.push).estimate(mu, x)
    except BlackBoxError as error:
        return Recovered(problem=str(error))
    own = case.box.answer(mu, x)
    return Recovered(float((again - own).norm(dim=-1).max()), float(errors.max()))


def _recovered_from_lists(case: Case) -> Recovered:
    r"""Recovered by one more token among copies of a context.

    Among $k$ copies of $n$ tokens it has the mass $\eta=1/(kn+1)$. Two linear extrapolations to
    $\eta=0$, from the first two and from the last two of three masses, differ by about the error.
    """
    box = case.box
    mu = case.context(min(case.population.typical_size, case.tokens // 8))
    own, pairs, deviation, estimate = box.outputs(mu), [], 0.0, 0.0
    if isinstance(own, Measure):
        return Recovered(problem="its outputs have no order")
    copies = [max(1, (case.tokens - 1) // (4 * mu.n)) * k for k in (1, 2, 4)]
    a, b, c = (1 / (k * mu.n + 1) for k in copies)
    for i in range(min(POINTS, mu.n)):
        y = [Excess().image(box.push, mu, mu.atoms[i], eta) for eta in (a, b, c)]
        early, late = (a * y[1] - b * y[0]) / (a - b), (b * y[2] - c * y[1]) / (b - c)
        deviation = max(deviation, float((late - own[i]).norm()))
        estimate = max(estimate, float((late - early).norm()))
        pairs += list(zip(own[i].tolist(), late.tolist(), strict=True))
    return Recovered(deviation, estimate, pairs)


def _numbers(found: Characterisation) -> dict:
    numbers: dict = {"verdict": str(found.verdict)}
    if found.lipschitz is not None:
        k = found.lipschitz
        numbers["lipschitz"] = {"lower": k.lower, "upper": k.upper, "radius": k.radius}
    if found.continuity is not None:
        c = found.continuity
        numbers |= {
            "gap_exponent": 1 - c.exponent, "gap_exponent_error": c.error, "slope": c.slope,
            "gaps": [{"h": g.h, "eta": g.eta, "gap": g.gap} for g in c.gaps],
            "K": [{"eta": eta, "K": k} for eta, k in c.table],
            "smallest": {"h": c.smallest[0], "eta": c.smallest[1]},
        }  # fmt: skip
    return numbers


def _lines(case: Case, found: Characterisation, cloud: Tensor) -> list[str]:
    if case.between_measures or found.continuity is None:
        return [line.strip() for line in str(found).splitlines()[1:]]
    c = found.continuity
    distance = float((cloud - c.witness.candidate.x[0]).norm(dim=-1).min())
    return [
        f"searched for jumps at distances down to {c.smallest[0]:.1e}: the steepest slope is "
        f"{c.slope:.3g}, at distance {distance:.2g} from the nearest data point",
        *(f"K({eta:.1e}) = {k:.3g}" for eta, k in c.table),
    ]
