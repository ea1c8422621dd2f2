"""`pushforward tour`: measures, a transformer, what it depends on, and what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

from .._tools.output import atomic_file
from ..affinities import SquaredDistance
from ..distances import wasserstein
from ..maps import Attention, Block, Transformer
from ..measures import Measure
from ._shared import Screen, check_output, current_screen

NEAR = 0.2
"""Points at most so far apart are one cluster."""


def tour(
    picture: Annotated[
        Path | None,
        typer.Option(help="Draw the clouds after some layers into this file, such as tour.png."),
    ] = None,
) -> int:
    """A tour in under a minute: measures, a transformer, what it depends on, and what it does.

    Three groups of points go through the same eight blocks twice: with equal weights, and with one
    group twenty times as heavy. The code is short: src/pushforward/_command/_tour.py.

    Examples:
    - pushforward tour
    - pushforward tour --picture tour.png
    """
    screen = current_screen()
    check_output(picture)
    if picture is not None:
        _pyplot()  # a missing package is said before the work
    random = torch.Generator().manual_seed(1)
    points, group = groups(random)
    even = Measure(points)
    heavy = Measure(points, torch.where(group == 0, 20.0, 1.0)).normalise()
    model = towards_mass(8)
    with torch.no_grad():
        _dependence(screen, model, even, heavy, random)
        shown = _layers(screen, model, {"equal weights": even, "one group 20x": heavy})
    if picture is not None:
        _draw(picture, shown, group)
        screen.conclude(f"Written: {picture}")
    elif screen.loudness:
        screen.say("A picture of this: pushforward tour --picture tour.png\n")
    screen.conclude(
        "The output depends on the measure alone, and weights decide where the tokens go."
    )
    return 0


def groups(random: torch.Generator) -> tuple[Tensor, Tensor]:
    """600 points in three groups on a circle, and the group of each.

    Args:
        random: where the points come from.
    """
    group = torch.arange(600) % 3
    angle = 2 * torch.pi * group / 3
    centres = 1.5 * torch.stack([angle.cos(), angle.sin()], -1)
    return centres + 0.35 * torch.randn(600, 2, generator=random), group


def towards_mass(depth: int) -> Transformer:
    r"""A transformer with weights set by hand, so that tokens move towards the mass near them.

    Attention adds half the mean $m$ of what a point $x$ attends to. The MLP then subtracts a third
    of the result; it is linear, because GELU(x) - GELU(-x) = x. Together a block is
    $x\mapsto x+(m-x)/3$.

    Args:
        depth: the number of blocks.
    """
    block = Block(affinity=SquaredDistance(1.3))
    model = Transformer(2, depth=depth, hidden=4, step=0.5, block=block)
    one = torch.eye(2)
    with torch.no_grad():
        for layer in model:
            gamma: Any = layer.gamma
            if isinstance(gamma, Attention):
                for part in (gamma.Q, gamma.K, gamma.V, gamma.W):
                    part.weight.copy_(one)
            else:
                gamma.A1.weight.copy_(torch.cat([one, -one]))
                gamma.A2.weight.copy_(torch.cat([-one, one], -1) * 2 / 3)
                gamma.A1.bias.zero_()
                gamma.A2.bias.zero_()
    return model


def _dependence(
    screen: Screen, model: Transformer, even: Measure, heavy: Measure, random: torch.Generator
) -> None:
    """The output depends on the measure, not on how the measure is written."""
    points, n = even.atoms, even.n
    stray = torch.cat([points, torch.full((1, 2), torch.nan)])
    massless = torch.ones(n + 1).index_fill(0, torch.tensor([n]), 0.0)
    written = {
        "tokens permuted": Measure(points[torch.randperm(n, generator=random)]),
        "every token split in two": even.split([0.3, 0.7]),
        "the whole prompt repeated": Measure.mixture([even, even]),
        "a NaN token of mass zero": Measure(stray, massless),
        "total mass times 1000": Measure(points, torch.full((n,), 1e3)),
        "one group twenty times heavier": heavy,
    }
    x = torch.randn(50, 2, generator=random)
    table = Table("context mu", "largest change of G(mu, x)", "same measure?")
    expected = model(even, x)
    for name, mu in written.items():
        change = (model(mu, x) - expected).abs().max().item()
        table.add_row(name, f"{change:.2g}", "no" if mu is heavy else "yes")
    screen.say("\n[bold]What the network depends on[/bold]")
    screen.say("The output depends on the measure mu, not on how the measure is written.\n")
    screen.say(table)


def _layers(
    screen: Screen, model: Transformer, start: Mapping[str, Measure]
) -> dict[str, list[Measure]]:
    """Every cloud before and after every layer; a table of how far it went."""
    shown = {name: [mu] for name, mu in start.items()}
    heads = (f"{what}, {name}" for name in start for what in ("W1", "clusters"))
    table = Table("after block", *heads)
    with screen.progress("pushing", len(model)) as advance:
        for number, layer in enumerate(model, start=1):
            for clouds in shown.values():
                clouds.append(layer.push(clouds[-1]))
            if number % 2 == 0:
                row = []
                for name, clouds in shown.items():
                    far = wasserstein(start[name], clouds[-1]).item()
                    row += [f"{far:.3f}", str(clouds[-1].merge(NEAR).n)]
                table.add_row(str(number // 2), *row)
            advance(1, f"layer {number}")
    screen.say("\n[bold]What it does, layer by layer[/bold]")
    screen.say(f"W1 is the distance from the start. Points {NEAR} apart are one cluster.\n")
    screen.say(table)
    screen.say()
    return shown


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("A picture needs matplotlib: pip install matplotlib.") from error
    return plt


def _draw(file: Path, shown: Mapping[str, Sequence[Measure]], group: Tensor) -> None:
    """The clouds after some layers, one row for each start."""
    columns = [0, 2, 4, 8, 16]
    figure, axes = _pyplot().subplots(2, len(columns), figsize=(12, 5.4), sharex=True, sharey=True)
    colours = [["tab:blue", "tab:orange", "tab:green"][g] for g in group.tolist()]
    for line, (name, clouds) in zip(axes, shown.items(), strict=True):
        for panel, place in zip(line, columns, strict=True):
            cloud = clouds[place]
            panel.scatter(*cloud.atoms.T, s=2500 * cloud.weights, c=colours, alpha=0.5, lw=0)
            if line[0] is axes[0, 0]:
                title = f"after block {place // 2}" if place else "the tokens"
                panel.set_title(title, fontsize=9)
            panel.set_aspect("equal")
        line[0].set_ylabel(name)
    figure.suptitle(
        "The same tokens and layers, different weights: $\\Gamma(\\mu, x)$ depends on $\\mu$\n"
        "(colour: group, area: weight)",
        fontsize=11,
    )
    figure.tight_layout()
    with atomic_file(file) as draft:
        figure.savefig(draft, dpi=110)
