"""What a push-forward cannot do, and the two remedies, trained; write obstruction.json and .md.

Usage: python benchmarks/obstruction.py        (some minutes on one core)

Two problems. The pair 1/2 d_-1 + 1/2 d_1 -> 1/3 d_-1 + 2/3 d_1, whose push-forwards have an error
of at least 1/3. And Bayes' rule on the line: the prior has random points and weights, the datum is
the mean of the prior plus 1, and the target is the posterior. Each is learned by a push-forward,
a noise source and a re-weighting head, of the same transformer, with the same steps, for three
seeds. Errors are exact W1, at numbers of atoms seen in training (2 to 16) and larger ones.
"""

import json
import time
import warnings
from pathlib import Path
from statistics import mean, stdev

import torch

import pushforward as pf
from pushforward import fitting

HERE = Path(__file__).parent
SEEDS = (0, 1, 2)
STEPS = {"pair": 400, "bayes": 1000}
SIZES = (2, 4, 16, 64, 256)
MEASURES = 64


def transformer(out_dim):
    """The network that all models share."""
    block = pf.Block(norm=pf.PreNorm())
    return pf.Transformer(1, depth=2, heads=2, width=32, out_dim=out_dim, block=block)


MODELS = {
    "push-forward": lambda: pf.Residual(transformer(1)),
    "noise source": lambda: pf.maps.NoiseSource(transformer(1), points=64),
    "re-weighting": lambda: pf.maps.Reweighted(pf.Residual(transformer(1)), transformer(1)),
}


def posterior(mu):
    """Bayes' rule for a datum at the mean of the prior plus 1, with noise of variance 1/4."""
    gap = mu.atoms[..., 0] - mu.mean() - 1
    logs = mu.log_weights - 2 * gap.square()
    return pf.Measure.unchecked(mu.atoms, logs.log_softmax(-1))


x = torch.tensor([[-1.0], [1.0]])
PAIR = pf.Measure(x), pf.Measure(x, torch.tensor([1.0, 2.0]) / 3)
LAW = fitting.Mixtures(1, unequal=1.0)


def train(problem, make, seed):
    """A trained model, and the seconds it took."""
    torch.manual_seed(seed)
    batches = fitting.Batches((2, 16), 160)
    training = fitting.Training(
        loss=fitting.Wasserstein(), batches=batches, seed=seed,
        evaluation=fitting.Evaluation(every=STEPS[problem], sizes=(16,)),
    )  # fmt: skip
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it cannot be done
        if problem == "pair":
            result = pf.fit(make(), [PAIR], steps=STEPS["pair"], training=training)
        else:
            options = dict(target=posterior, law=LAW, steps=STEPS["bayes"], training=training)
            result = pf.fit(make(), **options)
    return result.model, time.perf_counter() - begin


@torch.no_grad()
def pair_error(model):
    """W1 of the image of the pair."""
    return {"2": float(pf.wasserstein(model.push(PAIR[0]), PAIR[1]))}


@torch.no_grad()
def errors(model):
    """Mean W1 over mean displacement, by the number of atoms, on measures not seen in training."""
    found = {}
    for n in SIZES:
        mu = LAW.draw(MEASURES, n, torch.Generator().manual_seed(10**6 + n))
        right = posterior(mu)
        gaps = pf.wasserstein(model.push(mu), right)
        found[f"{n}"] = float(gaps.mean() / pf.wasserstein(mu, right).mean())
    return found


def bounds():
    """The proved lower bound of the same quotient for any push-forward."""
    found = {}
    for n in SIZES:
        mu = LAW.draw(MEASURES, n, torch.Generator().manual_seed(10**6 + n))
        found[f"{n}"] = fitting.obstructions(
            list(zip(mu, posterior(mu), strict=True))
        ).out_of_reach
    return found


def main():
    """Train what is not yet in the file: a run that was stopped goes on."""
    file = HERE / "obstruction.json"
    record = json.loads(file.read_text()) if file.exists() else {"pair": {}, "bayes": {}}
    for problem in STEPS:
        for name, make in MODELS.items():
            entries = record[problem].setdefault(name, [])
            for seed in SEEDS[len(entries) :]:
                model, seconds = train(problem, make, seed)
                found = errors(model) if problem == "bayes" else pair_error(model)
                entries.append({"seed": seed, "errors": found, "seconds": seconds})
                print(f"{problem}, {name}, seed {seed}: {found} in {seconds:.0f} s", flush=True)
                file.write_text(json.dumps(record, indent=1) + "\n")
    record |= {"steps": STEPS, "torch": torch.__version__, "bounds": bounds()}
    file.write_text(json.dumps(record, indent=1) + "\n")
    (HERE / "obstruction.md").write_text(page(record))


def page(record):
    """The figures as two tables."""
    lines = [
        "# What a push-forward cannot do", "",
        "Made by `python benchmarks/obstruction.py`. The loss is exact W1, and "
        f"so are the errors: mean and deviation over seeds {', '.join(map(str, SEEDS))}.", "",
        "**Two points.** 1/2 d_-1 + 1/2 d_1 to 1/3 d_-1 + 2/3 d_1, no push-forward below 1/3.", "",
        "| model | W1 | seconds, machine shared |", "|---|---|---|",
    ]  # fmt: skip
    spread = lambda found: f"{mean(found):.4f} ± {stdev(found):.4f}"
    for name, entries in record["pair"].items():
        seconds = mean(e["seconds"] for e in entries)
        lines.append(f"| {name} | {spread([e['errors']['2'] for e in entries])} | {seconds:.0f} |")
    lines += [
        "", "**Bayes' rule** on the line, trained with 2 to 16 atoms: mean W1 over mean "
        f"displacement of {MEASURES} held-out measures, by the number of atoms. Beyond a few "
        "atoms of generic weights the masses no longer forbid to come near, but the map would "
        "have to send near points far apart.", "",
        "| model | " + " | ".join(f"n = {n}" for n in SIZES) + " | seconds, machine shared |",
        "|---" * (len(SIZES) + 2) + "|",
    ]  # fmt: skip
    for name, entries in record["bayes"].items():
        cells = [spread([e["errors"][f"{n}"] for e in entries]) for n in SIZES]
        seconds = mean(e["seconds"] for e in entries)
        lines.append(f"| {name} | {' | '.join(cells)} | {seconds:.0f} |")
    cells = [f"{record['bounds'][str(n)]:.4f}" for n in SIZES]
    lines.append(f"| any push-forward, at least | {' | '.join(cells)} | |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
