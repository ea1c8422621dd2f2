r"""What the layers do to a cloud of tokens, one after the other: do they gather?

Per layer, with $u_i=x_i/|x_i|$: the mean cosine $\langle u_i,u_j\rangle$ over pairs, the effective
rank $\exp(-\sum p_k\log p_k)$ of the singular values $p=\sigma/\sum\sigma$ (Roy and Vetterli), the
number of clusters of the $u_i$, the energy $\frac1{2n^2}\sum_{ij}e^{\langle u_i,u_j\rangle}$ of
attention on the sphere, and how far tokens move.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure
from ..observables import clusters
from .charts import dots, plot
from .population import Population
from .section import Section, Status, count
from .subjects import BoxSubject, QuerySubject, Subject, TokenSubject
from .watch import clouds, clouds_of_map

TOKENS = 61
"""An odd number, so that no other axis is taken for that of the tokens."""

TOGETHER = 0.05
"""Directions that a chain of steps of this length joins are one cluster."""

PATHS = 40


def depth(
    subject: Subject, population: Population, queries: Tensor | None, generator: torch.Generator
) -> Section:
    """Follow tokens through the layers.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        generator: of all that is random.
    """
    seed = generator.initial_seed()
    mu = population.one().context(generator, TOKENS)
    found = _clouds(subject, mu, queries)
    if len(found) < 2:
        why = "no repeated layers are to be seen in it"
        return Section("depth", "absent", why, seed=seed)
    table = [_measured(x.double()) for x in found]
    steps = [
        float((b - a).norm() / a.norm()) if a.shape == b.shape and float(a.norm()) else math.nan
        for a, b in zip(found, found[1:], strict=False)
    ]
    status, verdict = _verdict(table[0], table[-1], len(found) - 1)
    lines = [
        f"{f'after layer {k}' if k else 'before'}: mean cosine {m['cosine']:.3f}, effective rank "
        f"{m['rank']:.1f}, "
        f"{m['clusters']} clusters, energy {m['energy']:.3f}"
        for k, m in enumerate(table)
    ]
    columns = {name: [m[name] for m in table] for name in table[0]}
    numbers = {**columns, "steps": steps, "tokens": len(found[0])}
    plots = [_measures_picture(columns), _paths_picture(found)]
    return Section("depth", status, verdict, lines, numbers, plots, seed)


def _clouds(subject: Subject, mu: Measure, queries: Tensor | None) -> list[Tensor]:
    model = subject.model
    if isinstance(model, InContextMap):
        if model.paired or model.dim != model.context_dim:
            return []
        return clouds_of_map(model, mu)
    if not isinstance(model, nn.Module) or isinstance(subject, BoxSubject):
        return []
    if isinstance(subject, QuerySubject) and queries is not None:
        some = queries[:1]
        return clouds(model, lambda: subject.together(mu, some), (mu.n, mu.n + 1))
    assert isinstance(subject, TokenSubject)
    return clouds(model, lambda: subject.raw(mu.atoms), (mu.n,))


def _measured(x: Tensor) -> dict[str, float]:
    """Of one layer."""
    n = len(x)
    length = x.norm(dim=-1, keepdim=True)
    u = x / torch.where(length > 0, length, 1)
    cosines = u @ u.mT  # of a few tokens
    sigma = torch.linalg.svdvals(x)
    p = sigma / sigma.sum().clamp_min(1e-300)
    entropy = -torch.special.xlogy(p, p).sum()
    return {
        "cosine": float((cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1))),
        "rank": float(entropy.exp()),
        "clusters": int(clusters(Measure(u), TOGETHER).max()) + 1,
        "energy": float(cosines.exp().mean() / 2),
        "size": float(length.square().mean().sqrt()),
    }


def _verdict(first: dict, last: dict, layers: int) -> tuple[Status, str]:
    cosine = f"mean cosine from {first['cosine']:.2f} to {last['cosine']:.2f}"
    rank = f"effective rank from {first['rank']:.1f} to {last['rank']:.1f}"
    seen = f"{cosine}, {rank}, clusters from {first['clusters']} to {last['clusters']}"
    gathers = last["cosine"] > 0.9 and last["cosine"] > first["cosine"] + 0.1
    if gathers or last["rank"] < 0.5 * first["rank"]:
        return "noted", f"tokens gather over {count(layers, 'layer')}: {seen}"
    return "good", f"tokens stay apart over {count(layers, 'layer')}: {seen}"


def _measures_picture(columns: dict[str, list]) -> dict:
    layers = list(range(len(columns["cosine"])))
    traces = [dots(layers, columns["cosine"], "mean cosine")]
    for name, label in (("rank", "effective rank"), ("clusters", "clusters")):
        traces.append(dots(layers, columns[name], label, yaxis="y2"))
    second = {"overlaying": "y", "side": "right", "title": {"text": "rank, clusters"},
              "rangemode": "tozero", "tickmode": "auto", "showgrid": False,
              "automargin": True}  # fmt: skip
    return plot("Layer by layer", "layer", "mean cosine", traces, yaxis2=second)


def _paths_picture(found: list[Tensor]) -> dict:
    """Paths in the plane in which tokens of all layers spread most."""
    width = found[-1].shape[-1]
    same = [x.double() for x in found if x.shape[-1] == width]
    everything = torch.cat(same)
    middle = everything.mean(0)
    _, _, axes = torch.linalg.svd(everything - middle, full_matrices=False)
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()
    flat = torch.stack([(x - middle) @ axes.mT for x in same])[:, :PATHS]
    if flat.shape[-1] == 1:
        flat = torch.cat([torch.arange(len(flat))[:, None, None].expand_as(flat), flat], -1)
    traces = []
    for k in range(flat.shape[1]):
        line = {"width": 1, "color": "rgba(43,108,176,0.45)"}
        traces.append({
            "type": "scatter", "mode": "lines", "x": flat[:, k, 0].tolist(),
            "y": flat[:, k, 1].tolist(), "line": line, "showlegend": False,
            "hoverinfo": "skip",
        })  # fmt: skip
    for k, name in ((0, "first layer"), (-1, "last layer")):
        size = {"size": 5, "color": "#718096" if k == 0 else "#c05621"}
        traces.append(
            dots(flat[k, :, 0].tolist(), flat[k, :, 1].tolist(), name, line=False, marker=size)
        )
    return plot(
        "Tokens through the layers, in their principal plane", "first direction",
        "second direction", traces,
    )  # fmt: skip
