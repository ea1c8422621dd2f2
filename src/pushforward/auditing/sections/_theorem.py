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
from .._section import Section, untried
from ..findings import Finding, NotTried, found, number, share, sort_findings
from ._charts import gap_figure, recovered_figure
from ._size import CLASS_TOKEN, SETS_ONLY
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
    if case.sequence:
        return untried(
            "theorem", "The theorem is about maps of sets, and this model reads positions.",
            "Give the tokens with their position embeddings added, and the model behind this "
            f"step: then it is a map of sets. {SETS_ONLY}",
        )  # fmt: skip
    if case.class_token:
        how = "Audit the layers of the model without their class token."
        return untried("theorem", CLASS_TOKEN, how)
    if case.box.pooled and not case.box.weighted:
        return untried(
            "theorem",
            "The model has one output for the whole set, so there is no output per token to test.",
            "Give the part of the model before the pooling.",
        )
    cloud = case.points(CLOUD)
    if not Region.around(cloud).size > 0:
        why = "All points are equal, so none can be moved within the data."
        return untried("theorem", why, "Give data that differ.")
    mu = case.context()
    if case.queries is None and not case.box.weighted:
        return _of_lists(case, mu)
    recovered = _recovered(case, mu) if case.queries is None else None
    return _section(case, _characterised(case, mu, cloud), recovered, cloud)


def _of_lists(case: Case, mu: Measure) -> Section:
    """For a model of lists: does it depend on the measure alone, and is (B2) plausible?"""
    baseline = case.baseline(mu)
    changes = {name: test() for name, test in rewriting_tests(case, baseline, mu).items()}
    numbers: dict = {"changes": changes, "tolerance": baseline.tolerance}
    broken = [name for name, change in changes.items() if change > baseline.tolerance]
    if broken:
        worst = max(changes.values())
        ways = {"permutation": "shuffled", "duplication": "written twice"}
        said = (
            f"It depends on more than the measure: if tokens are "
            f"{' or '.join(ways[name] for name in broken)}, the outputs change by "
            f"{share(baseline.share(worst))} of their size."
        )
        numbers["verdict"] = str(Verdict.NOT_A_MEASURE_MAP)
        finding = found("theorem", "measure map", "refuted", said)
        why = "It is asked of maps of measures only, and this is none."
        skipped = [NotTried(name, why) for name in ("(B1)", "(B2)", "recovery")]
        return Section("theorem", said, [finding], numbers=numbers, not_tried=skipped)
    recovered = _recovered(case, mu)
    case.tick()
    cloud = case.population.points(CLOUD, case.generator)
    known = _characterised(case, mu, cloud)
    section = _section(case, known, recovered, cloud, baseline.tolerance)
    # Outputs follow their tokens when these are permuted, so that (B1) cannot fail.
    said = "Outputs follow their tokens, so no mass is split."
    findings = [*section.findings, found("theorem", "(B1)", "holds", said)]
    return replace(section, findings=findings, numbers={**numbers, **section.numbers})


def _section(
    case: Case,
    known: Characterisation,
    recovered: Recovered | None,
    cloud: Tensor,
    tolerance: float = 0.0,
) -> Section:
    """The section as it is reported.

    Args:
        case: the model.
        known: what kind of map it is.
        recovered: images recovered from unordered outputs, if there are any.
        cloud: points of the data.
        tolerance: the largest change of outputs that counts as none.
    """
    other = recovered is not None and recovered.is_other(tolerance)
    findings = [_finding(case, known, other)]
    lines, numbers = _lines(case, known, cloud), _numbers(known)
    plots: list[Chart] = []
    if known.continuity is not None:
        plots.append(gap_figure([(g.h, g.gap) for g in known.continuity.gaps]))
    tried, skipped = _tried(case, known)
    if recovered is not None and not known.refuted:
        if recovered.problem:
            how = "Give more tokens."
            skipped.append(NotTried("recovery", f"It failed: {recovered.problem}.", how))
        else:
            if not other:
                findings.append(recovered.finding(figure=len(plots) if recovered.pairs else None))
            errors = {"deviation": recovered.deviation, "estimate": recovered.estimate}
            numbers["recovered"] = errors
        if recovered.pairs:
            plots.append(recovered_figure(recovered.pairs))
    said = " ".join(f.said for f in sort_findings(findings)[:2])
    return Section(
        "theorem", said, findings, lines, numbers, plots, tried=tried, not_tried=skipped
    )


def _tried(case: Case, known: Characterisation) -> tuple[tuple[str, ...], list[NotTried]]:
    """Whether continuity in the measure was examined, or why not."""
    seen = known.in_measure
    if not case.between_measures:
        return (), []
    if seen is None:
        return (), [NotTried(CONTINUITY, "An earlier test decided.")]
    certified = known.lipschitz is not None and known.lipschitz.upper < math.inf
    if seen.outcome is Outcome.NOT_TRIED and known.lipschitz is not None and not certified:
        return (), [
            NotTried(CONTINUITY, "float32 cannot tell a jump from a slope.", "Use float64.")
        ]
    return (CONTINUITY,), []


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
    seen = continuity(search, precision)
    if queries is None or not seen.refuted:
        return Characterisation(Verdict.IN_CONTEXT, continuity=seen)
    if population.dtype == torch.float64:
        return Characterisation(Verdict.NOT_CONTINUOUS, continuity=seen)
    return Characterisation(Verdict.UNKNOWN, continuity=seen)


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


