"""Sinkhorn to a marginal error on a CPU, beside POT, GeomLoss and OTT-JAX; writes sinkhorn.md.

Usage: python benchmarks/sinkhorn.py           (an hour or two; needs a quiet machine)
       python benchmarks/sinkhorn.py --ours    (ten minutes: ours again, peers as they were)
       python benchmarks/sinkhorn.py --duels   (ten minutes: ours and the fastest log-domain peer)
       python benchmarks/sinkhorn.py --page    (only the page, from sinkhorn.json)

Every solve runs in a process of its own, after a warm-up in it if that took less than ten
seconds. A peer gets four times our time, and at least 20 s; it is not started at all where its
time at the last size says that it would take longer (a step costs n^2). From n = 4,096 on, ours
and the fastest log-domain peer run twice more in turn, and their cells are medians: a shared
machine is not equally fast all the time. The peers are asked for by name and left out if they are
not installed: pip install POT geomloss ott-jax.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SIZES, DIMS = (1024, 4096, 16384), (3, 64)
TEMPERATURES = {"comfortable": 0.05, "small": 0.005}
GOALS = {1e-3: "float32", 1e-6: "float64"}
SOLVERS = {
    "ours": "log",
    "ours, streamed": "log",
    "POT sinkhorn": "kernel",
    "POT sinkhorn_log": "log",
    "POT lazy": "log",
    "GeomLoss": "log",
    "OTT dense": "log",
    "OTT online": "log",
    "OTT kernel": "kernel",
}


@dataclass(frozen=True)
class Problem:
    """Two weighted clouds and a temperature; the cost is the squared distance.

    Args:
        x: points of one cloud.
        y: points of the other.
        a: weights of `x`, of sum one.
        b: weights of `y`.
        eps: the temperature.
    """

    x: object
    y: object
    a: object
    b: object
    eps: float

    def turned(self):
        """The same with the clouds exchanged."""
        return Problem(self.y, self.x, self.b, self.a, self.eps)


def problem(n, d, share, dtype):
    """Two uniform clouds, and the temperature as a share of the mean cost."""
    import torch

    torch.manual_seed(0)
    x, y = torch.rand(n, d).to(dtype), (0.8 * torch.rand(n, d) + 0.3).to(dtype)
    mean = (x.square().mean(0) + y.square().mean(0) - 2 * x.mean(0) * y.mean(0)).sum().item()
    weights = torch.full((n,), 1 / n, dtype=dtype)
    return Problem(x, y, weights, weights, share * mean)


def error(given, f, g):
    """The larger L1 marginal error of a plan given by potentials, in float64."""
    import torch

    import pushforward as pf

    x, y, a, b = (t.double() for t in (given.x, given.y, given.a, given.b))
    f, g = (torch.as_tensor(t).to(x) for t in (f, g))
    scores = pf.affinities.scores(pf.SquaredDistance(given.eps), x, y, torch.zeros_like(b))
    rows = (f + scores.over_keys(g + b.log())).exp() - 1
    columns = (g + scores.over_queries(f + a.log())).exp() - 1
    return max((a * rows.abs()).sum().item(), (b * columns.abs()).sum().item())


def make(solver, given, tol=None, steps=None):
    """A call that solves, and one that turns its result into potentials and a number of steps.

    Solvers go to a marginal error `tol`, or take a number of steps, each of them first in the
    potential of `x`. Potentials are those of densities against the product of both weights, and
    begin with zero.
    """
    if solver.startswith("ours"):
        import pushforward as pf

        mu, nu = pf.Measure(given.x, given.a), pf.Measure(given.y, given.b)
        near = pf.SquaredDistance(given.eps)
        if steps is None:
            to = pf.Sinkhorn(tol=tol, memory=0 if "streamed" in solver else None)
        else:
            to = pf.Sinkhorn(steps=steps)
        solve = lambda: pf.relate(mu, nu, affinity=near, normaliser=to)
        return solve, lambda pi: (*pi.potentials, pi.steps)
    if solver == "POT lazy":
        return make_pot_lazy(given, tol, steps)
    if solver.startswith("GeomLoss"):
        return make_geomloss(solver, given, tol, steps)
    # These begin with the potential of the second cloud.
    make_turned = make_pot if solver.startswith("POT") else make_ott
    solve, read = make_turned(solver, given.turned(), tol, steps)

    def turned(out):
        g, f, count = read(out)
        return f, g, count

    return solve, turned


def make_pot(solver, given, tol, steps):
    """Solvers that store all pairs, `POT sinkhorn` the kernel itself, `POT sinkhorn_log` costs."""
    import ot

    method = solver.split()[1]
    # Their threshold is on the L2 norm of the error.
    threshold = 0.0 if tol is None else tol / math.sqrt(len(given.b))

    def solve():
        _, log = ot.sinkhorn(
            given.a, given.b, ot.dist(given.x, given.y), given.eps, method=method,
            stopThr=threshold, numItermax=steps or 20_000, log=True, warn=False,
            warmstart=(given.a.log(), given.b.log()),
        )  # fmt: skip
        return log

    def read(log):
        logs = (log[f"log_{k}"] if f"log_{k}" in log else log[k].log() for k in "uv")
        f, g = (t - w.log() for t, w in zip(logs, (given.a, given.b), strict=True))
        return f, g, log.get("niter")

    return solve, read


def make_pot_lazy(given, tol, steps):
    """It computes distances anew, on a CPU."""
    import ot

    solve = lambda: ot.bregman.empirical_sinkhorn(
        given.x, given.y, given.eps, given.a, given.b, isLazy=True, batchSize=2048, log=True,
        warn=False, numIterMax=steps or 20_000, stopThr=tol or 0.0,
        warmstart=(given.a.log(), given.b.log()),
    )  # fmt: skip
    return solve, lambda out: (out[0] - given.a.log(), out[1] - given.b.log(), None)


def make_geomloss(solver, given, tol, steps):
    """It lowers the temperature step by step, and averages the potentials of both clouds.

    So its result after some steps is not that of others. `GeomLoss online` computes costs anew
    with KeOps. A number of steps is a parameter of another function, which takes KeOps if it is
    installed.
    """
    if steps is not None:
        from geomloss import ot

        solve = lambda: ot.solve_sample(
            given.x, given.y, a=given.a, b=given.b, reg=given.eps, max_iter=steps
        )
        read = lambda out: (out.potential_a / given.eps, out.potential_b / given.eps, steps)
        return solve, read
    from geomloss import SamplesLoss

    backend = "online" if "online" in solver else "tensorized"

    def run(scaling):
        loss = SamplesLoss(
            "sinkhorn", p=2, blur=math.sqrt(given.eps / 2), scaling=scaling, debias=False,
            potentials=True, backend=backend,
        )  # fmt: skip
        found = loss(given.a, given.x, given.b, given.y)
        return [2 * t.reshape(-1) / given.eps for t in found]

    # It takes no tolerance: the coarsest annealing that reaches it is looked for first.
    for scaling in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
        if error(given, *run(scaling)) <= tol:
            break
    return lambda: run(scaling), lambda out: (*out, None)


def make_ott(solver, given, tol, steps):
    """Compiled by JAX, on the device of the points, in their precision."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import numpy as np
    import torch
    from jax._src.interpreters import batching as own
    from jax.interpreters import batching
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    if not hasattr(batching, "is_vmappable"):  # OTT 0.6 looks for it where JAX had it before 0.8
        batching.is_vmappable = own.is_vmappable
    if given.x.dtype == torch.float64:
        jax.config.update("jax_enable_x64", True)
    place = jax.devices("gpu" if given.x.is_cuda else "cpu")[0]
    tensors = (given.x, given.y, given.a, given.b)
    arrays = [jax.device_put(t.cpu().numpy(), place) for t in tensors]
    batch, lse = 1024 if solver == "OTT online" else None, solver != "OTT kernel"
    count = 20_000 if steps is None else steps

    @jax.jit
    def run(x, y, a, b):
        geometry = pointcloud.PointCloud(x, y, epsilon=given.eps, batch_size=batch)
        solve = sinkhorn.Sinkhorn(
            threshold=tol or 0.0, min_iterations=steps or 0, max_iterations=count, lse_mode=lse
        )
        begin = tuple(given.eps * jax.numpy.log(w) if lse else w for w in (a, b))
        out = solve(linear_problem.LinearProblem(geometry, a, b), begin)
        return out.f, out.g, out.n_iters

    def solve():
        with jax.default_matmul_precision("highest"):  # else a GPU rounds factors to ten bits
            return jax.block_until_ready(run(*arrays))

    def read(out):
        # Their potentials are of densities against the plain kernel, in units of the cost.
        f, g = (torch.tensor(np.array(t, dtype=float)) / given.eps for t in out[:2])
        return f - given.a.cpu().double().log(), g - given.b.cpu().double().log(), int(out[2])

    return solve, read


