"""One affinity and three normalisers: softmax, Sinkhorn, exact. Writes out/relations.png."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

import pushforward as pf

plt.style.use(Path(__file__).with_name("style.mplstyle"))
torch.manual_seed(0)
angle = 2 * torch.pi * torch.rand(120)
ring = torch.stack([angle.cos(), angle.sin()], -1) * (1 + 0.05 * torch.randn(120, 1))
mu = pf.Measure(0.35 * torch.randn(120, 2) + torch.tensor([0.6, 0.0]))  # a blob, off the centre
nu = pf.Measure(ring)  # a ring
near = pf.SquaredDistance(0.05)

table = Table("normaliser", "type", "largest use of a key", "unused keys", "cost", "steps")
figure, axes = plt.subplots(1, 3)
for ax, (name, normaliser) in zip(
    axes,
    {
        "softmax": pf.Softmax(),
        "Sinkhorn": pf.Sinkhorn(tol=1e-6),
        "exact": pf.relations.Exact(),
    }.items(),
    strict=True,
):
    relation = pf.relate(mu, nu, affinity=near, normaliser=normaliser)
    joint = relation.joint(mu) if isinstance(relation, pf.Conditional) else relation
    used = joint.marginals()[1] * nu.n
    table.add_row(
        name, type(relation).__name__, f"{used.max():.2f}", f"{(used < 0.01).sum()}",
        f"{joint.cost():.3f}", f"{joint.steps}",
    )  # fmt: skip
    sent = relation.apply(nu.atoms)
    for start, end in zip(mu.atoms.tolist(), sent.tolist(), strict=True):
        ax.plot(*zip(start, end, strict=True), color="C4", lw=0.5, zorder=1)
    ax.scatter(*nu.atoms.numpy().T, 40 * used.numpy(), color="C1", alpha=0.5, lw=0)
    ax.scatter(*mu.atoms.numpy().T, 8, color="C0", lw=0)
    ax.scatter(*sent.numpy().T, 8, color="black", lw=0)
    ax.set_title(f"{name}: a {type(relation).__name__.lower()}")
    ax.set_aspect("equal")
    ax.set_axis_off()

Console().print("Queries are a blob, keys a ring around it. The use of a key is the mass it")
Console().print("receives divided by its weight. In the picture it is the size of the key.")
Console().print(table)
Path("out").mkdir(exist_ok=True)
figure.savefig("out/relations.png")
Console().print("Picture: out/relations.png")
