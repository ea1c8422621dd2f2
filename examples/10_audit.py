"""Audit four models on sets, three of which have a common mistake. Writes pages to out/."""

import math
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import pushforward as pf

SMALL = "--small" in sys.argv
torch.manual_seed(0)
groups = 2 * torch.randn(5, 16)
cells = groups[torch.randint(5, (400,))] + torch.randn(400, 16)  # five kinds of cells


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).eval()


class Positions(nn.Module):
    """Adds position embeddings, so outputs depend on the order of the cells."""

    def __init__(self):
        super().__init__()
        self.inner, self.places = encoder(), nn.Embedding(4096, 16)

    def forward(self, x):
        return self.inner(x + self.places.weight[: len(x)])


class Sharpened(nn.Module):
    """Multiplies scores by log n, so writing every cell twice changes the outputs."""

    def __init__(self):
        super().__init__()
        self.Q, self.K, self.V = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        scores = math.log(len(x)) * self.Q(x) @ self.K(x).mT / 4
        return x + scores.softmax(-1) @ self.V(x)


class Summed(nn.Module):
    """Returns the sum over the set instead of the mean, so it depends on the number of cells."""

    def __init__(self):
        super().__init__()
        self.inner = encoder()

    def forward(self, x):
        return self.inner(x).sum(0)


models = {
    "encoder": encoder(),
    "positions": Positions(),
    "sharpened": Sharpened(),
    "summed": Summed(),
}
Path("out").mkdir(exist_ok=True)
table = Table("model", "exit code", "verdict")
for name, model in models.items():
    options = {"sections": ["symmetries", "size"]} if SMALL else {}
    sets = pf.auditing.Model(model.eval(), name=name, mode="set")  # the order must not matter
    report = pf.audit(sets, cells, **options)
    report.save(f"out/audit_{name}.html")
    table.add_row(name, str(report.exit_code), report.headline)
    assert report.exit_code == (name != "encoder"), report
Console().print(table)
print("Pages with all figures: " + ", ".join(f"out/audit_{name}.html" for name in models))
