r"""(B1), (B2), and the in-context map recovered from outside against what the model says.

Models that take weights are characterised as maps between measures, with masses as small as
rounding allows. A model on lists of tokens has no mass below $1/N$: there the slope
$K(\eta)$ of the image of one token among $1/\eta$ of them is measured, and nothing is refuted by
it. A model of a context and queries says $G(\mu,x)$ itself, and is looked at in $x$.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...measures import Measure
from ...pictures import RED, dots, guide, log, plot
from ...representation import (
    UNKNOWN,
    BlackBoxError,
    Characterisation,
    Excess,
    characterise,
    recover,
)
from ...representation.continuity import (
    GROWS,
    PRECISION,
    RATIO,
    Box,
    Caller,
    Continuity,
    Effort,
    Law,
    Precision,
    Search,
    continuity,
)
from ...representation.zoo import IN_CONTEXT, NO_MEASURE_MAP
from .._case import Case
from .._population import CLOUD
from .._section import Section, Status
from .._subjects import MapSubject, TokenSubject
from ._symmetries import rewritings

ATOMS = 12
"""Tokens of the contexts that are searched."""

POINTS = 4
LIGHT = Effort(starts=24, fresh=4, kept=4, each=1, rounds=1, tries=3)
"""A call of a trained model takes long."""

ZOOM = {torch.float64: 1e-7, torch.float32: 1e-4}
"""The smallest distance of tokens of a list."""


def theorem(case: Case) -> Section:
    """What Theorem 1 says about the model."""
    if case.subject.pooled:
        return Section(
            "theorem", "absent",
            "one output for the whole set: G(mu, x) = F(mu) does not depend on x, and there is "
            "nothing to recover",
        )  # fmt: skip
    where = case.points(CLOUD)
    if not Box.around(where).size > 0:
        why = "all points to ask for are one, and there is nowhere to move to"
        return Section("theorem", "absent", why)
    if case.queries is not None:
        return _of_queries(case, case.queries)
    if isinstance(case.subject, TokenSubject):
        return _of_lists(case, case.subject)
    return _of_measures(case)


def _of_measures(case: Case) -> Section:
    law = lambda g: case.population.context(ATOMS, g)
    model, dim, seed = case.subject.model, case.population.dim, case.generator.initial_seed()
    found = characterise(model, law, dim, seed=seed, progress=False)
    status: Status = "bad" if found.refuted else "good"
    if found.verdict.startswith(UNKNOWN):
        status = "noted"
    lines = [line.strip() for line in str(found).splitlines()[1:]]
    numbers: dict = {"verdict": found.verdict, **_constant(found)}
    plots = []
    if found.continuity is not None:
        numbers |= _continuity(found.continuity)
        plots.append(_gap_picture(found.continuity))
    if isinstance(case.subject, MapSubject) and not found.refuted:
        said, more = _recovered_map(case)
        lines.append(said)
        numbers |= more
    return Section("theorem", status, found.verdict, lines, numbers, plots)


def _recovered_map(case: Case) -> tuple[str, dict]:
    """Images of tokens, recovered from the map between measures, against the map's own."""
    mu = case.context()
    some = mu.atoms[:POINTS]
    try:
        again, errors = recover(case.subject.push).estimate(mu, some)
    except BlackBoxError as error:
        return f"not recovered from outside: {error}", {}
    deviation = float((again - case.subject.answer(mu, some)).norm(dim=-1).max())
    return _recovered_line(deviation, float(errors.max()))


def _recovered_line(deviation: float, estimate: float) -> tuple[str, dict]:
    line = (
        f"recovered from outside, images are within {deviation:.1e} of the model's own "
        f"(estimated {estimate:.1e})"
    )
    return line, {"recovered": {"deviation": deviation, "estimate": estimate}}


def _of_queries(case: Case, queries: Tensor) -> Section:
    dtype = case.population.dtype
    full = PRECISION.get(dtype, PRECISION[torch.float32])
    precision = Precision(full.hs, 1.0, full.fit, full.zoom, (1.0,))
    near = lambda g: Measure(queries[torch.randint(len(queries), (1,), generator=g)])
    found = _searched(
        case, case.subject.black_box(case.context(), case.tokens), near, queries, precision
    )
    status: Status = "good"
    verdict = "continuous in the query, as far as seen (not refuted)"
    if found.refuted and dtype == torch.float64:
        status = "bad"
        verdict = "no continuous in-context map (B2): its output jumps as the query moves"
    elif found.refuted:
        status = "noted"
        name = str(dtype).removeprefix("torch.")
        verdict = (
            f"its output jumps as the query moves, or is steeper than {found.slope:.2g}: {name} "
            "cannot tell"
        )
    lines, plots = [_steepest_line(found, queries)], [_gap_picture(found)]
    return Section("theorem", status, verdict, lines, _continuity(found), plots)


