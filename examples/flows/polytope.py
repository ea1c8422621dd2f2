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

small = "--small" in sys.argv
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
eye = torch.eye(2)
mu = pf.Measure(torch.randn(15 if small else 60, 2))
field = pf.fields.SelfAttention(eye, eye, eye)
path = pf.flow(field, mu, t1=5.0, solver=pf.RK4(steps=100 if small else 2000), save=100)
z = torch.stack([m.atoms for m in path]) * torch.exp(-path.times)[:, None, None]

leaders = path.leaders()[-1]
corners = pf.flows.clusters(pf.Measure(z[-1]), tol=0.05)
count = int(corners.max()) + 1
print(f"{mu.n} tokens: multiplied by e^-t they form {count} clusters, with {len(leaders)} leaders")
figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
ax.plot(*z.permute(2, 0, 1).numpy(), color="#1f6f8b", lw=0.6, alpha=0.6)
ax.plot(*z[0].T.numpy(), ".", color="#8a8a8a", ms=4, label="t = 0")
ax.plot(*z[-1].T.numpy(), "o", color="#c8553d", ms=5, label="t = 5")
ax.plot(*z[-1, leaders].T.numpy(), "*", color="black", ms=10, label="leaders")
ax.set_aspect("equal")
ax.set_title(r"$e^{-t}x_i(t)$")
ax.legend(frameon=False)
Path("out").mkdir(exist_ok=True)
figure.savefig("out/polytope.png", dpi=110)
print("Picture: out/polytope.png")
