"""Repulsive attention is a heat flow, and softmax runs twice as fast as Sinkhorn.

Points move away from the mean of what they attend to, with velocity (x - mean)/eps and the kernel
exp(-|x-y|^2/2eps). As eps tends to 0, this velocity tends to -grad(log rho)/2 for Sinkhorn and to
-grad(log rho) for softmax, where rho is the density of the points. So rho solves the heat
equation, with diffusivity 1/2 and 1. Writes out/heat.png.
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
torch.set_default_dtype(torch.float64)
eps, t1, one = 0.02, 0.4, torch.eye(1)
line = torch.linspace(-4, 4, 200 if small else 800)
density = lambda x, s: sum(torch.exp(-((x - m) ** 2) / (2 * s)) for m in (-1, 1)) / s**0.5
cdf = density(line, 0.1).cumsum(0)
middles = (torch.arange(100 if small else 400) + 0.5) / (100 if small else 400)
mu = pf.Measure(line[torch.searchsorted(cdf / cdf[-1], middles)][:, None])

figure, axes = plt.subplots(1, 2, sharey=True)
choices = {"softmax": (pf.Softmax(), 2.0), "Sinkhorn": (pf.Sinkhorn(tol=1e-7), 1.0)}
for ax, (name, (normaliser, speed)) in zip(axes, choices.items(), strict=True):
    pull = pf.fields.SelfAttention(
        one, one, -one / eps, affinity=pf.SquaredDistance(2 * eps), normaliser=normaliser
    )
    field = pf.fields.Sum(pull, pf.Pointwise(lambda x: x / eps))
    path = pf.flow(field, mu, t1=t1, solver=pf.flows.Midpoint(steps=40 if small else 160))
    grown = (path[-1].covariance() - mu.covariance()).item()
    print(f"{name}: the variance grew by {grown:.3f} until t = {t1}; heat flow {speed * t1:.3f}")
    ax.hist(mu.atoms[:, 0], 40, density=True, color="C4", alpha=0.35, label="points, t = 0")
    points = path[-1].atoms[:, 0]
    ax.hist(points, 40, density=True, color="C0", alpha=0.5, label=f"points, t = {t1}")
    exact = density(line, 0.1 + speed * t1)
    label = f"heat flow, diffusivity {speed / 2:g}, t = {t1}"
    ax.plot(line, exact / (exact.sum() * (line[1] - line[0])), "--", color="C1", label=label)
    ax.set(title=f"{name.capitalize()} attention", xlabel="position", xlim=(-4, 4), ylim=(0, 0.75))
    ax.legend()
axes[0].set_ylabel("density")
Path("out").mkdir(exist_ok=True)
figure.savefig("out/heat.png")
print("Picture: out/heat.png")
