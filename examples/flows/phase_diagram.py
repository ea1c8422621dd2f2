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

plt.style.use(Path(__file__).parents[1] / "style.mplstyle")
small = "--small" in sys.argv
torch.manual_seed(0)
tokens, seeds, t1 = (8, 2, 2.0) if small else (32, 8, 10.0)
dims = [2, 8, 64] if small else [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
betas = torch.tensor([0.5, 4.0]) if small else torch.logspace(-1, 1.6, 14)

met = torch.zeros(len(betas), len(dims))
cells = [(i, j) for i in range(len(betas)) for j in range(len(dims))]
for i, j in track(cells, "flows"):
    d, eye = dims[j], torch.eye(dims[j])
    field = pf.fields.SelfAttention(betas[i] * eye, eye, eye, manifold=pf.Sphere())
    mu = pf.Measure(torch.randn(seeds, tokens, d)).push(pf.Sphere().retract)
    flow = pf.Flow(field, t1=t1, solver=pf.RK4(steps=60))
    x = flow.push(mu).atoms
    close = ((x @ x.mT) > 0.999).float().mean()  # a token is close to itself
    met[i, j] = (tokens * close - 1) / (tokens - 1)

print(f"share of pairs that met by t = {t1:g}: from {met.min():.2f} to {met.max():.2f}")
figure, (left, right) = plt.subplots(1, 2)
image = left.pcolormesh(range(len(dims)), betas, met, vmin=0, vmax=1)
left.set_xticks(range(len(dims)), [str(d) for d in dims])
left.set(yscale="log", xlabel="dimension", ylabel=r"inverse temperature $\beta$")
left.set_title(f"Pairs of tokens that have met by t = {t1:g}")
figure.colorbar(image, ax=left, label="share of pairs")
for j, style in zip(
    (0, len(dims) // 3, 2 * len(dims) // 3, -1), ("-", "--", "-.", ":"), strict=True
):
    right.semilogx(betas, met[:, j], style, label=f"dimension {dims[j]}")
right.set(xlabel=r"inverse temperature $\beta$", ylabel="share of pairs", ylim=(0, 1.02))
right.set_title("Four columns of the diagram")
right.legend()
Path("out").mkdir(exist_ok=True)
figure.savefig("out/phase_diagram.png")
print("Picture: out/phase_diagram.png")
