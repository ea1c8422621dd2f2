r"""How far does an output move when the other tokens change?

For pairs of contexts $\mu,\nu$ and one point $x$, the response $|G(\mu,x)-G(\nu,x)|$ against
$W_1(\mu,\nu)$: for contexts in which some tokens are replaced, or all are moved a little, and for
the steepest change that a search finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..._tools.fits import power
from ...measures import Measure
from ...pictures import Chart
from ...representation import BlackBox
from ...representation.boxes import answer_distance
from ...representation.continuity import Moves, Pair, Region, Response, measured, steepest
from .._case import CLOUD, Case
from .._section import Section
from ..findings import Finding, NotTried, found, number, share as share_of, sort_findings
from ._charts import one_token_figure, origin_figure, response_figure
from ._one_token import OneToken, one_token
from ._size import SETS_ONLY

POINTS = 4
"""Points whose outputs are compared."""

CONTEXTS = 4
"""Contexts whose tokens are replaced and moved."""

STARTS = 2
"""Contexts from which the search for the steepest change starts."""

ROUNDS = 40
"""Changes that the search tries from each start."""

HALVINGS = 12
"""How often the steepest pairs are halved."""

IGNORED = 0.005
"""Models whose outputs owe less than this share of their variance to the context ignore it."""

LIPSCHITZ = 0.8
"""Exponents below this belong to a map that is not Lipschitz."""

MOVES = {torch.float64: (1e-5, 1e-4, 1e-3, 1e-2, 1e-1), torch.float32: (1e-3, 1e-2, 1e-1)}
"""How far tokens are moved, in units of the spread of the data."""


Measured = Callable[[Measure, Measure, Tensor | None], Pair]
"""Two contexts and a point, with the distance of the contexts and the response at the point."""


def sensitivity(case: Case) -> Section:
    """Replace and move the other tokens, and search for the steepest change."""
    case = case.of_one_law()
    mu = case.context()
    rounding = case.baseline(mu).rounding
    response = answer_distance(case.box, 10 * rounding)
    # The share of a context in all tokens of a call, of which the point may be one.
    share = mu.n / (mu.n + case.box.tokens_per_query)
    pair: Measured = partial(_in_place if case.sequence else measured, response, share=share)
    points, contexts = case.points(POINTS), [case.context() for _ in range(CONTEXTS)]
    replaced = _replaced(pair, contexts, points, case.generator)
    moved = _moved(pair, case, contexts, points)
    variance = _context_share(case.box, contexts, points)
    steep = _steepest(response, share, case)
    if case.sequence:
        steep = [pair(p.mu, p.nu, p.x) for p in steep]
    worst, local = _halved(pair, case, [*replaced, *moved, *steep])
    overall = power([(c.distance, c.response) for c in moved if c.response > 0])
    single = None
    if not case.box.weighted and not case.sequence:
        single = one_token(case, points, rounding)
    source = "the token itself" if case.queries is None else "the query"
    findings = [_response(overall, local, worst, case)]
    if variance is not None:
        findings.append(_context(variance, source, worst))
    if single is not None:
        findings.append(single.finding())
    numbers = {
        "share": variance, "tokens": mu.n, "exponent": overall[0], "exponent_error": overall[1],
        "worst_exponent": local[0], "worst": _as_dict(worst),
        "replaced": [{"w1": c.distance, "response": c.response} for c in replaced],
        "moved": [{"w1": c.distance, "response": c.response} for c in moved],
    }  # fmt: skip
    far, near = (
        [(c.distance, c.response) for c in pairs if c.distance > 0] for pairs in (replaced, moved)
    )
    plots: list[Chart] = [response_figure(far, near, (worst.distance, worst.response))]
    if single is not None:
        numbers["one_token"] = {
            "sizes": single.sizes, "effects": single.effects, "exponent": single.exponent,
            "share": single.share, "spread": single.spread,
        }  # fmt: skip
        plots.append(one_token_figure(single.sizes, single.effects, single.stays))
    if variance is not None:
        plots.append(origin_figure(variance, source))
    said = " ".join(f.said for f in sort_findings(findings)[:2])
    return Section(
        "sensitivity",
        said,
        findings,
        _lines(worst),
        numbers,
        plots,
        not_tried=_skipped(case, single),
    )


def _skipped(case: Case, single: OneToken | None) -> list[NotTried]:
    """Why the effect of one token was not measured."""
    if single is not None or case.box.weighted:
        return []
    if case.sequence:
        why, how = "In a sequence a token in another place is another token.", SETS_ONLY
    else:
        why, how = "Contexts are too small to see a trend.", "Raise `tokens=`."
    return [NotTried("one token", why, how)]


def _in_place(
    response: Response, mu: Measure, nu: Measure, x: Tensor | None, share: float
) -> Pair:
    """Two sequences, with the mean distance of their tokens place by place, and the response.

    It is the distance of sequences in which a token must not change its place.
    """
    changed = float(response(mu, nu, x))
    moved = float((mu.atoms - nu.atoms).norm(dim=-1).mean())
    return Pair(mu, nu, x, share * moved, changed)


def _replaced(
    pair: Measured, contexts: list[Measure], points: Tensor, generator: torch.Generator
) -> list[Pair]:
    """Replace 1, 2, 4, ... and finally all tokens by those of another context."""
    pairs = []
    for k, mu in enumerate(contexts):
        other = contexts[(k + 1) % len(contexts)]
        count = 1
        while True:
            index = torch.randperm(mu.n, generator=generator)[:count].to(mu.device)
            atoms = mu.atoms.clone()
            atoms[index] = other.atoms[index]
            pairs.append(pair(mu, mu.moved(atoms), points[k % len(points)]))
            if count == mu.n:
                break
            count = min(2 * count, mu.n)
    return pairs


def _moved(pair: Measured, case: Case, contexts: list[Measure], points: Tensor) -> list[Pair]:
    """Move all tokens a little, in random directions in which the data vary."""
    cloud = case.population.points(CLOUD, case.generator)
    scale, pairs = cloud.std(0), []
    region = _region(case, [cloud, *(mu.atoms for mu in contexts)])
    for k, mu in enumerate(contexts):
        noise = torch.randn(mu.atoms.shape, generator=case.generator).to(mu.atoms)
        for step in MOVES.get(mu.dtype, MOVES[torch.float32]):
            nu = mu.moved(region.clamp(mu.atoms + step * scale * noise))
            pairs.append(pair(mu, nu, points[k % len(points)]))
    return pairs


def _context_share(box: BlackBox, contexts: list[Measure], points: Tensor) -> float | None:
    """The share of the variance of outputs that is due to the context; None for one output."""
    if box.pooled or len(points) < 2:
        return None
    out = torch.stack([box.answer(mu, points) for mu in contexts]).double()
    within = float(out.var(0, correction=0).sum(-1).mean())
    total = float(out.flatten(0, 1).var(0, correction=0).sum())
    return within / total if total > 0 else 0.0


def _region(case: Case, clouds: list[Tensor]) -> Region:
    return Region.around(torch.cat(clouds), case.box.manifold)


def _steepest(response: Response, share: float, case: Case) -> list[Pair]:
    """The steepest pairs that a search reaches from some contexts and points."""
    contexts = [case.context() for _ in range(STARTS)]
    cloud = case.population.points(CLOUD, case.generator)
    region = _region(case, [cloud, *(mu.atoms for mu in contexts)])
    x = case.population.points(STARTS, case.generator)
    if case.queries is not None:
        x = case.queries[torch.randint(len(case.queries), (STARTS,), generator=case.generator)]
    return steepest(
        response, list(zip(contexts, x, strict=True)), region, case.generator,
        moves=Moves(point=case.queries is None, rounds=ROUNDS), share=share, tick=case.tick,
    )  # fmt: skip


def _halved(pair: Measured, case: Case, pairs: list[Pair]) -> tuple[Pair, tuple[float, float]]:
    """The steepest pair, and the exponent of the response as a pair comes together.

    The steepest pair and the one with the largest response are halved again and again: of the two
    halves of the way from one context to the other, the one with the larger response is kept. At a
    jump the response does not fall, and the exponent is 0. Returned with its standard error.
    """
    steep, wide = (max(pairs, key=key) for key in (lambda c: c.ratio, lambda c: c.response))
    best, fits = steep, []
    for first in (steep,) if steep is wide else (steep, wide):
        chain, region = [first], _region(case, [first.mu.atoms, first.nu.atoms])
        for _ in range(HALVINGS):
            mu, nu = chain[-1].mu, chain[-1].nu
            middle = mu.moved(region.clamp((mu.atoms + nu.atoms) / 2))
            halves = pair(mu, middle, first.x), pair(middle, nu, first.x)
            half = max(halves, key=lambda c: c.response)
            if not (half.response > 0 and half.distance > 0):
                break
            chain.append(half)
        best = max([best, *chain], key=lambda c: c.ratio)
        fits.append(power([(c.distance, c.response) for c in chain[len(chain) // 2 :]]))
    known = [fit for fit in fits if not math.isnan(fit[0])]
    return best, min(known, default=(math.nan, math.nan))


def _response(
    overall: tuple[float, float], local: tuple[float, float], worst: Pair, case: Case
) -> Finding:
    """How outputs respond.

    Args:
        overall: exponent and standard error of the response to small moves of all tokens.
        local: the same where the steepest pairs come together.
        worst: the steepest pair.
        case: the model.
    """
    if worst.ratio == 0:
        said = "No change of the other tokens that was tried moved an output."
        return found("sensitivity", "response", "measured", said, figure=0)
    distance = "mean distance of the tokens" if case.sequence else "W1 distance of the contexts"
    small = [exponent for exponent, error in (overall, local) if exponent + 2 * error < LIPSCHITZ]
    if small:
        said = (
            f"The response to small changes grows like the {distance} to the power "
            f"{number(min(small))}, where 1 is proportional."
        )
        return found("sensitivity", "response", "measured", said, amiss=True, figure=0)
    exponent, error = overall
    proportion = "" if math.isnan(exponent) else (
        f"The response is proportional to the change of the context, with an exponent of "
        f"{number(exponent, 3)} and a standard error of {number(error, up=True)}. "
    )  # fmt: skip
    said = (
        f"{proportion}No change that was tried moved an output by more than "
        f"{number(worst.ratio, 3)} times the {distance}."
    )
    return found("sensitivity", "response", "measured", said, figure=0)


def _context(share: float, source: str, worst: Pair) -> Finding:
    """How much of the variance of outputs is due to the context."""
    if worst.ratio == 0 or share < IGNORED:
        amount = "None" if worst.ratio == 0 else f"Only {share_of(share)}"
        said = f"{amount} of the variance of the outputs comes from the other tokens."
        return found("sensitivity", "context", "measured", said, amiss=True)
    said = (
        f"{share_of(share)} of the variance of the outputs comes from the other tokens, the rest "
        f"from {source}."
    )
    return found("sensitivity", "context", "measured", said)


def _lines(worst: Pair) -> list[str]:
    if worst.ratio == 0:
        return []
    return [
        f"the steepest change found: contexts at distance {number(worst.distance)}, outputs at "
        f"distance {number(worst.response)}, ratio {number(worst.ratio, 3)}, a lower bound of the "
        "Lipschitz constant in the context"
    ]


def _as_dict(pair: Pair) -> dict:
    """A pair as plain data, from which its numbers can be computed again."""
    return {
        "ratio": pair.ratio, "w1": pair.distance, "response": pair.response,
        "mu": pair.mu.atoms.tolist(), "nu": pair.nu.atoms.tolist(),
        "x": None if pair.x is None else pair.x.tolist(),
    }  # fmt: skip
