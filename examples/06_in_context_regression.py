"""In-context regression: predict the value y of a query x from the rows (x, y) of a table.

Each task is y = <w, x> + noise with a new w. The context is the measure of its rows. An encoder
moves the rows, and queries attend to them. After training on many tasks the model predicts a new
task from its rows, and a row of weight four counts as four rows.
"""

import sys

import torch
from rich.progress import track

import pushforward as pf

torch.manual_seed(0)
width, steps = 32, 40 if "--small" in sys.argv else 300

sizes = dict(depth=2, heads=2, hidden=64, width=width, out_dim=width)
encoder = pf.Transformer(3, **sizes, block=pf.Block(head_dim=16))
embed = torch.nn.Linear(2, width)
attend = [
    pf.Residual(pf.Attention(width, heads=2, head_dim=16, context_dim=width)) for _ in range(2)
]
read = pf.MLP(width, 64, out_dim=1)
parts = torch.nn.ModuleList([encoder, embed, *attend, read])


def predict(context, x):
    """Predict the values of queries, which attend to the encoded rows twice."""
    rows, x = encoder.push(context), embed(x)
    for gamma in attend:
        x = gamma(rows, x)
    return read(rows, x)[..., 0]


def draw(tasks, rows, queries=8):
    """Tasks with `rows` rows each, and queries with their true values."""
    w = torch.randn(tasks, 2, 1)
    x, q = torch.randn(tasks, rows, 2), torch.randn(tasks, queries, 2)
    y = x @ w + 0.1 * torch.randn(tasks, rows, 1)
    return torch.cat([x, y], -1), q, (q @ w)[..., 0]


optimiser = torch.optim.Adam(parts.parameters(), 2e-3)
for _ in track(range(steps), description="training on tasks of 5 to 30 rows"):
    table, q, truth = draw(64, int(torch.randint(5, 31, ())))
    loss = (predict(pf.Measure(table), q) - truth).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

with torch.no_grad():
    print("rows   mean squared error (predicting 0 would give 2)")
    for rows in (2, 5, 10, 20, 60):
        table, q, truth = draw(500, rows)
        print(f"{rows:4d}   {(predict(pf.Measure(table), q) - truth).square().mean():.3f}")
    table, q, _ = draw(1, 6)
    counts = torch.tensor([[1, 1, 4, 1, 2, 1]])
    repeated = pf.Measure(table[0].repeat_interleave(counts[0], 0)[None])
    gap = (predict(pf.Measure(table, counts), q) - predict(repeated, q)).abs().max()
    print(f"predictions from weighted and from repeated rows differ by {gap:.1e}")
