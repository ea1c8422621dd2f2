r"""What do the attention heads relate?

A head is a matrix $P$ of $m$ queries and $n$ keys whose rows are probabilities. Measured for each:
the mean entropy of its rows as a share of $\log n$; how far its column sums are from those of a
coupling, $\frac12\sum_j|\frac1m\sum_iP_{ij}-\frac1n|$; the numerical rank of $\log P$ with rows
centred, which is the smallest dimension of a head that could produce it; and the mean weight of a
token on itself.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...approximation import conditional_rank
from ...pictures import Chart
from .._case import Case, selected
from .._inside import attention
from .._section import Section, count, untried
from ..findings import Finding, found, number, share
from ._charts import MEASURES, attention_figure, head_figures
from ._depth import TOKENS

QUERIES = 40
"""The most queries whose attention is measured."""

SHOWN = 48
"""The most heads whose matrices are drawn."""

UNIFORM = 0.99
"""Heads whose entropy is above this share of its maximum attend to all tokens alike."""

SHARP = 0.1
"""Heads whose entropy is below this share of its maximum attend to few tokens."""

NAMES = {
    "entropy": "entropy, as a share of the largest",
    "columns": "column sums: distance from a coupling",
    "rank": "rank of the centred logarithm",
    "self": "weight on itself",
}
"""The measures of a head, and their names in the menu of the chart."""

Head = dict[str, float | None]


def relations(case: Case) -> Section:
    """Measure every head."""
    case = case.of_one_law()
    mu = case.context(min(TOKENS, case.tokens - 2))
    x = None if case.queries is None else case.queries[:QUERIES]
    layers = attention(case.box, mu, x)
    # Matrices that are not attention, but happen to be as large, do not shrink with the context.
    fewer = selected(mu, torch.arange(mu.n - max(1, mu.n // 8)))
    if not layers or len(layers) != len(attention(case.box, fewer, x)):
        return untried("relations", "No attention heads were found in the model.")
    table = [[head_numbers(P) for P in heads] for heads in layers]
    flat = [head for row in table for head in row]
    mean = {name: _mean([head[name] for head in flat]) for name in NAMES}
    findings = _findings(flat, mean, len(layers))
    lines = [_layer_line(k, row, layers[k]) for k, row in enumerate(table)]
    numbers = {"tokens": mu.n, "heads": table, "mean": mean}
    shares = {
        name: [[head[key] or 0.0 for head in row] for row in table]
        for name, key in zip(MEASURES, ("entropy", "columns"), strict=True)
    }
    ranks = [[math.nan if head["rank"] is None else head["rank"] for head in row] for row in table]
    plots: list[Chart] = [*head_figures(shares, ranks, mu.n), attention_figure(layers)]
    said = " ".join(finding.said for finding in findings)
    return Section("relations", said, findings, lines, numbers, plots)


def _findings(heads: list[Head], mean: dict[str, float], layers: int) -> list[Finding]:
    """What the heads relate, and whether some of them choose nothing."""
    alone = len(heads) == 1
    where = f"{count(len(heads), 'head')} in {count(layers, 'attention layer')}"
    said = (
        f"{where} {'has' if alone else 'have'} a mean entropy of {mean['entropy']:.2f}. "
        f"{share(mean['columns'])} of {'its' if alone else 'their'} weight would have to move to "
        f"make {'it a coupling' if alone else 'them couplings'}."
    )
    if not math.isnan(mean["rank"]):
        said += f" The mean centred rank is {number(mean['rank'])}."
    sharp = sum((head["entropy"] or 0.0) < SHARP for head in heads)
    if sharp:
        said += f" {count(sharp, 'head')} put{'s' if sharp == 1 else ''} nearly all weight on few "
        said += "tokens."
    findings = [found("relations", "heads", "measured", said, figure=0)]
    even = sum((head["entropy"] or 0.0) > UNIFORM for head in heads)
    if even:
        which = (
            "Every head gives"
            if even == len(heads)
            else f"{even} of {len(heads)} heads give{'s' if even == 1 else ''}"
        )
        said = f"{which} all tokens the same weight, with an entropy above {UNIFORM}."
        findings.append(
            found("relations", "uniform heads", "measured", said, amiss=True, figure=0)
        )
    return findings


def _layer_line(k: int, row: list[Head], heads: Tensor) -> str:
    """The smallest and the largest number of each measure over the heads of one layer."""

    def span(name: str) -> str:
        known = [value for head in row if (value := head[name]) is not None]
        if not known:
            return "unknown"
        ends = f"{min(known):.2g}", f"{max(known):.2g}"
        return ends[0] if ends[0] == ends[1] else " to ".join(ends)

    queries, keys = heads.shape[-2:]
    own = "" if row[0]["self"] is None else f", weight on itself {span('self')}"
    return (
        f"attention {k + 1}, {queries} queries to {keys} keys, {count(len(row), 'head')}: entropy "
        f"{span('entropy')}, columns {span('columns')}, rank {span('rank')}{own}"
    )


def head_numbers(P: Float[Tensor, "m n"]) -> Head:
    """The entropy, column sums, rank and diagonal of one head."""
    m, n = P.shape
    p = P.double()
    entropy = -torch.special.xlogy(p, p).sum(-1)
    if m == n > 1 and _is_causal(p):  # its row i is spread over i tokens at most
        most = torch.arange(2, n + 1, dtype=p.dtype, device=p.device).log()
        entropy = entropy[1:] / most * math.log(n)
    columns = (p.mean(0) - 1 / n).abs().sum() / 2
    return {
        "entropy": float(entropy.mean()) / math.log(n) if n > 1 else 1.0,
        "columns": float(columns),
        "rank": conditional_rank(P),
        "self": float(p.diagonal().mean()) if m == n else None,
    }


def _is_causal(p: Tensor) -> bool:
    """Whether every query looks at all earlier keys and at no later one."""
    past = torch.ones_like(p, dtype=torch.bool).tril()
    return bool((p[past] > 0).all() and (p[~past] == 0).all())


def _mean(values: list[float | None]) -> float:
    """The mean of the values that are known, NaN if none is."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan
