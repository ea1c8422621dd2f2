"""Measure the CPU paths, each beside its error, and write docs/benchmarks.md.

Usage: python benchmarks/run.py            (about two minutes; writes the page)
       python benchmarks/run.py --print    (only prints)
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

import pushforward as pf

ROOT = Path(__file__).parents[1]


def seconds(*calls, repeats=7, least=0.05):
    """Median time of each call, the calls taken in turn so that they share the machine's moods."""
    counts = []
    for f in calls:
        start = time.perf_counter()
        f()
        counts.append(max(1, int(least / max(time.perf_counter() - start, 1e-6))))
    times = [[] for _ in calls]
    for _ in range(repeats):
        for f, count, kept in zip(calls, counts, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                f()
            kept.append((time.perf_counter() - start) / count)
    return [statistics.median(t) for t in times]


def overhead():
    """A layer on 64 atoms against the same arithmetic by hand."""
    gamma, mu = pf.Attention(16, heads=4, head_dim=16), pf.Measure(torch.randn(64, 16))
    x = mu.atoms.clone().requires_grad_()
    live = mu.moved(x)

    def hand(x):
        q, k, v = (f(x).reshape(64, 4, 16).transpose(0, 1) for f in (gamma.Q, gamma.K, gamma.V))
        p = (q * 0.25 @ k.mT + mu.log_weights).softmax(-1)
        return gamma.W((p @ v).transpose(0, 1).flatten(1))

    error = (gamma.push(mu).atoms - hand(mu.atoms)).abs().max().item()
    with torch.no_grad():
        ours, theirs = seconds(lambda: gamma.push(mu), lambda: hand(mu.atoms), repeats=21)
    both = [lambda: gamma.push(live).atoms.sum().backward(), lambda: hand(x).sum().backward()]
    ours_b, theirs_b = seconds(*both, repeats=21)
    rows = {"forward": (theirs, ours), "forward and backward": (theirs_b, ours_b)}
    return [
        [name, f"{t * 1e6:.0f}", f"{o * 1e6:.0f}", f"{o / t:.2f}", f"{error:.0e}"]
        for name, (t, o) in rows.items()
    ]


def memory():
    """Peak memory of the streamed reductions, from a fresh process."""
    script = Path(__file__).with_name("memory.py")
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    peaks = {}
    for line in out.stdout.splitlines():
        op, _, megabytes = line.split()
        peaks.setdefault(op, []).append(float(megabytes))
    return [
        [op, *(f"{p:.1f}" for p in ps), f"{ps[1] / ps[0]:.1f}, {ps[2] / ps[1]:.1f}"]
        for op, ps in peaks.items()
    ]


def line_transport():
    """W1 of a million weighted points a side, float64, one core, beside SciPy."""
    import scipy.stats

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    clouds = [
        pf.Measure(
            torch.randn(10**6, 1, dtype=torch.float64), torch.rand(10**6, dtype=torch.float64)
        ).normalise()
        for _ in range(2)
    ]
    arrays = [m.atoms[:, 0].numpy() for m in clouds] + [m.weights.numpy() for m in clouds]
    points, weights = np.concatenate(arrays[:2]), np.concatenate([arrays[2], -arrays[3]])
    order = np.argsort(points)
    gaps = np.abs(np.cumsum(weights[order].astype(np.longdouble)))[:-1]
    exact = (gaps * np.diff(points[order])).sum()  # in extended precision
    error = lambda value: f"{abs(value / exact - 1):.0e}"
    errors = (
        error(pf.wasserstein(*clouds).item()),
        error(scipy.stats.wasserstein_distance(*arrays)),
    )
    ours, theirs = seconds(
        lambda: pf.wasserstein(*clouds), lambda: scipy.stats.wasserstein_distance(*arrays)
    )
    torch.set_num_threads(threads)
    times = f"{ours:.2f}", f"{theirs:.2f}"
    return [["W1, 1e6 weighted points a side", times[0], errors[0], times[1], errors[1]]]


def table(header, rows):
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [header, *rows]]
    lines.insert(1, "|" + "---|" * len(header))
    return "\n".join(lines)


