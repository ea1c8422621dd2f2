r"""What every head relates: where attention can be seen.

Per head, a matrix $P$ of $n$ queries to $n$ keys whose rows are probabilities: the mean entropy
of its rows as a share of $\log n$; how far its column sums are from those of a coupling,
$\frac12\sum_j|\frac1n\sum_iP_{ij}-\frac1n|$; the numerical rank of $\log P$ with rows centred,
which is the smallest dimension of a head that could make it; and the mean weight of a token on
itself.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...approximation import conditional_rank
from ...maps import InContextMap
from ...measures import Measure
from ...pictures import plot
from .._case import Case
from .._inside import Attentions, heads_of_map
from .._look import chosen
from .._section import Section, count
from .._subjects import QuerySubject, TokenSubject
from ._depth import TOKENS

QUERIES = 40
SHOWN = 48
SHARP = 0.1
"""Heads whose entropy is below this share of the largest attend to few tokens."""

NAMES = {
    "entropy": "entropy, as a share of the largest",
    "columns": "column sums: distance from a coupling",
    "rank": "rank of the centred logarithm",
    "self": "weight on itself",
}


def relations(case: Case) -> Section:
    """Measure every head."""
    case = replace(case, population=case.population.one())
    mu = case.context(min(TOKENS, case.tokens - 2))
    layers = _heads(case, mu)
    # an axis that only happens to be as long as there are tokens does not follow their number
    fewer = chosen(mu, torch.arange(mu.n - max(1, mu.n // 8)))
    if len(layers) != len(_heads(case, fewer)):
        layers = []
    if not layers:
        return Section("relations", "absent", "no attention is to be seen in it")
    table = [[head_numbers(P) for P in heads] for heads in layers]
    flat = [m for row in table for m in row]
    mean = {name: _mean([m[name] for m in flat]) for name in NAMES}
    few = sum(m["entropy"] < SHARP for m in flat)
    verdict = (
        f"{count(len(flat), 'head')} in {count(len(layers), 'attention')}: entropy "
        f"{mean['entropy']:.2f} of the largest, column sums {mean['columns']:.2f} from those of a "
        "coupling"
    )
    if not math.isnan(mean["rank"]):
        verdict += f", centred rank {mean['rank']:.1f}"
    if few:
        verdict += f"; {count(few, 'head')} with nearly all weight on few tokens"
    lines = [_layer_line(k, row, layers[k]) for k, row in enumerate(table)]
    numbers = {"tokens": mu.n, "heads": table, "mean": mean}
    plots = [_table_picture(table), _matrix_picture(layers)]
    return Section("relations", "good", verdict, lines, numbers, plots)


def _layer_line(k: int, row: list[dict], heads: Tensor) -> str:
    """The heads of one layer in a line, from the least to the most."""

    def span(name: str) -> str:
        known = [m[name] for m in row if m[name] is not None]
        if not known:
            return "unknown"
        ends = f"{min(known):.2g}", f"{max(known):.2g}"
        return ends[0] if ends[0] == ends[1] else " to ".join(ends)

    queries, keys = heads.shape[-2:]
    own = "" if row[0]["self"] is None else f", itself {span('self')}"
    return (
        f"attention {k + 1}, {queries} queries to {keys} keys, {count(len(row), 'head')}: entropy "
        f"{span('entropy')}, columns {span('columns')}, rank {span('rank')}{own}"
    )


def _heads(case: Case, mu: Measure) -> list[Tensor]:
    """One for every layer, `(heads, queries, keys)`: of tokens, of queries, of a class token."""
    subject, model = case.subject, case.subject.model
    some = None if case.queries is None else case.queries[:QUERIES]
    if isinstance(model, InContextMap):
        return heads_of_map(model, mu, some)
    n, m = mu.n, 0 if some is None else len(some)
    keys = {n, n + 1, n + m}
    if isinstance(subject, QuerySubject) and some is not None:
        run = lambda: subject.together(mu, some)
    elif isinstance(subject, TokenSubject):
        run = lambda: subject.raw(mu.atoms)
    else:
        return []
    with torch.no_grad(), Attentions([(a, b) for a in keys | {m} for b in keys]) as seen:
        run()
    return seen.found


def head_numbers(P: Tensor) -> dict:
    """What one head relates."""
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


def _mean(values: list) -> float:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan


def _table_picture(table: list[list[dict]]) -> dict:
    """Layers by heads, one measure at a time."""
    widest = max(len(row) for row in table)
    grids = {
        name: [[m[name] for m in row] + [None] * (widest - len(row)) for row in table]
        for name in NAMES
    }
    traces = [
        {"type": "heatmap", "z": grid, "colorscale": "Viridis", "visible": k == 0,
         "x": [f"head {h + 1}" for h in range(widest)],
         "y": [f"attention {i + 1}" for i in range(len(table))],
         "hovertemplate": "%{y}, %{x}: %{z:.3g}<extra></extra>", "colorbar": {"thickness": 12},
         "zmin": 0, **({} if name == "rank" else {"zmax": 1})}
        for k, (name, grid) in enumerate(grids.items())
    ]  # fmt: skip
    return plot(
        "Every head", "", "", traces, yaxis={"autorange": "reversed"},
        updatemenus=[_menu(list(NAMES.values()))],
        caption="Entropy 1 is the mean of all tokens, 0 one of them. Column sums: 0 if every "
        "token is attended to as much as any other. The rank is the least dimension of a head "
        "that could do this.",
    )  # fmt: skip


def _matrix_picture(layers: list[Tensor]) -> dict:
    """The matrices of the first heads of all layers, one at a time."""
    names: list[str] = []
    traces: list[dict] = []
    total = sum(len(heads) for heads in layers)
    for k, heads in enumerate(layers):
        for h, P in enumerate(heads):
            if len(traces) < SHOWN:
                names.append(f"attention {k + 1}, head {h + 1}")
                grid = [[round(p, 4) for p in row] for row in P.double().tolist()]
                traces.append(
                    {"type": "heatmap", "z": grid, "colorscale": "Blues", "reversescale": True,
                     "visible": not traces, "colorbar": {"thickness": 12},
                     "hovertemplate": "token %{y} to %{x}: %{z:.3g}<extra></extra>"}
                )  # fmt: skip
    title = "Who attends to whom" + (f" (the first {SHOWN} heads)" if total > SHOWN else "")
    return plot(
        title, "key", "query", traces, yaxis={"autorange": "reversed"},
        updatemenus=[_menu(names)],
        caption="Each row is one token, its weights on all tokens sum to one.",
    )  # fmt: skip


def _menu(names: list[str]) -> dict:
    """A menu that shows one trace at a time."""
    return {
        "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 4},
        "buttons": [
            {"label": name, "method": "update",
             "args": [{"visible": [k == j for j in range(len(names))]}]}
            for k, name in enumerate(names)
        ],
    }  # fmt: skip