def _finding(case: Case, known: Characterisation, other: bool) -> Finding:
    """What kind of map it is, in words.

    Args:
        case: the model.
        known: what kind of map it is.
        other: whether images recovered from unordered outputs are not the model's own.
    """
    if case.queries is not None:
        return _of_queries(case, known)
    if known.refuted:
        return _refuted(known)
    if known.verdict is Verdict.UNKNOWN:
        said = f"It could not be decided: {known.reason}."
        return found("theorem", "in-context map", "open", said, amiss=True)
    if known.lipschitz is not None and known.lipschitz.upper < math.inf:
        said = (
            "It is an in-context map by construction, and a formula bounds its Lipschitz constant "
            f"by {number(known.lipschitz.upper, up=True)} on the data."
        )
        return found("theorem", "in-context map", "holds", said)
    searched, jumps = _searched(known), known.continuity
    if case.between_measures or jumps is None:
        return found("theorem", "in-context map", "open", searched)
    if other:
        said = (
            "A token of small weight, added where another token lies, gets another output than "
            "that token. The map is not continuous in the context then."
        )
        return found("theorem", "in-context map", "open", said, amiss=True)
    if jumps.refuted:
        how = f"it jumps as the token moves, or is steeper than {number(jumps.slope)}"
        if jumps.growth > GROWS:
            how = "its slope grows as the mass of the token falls"
        said = f"The output of a token seems to jump, which (B2) forbids: {how}."
        return found("theorem", "in-context map", "open", said, amiss=True, figure=0)
    return found("theorem", "in-context map", "open", searched, figure=0)


def _refuted(known: Characterisation) -> Finding:
    """The condition that a map between measures breaks, and the measures that show it."""
    names = {
        Verdict.NOT_A_MEASURE_MAP: "measure map", Verdict.JUMPS: CONTINUITY,
        Verdict.SPLITS_ATOMS: "(B1)", Verdict.NOT_CONTINUOUS: "(B2)",
    }  # fmt: skip
    what = "" if known.witness is None else known.witness.what
    said = f"{what[:1].upper()}{what[1:]}." if what else f"It {known.verdict}."
    figure = None
    if known.verdict is Verdict.NOT_CONTINUOUS and known.continuity is not None:
        gap, figure = known.continuity.witness, 0
        said = (
            f"When a share of {number(gap.eta)} of the mass moves by {number(gap.h)}, its image "
            f"moves by {number(gap.gap)}."
        )
    return found("theorem", names[known.verdict], "refuted", said, figure=figure)


def _of_queries(case: Case, known: Characterisation) -> Finding:
    """The same for a model of a context and queries: does its output jump as the query moves?"""
    name, figure = "continuity in the query", None if known.continuity is None else 0
    if known.continuity is None or known.verdict is Verdict.IN_CONTEXT:
        return found("theorem", name, "open", _searched(known), figure=figure)
    gap = known.continuity.witness
    said = f"When a query moves by {number(gap.h)}, its output moves by {number(gap.gap)}."
    if known.refuted:
        return found("theorem", name, "refuted", said, figure=figure)
    kind = str(case.population.dtype).removeprefix("torch.")
    said += f" That is a jump or a steep slope, which {kind} cannot tell apart."
    return found("theorem", name, "open", said, amiss=True, figure=figure)


def _searched(known: Characterisation) -> str:
    """How far a search for jumps went."""
    c = known.continuity
    if c is None:
        return "Nothing that was tried speaks against it."
    return (
        f"A search for jumps at distances down to {number(c.smallest[0])} found none. The "
        f"steepest slope is {number(c.slope)}."
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

    def is_other(self, tolerance: float) -> bool:
        """Whether what was recovered is not the model's own output.

        Args:
            tolerance: the largest change of outputs that counts as none.
        """
        return self.deviation > ESTIMATES * self.estimate + tolerance

    def finding(self, figure: int | None) -> Finding:
        """In words.

        Args:
            figure: which figure of the section shows it.
        """
        said = (
            f"Outputs recovered from the unordered set are within "
            f"{number(self.deviation, 1, up=True)} of the model's own, with an estimated error of "
            f"{number(self.estimate, 1, up=True)}."
        )
        return found("theorem", "recovery", "open", said, figure=figure)


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


def _numbers(known: Characterisation) -> dict:
    numbers: dict = {"verdict": str(known.verdict)}
    if known.lipschitz is not None:
        k = known.lipschitz
        numbers["lipschitz"] = {"lower": k.lower, "upper": k.upper, "radius": k.radius}
    if known.continuity is not None:
        c = known.continuity
        numbers |= {
            "gap_exponent": 1 - c.exponent, "gap_exponent_error": c.error, "slope": c.slope,
            "gaps": [{"h": g.h, "eta": g.eta, "gap": g.gap} for g in c.gaps],
            "K": [{"eta": eta, "K": k} for eta, k in c.table],
            "smallest": {"h": c.smallest[0], "eta": c.smallest[1]},
        }  # fmt: skip
    return numbers


def _lines(case: Case, known: Characterisation, cloud: Tensor) -> list[str]:
    if case.between_measures or known.continuity is None:
        return [line.strip() for line in str(known).splitlines()[1:]]
    c = known.continuity
    distance = float((cloud - c.witness.candidate.x[0]).norm(dim=-1).min())
    return [
        f"the steepest slope was found at distance {number(distance)} from the nearest data point",
        *(f"slope at mass {number(eta)}: {number(k)}" for eta, k in c.table),
    ]
