r"""Do outputs converge as contexts of one law grow, and does the number of tokens itself matter?

These are two questions. Contexts of $m$ independent draws differ by sampling: for a continuous $G$
the spread of $G(\mu_m,x)$ tends to 0, as $m^{-1/2}$ for a smooth one. A context repeated $k$ times
is the same measure: if outputs change, they depend on the number of tokens alone.
"""

from __future__ import annotations

import math

import torch

from ..._tools.fits import power
from .._case import Baseline, Case, selected
from .._section import Section, untried
from ..findings import Finding, NotTried, Status, found, number, share, sort_findings
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


OF_SEQUENCES = "A longer sequence is not a larger sample of one law."
"""Why this is not asked of a model of sequences."""

CLASS_TOKEN = "If the other tokens are repeated, the class token has a smaller share of them all."
"""Why a model with a class token is not tested for repeated tokens."""

SETS_ONLY = 'Say `mode="set"` to try it all the same.'
"""What makes a test for sets be tried on a model of sequences."""


def size(case: Case) -> Section:
    """Draw larger and larger contexts, and repeat one context more and more often."""
    if case.sequence:
        return untried("size", OF_SEQUENCES, SETS_ONLY)
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
    changes, baseline = _repeated(case)
    tolerance, rounding = baseline.tolerance, baseline.rounding
    visible = [(m, s) for m, s in zip(sizes, spreads, strict=True) if s > rounding]
    rate, error = power([(m, s) for m, s in visible if m >= min(FIT_FROM, sizes[-3])])
    findings = [_convergence(rate, error, bool(visible))]
    if changes:
        findings.insert(0, _length(changes, baseline))
    numbers = {
        "sizes": sizes, "spread": spreads, "drift": drifts, "rate": rate, "rate_error": error,
        "output_size": scale, "length_tolerance": tolerance,
        "length": [
            {"tokens": n, "deviation": d, "share": baseline.share(d)} for n, d in changes
        ],
        "length_allowed": baseline.share(tolerance),
    }  # fmt: skip
    lines = [
        f"{m} tokens: outputs differ by {number(s)} between contexts"
        for m, s in zip(sizes, spreads, strict=True)
    ]
    lines += [
        f"one context repeated up to {n} tokens: outputs change by {number(d, up=True)}"
        for n, d in changes
    ]
    plots = [spread_figure(sizes, spreads, CONTEXTS)]
    if changes:
        shares = [(n, baseline.share(d)) for n, d in changes]
        plots.append(length_figure(shares, baseline.share(tolerance)))
    said = " ".join(f.said for f in sort_findings(findings))
    skipped = [NotTried("length", CLASS_TOKEN)] if case.class_token else []
    return Section("size", said, findings, lines, numbers, plots, not_tried=skipped)


def _repeated(case: Case) -> tuple[list[tuple[int, float]], Baseline]:
    """The change of outputs for each number of tokens of one context, and the baseline."""
    mu = case.context()
    baseline, changes = case.baseline(mu), []
    for k in COPIES:
        if k * mu.n <= case.tokens and not case.class_token:
            index = torch.arange(mu.n).repeat(k)
            changes.append((k * mu.n, baseline.change(selected(mu, index), index)))
    return changes, baseline


def _length(changes: list[tuple[int, float]], baseline: Baseline) -> Finding:
    """Whether repeating one context changes outputs."""
    broken = [(n, d) for n, d in changes if d > baseline.tolerance]
    n, change = broken[-1] if broken else max(changes, key=lambda c: c[1])
    effect = baseline.share(change)
    amount = "exactly 0" if change == 0 else f"{share(effect, up=not broken)} of their size"
    said = f"Repeating one context up to {n} tokens changes the outputs by {amount}"
    if not broken and change > baseline.by_rounding:
        said += ", less than the tolerance that was given"
    elif not broken and change > 0:
        said += ", no more than rounding"
    status: Status = "refuted" if broken else "open"
    return found("size", "length", status, f"{said}.", effect=effect, figure=1)


def _convergence(rate: float, error: float, visible: bool) -> Finding:
    """How fast outputs settle.

    Args:
        rate: the exponent of the spread in the number of tokens, NaN if it could not be fitted.
        error: its standard error.
        visible: whether any spread exceeds rounding.
    """
    slow, power = False, f"{number(rate)}, with a standard error of {number(error, up=True)}"
    if not visible:
        said = "The outputs do not depend on the other tokens, so there is nothing to settle."
    elif math.isnan(rate):
        said = (
            "The spread is at the level of rounding already for small sets, so no rate was seen."
        )
    elif rate <= CONVERGES:
        said = f"The spread over contexts of m tokens falls like m to the power {power}."
    else:
        slow = True
        how = "settle slowly, if at all" if rate + 2 * error < 0 else "do not visibly settle"
        said = (
            f"The outputs {how}. Their spread over contexts of m tokens goes like m to the power "
            f"{power}."
        )
    return found("size", "convergence", "measured", said, amiss=slow, figure=0)
