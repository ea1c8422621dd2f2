"""Tokens on a sphere gather in clusters, fewer and fewer. Writes out/clusters.png.

The self-attention dynamics of Geshkovski, Letrouit, Polyanskiy and Rigollet, "A mathematical
perspective on transformers": Q, K and V are identities, scores are multiplied by beta, and tokens
stay on the unit sphere. Above: 200 tokens on the sphere. Below left: the number of clusters over
time. Below right: tokens that start orthogonal, whose cosines all solve one differential equation.
"""

import itertools
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.progress import track

import pushforward as pf

small = "--small" in sys.argv
torch.set_default_dtype(torch.float64)
SHOWN = [0.1, 1.0, 10.0, 100.0, 1000.0]
COLOURS = ["#14417f", "#ac4603", "#02765f", "#994fa9"]
t1, n = (10.0, 40) if small else (1000.0, 200)


def attention(beta, dim):
    eye = torch.eye(dim)
    return pf.fields.SelfAttention(beta * eye, eye, eye, manifold=pf.Sphere())


def run(beta, mu, t1, points=60):
    clock = torch.logspace(-1, math.log10(t1), points).tolist()[:-1]
    clock = sorted({*clock, *(t for t in SHOWN if t < t1)})
    solver = pf.Dopri5(rtol=1e-6)
    return pf.flow(attention(beta, mu.dim), mu, t1=t1, solver=solver, save=clock)


def cosine_curve(beta, n, times):
    """The common cosine of n tokens that start orthogonal, by 100 steps of RK4 between times."""

    def speed(c):
        growth = 2 * (1 - c) * (1 + (n - 1) * c)
        return growth / (math.exp(beta * (1 - c)) + n - 1)

    c, values = 0.0, [0.0]
    for start, end in itertools.pairwise(times):
        h = (end - start) / 100
        for _ in range(100):
            k1 = speed(c)
            k2 = speed(c + h / 2 * k1)
            k3 = speed(c + h / 2 * k2)
            c += h / 6 * (k1 + 2 * k2 + 2 * k3 + speed(c + h * k3))
        values.append(c)
    return values


generator = torch.Generator().manual_seed(0)
mu = pf.Measure(torch.randn(n, 3, generator=generator)).push(pf.Sphere().retract)
betas = [1.0, 4.0, 9.0, 25.0]
paths = {beta: run(beta, mu, t1) for beta in track(betas, description="tokens on the sphere")}
print("clusters of tokens that are closer than 0.05, at times")
shown = [t for t in SHOWN if t <= t1]
print("beta   " + "".join(f"{t:>8g}" for t in shown))
for beta, path in paths.items():
    count = path.cluster_count(tol=0.05)
    at = [int(count[(path.times - t).abs().argmin()]) for t in shown]
    print(f"{beta:<7g}" + "".join(f"{k:>8d}" for k in at))

figure = plt.figure(figsize=(10, 6.4), layout="constrained")
axes = figure.subplot_mosaic([["p0", "p1", "p2", "p3"], ["count", "count", "cosine", "cosine"]])
path = paths[9.0]
for k, t in enumerate([0, 1, 10, 100]):
    where = int((path.times - t).abs().argmin())
    x, ax = path[where].atoms, axes[f"p{k}"]
    front = x[:, 1] < 0
    ax.add_patch(plt.Circle((0, 0), 1, fill=False, color="#686e76", lw=0.8))
    ax.scatter(x[~front, 0], x[~front, 2], s=9, color=COLOURS[0], alpha=0.2)
    ax.scatter(x[front, 0], x[front, 2], s=9, color=COLOURS[0], alpha=0.7)
    ax.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    ax.set_title(rf"$\beta=9$, $t={path.times[where]:g}$")
    ax.axis("off")
for beta, colour in zip(betas, COLOURS, strict=True):
    count = paths[beta].cluster_count(tol=0.05)
    axes["count"].step(paths[beta].times[1:], count[1:], color=colour, where="post")
    axes["count"].plot([], [], color=colour, label=rf"$\beta={beta:g}$")
axes["count"].set(xscale="log", yscale="log", xlabel="time", title="number of clusters")
axes["count"].legend(frameon=False)

size, worst = 16 if small else 32, 0.0
for beta, colour in zip(betas[:3], COLOURS[:3], strict=True):
    start = pf.Measure(torch.eye(size))
    times = torch.linspace(0, 12, 40).tolist()
    field, solver = attention(beta, size), pf.Dopri5(rtol=1e-9)
    path = pf.flow(field, start, t1=12.0, solver=solver, save=times[1:-1])
    off = ~torch.eye(size, dtype=torch.bool)
    cosines = torch.stack([(m.atoms @ m.atoms.T)[off] for m in path])
    exact = torch.tensor(cosine_curve(beta, size, times))
    worst = max(worst, float((cosines - exact[:, None]).abs().max()))
    axes["cosine"].plot(times, exact, "--", color="#686e76", lw=3)
    axes["cosine"].plot(path.times, cosines.mean(1), color=colour, label=rf"$\beta={beta:g}$")
axes["cosine"].plot([], [], "--", color="#686e76", lw=3, label="their equation")
axes["cosine"].set(xlabel="time", ylim=(0, 1), title=f"cosine of {size} orthogonal tokens")
axes["cosine"].legend(frameon=False)
print(f"cosines from an orthogonal start differ from their equation by at most {worst:.0e}")
for name in ("count", "cosine"):
    axes[name].spines[["top", "right"]].set_visible(False)
Path("out").mkdir(exist_ok=True)
figure.savefig("out/clusters.png", dpi=110)
print("Picture: out/clusters.png")
