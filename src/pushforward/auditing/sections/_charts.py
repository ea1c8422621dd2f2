"""The figures of an audit, from the numbers that its sections measure.

Changes and spreads of outputs are drawn as shares of the size of the outputs where it is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...pictures import SHARE, Chart, Figure, Guide, HeatMap, Series, cosines, series

LEAST_SHARE = 1e-5
"""The smallest change of outputs that has a place on the usual axis of changes."""

TICKS = 5
"""The most ticks of an axis."""

FEW_HEADS = 16
"""Up to so many heads are drawn one by one."""

MEASURES = {
    "entropy": "Entropy is 1 if a head attends to all tokens alike, 0 if it attends to one.",
    "unevenness of keys": "Unevenness is 0 if all tokens receive the same attention, as in a "
    "coupling.",
}
"""How to read the numbers of a head."""

SHOWN = 24
"""The most heads whose matrices are drawn."""

CORNER = 32
"""The most queries and keys of a matrix that is drawn."""

PATHS = 40
"""The most tokens whose paths are drawn."""

Pairs = Sequence[tuple[float, float]]


def rewriting_figure(
    changes: Mapping[str, float | None], tolerance: float, broken: Sequence[str]
) -> Figure:
    """How far outputs move if the same set is written differently.

    Args:
        changes: the change as a share of the size of the outputs, by the way of writing; None if
            it was not tried.
        tolerance: the largest share that rounding explains.
        broken: the ways that change the outputs.
    """
    names = list(changes)
    known = {k: c for k, name in enumerate(names) if (c := changes[name]) is not None}
    positive = [c for c in (tolerance, *known.values()) if 0 < c < math.inf]
    low = min(LEAST_SHARE, 10.0 ** math.floor(math.log10(min(positive, default=1.0))))
    high = max(1.0, 10.0 ** math.ceil(math.log10(max(positive, default=1.0))))
    bad = [k for k in known if names[k] in broken]
    fine = [k for k in known if k not in bad]
    edge = (Guide(tolerance, "rounding ends here", "x", "below"),) if tolerance > 0 else ()
    return Figure(
        "Change of outputs when the same set is written differently",
        "change, as a share of the size of outputs", "",
        (Series("within rounding", tuple(known[k] for k in fine), tuple(map(float, fine)), "dots"),
         Series("refuted", tuple(known[k] for k in bad), tuple(map(float, bad)), "refuted")),
        log="x", x_range=(low, high), guides=edge, rows=tuple(names), percent=True,
        caption="A map of sets has all marks in the shaded part. Filled diamonds are refuted.",
    )  # fmt: skip


def spread_figure(sizes: Sequence[int], spreads: Sequence[float], contexts: int) -> Figure:
    """The spread of one output over contexts of one law, by their size.

    Args:
        sizes: numbers of tokens.
        spreads: the standard deviations.
        contexts: how many contexts they were taken over.
    """
    error = 1 / math.sqrt(2 * (contexts - 1))
    measured = Series(
        "this model", tuple(map(float, sizes)), tuple(spreads), "line",
        tuple(s * error for s in spreads),
    )  # fmt: skip
    start = next(((m, s) for m, s in zip(sizes, spreads, strict=True) if s > 0), None)
    smooth = () if start is None else (
        series("m^-1/2, a smooth map", sizes,
               [start[1] * math.sqrt(start[0] / m) for m in sizes], "dashed"),
    )  # fmt: skip
    return Figure(
        "One point in larger and larger contexts of one law", "tokens m", "spread of the output",
        (measured, *smooth), "xy",
        f"Standard deviation over {contexts} contexts drawn anew. Band: one standard error of a "
        "standard deviation.",
        ticks=_ticks(sizes),
    )  # fmt: skip


def length_figure(changes: Pairs, tolerance: float) -> Figure:
    """How far outputs move if one context is repeated.

    Args:
        changes: pairs of a number of tokens and a change, as a share of the size of the outputs.
        tolerance: changes up to this share count as none.
    """
    sizes, shares = [int(n) for n, _ in changes], [c for _, c in changes]
    refuted = any(c > tolerance for _, c in changes)
    curve = series("change", sizes, shares, "refuted" if refuted else "line")
    return Figure(
        "The same set, written as more tokens", "tokens, one context repeated",
        "change, as a share of the size of outputs", (curve,), "x",
        "All of them are the same measure, so a map of sets stays at 0.",
        y_range=(0.0, max(1.0, *shares)) if shares else SHARE, ticks=_ticks(sizes), percent=True,
    )  # fmt: skip


def response_figure(replaced: Pairs, moved: Pairs, steepest: tuple[float, float]) -> Figure:
    """How far the output at one point moves, against the distance of two contexts.

    Args:
        replaced: distances of contexts and of images where some tokens are replaced.
        moved: the same where all tokens are moved a little.
        steepest: the pair with the largest ratio.
    """
    drawn = [
        series(name, [w for w, _ in pairs], [g for _, g in pairs], "dots")
        for name, pairs in (("some replaced", replaced), ("all moved a little", moved))
    ]
    w, g = steepest
    seen = [p for p in (*replaced, *moved, steepest) if p[0] > 0 and p[1] > 0]
    if w > 0 and g > 0:
        ratio, ends = g / w, (min(p[0] for p in seen), max(p[0] for p in seen))
        drawn.append(Series(f"steepest: {ratio:.3g} times", (w,), (g,), "extreme"))
        drawn.append(series("", ends, [ratio * end for end in ends], "dashed"))
    return Figure(
        "One point in two contexts", "distance of the contexts, W₁", "distance of the images",
        tuple(drawn), "xy",
        "Dashed: the slope of the steepest change found, a lower bound of the Lipschitz constant. "
        "All other changes lie below it.",
    )  # fmt: skip


def origin_figure(share: float, source: str) -> Figure:
    """Where the variance of outputs comes from.

    Args:
        share: the share that comes from the other tokens.
        source: what the rest comes from.
    """
    bars = Series("share", (share, 1 - share), (0.0, 1.0), "bars")
    return Figure(
        "Where the variance of an output comes from", "share of the variance", "", (bars,),
        caption="The two shares add up to 100 %.",
        x_range=SHARE, rows=("the context", source), percent=True,
    )  # fmt: skip


def one_token_figure(sizes: Sequence[int], effects: Sequence[float], stays: bool) -> Figure:
    """The effect of one token against the number of tokens.

    Args:
        sizes: numbers of tokens.
        effects: how far the output moves when one token is replaced.
        stays: whether the effect does not fall, which refutes continuity.
    """
    curve = series("largest effect found", sizes, effects, "refuted" if stays else "line")
    start = next(((n, g) for n, g in zip(sizes, effects, strict=True) if g > 0), None)
    fall = () if start is None else (
        series("1/n", sizes, [start[1] * start[0] / n for n in sizes], "dashed"),
    )  # fmt: skip
    return Figure(
        "One token of n is replaced", "tokens n", "change of the output", (curve, *fall), "xy",
        "For a map that is continuous in the measure the effect falls along the dashed line in "
        "the end.",
        ticks=_ticks(sizes),
    )  # fmt: skip


def gap_figure(gaps: Pairs) -> Figure:
    """How far apart the images of near points are.

    Args:
        gaps: distances of points, and of their images.
    """
    hs, found = [h for h, _ in gaps], [g for _, g in gaps]
    start = next(((h, g) for h, g in gaps if g > 0), None)
    slope = () if start is None else (
        series("Lipschitz", hs, [start[1] * h / start[0] for h in hs], "dashed"),
    )  # fmt: skip
    return Figure(
        "How far apart images of near points are", "distance h of the points",
        "distance of their images", (series("largest gap found", hs, found), *slope), "xy",
        "If there is a continuous in-context map, gaps close as points come together; in the end "
        "along the dashed slope if it is Lipschitz.",
    )  # fmt: skip


def recovered_figure(pairs: Pairs) -> Figure:
    """Outputs recovered from the unordered set, against the model's own.

    Args:
        pairs: coordinates of both.
    """
    own, again = [a for a, _ in pairs], [b for _, b in pairs]
    ends = [min(*own, *again), max(*own, *again)]
    return Figure(
        "Outputs recovered from the unordered set", "the model's own output", "recovered",
        (series("coordinates of images", own, again, "dots"),
         series("equal", ends, ends, "dashed")),
        caption="Where a small mass put at a token goes, seen from the unordered outputs alone, "
        "against the output that the model gives for the token.",
        square=True,
    )  # fmt: skip


def cosine_figure(values: Sequence[float]) -> Figure:
    """The mean cosine of two tokens, layer by layer.

    Args:
        values: before the first layer, and after each.
    """
    return Figure(
        "Mean cosine of two tokens", "after layer", "cosine",
        (series("mean cosine", range(len(values)), values),),
        caption="Cosines are always drawn from 0 to 1, or from −1 where some are negative.",
        y_range=cosines(values), ticks=_layer_ticks(len(values)),
        guides=(Guide(1.0, "1: all tokens point one way"),),
    )  # fmt: skip


def rank_figure(values: Sequence[float], most: int) -> Figure:
    """The effective rank of the tokens, layer by layer.

    Args:
        values: before the first layer, and after each.
        most: the largest rank that they could have.
    """
    return Figure(
        "Effective rank", "after layer", "directions",
        (series("effective rank", range(len(values)), values),),
        caption=f"Out of {most}. Ranks are always drawn up to the largest that is possible.",
        y_range=(0.0, float(most)), ticks=_layer_ticks(len(values)),
        guides=(Guide(1.0, "1: all on one line"),),
    )  # fmt: skip


def paths_figure(clouds: Sequence[Tensor]) -> Figure:
    """Paths of tokens in the plane of the first two principal components of all layers.

    Args:
        clouds: the tokens before the first layer, and after each.
    """
    width = clouds[-1].shape[-1]
    same = [x.double() for x in clouds if x.shape[-1] == width]
    everything = torch.cat(same)
    middle = everything.mean(0)
    _, _, axes = torch.linalg.svd(everything - middle, full_matrices=False)
    # a fixed sign, so that the same audit is the same picture
    axes = axes[:2] * axes[:2].gather(1, axes[:2].abs().argmax(1, keepdim=True)).sign()
    flat = torch.stack([(x - middle) @ axes.mT for x in same])[:, :PATHS]
    on_a_line = flat.shape[-1] == 1
    if on_a_line:
        flat = torch.cat([torch.arange(len(flat))[:, None, None].expand_as(flat), flat], -1)
    gap = flat.new_full((1, *flat.shape[1:]), math.nan)
    x, y = torch.cat([flat, gap]).transpose(0, 1).flatten(0, 1).unbind(-1)
    return Figure(
        f"Paths of {flat.shape[1]} tokens", "layer" if on_a_line else "first direction",
        "position" if on_a_line else "second direction",
        (Series("", tuple(x.tolist()), tuple(y.tolist()), "paths"),
         *(series(name, where[:, 0].tolist(), where[:, 1].tolist(), "dots")
           for name, where in (("before", flat[0]), ("after the last layer", flat[-1])))),
        caption="The plane in which all layers together spread most. Each line is a token.",
        square=not on_a_line,
    )  # fmt: skip


def head_figures(
    measures: Mapping[str, Sequence[Sequence[float]]], ranks: Sequence[Sequence[float]], most: int
) -> list[Chart]:
    """Numbers of every head: one row each if they are few, or else one column for a layer.

    Args:
        measures: shares by name (one of `MEASURES`), for each layer a list over its heads.
        ranks: the ranks, in the same form.
        most: the largest rank that is possible.
    """
    names = [
        f"layer {k + 1}, head {h + 1}" for k, row in enumerate(ranks) for h in range(len(row))
    ]
    heads = f"{len(names)} head" if len(names) == 1 else f"{len(names)} heads"
    flat = {name: [v for row in table for v in row] for name, table in measures.items()}
    all_ranks, top = [v for row in ranks for v in row], (0.0, float(most))
    title, of_rank = "Centred rank of each head", "The smallest head dimension that can make it."
    if len(names) <= FEW_HEADS:
        drawn = tuple(series(name, v, range(len(names)), "dots") for name, v in flat.items())
        by_row = (series("rank", all_ranks, range(len(names)), "dots"),)
        return [
            Figure(heads, "share of the largest possible", "", drawn, x_range=SHARE,
                   caption=" ".join(MEASURES[name] for name in measures), rows=tuple(names)),
            Figure(title, "rank", "", by_row, caption=of_rank, x_range=top, rows=tuple(names)),
        ]  # fmt: skip
    columns = [k + 1 for k, row in enumerate(ranks) for _ in row]
    ticks = _ticks(range(1, len(ranks) + 1))
    return [
        *(Figure(f"{heads}: {name}", "layer", name, (series(name, columns, v, "dots"),),
                 caption=f"One mark for each head. {MEASURES[name]}", y_range=SHARE, ticks=ticks)
          for name, v in flat.items()),
        Figure(title, "layer", "rank", (series("rank", columns, all_ranks, "dots"),),
               caption=of_rank, y_range=top, ticks=ticks),
    ]  # fmt: skip


def attention_figure(layers: Sequence[Tensor]) -> HeatMap:
    """Who attends to whom, in multiples of the uniform weight.

    Args:
        layers: for each layer the matrices of its heads, `(heads, queries, keys)`.
    """
    heads = [(f"layer {k + 1}, head {h + 1}", P) for k, layer in enumerate(layers)
             for h, P in enumerate(layer)]  # fmt: skip
    step = max(1, math.ceil(len(heads) / SHOWN))
    shown = heads[::step]
    n = shown[0][1].shape[-1]
    parts = [f"Paper colour is the uniform weight 1/{n}, blue is less and orange is more."]
    if any(max(P.shape) > CORNER for _, P in shown):
        parts.append(f"The first {CORNER} tokens are shown.")
    if step > 1:
        parts.append(f"{len(shown)} of {len(heads)} heads can be chosen.")
    return HeatMap(
        "Who attends to whom", "key", "query", tuple(name for name, _ in shown),
        tuple((P.double() * P.shape[-1])[:CORNER, :CORNER].tolist() for _, P in shown),
        " ".join(parts),
    )  # fmt: skip


def _ticks(values: Sequence[int], most: int = TICKS) -> tuple[tuple[float, str], ...]:
    """At most so many of some values, the last one among them."""
    step = max(1, math.ceil(len(values) / most))
    return tuple((float(v), str(v)) for v in values[::-1][::step][::-1])


def _layer_ticks(count: int) -> tuple[tuple[float, str], ...]:
    """The input and the numbers of layers."""
    return ((0.0, "input"), *_ticks(range(1, count), TICKS - 1))
