"""A tour in under a minute: measures, a transformer, what it depends on, and what it does.

Writes out/tour.png: the same points under two weightings, pushed through the same layers.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import pushforward as pf

plt.style.use(Path(__file__).with_name("style.mplstyle"))
torch.manual_seed(1)
console = Console()

# A cloud of 600 points: three groups on a circle.
angle = 2 * torch.pi * (torch.arange(600) % 3 / 3)
centres = 1.5 * torch.stack([angle.cos(), angle.sin()], -1)
points = centres + 0.35 * torch.randn(600, 2)
group = torch.arange(600) % 3

even = pf.Measure(points)
heavy = pf.Measure(points, weights=torch.where(group == 0, 20.0, 1.0)).normalise()

# A transformer of eight blocks whose weights are set by hand. Attention adds half the mean m of
# what a point x attends to. The MLP then subtracts a third of the result; it is linear, because
# GELU(x) - GELU(-x) = x. Together a block is x -> x + (m - x) / 3: tokens move towards the mass
# near them.
near = pf.Block(affinity=pf.SquaredDistance(1.3))
model = pf.Transformer(2, depth=8, hidden=4, step=0.5, block=near)
with torch.no_grad():
    one = torch.eye(2)
    for layer in model:
        if isinstance(layer.gamma, pf.Attention):
            for part in (layer.gamma.Q, layer.gamma.K, layer.gamma.V, layer.gamma.W):
                part.weight.copy_(one)
        else:
            layer.gamma.A1.weight.copy_(torch.cat([one, -one]))
            layer.gamma.A2.weight.copy_(torch.cat([-one, one], -1) * 2 / 3)
            layer.gamma.A1.bias.zero_(), layer.gamma.A2.bias.zero_()

console.rule("[bold]What the network depends on")
console.print("The output depends on the measure mu, not on how the measure is written.\n")
mixed = torch.randperm(600)
stray = torch.cat([points, torch.full((1, 2), torch.nan)])
rewritten = {
    "tokens permuted": pf.Measure(points[mixed]),
    "every token split in two": even.split([0.3, 0.7]),
    "the whole prompt repeated": pf.Measure.mixture([even, even]),
    "a NaN token of mass zero": pf.Measure(
        stray, torch.ones(601).index_fill(0, torch.tensor([600]), 0.0)
    ),
    "total mass times 1000": pf.Measure(points, torch.full((600,), 1e3)),
    "one group twenty times heavier": heavy,
}
x = torch.randn(50, 2)
table = Table("context mu", "largest change of G(mu, x)", "same measure?")
with torch.no_grad():
    expected = model(even, x)
    for name, mu in rewritten.items():
        change = (model(mu, x) - expected).abs().max().item()
        table.add_row(name, f"{change:.1e}", "no" if mu is heavy else "yes")
console.print(table)

console.rule("[bold]What it does, layer by layer")
console.print("W1 is the distance from the start. Points at most 0.2 apart are one cluster.\n")
start = {"equal weights": even, "one group 20x": heavy}
shown = {name: [mu] for name, mu in start.items()}
table = Table("after block", *(f"{what}, {name}" for name in start for what in ("W1", "clusters")))
with Progress(console=console, transient=True) as progress, torch.no_grad():
    task = progress.add_task("pushing", total=len(model))
    for number, layer in enumerate(model, start=1):
        for clouds in shown.values():
            clouds.append(layer.push(clouds[-1]))
        if number % 2 == 0:
            row = []
            for name, clouds in shown.items():
                far = pf.wasserstein(start[name], clouds[-1]).item()
                row += [f"{far:.3f}", str(clouds[-1].merge(0.2).n)]
            table.add_row(str(number // 2), *row)
        progress.advance(task)
console.print(table)

columns = [0, 2, 4, 8, 16]
figure, axes = plt.subplots(2, len(columns), figsize=(10, 4.6), sharex=True, sharey=True)
colours = [f"C{g}" for g in group.tolist()]
for line, (name, clouds) in zip(axes, shown.items(), strict=True):
    for panel, place in zip(line, columns, strict=True):
        cloud = clouds[place]
        panel.scatter(*cloud.atoms.T, s=1800 * cloud.weights, c=colours, alpha=0.5, lw=0)
        if line[0] is axes[0, 0]:
            panel.set_title(f"after block {place // 2}" if place else "the tokens")
        panel.set_aspect("equal")
    line[0].set_ylabel(name)
out = Path("out/tour.png")
out.parent.mkdir(exist_ok=True)
figure.savefig(out)
console.print(f"Picture: [bold]{out}[/bold]. Next, see README.md and examples/.")
