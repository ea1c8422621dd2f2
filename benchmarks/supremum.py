"""How the worst error of a learned map falls with width, depth and the effort of an adversary.

Corollary 1 bounds the error over all measures. Small networks learn a softmax flow and a
Cucker-Smale flow, and an attack looks for the measure on the box with the largest error. One of
width, depth and effort changes at a time. The effort is how many atoms of a pool that climbs the
error join each step, beside 512 random ones; 0 is training without an adversary. Networks have a
LayerNorm before each MLP, or before every layer.

    python benchmarks/supremum.py           # an hour on two cores; finished rows are kept
    python benchmarks/supremum.py --quick   # a minute, to see that it works

Writes supremum.json, supremum.md and docs/assets/supremum.png.
"""

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch
from corollary import mixed, standard
from run import where

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
    report,
)

HERE = Path(__file__).parent
ASSETS = HERE.parent / "docs" / "assets"
STYLE = HERE.parent / "examples" / "style.mplstyle"

WIDTH, DEPTH, EFFORT = 32, 2, 256
WIDTHS, DEPTHS, EFFORTS = (8, 16, 32, 64), (1, 2, 4), (0, 64, 256, 1024)
TARGETS = {"softmax flow": 2, "Cucker-Smale": 4}
KEYS = ("norm", "target", "width", "depth", "effort", "steps", "seed")
NETWORKS = {"MLPs": mixed, "all": standard}


def target(name):
    """The flow to be learned; eight steps of order 4 are accurate far beyond the networks."""
    eye = torch.eye(2)
    field = {
        "softmax flow": lambda: pf.fields.SelfAttention(2 * eye, 2 * eye, eye / 4),
        "Cucker-Smale": lambda: pf.fields.CuckerSmale(lambda r: 3 / (1 + r * r)),
    }[name]()
    return pf.Flow(field, t1=1.0, solver=pf.RK4(steps=8))


def plan(quick, seeds):
    """The settings of all rows: each of width, depth and effort changes alone."""
    steps = 40 if quick else 2000
    widths, depths, efforts = (WIDTHS, DEPTHS, EFFORTS)
    if quick:
        widths, depths, efforts, seeds = (8, 16), (1, 2), (0, 64), seeds[:1]
    wanted = [(w, DEPTH, e) for w in widths for e in (0, EFFORT)]
    wanted += [(WIDTH, d, e) for d in depths for e in (0, EFFORT)]
    wanted += [(WIDTH, DEPTH, e) for e in efforts]
    return [
        dict(zip(KEYS, (norm, name, *setting, steps, seed), strict=True))
        for norm in NETWORKS
        for seed in (seeds if norm == "MLPs" else seeds[:1])
        for setting in dict.fromkeys(wanted)
        for name in TARGETS
    ]


def row(setting, quick):
    """Train one network, and report its mean error, worst draw and worst found."""
    torch.set_num_threads(1)
    dim, G = TARGETS[setting["target"]], target(setting["target"])
    torch.manual_seed(setting["seed"])
    network = NETWORKS[setting["norm"]](dim, width=setting["width"], depth=setting["depth"])
    law = Mixtures(dim)
    effort = setting["effort"]
    training = Training(
        batches=Batches((16, 64), atoms=512),
        optimiser=Optimiser(lr=3e-3, ema=0.99),
        adversary=Adversary(atoms=effort) if effort else None,
        evaluation=Evaluation(every=setting["steps"], sizes=(16,), measures=1),
        seed=setting["seed"],
    )
    begin = time.process_time()
    learned = pf.fit(
        network, target=G, law=OneOf(law, Box(dim)), steps=setting["steps"],
        training=training,
    )  # fmt: skip
    seconds = time.process_time() - begin
    search = Attack(starts=4, steps=4, seeds=1) if quick else Attack(starts=64, steps=200, seeds=1)
    found = report(
        learned.model, G, law, sizes=(16, 64), measures=16 if quick else 64, effort=search
    )
    worst = found.supremum.to_dict()["rows"]
    return setting | {
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": round(seconds, 1),
        "mean": sum(s.mean for s in found.scores.rows) / len(found.scores.rows),
        "worst draw": max(s.worst for s in found.scores.rows),
        "worst start": max(r["start"] for r in worst),
        "worst found": max(float(r["found"]) for r in worst),
        "by size": {str(r["n"]): r["found"] for r in worst},
    }