def cpu():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def where():
    """What is measured on what."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = os.environ.get("COMMIT")  # for a copy that has no history
    if commit is None:
        commit = subprocess.run(git, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    return (
        f"Commit {commit}, {date.today()}, {cpu()}, {torch.get_num_threads()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


def written(name):
    """What a benchmark that runs apart has left."""
    file = ROOT / "benchmarks" / name
    return file.read_text() if file.exists() else "Not measured yet.\n"


def main():
    from rich.progress import track

    torch.manual_seed(0)
    results = {}
    for job in track([overhead, line_transport, memory], description="small"):
        results[job.__name__] = job()
    page = PAGE.format(
        where=where(),
        overhead=table(
            ["", "by hand, us", "layer, us", "ratio", "difference"], results["overhead"]
        ),
        kernels_cpu=written("results/kernels_cpu.md"),
        kernels_cuda=written("results/kernels_cuda.md"),
        memory=table(["", "2,048", "8,192", "32,768", "ratios"], results["memory"]),
        sinkhorn=written("sinkhorn.md"),
        stochastic=written("stochastic.md"),
        flows=written("flows.md"),
        gpu_flows=written("gpu_flows.txt"),
        verdicts=written("verdicts.md"),
        training=written("training.md"),
        line=table(["", "ours, s", "error", "SciPy, s", "error"], results["line_transport"]),
    )
    print(page)
    if "--print" not in sys.argv:
        (ROOT / "docs" / "benchmarks.md").write_text(page)
        record = {"where": where(), **results}
        (ROOT / "benchmarks" / "results.json").write_text(json.dumps(record, indent=1) + "\n")


PAGE = r"""# Benchmarks

`make bench` writes this page. {where} Times are
medians. Where a section names another commit, its figures were measured at that commit.

## A small layer

The table compares `gamma.push(mu)` with the same arithmetic written by hand with the same
modules. The layer is attention with 4 heads of dimension 16 on 64 atoms in dimension 16, in
float32. The ratio should be below 1.5.

{overhead}

## Kernels on a CPU

Measured by `benchmarks/kernels.py`, in float32. "With gradients" is the forward and the backward
pass, with gradients of queries, keys, values and weights. The error is relative to a computation
in float64, and a time counts only if the error is small. "Ours / it" is our time over that of
another, forward and with gradients, measured in the same run. Where a row has several of ours,
"ours" is the last one above, and for ours the first. Weights are a mask for PyTorch's
`scaled_dot_product_attention` (SDPA), and then it has no gradient in them. Sinkhorn solvers of
others take as many steps, or go to the same marginal error, which is measured in float64. POT
and OTT store all pairs except where they are lazy or online. GeomLoss lowers the temperature and
averages potentials: after a number of steps its result is another one, and has no error here.

![Times of others as multiples of ours](assets/kernels_cpu.png)

{kernels_cpu}
## Memory

Peak resident memory in MB, in addition to what the process held before, of a forward and a
backward pass with d = 4 in float32. The first three rows are streamed reductions, the next two
fused ones. The last two are two Sinkhorn steps and an application of the plan, with gradients
through the steps and with implicit gradients. The columns are numbers of points. One dense
32,768 x 32,768 matrix would take 4,295 MB.

<!-- chart: memory -->

{memory}

## Kernels on a GPU

The same by `benchmarks/kernels.py --device cuda`. SDPA of cuDNN and the flash kernels take no
weights, so they do less. Memory is what is allocated on top of inputs, with gradients where these
were timed. "Of the limit" compares the forward time with the time that its exponentials or matrix
products take at the rates measured in the same run.

![Times of others as multiples of ours](assets/kernels_cuda.png)

{kernels_cuda}
## Sinkhorn

Couplings of two clouds in the unit cube, measured by `benchmarks/sinkhorn.py`. Solvers stop at
the L1 marginal error that the heading states, and the error of the result is measured in
float64. Each cell has the seconds, the error reached, the steps, and the peak memory in addition
to that of the process. Other solvers get four times our time, and at least 20 seconds. A run is
not started if it is expected to take longer, from the time of the smaller problem. Solvers in
the kernel domain (POT `sinkhorn`, OTT kernel) store $e^{{-c/\varepsilon}}$ itself, which
underflows at small temperatures. Ours stores the kernel at its current potentials if it takes at
most 1 GiB, and "streamed" never does.

<!-- chart: sinkhorn -->

{sinkhorn}
## Small doubly stochastic matrices

Measured by `benchmarks/stochastic.py`.

<!-- chart: stochastic -->

{stochastic}
## Flows

The flow of softmax attention in three dimensions, measured by `benchmarks/flows.py`. The naive
loop stores all pairs, and so does PyTorch's `scaled_dot_product_attention` (SDPA) in float32
with heads of dimension three.

<!-- chart: flows -->

{flows}
On a GPU:

```
{gpu_flows}```

## Verdicts and audits

Measured by `benchmarks/verdicts.py`.

<!-- chart: verdicts -->

{verdicts}
## Training on ragged pairs

Steps of training on pairs of flocks of unequal sizes, measured by `benchmarks/training.py`. The
encoder pads every batch to its largest flock and masks the rest. `fitting.FromPairs` computes
flocks of like sizes together.

{training}
## Transport on the line

In float64 on one core. Errors are relative to a computation in extended precision.

{line}
"""

if __name__ == "__main__":
    main()
