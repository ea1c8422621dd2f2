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
from .._section import Section, Status
from ._charts import one_token_figure, origin_figure, response_figure
from ._one_token import one_token

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
    pair: Measured = partial(measured, response, share=share)
    points, contexts = case.points(POINTS), [case.context() for _ in range(CONTEXTS)]
    replaced = _replaced(pair, contexts, points, case.generator)
    moved = _moved(pair, case, contexts, points)
    variance = _context_share(case.box, contexts, points)
    steep = _steepest(response, share, case)
    worst, local = _halved(pair, case, [*replaced, *moved, *steep])
    overall = power([(c.distance, c.response) for c in moved if c.response > 0])
    status, verdict = _verdict(overall, local, worst, mu.n)
    single = None if case.box.weighted else one_token(case, points, rounding)
    if single is not None and single.stays:
        status, verdict = "bad", str(single)
    elif status == "good" and worst.ratio > 0 and variance is not None and variance < IGNORED:
        status = "noted"
        verdict = (
            f"outputs hardly depend on the context: it explains {variance:.1%} of the variance"
        )
    numbers = {
        "share": variance, "tokens": mu.n, "exponent": overall[0], "exponent_error": overall[1],
        "worst_exponent": local[0], "worst": _as_dict(worst),
        "replaced": [{"w1": c.distance, "response": c.response} for c in replaced],
        "moved": [{"w1": c.distance, "response": c.response} for c in moved],
    }  # fmt: skip
    source = "the token itself" if case.queries is None else "the query"
    lines = _lines(variance, source, worst)
    far, near = (
        [(c.distance, c.response) for c in pairs if c.distance > 0] for pairs in (replaced, moved)
    )
    plots: list[Chart] = [response_figure(far, near, (worst.distance, worst.response))]
    if single is not None:
        lines.append(str(single))
        numbers["one_token"] = {
            "sizes": single.sizes, "effects": single.effects, "exponent": single.exponent,
            "share": single.share,
        }  # fmt: skip
        plots.append(one_token_figure(single.sizes, single.effects, single.stays))
    if variance is not None:
        plots.append(origin_figure(variance, source))
    return Section("sensitivity", status, verdict, lines, numbers, plots)


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


def _verdict(
    overall: tuple[float, float], local: tuple[float, float], worst: Pair, n: int
) -> tuple[Status, str]:
    """The status and the sentence.

    Args:
        overall: exponent and standard error of the response to small moves of all tokens.
        local: the same where the steepest pairs come together.
        worst: the steepest pair.
        n: the tokens of a context.
    """
    if worst.ratio == 0:
        return "good", "outputs do not depend on the other tokens"
    small = [exponent for exponent, error in (overall, local) if exponent + 2 * error < LIPSCHITZ]
    if small:
        return "noted", (
            "small changes of the context have large effects: the response grows like W1 to the "
            f"power {min(small):.2f}, where a Lipschitz map has 1"
        )
    exponent, error = overall
    proportion = ""
    if not math.isnan(exponent):
        proportion = (
            "the response is proportional to the change of the context (exponent "
            f"{exponent:.2f}, standard error {error:.2f}): "
        )
    return "good", (
        f"{proportion}no change that was tried moved an output by more than {worst.ratio:.3g} "
        f"times the W1 distance of the contexts ({n} tokens)"
    )


def _lines(share: float | None, source: str, worst: Pair) -> list[str]:
    lines = []
    if share is not None:
        lines.append(
            f"{share:.0%} of the variance of outputs comes from the context, the rest from "
            f"{source}"
        )
    if worst.ratio > 0:
        lines.append(
            f"the steepest change found: contexts at W1 distance {worst.distance:.2g}, outputs at "
            f"distance {worst.response:.2g}, ratio {worst.ratio:.3g}, a lower bound of the "
            "Lipschitz constant in the context"
        )
    return lines


def _as_dict(pair: Pair) -> dict:
    """A pair as plain data, from which its numbers can be computed again."""
    return {
        "ratio": pair.ratio, "w1": pair.distance, "response": pair.response,
        "mu": pair.mu.atoms.tolist(), "nu": pair.nu.atoms.tolist(),
        "x": None if pair.x is None else pair.x.tolist(),
    }  # fmt: skip