def write(file, text):
    """Write a file as a whole."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text)
    os.replace(part, file)


def averaged(rows, name, **fixed):
    """Means over the seeds of the errors, by what is not fixed; sorted."""
    free = next(k for k in ("width", "depth", "effort") if k not in fixed)
    fixed |= {"norm": "MLPs", "target": name}
    mine = [r for r in rows if all(r[k] == v for k, v in fixed.items())]
    table = []
    for value in sorted({r[free] for r in mine}):
        same = [r for r in mine if r[free] == value]
        mean = lambda key, same=same: sum(r[key] for r in same) / len(same)
        table.append((value, mean("mean"), mean("worst draw"), mean("worst found"), len(same)))
    return table


def markdown(results):
    """The table of all settings, means over the seeds."""
    lines = [
        results["about"],
        "",
        "| LayerNorm before | target | width | depth | adversary, atoms a step | parameters | "
        "seeds | mean error | worst draw | worst found | s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    settings = sorted({tuple(r[k] for k in KEYS[:5]) for r in results["rows"]})
    for setting in settings:
        same = [r for r in results["rows"] if tuple(r[k] for k in KEYS[:5]) == setting]
        mean = lambda key, same=same: sum(r[key] for r in same) / len(same)
        cells = [f"{mean(k):.2%}" for k in ("mean", "worst draw", "worst found")]
        cells = [*map(str, setting), f"{same[0]['parameters']:,}", str(len(same)), *cells]
        lines.append(f"| {' | '.join(cells)} | {mean('seconds'):.0f} |")
    return "\n".join(lines) + "\n"


def picture(results, file):
    """Worst found and mean error against width, depth and effort."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(STYLE)
    rows = results["rows"]
    figure, axes = plt.subplots(1, 3, sharey=True)
    panels = [
        ("width", {"depth": DEPTH}), ("depth", {"width": WIDTH}),
        ("effort", {"width": WIDTH, "depth": DEPTH}),
    ]  # fmt: skip
    for axis, (free, fixed) in zip(axes, panels, strict=True):
        for colour, name in enumerate(TARGETS):
            for effort, marker in (
                ((0, "o"), (EFFORT, "s")) if free != "effort" else ((None, "s"),)
            ):
                extra = {} if effort is None else {"effort": effort}
                table = averaged(rows, name, **fixed, **extra)
                if not table:
                    continue
                x, mean, _, found, _ = zip(*table, strict=True)
                filled = {} if effort is None or effort else {"markerfacecolor": "white"}
                style = {"color": f"C{colour}", "marker": marker, "markersize": 5, **filled}
                axis.plot(x, found, **style)
                axis.plot(x, mean, linestyle=":", **style)
        axis.set_yscale("log")
        if free == "effort":
            axis.set_xscale("symlog", linthresh=EFFORTS[1], base=2)
            ticks = sorted({r["effort"] for r in rows if r["width"] == WIDTH})
            axis.set_xticks(ticks, [str(t) for t in ticks])
            axis.set_xlabel("atoms of the adversary in each step")
        else:
            axis.set_xscale("log", base=2)
            ticks = sorted({r[free] for r in rows})
            axis.set_xticks(ticks, [str(t) for t in ticks])
            axis.set_xlabel(free)
        axis.minorticks_off()
    shares = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]
    low, high = axes[0].get_ylim()
    axes[0].set_yticks(shares, [f"{s:.1%}" if s < 0.01 else f"{s:.0%}" for s in shares])
    axes[0].set_ylim(low, high)
    axes[0].set_ylabel("error / mean displacement")
    axes[0].set_title(f"Width, at depth {DEPTH}")
    axes[1].set_title(f"Depth, at width {WIDTH}")
    axes[2].set_title("Adversary, at both")
    line = lambda **style: plt.Line2D([], [], **style)
    keys = [line(color=f"C{k}") for k in range(len(TARGETS))]
    grey = {"color": "0.4", "markersize": 5}
    keys += [line(**grey), line(**grey, linestyle=":")]
    keys += [
        line(**grey, linestyle="", marker="o", markerfacecolor="white"),
        line(**grey, linestyle="", marker="s"),
    ]
    words = [*TARGETS, "worst found", "mean", "no adversary", "adversary"]
    figure.legend(keys, words, loc="outside lower center", ncols=6)
    figure.savefig(file)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, into a folder of its own")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--draw", action="store_true", help="only table and picture")
    options = parser.parse_args()
    out, assets = HERE, ASSETS
    if options.quick:
        out = assets = Path(tempfile.mkdtemp(prefix="supremum"))
    file = out / "supremum.json"
    results = json.loads(file.read_text()) if file.exists() else {"about": "", "rows": []}
    done = {tuple(r[k] for k in KEYS) for r in results["rows"]}
    left = [s for s in plan(options.quick, options.seeds) if tuple(s.values()) not in done]
    if left and not options.draw:
        results["about"] = f"{where()} One core a network."
        workers = ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"))
        with workers:
            for finished in as_completed(workers.submit(row, s, options.quick) for s in left):
                results["rows"].append(finished.result())
                write(file, json.dumps(results, indent=1) + "\n")
                print(json.dumps(results["rows"][-1]), flush=True)
    write(out / "supremum.md", markdown(results))
    picture(results, assets / "supremum.png")
    print(f"{out / 'supremum.md'}, {assets / 'supremum.png'}")


if __name__ == "__main__":
    main()
