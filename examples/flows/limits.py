"""The rates at which residual networks tend to flows, and random tokens to their limit.

Writes out/limits.png.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import pushforward as pf

plt.style.use(Path(__file__).parents[1] / "style.mplstyle")
small = "--small" in sys.argv
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
Q, K, V = (0.9 * torch.randn(3, 3) for _ in range(3))
field = pf.fields.SelfAttention(Q, K, V)
cube = lambda n, generator: pf.Measure(2 * torch.rand(n, 3, generator=generator) - 1)

mu = cube(50, torch.Generator().manual_seed(0))
depth = pf.flows.depth_study(field, mu, [8, 16, 32] if small else [8, 16, 32, 64, 128])
print(depth)
print("\nNow flows of many random clouds, half a minute on one core.")
tokens = pf.flows.token_study(
    field, cube, [25, 100] if small else [50, 200, 800], solver=pf.RK4(steps=4),
    repetitions=10 if small else 100,
)  # fmt: skip
print(tokens)

figure, axes = plt.subplots(1, 2)
titles = ("A residual network tends to its flow", "Random tokens tend to their limit")
for ax, study, title in zip(axes, (depth, tokens), titles, strict=True):
    line = [study.errors[0] * (n / study.sizes[0]) ** study.expected for n in study.sizes]
    ax.loglog(study.sizes, line, "--", color="C4", label=f"theory, slope {study.expected:g}")
    measured = f"measured, slope {study.rate:.2f}"
    ax.loglog(study.sizes, study.errors, "o-", label=measured)
    ax.set(xlabel=study.name, ylabel="distance", title=title)
    ax.set_xticks(study.sizes, [str(n) for n in study.sizes], minor=False)
    ax.set_xticks([], minor=True)
    ax.legend()
Path("out").mkdir(exist_ok=True)
figure.savefig("out/limits.png")
print("Picture: out/limits.png")
