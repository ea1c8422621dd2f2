r"""(B1), (B2), and the in-context map recovered from outside against what the model says.

Models that take weights are characterised as maps between measures, with masses as small as
rounding allows. A model on lists of tokens has no mass below $1/N$: there the slope
$K(\eta)$ of the image of one token among $1/\eta$ of them is reported, and nothing is refuted by
it. A model of a context and queries says $G(\mu,x)$ itself, and is looked at in $x$.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..characterise import Characterisation, characterise
from ..characterise.calls import Caller
from ..characterise.continuity import PRECISION, Continuity, Precision, continuity
from ..characterise.search import RATIO, Box, Effort, Law, Search, Ticker
from ..measures import Measure
from ..recovery import BlackBoxError, Excess, recover
from ..zoo import IN_CONTEXT, NO_MEASURE_MAP
from .charts import LOG, RED, dots, guide, plot
from .population import Population
from .section import Section, Status
from .subjects import MapSubject, Subject
from .symmetries import Look, chosen

ATOMS = 12
"""Tokens of the contexts that are searched."""

POINTS = 4
LIGHT = Effort(starts=24, fresh=4, kept=4, each=1, rounds=1, tries=3)
"""A call of a trained model takes long."""

ZOOM = {torch.float64: 1e-7, torch.float32: 1e-4}
"""The smallest distance of tokens of a list."""


def lists(dtype: torch.dtype, tokens: int) -> Precision:
    """What lists of so many tokens resolve."""
    etas = tuple(1 / k for k in (8, 32, 128, 512, 2048) if k <= tokens)
    hs = tuple(0.3 / RATIO**k for k in range(5))
    return Precision(hs, max(1 / 128, 1 / tokens), 0.1, ZOOM.get(dtype, 1e-4), etas)


def theorem(
    subject: Subject,
    population: Population,
    queries: Tensor | None,
    generator: torch.Generator,
    tokens: int,
    tick: Callable[[], None],
) -> Section:
    """What Theorem 1 says about the model.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        generator: of all that is random.
        tokens: of the longest list.
        tick: told now and then.
    """
    seed = generator.initial_seed()
    if subject.pooled:
        return Section(
            "theorem", "absent",
            "one output for the whole set: G(mu, x) = F(mu) does not depend on x, and there is "
            "nothing to recover",
            seed=seed,
        )  # fmt: skip
    if subject.weighted and not subject.separate:
        return _of_measures(subject, population, generator)
    if subject.separate and queries is not None:
        return _of_queries(subject, population, queries, generator, tick)
    return _of_lists(subject, population, generator, tokens, tick)


def _of_measures(subject: Subject, population: Population, generator: torch.Generator) -> Section:
    law = lambda g: population.context(g, ATOMS)
    found = characterise(
        subject.model, law, population.dim, seed=generator.initial_seed(), progress=False
    )
    status: Status = "bad" if found.refuted else "good"
    if found.verdict.startswith("could not"):
        status = "noted"
    lines = str(found).splitlines()[1:]
    numbers: dict = {"verdict": found.verdict, **_constant(found)}
    plots = []
    if found.continuity is not None:
        numbers |= _continuity(found.continuity)
        plots.append(_gap_picture(found.continuity))
    if isinstance(subject, MapSubject) and not found.refuted:
        mu = population.context(generator)
        some = mu.atoms[:POINTS]
        own = subject.answer(mu, some)
        try:
            again, errors = recover(subject.push).estimate(mu, some)
            deviation = float((again - own).norm(dim=-1).max())
            lines.append(
                f"recovered from outside, images are within {deviation:.1e} of the model's own "
                f"(estimated {float(errors.max()):.1e})"
            )
            numbers["recovered"] = {"deviation": deviation, "estimate": float(errors.max())}
        except BlackBoxError as error:
            lines.append(f"not recovered from outside: {error}")
    return Section(
        "theorem", status, found.verdict, [line.strip() for line in lines], numbers, plots,
        generator.initial_seed(),
    )  # fmt: skip


def _of_queries(
    subject: Subject,
    population: Population,
    queries: Tensor,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> Section:
    full = PRECISION.get(population.dtype, PRECISION[torch.float32])
    precision = Precision(full.hs, 1.0, full.fit, full.zoom, (1.0,))
    near = lambda g: Measure(queries[torch.randint(len(queries), (1,), generator=g)])
    caller = _Asked(subject, population.context(generator))
    found = _searched(caller, near, queries, precision, generator, tick)
    status: Status = "good"
    verdict = "continuous in the query, as far as seen (not refuted)"
    if found.refuted and population.dtype == torch.float64:
        status = "bad"
        verdict = "no continuous in-context map (B2): its output jumps as the query moves"
    elif found.refuted:
        status = "noted"
        verdict = (
            f"its output jumps as the query moves, or is steeper than {found.slope:.2g}: "
            + (f"{str(population.dtype).removeprefix('torch.')} cannot tell")
        )
    return Section(
        "theorem", status, verdict, [_scales_line(found), _where(found, queries)],
        _continuity(found), [_gap_picture(found)], generator.initial_seed(),
    )  # fmt: skip


def _of_lists(
    subject: Subject,
    population: Population,
    generator: torch.Generator,
    tokens: int,
    tick: Callable[[], None],
) -> Section:
    mu = population.context(generator)
    look = Look.of(subject, mu, None, generator)
    everyone = torch.arange(mu.n)
    twice = torch.cat([everyone, everyone])
    order = torch.randperm(mu.n, generator=generator)
    changes = {
        "permuting": look.deviation(chosen(mu, order), order),
        "repeating": look.deviation(chosen(mu, twice), twice),
    }
    numbers: dict = {"changes": changes, "allowed": look.allowed}
    wrong = [name for name, deviation in changes.items() if deviation > look.allowed]
    if wrong:
        lines = [f"{name} its tokens changes outputs by {changes[name]:.2g}" for name in wrong]
        return Section(
            "theorem", "bad", NO_MEASURE_MAP, lines, numbers, seed=generator.initial_seed()
        )
    lines = ["(B1) holds, for equal tokens have equal outputs: permuting changes nothing"]
    status: Status = "good"
    verdict = IN_CONTEXT
    pairs, deviation, estimate = _recovered(subject, population, generator, tokens)
    tick()
    if math.isnan(deviation):
        lines.append("not recovered from outside: images of tokens lie too close together")
    else:
        numbers["recovered"] = {"deviation": deviation, "estimate": estimate}
        lines.append(
            f"recovered from outside, images are within {deviation:.1e} of the model's own "
            f"(estimated {estimate:.1e})"
        )
        if deviation > 30 * estimate + look.allowed:
            status = "noted"
            verdict = (
                f"{IN_CONTEXT}, but not continuous in the context: what becomes of a small mass "
                "put at a token is not what becomes of the token"
            )
    law = lambda g: population.context(g, ATOMS)
    points = population.points(256, generator)
    precision = lists(population.dtype, tokens)
    found = _searched(_Listed(subject, tokens), law, points, precision, generator, tick)
    numbers |= _continuity(found)
    lines += [_scales_line(found), _where(found, points)]
    if found.refuted and status == "good":
        status = "noted"
        grows = "its slope grows as the mass of the token falls" if found.growth > 0.2 else (
            f"it jumps as the token moves, or is steeper than {found.slope:.2g}"
        )  # fmt: skip
        verdict = (
            f"{IN_CONTEXT}, but a token's image looks like that of no continuous map (B2): {grows}"
        )
        lines += [f"K({eta:.1e}) = {k:.3g}" for eta, k in found.table]
    plots = [_gap_picture(found)]
    if pairs:
        plots.append(_recovered_picture(pairs))
    return Section("theorem", status, verdict, lines, numbers, plots, generator.initial_seed())


def _recovered(
    subject: Subject, population: Population, generator: torch.Generator, tokens: int
) -> tuple[list[tuple[float, float]], float, float]:
    r"""Coordinates of images, the model's own and recovered, their distance, and an estimate.

    One more token among $k$ copies of $n$ has the mass $\eta=1/(kn+1)$; three such masses
    extrapolate to 0 twice, and the difference estimates the error.
    """
    mu = population.context(generator)
    own, pairs, worst, estimate = subject.tokens(mu), [], 0.0, 0.0
    if 4 * mu.n >= tokens:
        mu = chosen(mu, torch.arange(max(2, tokens // 8)))
        own = subject.tokens(mu)
    copies = [max(1, (tokens - 1) // (4 * mu.n)) * k for k in (1, 2, 4)]
    etas = [1 / (k * mu.n + 1) for k in copies]
    for i in range(min(POINTS, mu.n)):
        try:
            y = [Excess().image(subject.push, mu, mu.atoms[i], eta) for eta in etas]
        except BlackBoxError:
            return [], math.nan, math.nan
        a, b, c = etas
        early, late = (a * y[1] - b * y[0]) / (a - b), (b * y[2] - c * y[1]) / (b - c)
        worst = max(worst, float((late - own[i]).norm()))
        estimate = max(estimate, float((late - early).norm()))
        pairs += list(zip(own[i].tolist(), late.tolist(), strict=True))
    return pairs, worst, estimate


class _Listed(Caller):
    """A model on lists: a mass is one token among many."""

    def __init__(self, subject: Subject, tokens: int):
        self.subject, self.tokens = subject, tokens
        self.batched, self.differentiable = False, True

    def images(self, atoms, logs, x, eta):
        """Write the context out until one token has about the mass."""
        n = atoms.shape[1]
        most = max(1, (self.tokens - 1) // n)
        copies = ((1 / eta - 1) / n).round().clamp(1, most).long()
        order, parts = [], []
        for k in copies.unique().tolist():
            some = (copies == k).nonzero().flatten()
            order.append(some)
            parts.append(torch.cat([atoms[some].repeat(1, k, 1), x[some, None]], 1))
        return torch.cat([self.subject.last(p) for p in parts])[torch.cat(order).argsort()]


class _Asked(Caller):
    """A model of a context and queries, which have no mass."""

    def __init__(self, subject: Subject, mu: Measure):
        self.subject, self.mu = subject, mu
        self.batched, self.differentiable = False, True

    def images(self, atoms, logs, x, eta):
        """What becomes of the points; the atoms are only where to begin."""
        return self.subject.answer(self.mu, x)


def _searched(
    caller: Caller,
    law: Law,
    points: Tensor,
    precision: Precision,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> Continuity:
    """The search for a jump, in the box of some points."""
    box = Box(points.amin(0), points.amax(0))
    if not box.size > 0:
        raise BlackBoxError("all points of the data are one, and there is nowhere to move to")
    search = Search(caller, law, box, generator, Ticker(lambda done: tick()), LIGHT)
    noise = 64 * torch.finfo(points.dtype).eps * max(1.0, box.size)
    return continuity(search, precision, box.size, noise)


def _where(found: Continuity, points: Tensor) -> str:
    """How far the steepest place is from the data."""
    x = found.witness[0].x[0]
    away = float((points - x).norm(dim=-1).min())
    return f"the steepest place found is {away:.2g} from the nearest point of the data"


def _constant(found: Characterisation) -> dict:
    if found.lipschitz is None:
        return {}
    k = found.lipschitz
    upper = None if math.isinf(k.upper) else k.upper
    return {"lipschitz": {"lower": k.lower, "upper": upper, "radius": k.radius}}


def _continuity(found: Continuity) -> dict:
    return {
        "exponent": found.exponent, "exponent_error": found.error, "slope": found.slope,
        "gaps": [{"h": s.h, "eta": s.eta, "gap": s.gap} for s in found.scales],
        "K": [{"eta": eta, "K": k} for eta, k in found.table],
        "smallest": {"h": found.smallest[0], "eta": found.smallest[1]},
    }  # fmt: skip


def _scales_line(found: Continuity) -> str:
    return (
        f"gaps of images at distance h fall as h^{1 - found.exponent:.2f} (standard error "
        f"{found.error:.2f}), looked at down to h = {found.smallest[0]:.1e}; steepest slope "
        f"{found.slope:.3g}"
    )


def _gap_picture(found: Continuity) -> dict:
    hs = [s.h for s in found.scales]
    gaps = [s.gap for s in found.scales]
    seen = [(h, g) for h, g in zip(hs, gaps, strict=True) if g > 0]
    traces = [dots([h for h, _ in seen], [g for _, g in seen], "largest gap found")]
    if seen:
        h0, g0 = seen[0]
        traces.append(guide([h for h, _ in seen], [g0 * h / h0 for h, _ in seen], "Lipschitz"))
    return plot(
        "How far apart images of near points are", "distance h of the points",
        "distance of their images", traces, xaxis=LOG, yaxis=LOG,
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
    )  # fmt: skip
