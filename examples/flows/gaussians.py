"""A Gaussian under four kinds of attention, exactly and by particles. Writes out/gaussians.png."""

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
eye = torch.eye(2)
Q, V = torch.tensor([[0.8, 0.3], [-0.2, 0.6]]), torch.tensor([[-0.5, -0.6], [0.6, -0.5]])
mean, cov = torch.tensor([1.0, 0.5]), torch.tensor([[0.5, 0.2], [0.2, 0.3]])
mu = pf.Measure(mean + torch.randn(100 if small else 2000, 2) @ torch.linalg.cholesky(cov).mT)
kinds = {
    "softmax": dict(),
    "squared distance": dict(affinity=pf.SquaredDistance(2.0)),
    "Sinkhorn": dict(normaliser=pf.Sinkhorn(tol=1e-5)),
    "linear": dict(normaliser=pf.relations.Bilinear()),
}
circle = torch.linspace(0, 2 * torch.pi, 80)
circle = torch.stack([circle.cos(), circle.sin()], -1)
figure, axes = plt.subplots(1, 4, sharex=True, sharey=True)
for ax, (name, options) in zip(axes, kinds.items(), strict=True):
    field = pf.fields.SelfAttention(Q, eye, V, **options)
    exact = pf.flows.gaussian(field, mean, cov, t1=3.0, save=6)
    path = pf.flow(field, mu, t1=3.0, solver=pf.flows.Midpoint(steps=30), save=6)
    means, covs = path.moments()
    gap = (covs[-1] - exact.covariances[-1]).abs().max() / covs[0].abs().max()
    print(f"{name}: the covariance of {mu.n} particles at t = 3 is within {gap:.1%} of the limit")
    for k, (m, S) in enumerate(zip(exact.means, exact.covariances, strict=True)):
        ax.plot(
            *(m + circle @ torch.linalg.cholesky(S).mT).T, color="C0", lw=1, alpha=0.3 + k / 10
        )
    ax.plot(*exact.means.T, color="C0", label="limit")
    ax.plot(*means.T, ".", color="C1", label="2,000 particles")
    ax.set_title(f"{name} attention".capitalize())
    ax.set_aspect("equal")
axes[3].legend(loc="lower right")
Path("out").mkdir(exist_ok=True)
figure.savefig("out/gaussians.png")
print("Picture: out/gaussians.png")
