"""Figures of relations and of rates with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from numpy import ndarray
from torch import Tensor

from .._tools.checks import check_kind, check_range
from ..measures import Measure, check_measures
from ..relations import Conditional, Coupling, Masses, Relation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREY = "#1f6f8b", "#c8553d", "#8a8a8a"


def heatmap(relation: Relation) -> Figure:
    """A relation as a matrix with bars for its rows and columns.

    Bars show the sums of rows and columns; for a coupling, dots show the prescribed marginals. For
    a conditional, whose rows sum to one, the bars show the entropies of the rows.

    Args:
        relation: a single relation; from a batch take one, such as `relation[0]`.

    Examples:
        >>> mu = pf.Measure(torch.randn(9, 2))
        >>> figure = pf.pictures.heatmap(pf.relate(mu, mu))
        >>> figure.savefig("relation.png")  # doctest: +SKIP
    """
    p = _matrix(relation)
    figure = new_figure((5.2, 4.6))
    ratios = dict(width_ratios=(5, 1), height_ratios=(1, 5), wspace=0.05, hspace=0.05)
    grid = figure.add_gridspec(2, 2, **ratios)
    image = figure.add_subplot(grid[1, 0])
    drawn = image.imshow(p.numpy(), cmap="magma_r", aspect="auto", vmin=0, interpolation="nearest")
    image.set(xlabel="key", ylabel="query")
    side = figure.add_subplot(grid[1, 1], sharey=image)
    lines = range(p.shape[0])
    if isinstance(relation, Conditional):
        side.barh(lines, _array(relation.entropy()), color=BLUE, height=0.9)
        side.set_xlabel("entropy")
    else:
        top = figure.add_subplot(grid[0, 0], sharex=image)
        rows, columns = p.sum(1), p.sum(0)
        side.barh(lines, rows.numpy(), color=BLUE, height=0.9)
        top.bar(range(p.shape[1]), columns.numpy(), color=BLUE, width=0.9)
        if isinstance(relation, Coupling):
            side.plot(_array(relation.log_a.exp()), lines, ".", color=RED, ms=4)
            top.plot(_array(relation.log_b.exp()), ".", color=RED, ms=4)
        top.tick_params(labelbottom=False)
        side.set_xlabel("mass")
    side.tick_params(labelleft=False)
    side.locator_params(axis="x", nbins=2)
    figure.colorbar(drawn, ax=figure.axes, location="right", shrink=0.7, pad=0.02)
    figure.suptitle(_title(relation), fontsize=10)
    return figure


def graph(relation: Relation, *, least: float = 0.02) -> Figure:
    """A relation as a bipartite graph: queries on the left, keys on the right.

    Args:
        relation: a single relation.
        least: the smallest share of a query's mass that is drawn as a line.

    Examples:
        >>> mu = pf.Measure(torch.randn(9, 2))
        >>> figure = pf.pictures.graph(pf.relate(mu, mu))
    """
    check_range("least", least, 0, 1)
    p = _matrix(relation)
    share = p / p.sum(1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
    m, n = p.shape
    figure, axes = _axes((4.6, 4.6))
    left, right = torch.linspace(1, 0, m).tolist(), torch.linspace(1, 0, n).tolist()
    for i, j in (share >= least).nonzero().tolist():
        width = 2.5 * share[i, j].item()
        axes.plot([0, 1], [left[i], right[j]], color=BLUE, lw=width, alpha=0.7)
    sizes = lambda masses: (30 + 300 * masses / masses.sum()).numpy()
    weigh = torch.ones(m) / m if isinstance(relation, Conditional) else p.sum(1)
    axes.scatter([0] * m, left, sizes(weigh), color=GREY, zorder=3)
    axes.scatter([1] * n, right, sizes(p.sum(0)), color=RED, zorder=3)
    axes.text(0, 1.05, "queries", ha="center")
    axes.text(1, 1.05, "keys", ha="center")
    axes.set_axis_off()
    figure.suptitle(_title(relation), fontsize=10)
    return figure


def transported(relation: Relation, mu: Measure, nu: Measure) -> Figure:
    """Two clouds in the plane, and for each query the average of the keys it is related to.

    Args:
        relation: a single relation between `mu` and `nu`.
        mu: the measure of the queries, in two dimensions.
        nu: the measure of the keys, in two dimensions.

    Examples:
        >>> mu, nu = pf.Measure(torch.randn(30, 2)), pf.Measure(torch.rand(20, 2))
        >>> pi = pf.relate(mu, nu, normaliser=pf.Sinkhorn())
        >>> figure = pf.pictures.transported(pi, mu, nu)
    """
    check_kind("relation", relation, Relation, "`pf.relate` makes one.")
    for name, m, count in (("mu", mu, relation.shape[-2]), ("nu", nu, relation.shape[-1])):
        check_measures(**{name: m})
        if m.dim != 2 or m.n != count or m.batch_shape:
            raise ValueError(
                f"`{name}` must be one cloud of {count} points in the plane, as the relation has, "
                f"got {m}."
            )
    with torch.no_grad():
        means = relation.apply(nu.atoms)
        if isinstance(relation, Masses):
            means = means / relation.apply(torch.ones_like(nu.atoms))
    figure, axes = _axes((5, 5))
    x, y, z = _array(mu.atoms), _array(nu.atoms), _array(means)
    for start, end in zip(x.tolist(), z.tolist(), strict=True):
        axes.plot(*zip(start, end, strict=True), color=GREY, lw=0.6, alpha=0.6, zorder=1)
    sizes = lambda m: _array((600 * m.normalise().weights).clamp(4, 80))
    axes.scatter(y[:, 0], y[:, 1], sizes(nu), color=RED, alpha=0.6, label="keys", lw=0)
    axes.scatter(x[:, 0], x[:, 1], sizes(mu), color=BLUE, alpha=0.6, label="queries", lw=0)
    axes.scatter(z[:, 0], z[:, 1], 6, color="black", label="average of keys", lw=0)
    axes.set_aspect("equal")
    axes.legend(frameon=False, fontsize=8)
    figure.suptitle(_title(relation), fontsize=10)
    return figure


def rates(name: str, sizes: Sequence[int], errors: Sequence[float], expected: float) -> Figure:
    """Errors against sizes, on logarithmic axes, with the slope that theory predicts.

    Args:
        name: the label of the sizes.
        sizes: the sizes.
        errors: one error for each size.
        expected: the predicted slope.
    """
    figure, axes = _axes((5, 4))
    line = [errors[0] * (n / sizes[0]) ** expected for n in sizes]
    axes.loglog(sizes, line, "--", color=GREY, label=f"slope {expected:g}")
    axes.loglog(sizes, errors, "o-", color=BLUE, label="measured")
    axes.set(xlabel=name, ylabel="error")
    marked = sizes[:: math.ceil(len(sizes) / 8)]  # more labels would run into each other
    axes.set_xticks(marked, [f"{n:,}" for n in marked])
    axes.set_xticks([], minor=True)
    axes.legend(frameon=False)
    return figure


def _matrix(relation: Relation) -> Tensor:
    check_kind("relation", relation, Relation, "`pf.relate` makes one.")
    if len(relation.shape) != 2:
        raise ValueError(
            f"A picture shows one relation, got a batch {tuple(relation.shape[:-2])} of them. "
            "Take one, such as `relation[0]`."
        )
    return relation.matrix().detach().cpu()


def _array(x: Tensor) -> ndarray:
    return x.detach().cpu().numpy()


def _title(relation: Relation) -> str:
    m, n = relation.shape
    title = f"{type(relation).__name__}, {m} x {n}"
    if isinstance(relation, Coupling):
        title += f", marginal error {relation.residual.item():.0e}"
    return title


def new_figure(size: tuple[float, float]) -> Figure:
    """A figure outside the global state of pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: `pip install matplotlib`.") from error
    return Figure(figsize=size, dpi=120)


def _axes(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure with one pair of axes."""
    figure = new_figure(size)
    return figure, figure.add_subplot()
