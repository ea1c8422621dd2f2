"""Attention with Q = K = V = I gathers tokens at corners of a polytope. Writes out/polytope.png.

Tokens grow like e^t. Multiplied by e^-t, they tend to a few corners of a polytope. Leaders are the
tokens to which some token attends most.
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
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
eye = torch.eye(2)
mu = pf.Measure(torch.randn(15 if small else 60, 2))
field = pf.fields.SelfAttention(eye, eye, eye)
path = pf.flow(field, mu, t1=5.0, solver=pf.RK4(steps=100 if small else 1000), save=100)
z = torch.stack([m.atoms for m in path]) * torch.exp(-path.times)[:, None, None]

leaders = path.leaders()
corners = pf.flows.clusters(pf.Measure(z[-1]), tol=0.05)
count = int(corners.max()) + 1
print(f"{mu.n} tokens: multiplied by e^-t they form {count} clusters, {len(leaders[-1])} leaders")
figure, (left, right) = plt.subplots(1, 2, width_ratios=(1, 1.3))
left.plot(*z.permute(2, 0, 1).numpy(), color="C0", lw=0.6, alpha=0.6)
left.plot(*z[0].T.numpy(), ".", color="C4", ms=4, label="t = 0")
left.plot(*z[-1].T.numpy(), "o", color="C1", ms=5, label="t = 5")
left.plot(*z[-1, leaders[-1]].T.numpy(), "*", color="black", ms=10, label="leaders, t = 5")
left.set_aspect("equal")
left.set_title(r"Tokens, multiplied by $e^{-t}$")
left.legend(loc="upper left", bbox_to_anchor=(1, 1))
right.step(path.times, [len(some) for some in leaders], where="post")
right.set(xlabel="time", ylabel="leaders", ylim=(0, None), title="How many tokens lead")
Path("out").mkdir(exist_ok=True)
figure.savefig("out/polytope.png")
print("Picture: out/polytope.png")
