r"""More tokens of the same law: does the output converge, and does length itself matter?

Two things are kept apart. Contexts of $m$ independent draws differ by sampling: for a continuous
$G$ the spread of $G(\mu_m,x)$ tends to 0, as $m^{-1/2}$ for a smooth one. The same context written
$k$ times is the same measure: whatever changes then is due to the number of tokens alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..characterise.continuity import line
from .charts import LOG, RED, dots, guide, plot, ticks
from .population import Population
from .section import Section, Status
from .subjects import Subject
from .symmetries import Look, chosen

LEAST = 8
CONTEXTS = 12
POINTS = 4
COPIES = (2, 4, 8, 16)
LATE = 32
"""Sizes from which on a rate is fitted."""

CONVERGES = -0.25
"""Rates up to this are taken for convergence."""


def size(
    subject: Subject,
    population: Population,
    queries: Tensor | None,
    generator: torch.Generator,
    most: int,
) -> Section:
    """Contexts of more and more tokens, and one context written more and more often.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        generator: of all that is random.
        most: tokens of the largest context.
    """
    population = population.one()
    points = population.points(POINTS, generator) if queries is None else queries[:POINTS]
    sizes = [LEAST * 2**k for k in range(int(math.log2(max(1, most // LEAST))) + 1)]
    spreads, means = [], []
    for m in sizes:
        contexts = [population.draw(m, generator) for _ in range(CONTEXTS)]
        out = torch.stack([subject.answer(mu, points) for mu in contexts]).double()
        spreads.append(float(out.var(0).sum(-1).mean().sqrt()))
        means.append(out.mean(0))
    drifts = [float((mean - means[-1]).square().sum(-1).mean().sqrt()) for mean in means]
    scale = float(means[-1].square().sum(-1).mean().sqrt())
    lengths, allowed = _lengths(subject, population, queries, generator, most)
    seen = [(m, s) for m, s in zip(sizes, spreads, strict=True) if s > allowed / 50]
    late = [(m, s) for m, s in seen if m >= min(LATE, sizes[-3])]
    rate, error = math.nan, math.nan
    if len(late) >= 3:
        rate, error = line([math.log(m) for m, _ in late], [math.log(s) for _, s in late])
    status, verdict = _verdict(lengths, allowed, scale, rate, error, bool(seen))
    numbers = {
        "sizes": sizes, "spread": spreads, "drift": drifts, "rate": rate,
        "rate_error": error, "output_size": scale,
        "length": [{"tokens": n, "deviation": d} for n, d in lengths], "length_allowed": allowed,
    }  # fmt: skip
    lines = [
        f"{m} tokens: outputs of a point differ by {s:.2e} between contexts"
        for m, s in zip(sizes, spreads, strict=True)
    ]
    lines += [f"one context as {n} tokens: outputs change by {d:.1e}" for n, d in lengths]
    plots = [_spread_picture(sizes, spreads, rate), _length_picture(lengths, allowed)]
    return Section("size", status, verdict, lines, numbers, plots, generator.initial_seed())


def _lengths(
    subject: Subject,
    population: Population,
    queries: Tensor | None,
    generator: torch.Generator,
    most: int,
) -> tuple[list[tuple[int, float]], float]:
    """How outputs change when one context is written more often, and what is rounding."""
    mu = population.context(generator)
    look = Look.of(subject, mu, queries, generator)
    everyone, found = torch.arange(mu.n), []
    for k in COPIES:
        if k * mu.n > max(most, 2 * mu.n):
            break
        index = everyone.repeat(k)
        found.append((k * mu.n, look.deviation(chosen(mu, index), index)))
    return found, look.allowed


def _verdict(
    lengths: list[tuple[int, float]],
    allowed: float,
    scale: float,
    rate: float,
    error: float,
    seen: bool,
) -> tuple[Status, str]:
    changed = [(n, d) for n, d in lengths if d > allowed]
    if changed:
        n, d = changed[-1]
        return "bad", (
            f"the number of tokens itself matters: from {changed[0][0]} tokens on, one context "
            f"written more often changes outputs, by {d:.2g} at {n} tokens "
            f"(outputs are of size {scale:.2g})"
        )
    if not seen:
        return "good", "outputs of a token do not depend on the other tokens"
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
        traces, xaxis=ticks(sizes), yaxis=LOG,
    )  # fmt: skip


def _length_picture(lengths: list[tuple[int, float]], allowed: float) -> dict:
    tokens = [n for n, _ in lengths]
    least = allowed * 1e-4
    traces = [
        dots(tokens, [max(d, least) for _, d in lengths], "change", line=True),
        guide(tokens, [allowed] * len(tokens), "rounding"),
    ]
    traces[0]["line"] = {"color": RED}
    return plot(
        "One context, written more often", "tokens", "change of outputs", traces,
        xaxis=ticks(tokens), yaxis=LOG,
    )  # fmt: skip