def _of_lists(case: Case, subject: TokenSubject) -> Section:
    mu = case.context()
    baseline = case.baseline(mu)
    changes = {name: test() for name, test in rewritings(case, baseline, mu).items()}
    numbers: dict = {"changes": changes, "tolerance": baseline.tolerance}
    wrong = [name for name, deviation in changes.items() if deviation > baseline.tolerance]
    if wrong:
        lines = [f"{name} changes outputs by {changes[name]:.2g}" for name in wrong]
        lines.append("as it should be for sequences, with positions; a set has none")
        return Section("theorem", "bad", NO_MEASURE_MAP, lines, numbers)
    lines = ["(B1) holds, for equal tokens have equal outputs: permuting changes nothing"]
    said, more, pairs = _recovered_list(case, subject)
    lines.append(said)
    numbers |= more
    case.tick()
    points = case.population.points(CLOUD, case.generator)
    law = lambda g: case.population.context(ATOMS, g)
    precision = _list_precision(case)
    found = _searched(case, subject.black_box(mu, case.tokens), law, points, precision)
    numbers |= _continuity(found)
    lines.append(_steepest_line(found, points))
    lines += [f"K({eta:.1e}) = {k:.3g}" for eta, k in found.table]
    status: Status = "good"
    verdict = IN_CONTEXT
    recovered = more.get("recovered", {"deviation": 0.0, "estimate": 0.0})
    if recovered["deviation"] > 30 * recovered["estimate"] + baseline.tolerance:
        status = "noted"
        verdict += (
            ", but not continuous in the context: what becomes of a small mass put at a token is "
            "not what becomes of the token"
        )
    elif found.refuted:
        status = "noted"
        verdict += ", but a token's image looks like that of no continuous map (B2): " + (
            "its slope grows as the mass of the token falls"
            if found.growth > GROWS
            else f"it jumps as the token moves, or is steeper than {found.slope:.2g}"
        )
    plots = [_gap_picture(found)] + ([_recovered_picture(pairs)] if pairs else [])
    return Section("theorem", status, verdict, lines, numbers, plots)


def _list_precision(case: Case) -> Precision:
    """What lists of so many tokens resolve."""
    etas = tuple(1 / k for k in (8, 32, 128, 512, 2048) if k <= case.tokens)
    hs = tuple(0.3 / RATIO**k for k in range(5))
    zoom = ZOOM.get(case.population.dtype, ZOOM[torch.float32])
    return Precision(hs, max(1 / 128, 1 / case.tokens), 0.1, zoom, etas)


def _recovered_list(
    case: Case, subject: TokenSubject
) -> tuple[str, dict, list[tuple[float, float]]]:
    r"""Images of tokens, recovered from unordered outputs, against the model's own.

    One more token among $k$ copies of $n$ has the mass $\eta=1/(kn+1)$; three such masses
    extrapolate to 0 twice, and the difference estimates the error. Also pairs of coordinates.
    """
    mu = case.context(min(case.population.typical_size, case.tokens // 8))
    own, pairs, worst, estimate = subject.outputs(mu), [], 0.0, 0.0
    copies = [max(1, (case.tokens - 1) // (4 * mu.n)) * k for k in (1, 2, 4)]
    a, b, c = (1 / (k * mu.n + 1) for k in copies)
    for i in range(min(POINTS, mu.n)):
        try:
            y = [Excess().image(subject.push, mu, mu.atoms[i], eta) for eta in (a, b, c)]
        except BlackBoxError as error:
            return f"not recovered from outside: {error}", {}, []
        early, late = (a * y[1] - b * y[0]) / (a - b), (b * y[2] - c * y[1]) / (b - c)
        worst = max(worst, float((late - own[i]).norm()))
        estimate = max(estimate, float((late - early).norm()))
        pairs += list(zip(own[i].tolist(), late.tolist(), strict=True))
    return *_recovered_line(worst, estimate), pairs


def _searched(
    case: Case, caller: Caller, law: Law, points: Tensor, precision: Precision
) -> Continuity:
    """The search for a jump, in the box of some points."""
    box = Box.around(points)
    search = Search(caller, law, box, case.generator, case.tick, LIGHT)
    noise = 64 * torch.finfo(points.dtype).eps * max(1.0, box.size)
    return continuity(search, precision, box.size, noise)


def _constant(found: Characterisation) -> dict:
    if found.lipschitz is None:
        return {}
    k = found.lipschitz
    return {"lipschitz": {"lower": k.lower, "upper": k.upper, "radius": k.radius}}


def _continuity(found: Continuity) -> dict:
    return {
        "gap_exponent": 1 - found.exponent, "gap_exponent_error": found.error,
        "slope": found.slope,
        "gaps": [{"h": s.h, "eta": s.eta, "gap": s.gap} for s in found.scales],
        "K": [{"eta": eta, "K": k} for eta, k in found.table],
        "smallest": {"h": found.smallest[0], "eta": found.smallest[1]},
    }  # fmt: skip


def _steepest_line(found: Continuity, points: Tensor) -> str:
    x = found.witness[0].x[0]
    away = float((points - x).norm(dim=-1).min())
    return (
        f"looked for jumps at distances down to {found.smallest[0]:.1e}: the steepest slope is "
        f"{found.slope:.3g}, at a point {away:.2g} from the nearest of the data"
    )


def _gap_picture(found: Continuity) -> dict:
    seen = [(s.h, s.gap) for s in found.scales if s.gap > 0]
    hs, gaps = [h for h, _ in seen], [g for _, g in seen]
    traces = [dots(hs, gaps, "largest gap found")]
    if seen:
        traces.append(guide(hs, [gaps[0] * h / hs[0] for h in hs], "Lipschitz"))
    return plot(
        "How far apart images of near points are", "distance h of the points",
        "distance of their images", traces, xaxis=log(hs), yaxis=log(gaps),
        caption="If there is a continuous in-context map, gaps close as points come together; in "
        "the end along the dashed slope if it is Lipschitz.",
    )  # fmt: skip


def _recovered_picture(pairs: list[tuple[float, float]]) -> dict:
    own, again = zip(*pairs, strict=True)
    ends = [min(own), max(own)]
    traces = [
        guide(ends, ends, "equal"),
        dots(own, again, "coordinates of images", line=False, marker={"color": RED}),
    ]
    return plot(
        "The in-context map, recovered from outside", "the model's own output", "recovered",
        traces,
        caption="Where a small mass put at a token goes, seen from the unordered outputs alone, "
        "against the output that the model gives for the token.",
    )  # fmt: skip
