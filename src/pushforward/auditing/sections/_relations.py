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
from .._case import Case, selected
from .._inside import attention
from .._section import Section, Status, count
from ._charts import MEASURES, attention_figure, head_figures
from ._depth import TOKENS

QUERIES = 40
"""The most queries whose attention is measured."""

UNIFORM = 0.99
"""Heads whose entropy is above this share of its maximum attend to all tokens alike."""

SHARP = 0.1
"""Heads whose entropy is below this share of its maximum attend to few tokens."""

NAMES = ("entropy", "columns", "rank", "self")
"""The measures of a head."""

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
        return Section("relations", "absent", "no attention was found in it")
    table = [[head_numbers(P) for P in heads] for heads in layers]
    flat = [head for row in table for head in row]
    mean = {name: _mean([head[name] for head in flat]) for name in NAMES}
    verdict = (
        f"{count(len(flat), 'head')} in {count(len(layers), 'attention layer')}: mean entropy "
        f"{mean['entropy']:.2f} of its maximum, column sums {mean['columns']:.2f} from those of a "
        "coupling"
    )
    if not math.isnan(mean["rank"]):
        verdict += f", centred rank {mean['rank']:.1f}"
    sharp = sum((head["entropy"] or 0.0) < SHARP for head in flat)
    if sharp:
        verdict += f"; {count(sharp, 'head')} with nearly all weight on few tokens"
    status: Status = "good"
    if min(head["entropy"] or 0.0 for head in flat) > UNIFORM:
        status = "noted"
        verdict += "; every head averages all tokens alike, as with random weights"
    lines = [_layer_line(k, row, layers[k]) for k, row in enumerate(table)]
    numbers = {"tokens": mu.n, "heads": table, "mean": mean}
    shares = {
        name: [[head[key] or 0.0 for head in row] for row in table]
        for name, key in zip(MEASURES, ("entropy", "columns"), strict=True)
    }
    ranks = [[math.nan if head["rank"] is None else head["rank"] for head in row] for row in table]
    plots = [*head_figures(shares, ranks, mu.n), attention_figure(layers)]
    return Section("relations", status, verdict, lines, numbers, plots)


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
    entropy = -torch.special.xlogy(p, p).sum(-1).mean()
    columns = (p.mean(0) - 1 / n).abs().sum() / 2
    return {
        "entropy": float(entropy) / math.log(n) if n > 1 else 1.0,
        "columns": float(columns),
        "rank": conditional_rank(P),
        "self": float(p.diagonal().mean()) if m == n else None,
    }


def _mean(values: list[float | None]) -> float:
    """The mean of the values that are known, NaN if none is."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan
