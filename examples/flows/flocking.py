"""Flocks stay together if their velocities differ little enough. Writes out/flocking.png.

This is the Cucker-Smale model with influence 1/(1 + r^2) at distance r. Velocities tend to a
common limit if the largest difference D_V of two of them is at first below pi/2 - atan(D_X), where
D_X is the largest distance of two positions.
"""

import math
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
n = 20 if small else 100
field = pf.fields.CuckerSmale(lambda r: 1 / (1 + r.square()))
x = 0.3 * torch.randn(n, 2)
v = torch.randn(n, 2)
v = v / pf.flows.diameter(v)
spread = pf.flows.diameter(x).item()
threshold = math.pi / 2 - math.atan(spread)

figure, axes = plt.subplots(1, 3, width_ratios=(1.4, 1, 1))
looks = [(f"C{k % 3}", "-" if k < 3 else "--") for k in range(6)]
for share, (colour, style) in zip((0.3, 0.7, 0.95, 2.0, 8.0, 20.0), looks, strict=True):
    mu = pf.Measure(torch.cat([x, share * threshold * v], -1))
    path = pf.flow(field, mu, t1=20.0, solver=pf.RK4(steps=100 if small else 800), save=50)
    speeds = path.velocity_diameter()
    axes[0].semilogy(
        path.times, speeds / speeds[0], style, color=colour, label=f"{share:g} × threshold"
    )
    left = speeds[-1] / speeds[0]
    print(f"D_V(0) = {share:5.2f} times the threshold: D_V(20) = {left:.1e} D_V(0)")
    if share in (0.7, 20.0):
        ax = axes[1 if share < 1 else 2]
        tracks = torch.stack([m.atoms[:, :2] for m in path])
        ax.plot(*tracks.permute(2, 0, 1).numpy(), color="C0", lw=0.5, alpha=0.5)
        ax.plot(*tracks[-1].T, ".", color="C1", ms=3)
        ax.set_title(f"Paths, {share:g} × threshold")
        ax.set_aspect("equal")
axes[0].set(title="Largest difference of velocities", xlabel="time", ylabel="$D_V(t)/D_V(0)$")
axes[0].legend(fontsize=8, title="$D_V(0)$", title_fontsize=8)
Path("out").mkdir(exist_ok=True)
figure.savefig("out/flocking.png")
print("Picture: out/flocking.png")
