"""Which tokens cluster by a given time, by dimension and inverse temperature beta.

Tokens start uniformly on the sphere. The picture, out/phase_diagram.png, shows the share of pairs
that have met by that time.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import track

import pushforward as pf

small = "--small" in sys.argv
torch.manual_seed(0)
tokens, seeds, t1 = (8, 2, 2.0) if small else (32, 8, 10.0)
dims = [2, 8, 64] if small else [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
betas = [0.5, 4.0] if small else torch.logspace(-1, 1.6, 14).tolist()

met = torch.zeros(len(betas), len(dims))
cells = [(i, j) for i in range(len(betas)) for j in range(len(dims))]
for i, j in track(cells, "phase diagram"):
    d, eye = dims[j], torch.eye(dims[j])
    field = pf.fields.SelfAttention(betas[i] * eye, eye, eye, manifold=pf.Sphere())
    mu = pf.Measure(torch.randn(seeds, tokens, d)).push(pf.Sphere().retract)
    x = pf.flow(field, mu, t1=t1, solver=pf.RK4(steps=60))[-1].atoms
    met[i, j] = ((x @ x.mT) > 0.999).float().mean()

print(f"share of pairs that met by t = {t1:g}: from {met.min():.2f} to {met.max():.2f}")
figure, ax = plt.subplots(figsize=(6, 4.4), layout="constrained")
image = ax.pcolormesh(range(len(dims)), betas, met, cmap="viridis", vmin=0, vmax=1)
ax.set_xticks(range(len(dims)), [str(d) for d in dims])
ax.set(yscale="log", xlabel="dimension", ylabel=r"$\beta$", title=f"pairs that met by t = {t1:g}")
figure.colorbar(image)
Path("out").mkdir(exist_ok=True)
figure.savefig("out/phase_diagram.png", dpi=110)
print("Picture: out/phase_diagram.png")
