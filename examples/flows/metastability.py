"""Clusters on a circle that last for a long time. Writes out/metastability.png.

If the inverse temperature beta is large, tokens soon form several clusters. These merge only after
times exponential in beta. On a logarithmic time axis the energy is a staircase.
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
beta, eye = 4.0, torch.eye(2)
t1 = 10.0 if small else 1000.0
angle = 2 * torch.pi * torch.rand(20 if small else 60)
mu = pf.Measure(torch.stack([angle.cos(), angle.sin()], -1))
field = pf.fields.SelfAttention(beta * eye, eye, eye, manifold=pf.Sphere())
clock = torch.logspace(-2, math.log10(t1), 120).tolist()[:-1]
path = pf.flow(field, mu, t1=t1, solver=pf.Dopri5(rtol=1e-6), save=clock)
energy, count = path.energy(), path.cluster_count(tol=0.05)
falls = [k for k in range(1, len(count)) if count[k] < count[k - 1] and count[k] < 5]
print(f"{count[0]} groups of tokens at first, {count[-1]} at t = {t1:g}")
for k in falls:
    print(f"at t = {path.times[k]:6.1f} there are {count[k]}, and the energy is {energy[k]:.2f}")

figure, axes = plt.subplot_mosaic([["tokens", "energy"], ["tokens", "clusters"]])
turns = torch.stack([torch.atan2(m.atoms[:, 1], m.atoms[:, 0]) for m in path]).rad2deg()
axes["tokens"].plot(path.times[1:], turns[1:], ".", color="C0", ms=1.5)
axes["tokens"].set(ylim=(-180, 180), yticks=range(-180, 181, 90), ylabel="angle in degrees")
axes["tokens"].set_title(f"{mu.n} tokens on the circle (-180° and 180° are one point)")
axes["energy"].plot(path.times[1:], energy[1:])
axes["energy"].set(title="Energy")
axes["clusters"].step(path.times[1:], count[1:], color="C1", where="post")
axes["clusters"].set(title="Number of clusters", yscale="log", yticks=[1, 2, 3, 10, 30])
axes["clusters"].set_yticklabels(["1", "2", "3", "10", "30"])
axes["clusters"].minorticks_off()
for ax in axes.values():
    ax.set(xscale="log", xlabel="time")
axes["energy"].set(xlabel="", xticklabels=[])
Path("out").mkdir(exist_ok=True)
figure.savefig("out/metastability.png")
print("Picture: out/metastability.png")
