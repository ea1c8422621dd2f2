"""Verdicts on maps whose kind is known, and a map without a continuous in-context map.

Prints the verdicts and writes out/alice.png. It compares two long prompts that differ in one name:
the prompts approach each other as they grow, but the images of the two names do not.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pushforward as pf

plt.style.use(Path(__file__).with_name("style.mplstyle"))
SMALL = "--small" in sys.argv
law = lambda n, g: pf.Measure(2 * torch.rand(n, 2, generator=g).double() - 1)

table = Table("map", "verdict", "Lipschitz in W1", "because")
specimens = pf.representation.zoo.specimens(dim=2)[-5 if SMALL else 0 :]
print(f"Verdicts on {len(specimens)} maps, about two seconds each.")
for s in track(specimens, description="verdicts"):
    report = pf.characterise(s.f, law, size=6, progress=False)
    assert report.verdict == s.verdict, f"{s.name}: {report}"
    known = report.lipschitz
    constant = "" if known is None or report.refuted else f"{known.lower:.3g} to {known.upper:.3g}"
    because = "" if report.witness is None else report.witness.what
    table.add_row(s.name, str(report.verdict), constant, because)
Console().print(table)

sizes = [10**k for k in range(1, 5 if SMALL else 7)]
names, prompts, answers = [], [], []
for n in sizes:
    alice, elise = pf.representation.zoo.alice_elise(n)
    a, b = pf.representation.zoo.counterexample(alice), pf.representation.zoo.counterexample(elise)
    names.append((a.atoms[0] - b.atoms[0]).item())
    prompts.append(pf.wasserstein(alice, elise).item())
    answers.append(pf.wasserstein(a, b).item())

figure, axes = plt.subplots(figsize=(6.4, 3.7))
axes.loglog(sizes, names, "o-", color="C1", label="images of the two names")
axes.loglog(sizes, answers, "o-", color="C0", label="the two answers, $W_1$")
axes.loglog(sizes, prompts, "o-", color="C2", label="the two prompts, $W_1$")
axes.axhline(0.004, color="C1", ls=":", label="the two names themselves")
axes.set(xlabel="tokens in the prompt", ylabel="distance")
axes.legend()
Path("out").mkdir(exist_ok=True)
figure.savefig("out/alice.png")
print("Longer prompts and their answers approach each other, the images of the names do not.")
print("Picture: out/alice.png")
