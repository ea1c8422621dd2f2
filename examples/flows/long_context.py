"""How the inverse temperature must grow with the context. Writes out/long_context.png.

The n tokens are unit vectors, any two with the same inner product rho, and the inverse temperature
is beta = gamma log n. As n grows, the weight of a token on itself tends to 0 if
gamma < 1/(1 - rho): a layer averages all tokens. It tends to 1 if gamma > 1/(1 - rho): a layer
moves nothing.
"""

import math
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
rho = 0.5
sizes = [16, 64] if small else [16, 64, 256, 1024]
gammas = torch.linspace(0, 4, 5 if small else 33)

figure, (left, right) = plt.subplots(1, 2, sharey=True)
for n in track(sizes, "contexts"):
    gram = torch.full((n, n), rho) + (1 - rho) * torch.eye(n)
    mu = pf.Measure(torch.linalg.cholesky(gram))
    own, turned = [], []
    for gamma in gammas.tolist():
        beta, eye = gamma * math.log(n), torch.eye(n)
        field = pf.fields.SelfAttention(beta * eye, eye, eye, manifold=pf.Sphere())
        own.append(field.relation(mu).matrix()[0].diagonal().mean().item())
        x = pf.flow(field, mu, t1=1.0, solver=pf.Euler(steps=4))[-1].atoms
        turned.append(((x @ x.mT).sum() - n).item() / (n * (n - 1)))
    left.plot(gammas, own, label=f"n = {n}")
    right.plot(gammas, turned, label=f"n = {n}")
    print(f"n = {n}: weight on itself {own[0]:.3f} at gamma = 0, {own[-1]:.3f} at gamma = 4")
for ax, title in ((left, "Weight of a token on itself"), (right, "Mean inner product at t = 1")):
    ax.axvline(1 / (1 - rho), color="C4", ls="--", label=r"$\gamma=1/(1-\rho)$")
    ax.set(title=title, xlabel=r"$\gamma$, with $\beta=\gamma\log n$")
right.legend()
Path("out").mkdir(exist_ok=True)
figure.savefig("out/long_context.png")
print("Picture: out/long_context.png")
