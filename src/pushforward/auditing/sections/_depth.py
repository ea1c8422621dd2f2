r"""Do tokens become alike from layer to layer?

Measured for each layer, with $u_i=x_i/|x_i|$: the mean cosine $\langle u_i,u_j\rangle$ over pairs;
the effective rank $\exp(-\sum p_k\log p_k)$ of the singular values, $p=\sigma/\sum\sigma$ (Roy and
Vetterli); the number of clusters of the $u_i$; the energy
$\frac1{2n^2}\sum_{ij}e^{\langle u_i,u_j\rangle}$ of attention on the sphere; and how far tokens
move.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...flows import clusters
from ...measures import Measure
from ...representation import BlackBoxError
from .._case import Case
from .._inside import layers
from .._section import Section, count, untried
from ..findings import Finding, found, number
from ._charts import cosine_figure, paths_figure, rank_figure

TOKENS = 61
"""A prime number of tokens, so that other axes of a tensor are rarely as long."""

CLUSTER_STEP = 0.05
"""Directions joined by a chain of steps of this length are one cluster."""

PATHS = 40
"""The most tokens whose paths are drawn."""

Numbers = dict[str, float]


def depth(case: Case) -> Section:
    """Follow tokens through the layers."""
    case = case.of_one_law()
    mu = case.context(min(TOKENS, case.tokens - 2))
    clouds = layers(case.box, mu, case.queries)
    if len(clouds) < 2:
        how = ""
        if not isinstance(case.box.model, nn.Module):
            how = "Give the module itself, not a function around it."
        return untried("depth", "No repeated layers were found in the model.", how)
    if not all(bool(x.isfinite().all()) for x in clouds):
        raise BlackBoxError("one of its layers returns NaN or infinity")
    table = [cloud_numbers(x.double()) for x in clouds]
    steps = [
        float((b - a).norm() / a.norm()) if a.shape == b.shape and float(a.norm()) else math.nan
        for a, b in zip(clouds, clouds[1:], strict=False)
    ]
    finding = _finding(table[0], table[-1], len(clouds) - 1)
    lines = [
        f"{f'after layer {k}' if k else 'before'}: mean cosine {row['cosine']:.3f}, effective "
        f"rank {row['rank']:.1f}, {row['clusters']} clusters, energy {row['energy']:.3f}"
        for k, row in enumerate(table)
    ]
    columns = {name: [row[name] for row in table] for name in table[0]}
    numbers = {**columns, "steps": steps, "tokens": len(clouds[0])}
    most = max(min(x.shape) for x in clouds)
    plots = [
        cosine_figure(columns["cosine"]), rank_figure(columns["rank"], most), paths_figure(clouds)
    ]  # fmt: skip
    return Section("depth", finding.said, [finding], lines, numbers, plots)


def cloud_numbers(x: Float[Tensor, "n d"]) -> Numbers:
    """How alike the tokens of one layer are."""
    n = len(x)
    length = x.norm(dim=-1, keepdim=True)
    u = x / torch.where(length > 0, length, 1)
    cosines = u @ u.mT  # TOKENS at most, so that the matrix is small
    sigma = torch.linalg.svdvals(x)
    p = sigma / sigma.sum().clamp_min(1e-300)
    entropy = -torch.special.xlogy(p, p).sum()
    return {
        "cosine": float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1))),
        "rank": float(entropy.exp()),
        "clusters": int(clusters(Measure(u), CLUSTER_STEP).max()) + 1,
        "energy": float(cosines.exp().mean() / 2),
        "size": float(length.square().mean().sqrt()),
    }


def _finding(first: Numbers, last: Numbers, depth: int) -> Finding:
    alike = last["cosine"] > 0.9 and last["cosine"] > first["cosine"] + 0.1
    alike = alike or last["rank"] < 0.5 * first["rank"]
    said = (
        f"Over {count(depth, 'layer')} the mean cosine of two tokens goes from "
        f"{first['cosine']:.2f} to {last['cosine']:.2f}, and the effective rank from "
        f"{number(first['rank'])} to {number(last['rank'])}."
    )
    if last["clusters"] < first["clusters"]:
        said += f" {first['clusters']} different directions become {last['clusters']}."
    return found("depth", "layers", "measured", said, amiss=alike, figure=0)
