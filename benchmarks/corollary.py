"""Train transformers to be the solution maps of flows, and judge them at any number of tokens.

Corollary 1 of paper A: the error does not depend on the number of tokens. Networks learn from
measures of 16 to 128 atoms, and are judged at 16 to 4,096, with equal and with random weights.

    python benchmarks/corollary.py                  # the rows that are missing (an hour of a core)
    python benchmarks/corollary.py 'main/*'         # only rows whose name matches
    python benchmarks/corollary.py --page           # writes corollary.json, page, pictures

Each row is trained in a folder of its own under out/corollary, where a run that was interrupted
goes on. Rows: `main` are the three flows, `blind` are the same networks with every token in a
context of its own, `depth` and `width` are small ones, `universal` is the architecture of the
universality theorem beside a standard one that takes as long.
"""

import argparse
import json
import math
from fnmatch import fnmatch
from pathlib import Path

import torch
from run import table, where

import pushforward as pf

ROOT = Path(__file__).parents[1]
HERE, OUT = ROOT / "benchmarks", ROOT / "out" / "corollary"
PAGE = ROOT / "docs" / "corollary.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
SIZES = (16, 64, 256, 1024, 4096)
MEASURES, EXACT = 32, 8
LAWS = {"equal": 0.0, "random": 1.0}


def targets():
    """The three flows, each until time 1, with the dimension of its points."""
    A = torch.tensor([[-0.5, 1.0], [-1.0, -0.3]])
    B = torch.tensor([[0.2, -0.4], [0.6, 0.1]])
    eye = torch.eye(2)
    fields = {
        "linear": (2, pf.fields.Linear(A, B)),
        "cucker_smale": (4, pf.fields.CuckerSmale(lambda r: 3 / (1 + r.square()))),
        "softmax": (2, pf.fields.SelfAttention(4 * eye, eye, 0.25 * eye)),
    }
    flow = lambda field: pf.Flow(field, t1=1.0, solver=pf.RK4(steps=8))
    return {name: (dim, flow(field)) for name, (dim, field) in fields.items()}


@pf.maps.storable
class Blind(pf.InContextMap):
    """A map whose every query has itself as its context, and nothing else."""

    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def evaluate(self, mu, x):
        return self.gamma.push(pf.Measure(x[..., None, :])).atoms[..., 0, :]


def standard(dim, width=64, depth=4, heads=4):
    """A transformer with a LayerNorm before each layer, as the displacement of points."""
    block = pf.Block(norm=pf.PreNorm())
    return pf.Residual(pf.Transformer(dim, depth=depth, heads=heads, width=width, block=block))


def mixed(dim, width, depth, heads=4):
    """A LayerNorm before each MLP and none before attention; each moves points by 1/depth of it.

    Without LayerNorm, attention can have the scores of the target. With it, MLPs stay bounded, and
    so the network grows at most linearly.
    """
    layers = [pf.Pointwise(torch.nn.Linear(dim, width), dim=dim, out_dim=width)]
    for _ in range(depth):
        layers.append(pf.Residual(pf.Attention(width, heads=heads), step=1 / depth))
        layers.append(pf.PreNorm().wrap(pf.MLP(width, 4 * width), width, 1 / depth))
    layers.append(pf.Pointwise(torch.nn.Linear(width, dim), dim=width, out_dim=dim))
    return pf.Residual(pf.Compose(*layers))


def rows():
    """What is trained: target, network, steps and optimiser by the name of the row."""
    usual, found = pf.fitting.Optimiser(), {}
    for name, (dim, _) in targets().items():
        make = lambda dim=dim: standard(dim)
        found[f"main/{name}"] = (name, make, STEPS[name], usual)
        found[f"blind/{name}"] = (name, lambda dim=dim: Blind(standard(dim)), STEPS[name], usual)
    for depth in (1, 2, 4, 8):
        make = lambda depth=depth: standard(2, depth=depth)
        found[f"depth/{depth}"] = ("softmax", make, SMALL, usual)
    for width in (16, 32, 128):
        make = lambda width=width: standard(2, width=width)
        found[f"width/{width}"] = ("softmax", make, SMALL, usual)
    # As much time a step as the standard network of width 64 and depth 4.
    theorem = lambda: pf.Residual(pf.Transformer.universal(2, 2, depth=8, hidden=320))
    for lr in (5e-3, 2e-3, 5e-4):
        adamw = pf.fitting.Optimiser(lr=lr, matrix_lr=None)
        found[f"universal/theorem-{lr:g}"] = ("softmax", theorem, SMALL, adamw)
        found[f"universal/standard-{lr:g}"] = ("softmax", lambda: standard(2), SMALL, adamw)
    return found


