"""Corollary 1 on a GPU: means at up to a million atoms, and the supremum under attack.

    python benchmarks/corollary_gpu.py gpu/softmax          # one row, or names with *
    python benchmarks/corollary_gpu.py --transfer           # attacks from the worst of the other
    python benchmarks/corollary_gpu.py --scale              # Cucker-Smale on a million atoms
    python benchmarks/corollary_gpu.py --exact              # W1 as well, on a CPU
    python benchmarks/corollary_gpu.py --page               # corollary_gpu.json, page

Rows are independent and wait for small kernels most of the time: start each in a process of its
own, at the same time.

Rows `gpu` learn from random measures alone. Rows `adversary` also learn from the whole box, and
from a pool of measures that climb the error while the network descends it. All are attacked: 128
starts, half of them from the law and half from the box, 300 steps, 2, 8 and 32 atoms, three seeds
that training does not use, then once more with twice the starts and steps.

Each row has a folder under out/corollary, where a run that was interrupted goes on. After
`--exact`, W1 is that of other measures than the mean error beside it.
"""

import argparse
import json
import time
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import torch
from corollary import LAWS, OUT, PAGE, mixed, share, targets
from run import table, where

import pushforward as pf
from pushforward.fitting import (
    Adversary,
    Attack,
    Batches,
    Box,
    Evaluation,
    Mixtures,
    OneOf,
    Optimiser,
    Training,
    attack,
    evaluate,
)

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "assets" / "corollary_gpu.png"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
SIZES = (16, 64, 256, 1024, 4096, 16384)
LARGE = 262_144, 1_048_576
MEASURES, EXACT = 32, 4
STEPS = {"gpu": 6_000, "adversary": 10_000}
WIDTH, DEPTH, SEED = 128, 6, 0
EFFORT = Attack(doubled=True)


def rows():
    """The names of all rows."""
    kinds = {"gpu": targets(), "adversary": ("cucker_smale", "softmax")}
    return [f"{kind}/{name}" for kind, names in kinds.items() for name in names]


def trained(name, steps):
    """The network of a row, after all its steps, and the log."""
    kind, target = name.split("/")
    dim, flow = targets()[target]
    torch.manual_seed(SEED)
    model = mixed(dim, width=WIDTH, depth=DEPTH)
    hard = kind == "adversary"
    training = Training(
        batches=Batches(atoms=4096),
        optimiser=Optimiser(lr=1e-3, matrix_lr=5e-3),
        adversary=Adversary(count=2048, atoms=4096) if hard else None,
        evaluation=Evaluation(every=250, sizes=(16, 128), measures=16),
        seed=SEED,
        cuda_graphs=torch.cuda.is_available(),
    )
    law = OneOf(Mixtures(dim), Box(dim)) if hard else Mixtures(dim)
    folder = OUT / name
    kept = {"resume": folder} if (folder / "state.safetensors").exists() else {"out": folder}
    fitted = pf.fit(model, target=flow, law=law, steps=steps, training=training, **kept)
    return fitted.model, fitted.log


def run(name, steps=None):
    """Train, attack and judge; each is written before the next begins."""
    kind, target = name.split("/")
    dim, flow = targets()[target]
    steps = steps or STEPS[kind]
    model, log = trained(name, steps)
    machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    result = OUT / name / "row.json"
    row = json.loads(result.read_text()) if result.exists() else {
        "row": name, "target": target, "steps": steps, "width": WIDTH, "depth": DEPTH,
        "parameters": sum(p.numel() for p in model.parameters()), "log": log,
        "seconds": log[-1]["seconds"], "machine": f"{machine}. {where()}", "scores": {},
    }  # fmt: skip
    if "attack" not in row:
        begin = time.perf_counter()
        found = attack(model, flow, Mixtures(dim), EFFORT, seed=1)
        row["attack"] = found.to_dict() | {"seconds": time.perf_counter() - begin}
        print(f"{name}, {row['attack']['seconds']:.0f} s of attack\n{found}", flush=True)
        write(result, row)
    for words, unequal in LAWS.items():
        if words not in row["scores"]:
            law = Mixtures(dim, unequal=unequal)
            scores = evaluate(model, flow, law, sizes=SIZES, measures=MEASURES, seed=1)
            print(f"{name}, {words} weights, {row['seconds']:.0f} s\n{scores}", flush=True)
            row["scores"][words] = [vars(score) for score in scores.rows]
            write(result, row)


