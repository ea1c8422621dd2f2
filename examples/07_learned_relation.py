"""Learn a relation between two measures with two transformers, one dot product and Sinkhorn.

The rule to learn couples central points of one cloud with central points of the other, and outer
points with outer points. Whether a point is central depends on its cloud. The encoders q(mu, x)
and k(nu, y) are trained on clouds of 8 to 24 points and tested on other sizes. Writes
out/relation.png. It takes about 25 seconds on one core.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

import pushforward as pf
from pushforward import fitting

plt.style.use(Path(__file__).with_name("style.mplstyle"))
torch.manual_seed(0)
steps = 40 if "--small" in sys.argv else 350


class Clouds(fitting.Law):
    """Clouds at random places, of random sizes and weights."""

    dim = 2

    def draw(self, count, n, generator):
        normal = lambda *shape: torch.randn(*shape, generator=generator)
        uniform = lambda *shape: torch.rand(*shape, generator=generator)
        place, size = 2 * normal(count, 1, 2), 0.5 + uniform(count, 1, 1)
        return pf.Measure(place + size * normal(count, n, 2), uniform(count, n) + 0.2).normalise()


def eccentricity(mu, x):
    """Distance from the mean of the cloud."""
    return (x - mu.mean()[..., None, :]).norm(dim=-1, keepdim=True)


def rule(mu, nu):
    """The rule to learn: a coupling of points of similar eccentricity."""
    near = pf.Encoded(eccentricity, eccentricity, pf.SquaredDistance(0.1))
    return pf.relate(mu, nu, affinity=near, normaliser=pf.Sinkhorn())


def report(when, model):
    """The errors at several sizes, in W1."""
    for score in fitting.evaluate_rule(model, task, sizes=[4, 12, 40]):
        figures = f"W1 error {score.mean:.3f}, worst of {score.pairs} pairs {score.worst:.3f}"
        print(f"{when:9s} {score.n:2d} points: {figures}")
    with torch.no_grad():
        return model(*shown).matrix()


law = Clouds()
task = fitting.Relating(rule, law, batches=fitting.Batches((8, 24), 768))
shown = [law(60, torch.Generator().manual_seed(k)) for k in (1, 2)]

sizes = dict(depth=2, heads=2, hidden=64, width=32, out_dim=8, block=pf.Block(head_dim=16))
q, k = pf.Transformer(2, **sizes), pf.Transformer(2, **sizes)
model = pf.maps.LearnedRule(q, k, normaliser=pf.Sinkhorn(steps=10))
before = report("untrained", model)
result = pf.fit(model, task, steps=steps)
after = report("trained", result.model)

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
