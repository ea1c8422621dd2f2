r"""More tokens of the same law: does the output converge, and does length itself matter?

Two things are kept apart. Contexts of $m$ independent draws differ by sampling: for a continuous
$G$ the spread of $G(\mu_m,x)$ tends to 0, as $m^{-1/2}$ for a smooth one. The same context written
$k$ times is the same measure: whatever changes then is due to the number of tokens alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ..._tools.fits import power
from ...pictures import RED, dots, guide, log, plot, ticks
from .._case import Case
from .._look import ALLOWED, chosen
from .._section import Section, Status

LEAST = 8
CONTEXTS = 12
POINTS = 4
COPIES = (2, 4, 8, 16)
LATE = 32
"""Sizes from which on a rate is fitted."""

CONVERGES = -0.25
"""Rates up to this are taken for convergence."""


def size(case: Case) -> Section:
    """Contexts of more and more tokens, and one context written more and more often."""
    case = replace(case, population=case.population.one())
    points, alone = case.points(POINTS), case.subject.joining()
    sizes = [LEAST * 2**k for k in range(int(math.log2(case.tokens // LEAST)) + 1)]
    spreads, means = [], []
    for m in sizes:
        draws = [case.population.draw(m - alone, case.generator) for _ in range(CONTEXTS)]
        out = torch.stack([case.subject.answer(mu, points) for mu in draws]).double()
        spreads.append(float(out.var(0).sum(-1).mean().sqrt()))
        means.append(out.mean(0))
        case.tick()
    drifts = [float((mean - means[-1]).square().sum(-1).mean().sqrt()) for mean in means]
    scale = float(means[-1].square().sum(-1).mean().sqrt())
    lengths, allowed = _lengths(case)
    seen = [(m, s) for m, s in zip(sizes, spreads, strict=True) if s > allowed / ALLOWED]
    rate, error = power([(m, s) for m, s in seen if m >= min(LATE, sizes[-3])])
    status, verdict = _verdict(lengths, allowed, scale, (rate, error), bool(seen))
    numbers = {
        "sizes": sizes, "spread": spreads, "drift": drifts, "rate": rate, "rate_error": error,
        "output_size": scale, "length_tolerance": allowed,
        "length": [{"tokens": n, "deviation": d} for n, d in lengths],
    }  # fmt: skip
    lines = [
        f"{m} tokens: outputs differ by {s:.2e} between contexts"
        for m, s in zip(sizes, spreads, strict=True)
    ]
    lines += [f"one context as {n} tokens: outputs change by {d:.1e}" for n, d in lengths]
    plots = [_spread_picture(sizes, spreads, rate), _length_picture(lengths, allowed)]
    return Section("size", status, verdict, lines, numbers, plots)


def _lengths(case: Case) -> tuple[list[tuple[int, float]], float]:
    """How outputs change when one context is written more often, and what counts as none."""
    mu = case.context()
    look, found = case.look(mu), []
    for k in COPIES:
        if k * mu.n <= case.tokens:
            index = torch.arange(mu.n).repeat(k)
            found.append((k * mu.n, look.deviation(chosen(mu, index), index)))
    return found, look.allowed


def _verdict(
    lengths: list[tuple[int, float]],
    allowed: float,
    scale: float,
    fit: tuple[float, float],
    seen: bool,
) -> tuple[Status, str]:
    changed = [(n, d) for n, d in lengths if d > allowed]
    rate, error = fit
    if changed:
        n, d = changed[-1]
        return "bad", (
            f"the number of tokens itself matters: from {changed[0][0]} tokens on, one context "
            f"written more often changes outputs, by {d:.2g} at {n} tokens "
            f"(outputs are of size {scale:.2g})"
        )
    if not seen:
        return "good", "outputs do not depend on the other tokens"
    if math.isnan(rate):
        return "noted", "the spread reached rounding too soon to see a rate"
    if rate <= CONVERGES:
        return "good", (
            f"converges: the spread over contexts of m tokens falls as m^{rate:.2f} "
            f"(standard error {error:.2f}; a smooth map has m^-0.5), and length itself does not "
            "matter"
        )
    slowly = "converges slowly, if at all" if rate + 2 * error < 0 else "not seen to converge"
    return "noted", (
        f"{slowly}: the spread over contexts of m tokens goes as m^{rate:.2f} "
        f"(standard error {error:.2f})"
    )


def _spread_picture(sizes: list[int], spreads: list[float], rate: float) -> dict:
    positive = [(m, s) for m, s in zip(sizes, spreads, strict=True) if s > 0]
    traces = [dots([m for m, _ in positive], [s for _, s in positive], "spread over contexts")]
    if positive and not math.isnan(rate):
        m0, s0 = positive[0]
        half = [s0 * (m / m0) ** -0.5 for m, _ in positive]
        traces.append(guide([m for m, _ in positive], half, "m^-1/2"))
    return plot(
        "The same point in contexts of m tokens of one law", "tokens m", "spread of the output",
        traces, xaxis=ticks(sizes), yaxis=log(spreads),
        caption=f"Standard deviation over {CONTEXTS} contexts drawn anew: for a smooth map of "
        "measures it falls along the dashed line.",
    )  # fmt: skip


def _length_picture(lengths: list[tuple[int, float]], allowed: float) -> dict:
    tokens = [n for n, _ in lengths]
    change = dots(tokens, [max(d, allowed * 1e-4) for _, d in lengths], "change")
    change["line"] = {"color": RED}
    return plot(
        "One context, written more often", "tokens", "change of outputs",
        [change, guide(tokens, [allowed] * len(tokens), "tolerance")],
        xaxis=ticks(tokens), yaxis=log(change["y"], [allowed]),
        caption="Twice the same tokens is the same measure: above the dashed line the number of "
        "tokens itself matters.",
    )  # fmt: skip