def scale():
    """The network for Cucker-Smale on one measure each of up to a million atoms.

    Pairs are summed by the kernel for decaying influences, which `fields.Decay` chooses.
    """
    name = "gpu/cucker_smale"
    folder = OUT / name
    row = json.loads((folder / "row.json").read_text())
    model = pf.maps.load(folder / "model.safetensors").cuda()
    field = pf.fields.CuckerSmale(pf.fields.Decay(power=1.0, strength=3.0))
    flow = pf.Flow(field, t1=1.0, solver=pf.RK4(steps=8))
    row["scale"] = []
    for n in (64, 4096, *LARGE):
        law, count = Mixtures(4, unequal=0.0), MEASURES if n <= 4096 else 1
        begin = time.perf_counter()
        (score,) = evaluate(model, flow, law, sizes=[n], measures=count, seed=3).rows
        spread = score.standard_error if count > 1 else None
        about = {"standard_error": spread, "seconds": time.perf_counter() - begin}
        row["scale"].append(vars(score) | about)
        print(row["scale"][-1], flush=True)
        write(folder / "row.json", row)


def exact():
    """W1 of the images as a share of the displacement, on a CPU, up to 4,096 atoms."""
    small = [n for n in SIZES if n <= 4096]
    for name, row in finished().items():
        dim, flow = targets()[row["target"]]
        model = pf.maps.load(OUT / name / "model.safetensors")
        for words, unequal in LAWS.items():
            law = Mixtures(dim, unequal=unequal)
            scores = evaluate(model, flow, law, sizes=small, measures=EXACT, exact=EXACT, seed=2)
            for old, new in zip(row["scores"][words], scores.rows, strict=False):
                old["transport"] = new.transport
            print(f"{name}, {words} weights\n{scores}", flush=True)
        write(OUT / name / "row.json", row)


def transfer():
    """Each network under attack from the worst measures of the other one for the same target."""
    found = finished()
    for name, row in found.items():
        kind, target = name.split("/")
        other = {"gpu": "adversary", "adversary": "gpu"}[kind] + f"/{target}"
        if other not in found or "attack" not in found[other] or "transfer" in row:
            continue
        dim, flow = targets()[target]
        where_to = "cuda" if torch.cuda.is_available() else "cpu"
        model = pf.maps.load(OUT / name / "model.safetensors").to(where_to)
        starts = [
            pf.Measure(torch.tensor(m["atoms"]), torch.tensor(m["weights"]))
            for m in (r["measure"] for r in found[other]["attack"]["rows"])
        ]
        few = replace(EFFORT, starts=2, seeds=1, doubled=False)
        row["transfer"] = attack(model, flow, Mixtures(dim), few, starts=starts, seed=2).worst
        print(f"{name} from the worst measures of {other}: {share(row['transfer'])}", flush=True)
        write(OUT / name / "row.json", row)


def write(file, data):
    part = file.with_suffix(".part")
    part.write_text(json.dumps(data))
    part.replace(file)


def finished():
    """The rows that were run, in order."""
    files = {name: OUT / name / "row.json" for name in rows()}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}


def page():
    """Write the results and their tables."""
    found = finished()
    (HERE / "corollary_gpu.json").write_text(json.dumps(found, indent=1) + "\n")
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{tables(found)}{END}{rest.split(END)[1]}")
    draw(found)


