r"""Do outputs converge as contexts of one law grow, and does the number of tokens itself matter?

These are two questions. Contexts of $m$ independent draws differ by sampling: for a continuous $G$
the spread of $G(\mu_m,x)$ tends to 0, as $m^{-1/2}$ for a smooth one. A context repeated $k$ times
is the same measure: if outputs change, they depend on the number of tokens alone.
"""

from __future__ import annotations

import math

import torch

from ..._tools.fits import power
from .._case import ROUNDING_FACTOR, Case, selected
from .._section import Section, Status
from ._charts import length_figure, spread_figure

SMALLEST = 8
"""Tokens of the smallest context."""

CONTEXTS = 12
"""Contexts of each size."""

POINTS = 4
"""Points whose outputs are compared."""

COPIES = (2, 4, 8, 16)
"""How often one context is repeated."""

FIT_FROM = 32
"""The size from which the rate is fitted."""

CONVERGES = -0.25
"""Rates up to this count as convergence."""


def size(case: Case) -> Section:
    """Draw larger and larger contexts, and repeat one context more and more often."""
    case = case.of_one_law()
    points, own = case.points(POINTS), case.box.tokens_per_query
    sizes = [SMALLEST * 2**k for k in range(int(math.log2(case.tokens // SMALLEST)) + 1)]
    spreads, means = [], []
    for m in sizes:
        contexts = [case.population.draw(m - own, case.generator) for _ in range(CONTEXTS)]
        out = torch.stack([case.box.answer(mu, points) for mu in contexts]).double()
        spreads.append(float(out.var(0).sum(-1).mean().sqrt()))
        means.append(out.mean(0))
        case.tick()
    drifts = [float((mean - means[-1]).square().sum(-1).mean().sqrt()) for mean in means]
    scale = float(means[-1].square().sum(-1).mean().sqrt())
    changes, tolerance = _repeated(case)
    rounding = tolerance / ROUNDING_FACTOR
    visible = [(m, s) for m, s in zip(sizes, spreads, strict=True) if s > rounding]
    rate, error = power([(m, s) for m, s in visible if m >= min(FIT_FROM, sizes[-3])])
    broken = [(n, d) for n, d in changes if d > tolerance]
    if broken:
        status, verdict = _length_matters(broken, scale)
    else:
        status, verdict = _convergence(rate, error, bool(visible))
    numbers = {
        "sizes": sizes, "spread": spreads, "drift": drifts, "rate": rate, "rate_error": error,
        "output_size": scale, "length_tolerance": tolerance,
        "length": [{"tokens": n, "deviation": d} for n, d in changes],
    }  # fmt: skip
    lines = [
        f"{m} tokens: outputs differ by {s:.2e} between contexts"
        for m, s in zip(sizes, spreads, strict=True)
    ]
    lines += [f"one context repeated up to {n} tokens: outputs change by {d:.1e}"
              for n, d in changes]  # fmt: skip
    plots = [
        spread_figure(sizes, spreads, CONTEXTS), length_figure(changes, scale, tolerance)
    ]  # fmt: skip
    return Section("size", status, verdict, lines, numbers, plots)


def _repeated(case: Case) -> tuple[list[tuple[int, float]], float]:
    """The change of outputs for each number of tokens of one context, and its tolerance."""
    mu = case.context()
    baseline, changes = case.baseline(mu), []
    for k in COPIES:
        if k * mu.n <= case.tokens:
            index = torch.arange(mu.n).repeat(k)
            changes.append((k * mu.n, baseline.change(selected(mu, index), index)))
    return changes, baseline.tolerance


def _length_matters(broken: list[tuple[int, float]], scale: float) -> tuple[Status, str]:
    n, change = broken[-1]
    return "bad", (
        f"outputs depend on the number of tokens itself: repeating a context changes them by "
        f"{change:.2g} at {n} tokens (outputs have size {scale:.2g})"
    )


def _convergence(rate: float, error: float, visible: bool) -> tuple[Status, str]:
    """The verdict where the number of tokens itself does not matter.

    Args:
        rate: the exponent of the spread in the number of tokens, NaN if it could not be fitted.
        error: its standard error.
        visible: whether any spread exceeds rounding.
    """
    if not visible:
        return "good", "outputs do not depend on the other tokens"
    if math.isnan(rate):
        return "noted", (
            "no rate could be measured, because the spread is at rounding level already for small "
            "contexts"
        )
    if rate <= CONVERGES:
        return "good", (
            f"converges: the spread of outputs over contexts of m tokens falls as m^{rate:.2f} "
            f"(standard error {error:.2f}; a smooth map has m^-0.5), and repeating tokens does "
            "not change them"
        )
    how = "converges slowly, if at all" if rate + 2 * error < 0 else "does not visibly converge"
    return "noted", (
        f"{how}: the spread over contexts of m tokens goes as m^{rate:.2f} "
        f"(standard error {error:.2f})"
    )
