"""On the line every token ends up attending to one of the two ends. Writes out/leaders.png."""

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
one = torch.eye(1)
mu = pf.Measure(torch.randn(12 if small else 40, 1).sort(0).values)
field = pf.fields.SelfAttention(one, one, one)
path = pf.flow(field, mu, t1=3.0, solver=pf.RK4(steps=120 if small else 1200), save=60)

figure, axes = plt.subplots(1, 4, width_ratios=(1, 1, 1, 1.25))
for ax, k in zip(axes, (0, 20, 60), strict=False):
    attention = field.relation(path[k]).matrix()[0]
    image = ax.imshow(attention, vmin=0, vmax=1)
    ax.set(title=f"Attention at t = {path.times[k]:g}", xlabel="token attended to")
axes[0].set_ylabel("token that attends")
figure.colorbar(image, ax=axes[:3], label="weight", shrink=0.75)
top = mu.n - 1
gap = torch.stack([1 - field.relation(m).matrix()[0, top, top] for m in path])
seen = gap > 1e-14
axes[3].plot(path.times[seen], (-gap[seen].log()).log(), label="measured")
last = path.times[seen][-20:]
level = (-gap[seen][-1].log()).log()
axes[3].plot(last, level + last - last[-1], "--", color="C4", label="slope 1")
axes[3].set(title=r"$\log(-\log(1-P_{nn}))$", xlabel="time")
axes[3].legend()
ends = path.leaders()[-1].tolist()
print(f"{mu.n} tokens in order: at t = 3 all attend to the tokens {ends}, the two ends")
Path("out").mkdir(exist_ok=True)
figure.savefig("out/leaders.png")
print("Picture: out/leaders.png")
