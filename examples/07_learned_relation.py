"""Learn a relation between two measures with two transformers, one dot product and Sinkhorn.

The rule to learn couples central points of one cloud with central points of the other, and outer
points with outer points. Whether a point is central depends on its cloud. The encoders q(mu, x)
and k(nu, y) are trained on clouds of 8 to 24 points and tested on other sizes. Writes
out/relation.png.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import track

import pushforward as pf

plt.style.use(Path(__file__).with_name("style.mplstyle"))
torch.manual_seed(0)
steps = 40 if "--small" in sys.argv else 350


def eccentricity(mu, x):
    """Distance from the mean of the cloud."""
    return (x - mu.mean()[..., None, :]).norm(dim=-1, keepdim=True)


def rule(mu, nu):
    """The rule to learn: a coupling of points of similar eccentricity."""
    near = pf.Encoded(eccentricity, eccentricity, pf.SquaredDistance(0.1))
    return pf.relate(mu, nu, affinity=near, normaliser=pf.Sinkhorn())


sizes = dict(depth=2, heads=2, hidden=64, width=32, out_dim=8, block=pf.Block(head_dim=16))
q, k = pf.Transformer(2, **sizes), pf.Transformer(2, **sizes)
options = dict(affinity=pf.Encoded(q, k), normaliser=pf.Sinkhorn(steps=10))
learned = lambda mu, nu: pf.relate(mu, nu, **options)


def draw(n, batch=()):
    """Clouds at random places, of random sizes and weights."""
    place, size = 2 * torch.randn(*batch, 1, 2), 0.5 + torch.rand(*batch, 1, 1)
    return pf.Measure(place + size * torch.randn(*batch, n, 2), torch.rand(*batch, n) + 0.2)


held_out = {n: [(draw(n), draw(n + 3)) for _ in range(8)] for n in (4, 12, 40)}
shown = draw(60), draw(60)


@torch.no_grad()
def report(when):
    for n, pairs in held_out.items():
        gaps = [pf.approximation.relation_distance(learned(*p), rule(*p), *p) for p in pairs]
        error = max(gaps).item()
        print(f"{when:9s} {n:2d} and {n + 3:2d} points: W1 error {error:.3f}, worst of 8 pairs")
    return learned(*shown).matrix()


before = report("untrained")
optimiser = torch.optim.Adam([*q.parameters(), *k.parameters()], 2e-3)
for _ in track(range(steps), description="training on clouds of 8 to 24 points"):
    mu, nu = (draw(int(n), (32,)) for n in torch.randint(8, 25, (2,)))
    target = rule(mu, nu).matrix()
    loss = -(target * (learned(mu, nu).matrix() + 1e-12).log()).sum((-1, -2)).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
after = report("trained")

figure, axes = plt.subplots(1, 3)
rows, columns = (eccentricity(m, m.atoms)[:, 0].argsort() for m in shown)
plans = {"untrained": before, "trained": after, "the rule": rule(*shown).matrix()}
for panel, (name, plan) in zip(axes, plans.items(), strict=True):
    panel.imshow(plan[rows][:, columns] / plan.sum(1)[rows, None], vmin=0, vmax=0.12)
    panel.set(title=name, xlabel="nu, from the centre outwards", ylabel="mu, from the centre")
out = Path("out/relation.png")
out.parent.mkdir(exist_ok=True)
figure.savefig(out)
print(f"Picture: {out}")