def peak():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024


def one(solver, n, d, share, tol):
    """Solve once or a few times, print a line of JSON."""
    import torch

    given = problem(n, d, share, getattr(torch, GOALS[tol]))
    solve, read = make(solver, given, tol)
    before = peak()
    with torch.no_grad():
        start = time.perf_counter()
        out = solve()  # the warm-up, which compiles where there is something to compile
        first = time.perf_counter() - start
        memory = peak() - before
        times = [first] if first > 10 else []
        while len(times) < 5 and (not times or sum(times) + first < 10):
            start = time.perf_counter()
            out = solve()
            times.append(time.perf_counter() - start)
        f, g, steps = read(out)
    found = error(given, f, g)
    result = dict(seconds=statistics.median(times), error=found, steps=steps, memory=memory)
    print(json.dumps(result))


def measure(solver, config, limit):
    """A fresh process, and what became of it; 30 s for imports and the warm-up of short ones."""
    command = [sys.executable, __file__, "--one", solver, *map(str, config)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 30)
    except subprocess.TimeoutExpired:
        return {"failed": f"over {limit:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["killed"]
        missing = "ModuleNotFoundError" in last[0]
        return {"failed": "not installed" if missing else last[0][:60]}
    return json.loads(done.stdout.splitlines()[-1])


def expected(last, limit):
    """Why a solver need not be started, from what it did at the last size, a quarter of this."""
    if last is None:
        return None
    if "failed" in last:
        return {"failed": "not started"}
    seconds = 16 * last["seconds"]
    return {"failed": f"not started: {seconds:.0f} s expected"} if seconds > limit else None


def cell(result, tol):
    if "failed" in result:
        return result["failed"]
    good = result["error"] <= 1.05 * tol
    steps = "" if result["steps"] is None else f", {result['steps']} steps"
    text = f"{result['seconds']:.2f} s, {result['error']:.0e}{steps}, {result['memory']:.0f} MB"
    return text if good else f"failed: {text}"


def main():
    from rich.progress import track

    kinds = [(d, e, tol) for d in DIMS for e in TEMPERATURES.values() for tol in GOALS]
    results = {}
    for d, share, tol in track(kinds, description="Sinkhorn"):
        last = {}
        for n in SIZES:
            config, found = (n, d, share, tol), {}
            limit = 600.0
            for solver in SOLVERS:
                found[solver] = expected(last.get(solver), limit) or measure(solver, config, limit)
                if solver == "ours":
                    limit = max(20.0, 4 * found[solver]["seconds"])
                print(config, solver, cell(found[solver], tol), flush=True)
            results[config] = last = found
    write(results, {})  # kept, whatever becomes of what follows
    duels(results)
    write(results, {})
    write(results, memory())


def duels(results):
    """Ours and the fastest log-domain peer twice more in turn, wherever both got there."""
    from rich.progress import track

    done = lambda r, tol: "seconds" in r and r["error"] <= 1.05 * tol
    for config, row in track(results.items(), description="duels"):
        n, *_, tol = config
        peers = [
            s for s, kind in SOLVERS.items()
            if kind == "log" and not s.startswith("ours") and done(row[s], tol)
        ]  # fmt: skip
        if n < 4096 or not peers:
            continue
        pair = ("ours", min(peers, key=lambda s: row[s]["seconds"]))
        seen = {s: [row[s]] for s in pair}
        for _ in range(2):
            for s in pair:
                seen[s].append(measure(s, config, 600.0))
        for s in pair:
            row[s] = sorted(seen[s], key=lambda r: r["seconds"])[1]
            print(config, s, cell(row[s], tol), [f"{r['seconds']:.2f}" for r in seen[s]])


def known():
    """Results and peaks of memory as they were written."""
    record = json.loads((HERE / "sinkhorn.json").read_text())
    key = lambda row: tuple(row.pop(k) for k in ("n", "d", "share", "tol"))
    return {key(row): row for row in record["rows"]}, record["memory"]


def again():
    """Measure ours anew beside the peers' last results."""
    from rich.progress import track

    results, peaks = known()
    for config, row in track(results.items(), description="ours"):
        for solver in ("ours", "ours, streamed"):
            if "seconds" in row[solver]:
                row[solver] = measure(solver, config, 600.0)
                print(config, solver, cell(row[solver], config[-1]), flush=True)
    write(results, peaks)


def memory():
    """Peaks of two streamed steps with gradients; the one without a graph takes long."""
    script = [sys.executable, str(HERE / "memory.py"), "sinkhorn_steps", "sinkhorn_implicit"]
    done = subprocess.run([*script, "65536"], capture_output=True, text=True, check=True)
    return dict(line.split()[::2] for line in done.stdout.splitlines())


def write(results, peaks):
    from run import where

    rows = [dict(zip(("n", "d", "share", "tol"), k, strict=True), **v) for k, v in results.items()]
    record = {"where": where(), "memory": peaks, "rows": rows}
    (HERE / "sinkhorn.json").write_text(json.dumps(record, indent=1) + "\n")
    page()


def page():
    """Write sinkhorn.md from sinkhorn.json."""
    record = json.loads((HERE / "sinkhorn.json").read_text())
    names, tables = {v: k for k, v in TEMPERATURES.items()}, {}
    for row in record["rows"]:
        tables.setdefault((row["d"], row["share"], row["tol"]), {})[row["n"]] = row
    lines = [record["where"]]
    for (d, share, tol), sizes in tables.items():
        lines += ["", f"**d = {d}, {names[share]} temperature ({share:g} of the mean cost), error "
                  f"{tol:g}, {GOALS[tol]}**", "",
                  "| | " + " | ".join(f"n = {n:,}" for n in sizes) + " |",
                  "|---|" + "---|" * len(sizes)]  # fmt: skip
        for solver in SOLVERS:
            cells = [cell(row[solver], tol) for row in sizes.values()]
            lines.append(f"| {solver} | " + " | ".join(cells) + " |")
    peaks = {"sinkhorn_steps": "?", "sinkhorn_implicit": "?", **record["memory"]}
    lines += ["", "Peak memory of two streamed steps at n = 65,536, d = 4, in float32, with the "
              "plan applied and all gradients\ncomputed: "
              f"{peaks['sinkhorn_steps']} MB with gradients through the steps, "
              f"{peaks['sinkhorn_implicit']} MB with implicit gradients."]  # fmt: skip
    (HERE / "sinkhorn.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        solver, n, d, share, tol = sys.argv[2:]
        one(solver, int(n), int(d), float(share), float(tol))
    elif "--page" in sys.argv:
        page()
    elif "--duels" in sys.argv:
        results, peaks = known()
        duels(results)
        write(results, peaks)
    else:
        again() if "--ours" in sys.argv else main()