STEPS = {"linear": 3000, "cucker_smale": 4000, "softmax": 4000}
SMALL = 1000


def run(name, target, make, steps, optimiser):
    """Train and judge one row."""
    folder = OUT / name
    result = folder / "row.json"
    if result.exists():
        return
    dim, flow = targets()[target]
    torch.manual_seed(0)
    model = make()
    training = pf.fitting.Training(
        optimiser=optimiser,
        evaluation=pf.fitting.Evaluation(sizes=(16, 128), measures=16),
    )
    kept = {"resume": folder} if (folder / "state.safetensors").exists() else {"out": folder}
    law = pf.fitting.Mixtures(dim)
    fitted = pf.fit(model, target=flow, law=law, steps=steps, training=training, **kept)
    row = {
        "row": name, "target": target, "steps": steps, "optimiser": repr(optimiser),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": fitted.log[-1]["seconds"], "threads": torch.get_num_threads(),
        "log": fitted.log, "machine": where(), "scores": {},
    }  # fmt: skip
    main = name.startswith("main/")
    for words, unequal in LAWS.items():
        scores = pf.fitting.evaluate(
            fitted.model, flow, pf.fitting.Mixtures(dim, unequal=unequal),
            sizes=SIZES if main else SIZES[:3], measures=MEASURES, exact=EXACT if main else 0,
            seed=1,
        )  # fmt: skip
        print(f"{name}, {words} weights, {row['seconds']:.0f} s\n{scores}", flush=True)
        row["scores"][words] = [vars(score) for score in scores.rows]
    part = result.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(result)


def finished():
    """The rows that were run, in order."""
    files = {name: OUT / name / "row.json" for name in rows()}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def share(value):
    return "" if value is None else f"{100 * value:.2f} %"


def errors(row, words):
    """The mean errors of a row by the number of atoms."""
    return {score["n"]: score["mean"] for score in row["scores"][words]}


def overall(row):
    """One error for a row: the mean over both kinds of weights, at 256 atoms."""
    return sum(errors(row, words)[256] for words in LAWS) / len(LAWS)


def exponent(sizes, values):
    """The slope of log error against log size, by least squares."""
    x, y = (torch.tensor(v).double().log() for v in (sizes, values))
    return ((x - x.mean()) @ (y - y.mean()) / (x - x.mean()).square().sum()).item()


def page():
    """Write the results, their tables and the pictures."""
    found = finished()
    missing = [name for name in rows() if name not in found]
    if missing:
        print(f"Not run yet: {', '.join(missing)}.")
    (HERE / "corollary.json").write_text(json.dumps(found, indent=1) + "\n")
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{tables(found)}{END}{rest.split(END)[1]}")
    draw_errors(found)
    draw_sizes(found)


