"""Clusters on a circle that last for a long time. Writes out/metastability.png.

If the inverse temperature beta is large, tokens soon form several clusters. These merge only after
times exponential in beta. On a logarithmic time axis the energy is a staircase.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import pushforward as pf

small = "--small" in sys.argv
torch.manual_seed(2)
torch.set_default_dtype(torch.float64)
beta, eye = 9.0, torch.eye(2)
t1 = 30.0 if small else 3e4
angle = 2 * torch.pi * torch.rand(20 if small else 60)
mu = pf.Measure(torch.stack([angle.cos(), angle.sin()], -1))
field = pf.fields.SelfAttention(beta * eye, eye, eye, manifold=pf.Sphere())
clock = torch.logspace(-2, torch.log10(torch.tensor(t1)).item(), 120).tolist()[:-1]
path = pf.flow(field, mu, t1=t1, solver=pf.Dopri5(rtol=1e-6), save=clock)
energy, count = path.energy(), path.cluster_count(tol=0.05)
middle = len(count) // 2
print(f"{count[0]} clusters at first, {count[middle]} at t = {path.times[middle]:.3g}, ", end="")
print(f"{count[-1]} at t = {t1:g}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
turns = torch.stack([torch.atan2(m.atoms[:, 1], m.atoms[:, 0]) for m in path])
left.plot(path.times[1:], turns[1:], ".", color="#1f6f8b", ms=1)
left.set(xscale="log", xlabel="t", ylabel="angle", title="tokens on the circle")
right.plot(path.times[1:], energy[1:], color="#c8553d")
right.set(xscale="log", xlabel="t", ylabel="energy (red)", title="energy and clusters")
twin = right.twinx()
twin.step(path.times[1:], count[1:], color="#8a8a8a")
twin.set_ylabel("number of clusters (grey)")
Path("out").mkdir(exist_ok=True)
figure.savefig("out/metastability.png", dpi=110)
print("Picture: out/metastability.png")
