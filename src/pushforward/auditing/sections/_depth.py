r"""What the layers do to a cloud of tokens, one after the other: do they gather?

Per layer, with $u_i=x_i/|x_i|$: the mean cosine $\langle u_i,u_j\rangle$ over pairs, the effective
rank $\exp(-\sum p_k\log p_k)$ of the singular values $p=\sigma/\sum\sigma$ (Roy and Vetterli), the
number of clusters of the $u_i$, the energy $\frac1{2n^2}\sum_{ij}e^{\langle u_i,u_j\rangle}$ of
attention on the sphere, and how far tokens move.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...flows import clusters
from ...maps import InContextMap
from ...measures import Measure
from ...pictures import GREY, RED, dots, plot
from ...representation import BlackBoxError
from .._case import Case
from .._inside import clouds, clouds_of_map
from .._look import outputs
from .._section import Section, Status, count

TOKENS = 61
"""A prime, so that other axes are rarely as long."""

TOGETHER = 0.05
"""Directions that a chain of steps of this length joins are one cluster."""

PATHS = 40


def depth(case: Case) -> Section:
    """Follow tokens through the layers."""
    case = replace(case, population=case.population.one())
    mu = case.context(min(TOKENS, case.tokens - 2))
    found = _clouds(case, mu)
    if len(found) < 2:
        why = "no repeated layers are to be seen in it"
        if not isinstance(case.subject.model, nn.Module):
            why += "; give the module itself, not a function around it"
        return Section("depth", "absent", why)
    if not all(bool(x.isfinite().all()) for x in found):
        raise BlackBoxError("one of its layers returns NaN or infinity")
    table = [cloud_numbers(x.double()) for x in found]
    steps = [
        float((b - a).norm() / a.norm()) if a.shape == b.shape and float(a.norm()) else math.nan
        for a, b in zip(found, found[1:], strict=False)
    ]
    status, verdict = _verdict(table[0], table[-1], len(found) - 1)
    lines = [
        f"{f'after layer {k}' if k else 'before'}: mean cosine {m['cosine']:.3f}, effective rank "
        f"{m['rank']:.1f}, {m['clusters']} clusters, energy {m['energy']:.3f}"
        for k, m in enumerate(table)
    ]
    columns = {name: [m[name] for m in table] for name in table[0]}
    numbers = {**columns, "steps": steps, "tokens": len(found[0])}
    plots = [_numbers_picture(columns), _paths_picture(found)]
    return Section("depth", status, verdict, lines, numbers, plots)


def _clouds(case: Case, mu: Measure) -> list[Tensor]:
    """Tokens before and after every layer."""
    subject, model = case.subject, case.subject.model
    if isinstance(model, InContextMap):
        return [] if case.queries is not None else clouds_of_map(model, mu)
    if not isinstance(model, nn.Module):
        return []
    asked = None if case.queries is None else case.points(1)
    # one row more: a class token, or a query
    return clouds(model, lambda: outputs(subject, mu, asked), (mu.n, mu.n + 1))


def cloud_numbers(x: Tensor) -> dict[str, float]:
    """How far the tokens of one layer have gathered."""
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


def _numbers_picture(columns: dict[str, list]) -> dict:
    layers = list(range(len(columns["cosine"])))
    traces = [
        dots(layers, columns["cosine"], "mean cosine"),
        dots(layers, columns["rank"], "effective rank", yaxis="y2"),
    ]
    second = {"overlaying": "y", "side": "right", "title": {"text": "effective rank"},
              "rangemode": "tozero", "tickmode": "auto", "showgrid": False,
              "automargin": True}  # fmt: skip
    return plot(
        "Layer by layer", "layer", "mean cosine", traces, yaxis2=second,
        caption="Tokens that become alike have a cosine near 1 and an effective rank near 1.",
    )  # fmt: skip


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
        size = {"size": 5, "color": GREY if k == 0 else RED}
        traces.append(
            dots(flat[k, :, 0].tolist(), flat[k, :, 1].tolist(), name, line=False, marker=size)
        )
    return plot(
        "Tokens through the layers, in their principal plane", "first direction",
        "second direction", traces,
        caption=f"Up to {PATHS} tokens, each a line from grey to red, in the plane in which all "
        "layers spread most.",
    )  # fmt: skip