def tables(found):
    """Markdown: errors by number of atoms, then by size and by architecture."""
    lines = []
    for row in found.values():
        kind, name = row["row"].split("/")
        if kind != "main":
            continue
        lines += [
            f"**{name}**: {row['steps']:,} steps, {row['seconds']:.0f} s, "
            f"{row['threads']} thread. {row['machine']}",
            "",
        ]
        cells = []
        for words in LAWS:
            for score in row["scores"][words]:
                cells.append([
                    f"{score['n']:,}", words, share(score["mean"]),
                    share(score["standard_error"]), share(score["worst"]),
                    share(score["transport"]),
                ])  # fmt: skip
        header = ["atoms", "weights", "mean error", "standard error", "worst of 32", "W1"]
        lines += [table(header, cells), ""]
        if f"blind/{name}" in found:
            blind = found[f"blind/{name}"]
            lines += [
                f"Without context, after as many steps ({blind['seconds']:.0f} s): "
                + ", ".join(f"{share(e)} at {n:,}" for n, e in errors(blind, "equal").items())
                + f" atoms, {overall(blind) / overall(row):.0f} times as much.",
                "",
            ]
    cells = [
        [row["row"], f"{row['parameters']:,}", f"{row['steps']:,}", f"{row['seconds']:.0f}",
         share(overall(row))]
        for name, row in found.items()
        if name.split("/")[0] in ("depth", "width", "universal")
    ]  # fmt: skip
    header = ["softmax flow", "parameters", "steps", "seconds", "error at 256 atoms"]
    return "\n".join([*lines, table(header, cells), ""])


def draw_errors(found):
    """Errors against the number of atoms, beside those of networks without context."""
    import matplotlib.pyplot as plt

    plt.style.use(ROOT / "examples" / "style.mplstyle")
    names = [name for name in targets() if f"main/{name}" in found]
    figure, axes = plt.subplots(1, len(names), sharey=True, squeeze=False)
    for name, ax in zip(names, axes[0], strict=True):
        row, blind = found[f"main/{name}"], found.get(f"blind/{name}")
        for words, style in (("equal", "o-"), ("random", "s--")):
            e = errors(row, words)
            ax.loglog(list(e), list(e.values()), style, ms=4, label=f"{words} weights")
        if blind:
            e = errors(blind, "equal")
            ax.loglog(list(e), list(e.values()), "^:", ms=4, label="without context")
        ax.axvspan(16, 128, color="0.93", zorder=0)
        ax.set(title=name.replace("_", "-").replace("cucker-smale", "Cucker-Smale"))
        ax.set(xlabel="atoms (trained on 16 to 128)", ylim=(3e-5, 1))
    axes[0, 0].set_ylabel("error / displacement")
    axes[0, -1].legend(loc="lower right")
    figure.savefig(ROOT / "docs" / "assets" / "corollary.png")


def draw_sizes(found):
    """Errors against depth and width, with the fitted powers."""
    import matplotlib.pyplot as plt

    plt.style.use(ROOT / "examples" / "style.mplstyle")
    series = {kind: {} for kind in ("depth", "width")}
    for name, row in found.items():
        kind, size = name.split("/")
        if kind in series:
            series[kind][int(size)] = overall(row)
    if "depth/4" in found:
        series["width"][64] = overall(found["depth/4"])
    figure, axes = plt.subplots(1, 2, sharey=True)
    for (kind, points), ax in zip(series.items(), axes, strict=True):
        sizes, values = zip(*sorted(points.items()), strict=True)
        p = exponent(sizes, values)
        middle = math.exp(sum(map(math.log, values)) / len(values))
        centre = math.exp(sum(map(math.log, sizes)) / len(sizes))
        ax.loglog(sizes, values, "o", base=2)
        ax.loglog(sizes, [middle * (n / centre) ** p for n in sizes], base=2, label=f"{p:.2f}")
        ax.set(title=f"Error of the softmax flow against {kind}", xlabel=kind, xticks=sizes)
        ax.set_xticklabels(sizes)
        ax.legend(title="fitted power")
    axes[0].set_yscale("log")
    axes[0].set_ylabel("error / displacement")
    figure.savefig(ROOT / "docs" / "assets" / "corollary_sizes.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=["*"], help="names or patterns of rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="only write results and pictures")
    parser.add_argument("--ship", action="store_true", help="put the flock into the library")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.page:
        return page()
    if options.ship:
        model = pf.maps.load(OUT / "main" / "cucker_smale" / "model.safetensors")
        return pf.maps.save(model, Path(pf.maps.saving.__file__).parent / "flock.safetensors")
    for name, row in rows().items():
        if any(fnmatch(name, pattern) for pattern in options.rows):
            run(name, *row)


if __name__ == "__main__":
    main()