def draw(found):
    """Errors by the number of atoms, errors during training, and the largest errors."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(HERE.parent / "examples" / "style.mplstyle")
    figure, (left, middle, right) = plt.subplots(1, 3)
    for axis in (left, middle):
        axis.set_yscale("log")
    left.axvspan(16, 128, color="0.93")
    for name, row in found.items():
        kind, target = name.split("/")
        style = {"color": f"C{list(targets()).index(target)}"}
        style |= {"linestyle": "-" if kind == "gpu" else "--"}
        words = {"cucker_smale": "Cucker-Smale"}.get(target, target)
        label = f"{words}{'' if kind == 'gpu' else ', adversary'}"
        scores = row["scores"]["equal"] + [s for s in row.get("scale", ()) if s["n"] in LARGE]
        x, y = zip(*((s["n"], s["mean"]) for s in scores), strict=True)
        left.plot(x, y, "o", label=label, markersize=4, **style)
        curve = [(line["step"], line["error n = 128"]) for line in row["log"]]
        middle.plot(*zip(*curve, strict=True), **style)
        attacked = [(r["n"], r["found"]) for r in row["attack"]["rows"]]
        attacked[-1] = attacked[-1][0], max(attacked[-1][1], row.get("transfer", 0.0))
        right.plot(*zip(*attacked, strict=True), "s", markersize=4, **style)
    left.set(xscale="log", xlabel="atoms", ylabel="error / displacement", title="Mean")
    middle.set(xlabel="steps", title="During training")
    right.set(xscale="log", yscale="log", xlabel="atoms", title="Largest found")
    right.set_xticks(EFFORT.sizes, EFFORT.sizes)
    right.minorticks_off()
    figure.legend(loc="outside lower center", ncols=5)
    figure.savefig(PICTURE)
    plt.close(figure)


def tables(found):
    """Markdown: means by number of atoms, then the attacks."""
    lines, cells = [next(iter(found.values()))["machine"], ""], []
    for name, row in found.items():
        for words in LAWS:
            scores = row["scores"][words]
            digits = 2 if scores[0]["mean"] > 1e-4 else 4
            show = lambda x, digits=digits: "" if x is None else f"{100 * x:.{digits}f}"
            means = [f"{show(s['mean'])} ± {show(s['standard_error'])}" for s in scores]
            cells.append([name, words, f"{row['seconds']:.0f}", *means])
            cells.append(["", "W1 of 4 others", "", *(show(s["transport"]) for s in scores)])
    lines += ["Mean errors and their standard errors in per cent of the displacement:", ""]
    header = ["row", "weights", "seconds", *(f"{n:,} atoms" for n in SIZES)]
    lines += [table(header, cells), ""]
    cells = []
    for name, row in found.items():
        if "attack" not in row:
            continue
        draws = max(s["worst"] for words in LAWS for s in row["scores"][words])
        worst = [f"{share(r['found'])} ({r['gain']:+.0%})" for r in row["attack"]["rows"]]
        cells.append([name, share(draws), *worst, share(row.get("transfer"))])
    header = ["row", "worst draw", *(f"attack, {n} atoms" for n in EFFORT.sizes), "transfer"]
    lines += [table(header, cells), ""]
    cells = [
        [f"{s['n']:,}", s["measures"], share(s["mean"]), share(s["standard_error"])]
        for row in found.values()
        for s in row.get("scale", ())
    ]
    header = ["gpu/cucker_smale, atoms", "measures", "mean error", "standard error"]
    return "\n".join([*lines, table(header, cells), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", default=["*"], help="names or patterns of rows")
    parser.add_argument("--steps", type=int, help="of training, if not the usual number")
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.page:
        return page()
    if options.transfer:
        return transfer()
    if options.scale:
        return scale()
    if options.exact:
        return exact()
    for name in rows():
        if any(fnmatch(name, pattern) for pattern in options.rows):
            run(name, options.steps)


if __name__ == "__main__":
    main()
