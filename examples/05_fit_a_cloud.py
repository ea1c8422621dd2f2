"""Move 300 points and their weights onto a target by the gradient of a distance.

Writes out/fit.png, which shows where the points end for four distances.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import track

import pushforward as pf

plt.style.use(Path(__file__).with_name("style.mplstyle"))
torch.manual_seed(0)
angle = torch.rand(400) * 2 * torch.pi
ring = torch.stack([angle.cos(), angle.sin()], -1) + 0.05 * torch.randn(400, 2)
target = pf.Measure(ring, weights=(1.1 + angle.cos())).normalise()  # heavier on the right

losses = {
    "W2 (exact)": lambda mu: pf.wasserstein(mu, target, p=2),
    "sliced W2": lambda mu: pf.sliced_wasserstein(mu, target, projections=32),
    "energy distance": lambda mu: pf.energy_distance(mu, target),
    "MMD": lambda mu: pf.mmd(mu, target, bandwidth=0.5),
}
start = 0.4 * torch.randn(300, 2)
figure, axes = plt.subplots(1, 5, figsize=(10, 2.6), sharex=True, sharey=True)
axes[0].scatter(*ring.T, s=2000 * target.weights, alpha=0.5, lw=0, c="C1")
axes[0].set_title("The target")
for panel, (name, loss) in zip(axes[1:], losses.items(), strict=True):
    atoms = start.clone().requires_grad_()
    logits = torch.zeros(300, requires_grad=True)
    optimiser = torch.optim.Adam([atoms, logits], 0.05)
    for _ in track(range(60), description=f"{name:16s}", transient=True):
        value = loss(pf.Measure(atoms, log_weights=logits.log_softmax(-1)))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    final = pf.Measure(atoms.detach(), log_weights=logits.detach().log_softmax(-1))
    far = pf.wasserstein(final, target, p=2).item()
    print(f"{name:16s} loss {value.item():.4f}, W2 distance to the target {far:.4f}")
    panel.scatter(*final.atoms.T, s=1500 * final.weights, alpha=0.5, lw=0)
    panel.set_title(name)
for panel in axes:
    panel.set_aspect("equal")
out = Path("out/fit.png")
out.parent.mkdir(exist_ok=True)
figure.savefig(out)
print(f"Picture: {out}")
