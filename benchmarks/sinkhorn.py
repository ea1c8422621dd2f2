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
not installed: pip install POT geomloss ott-jax "jax<0.8".
"""

import json
import math
import statistics
import subprocess
import sys
import time
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


def problem(n, d, share, dtype):
    """Two uniform clouds, and the temperature as a share of the mean cost."""
    import torch

    torch.manual_seed(0)
    x, y = torch.rand(n, d).to(dtype), (0.8 * torch.rand(n, d) + 0.3).to(dtype)
    mean = (x.square().mean(0) + y.square().mean(0) - 2 * x.mean(0) * y.mean(0)).sum().item()
    return x, y, share * mean


def error(x, y, eps, f, g):
    """The larger L1 marginal error of a plan given by potentials, in float64."""
    import torch

    import pushforward as pf

    x, y, f, g = (torch.as_tensor(t).double() for t in (x, y, f, g))
    n = len(x)
    scores = pf.affinities.scores(pf.SquaredDistance(eps), x, y, torch.zeros(n).double())
    rows = (f + scores.over_keys(g - math.log(n))).exp() - 1
    columns = (g + scores.over_queries(f - math.log(n))).exp() - 1
    return max(rows.abs().mean().item(), columns.abs().mean().item())


def plan_error(p):
    return max((p.sum(k) - 1 / len(p)).abs().sum().item() for k in (0, 1))


def make(solver, x, y, eps, tol):
    """A call that solves, and one that turns its result into an error and a number of steps."""
    import torch

    n = len(x)
    if solver.startswith("ours"):
        import pushforward as pf

        mu, nu = pf.Measure(x), pf.Measure(y)
        near, to = (
            pf.SquaredDistance(eps),
            pf.Sinkhorn(tol=tol, memory=0 if "streamed" in solver else None),
        )
        solve = lambda: pf.relate(mu, nu, affinity=near, normaliser=to)
        return solve, lambda pi: (error(x, y, eps, *pi.potentials), pi.steps)
    if solver.startswith("POT"):
        import ot

        a = torch.full((n,), 1 / n, dtype=x.dtype)
        # Their threshold is on the L2 norm of the error.
        common = dict(stopThr=tol / math.sqrt(n), numItermax=20_000, log=True, warn=False)
        if solver == "POT lazy":
            common["numIterMax"] = common.pop("numItermax")
            solve = lambda: ot.bregman.empirical_sinkhorn(
                x, y, eps, a, a, isLazy=True, batchSize=2048, **common
            )
            read = lambda out: (
                error(x, y, eps, out[0] + math.log(n), out[1] + math.log(n)), None
            )  # fmt: skip
            return solve, read
        method = solver.split()[1]
        solve = lambda: ot.sinkhorn(a, a, ot.dist(x, y), eps, method=method, **common)
        return solve, lambda out: (plan_error(out[0].double()), out[1].get("niter"))
    if solver == "GeomLoss":
        from geomloss import SamplesLoss

        def run(scaling):
            loss = SamplesLoss(
                "sinkhorn", p=2, blur=math.sqrt(eps / 2), scaling=scaling, debias=False,
                potentials=True, backend="tensorized",
            )  # fmt: skip
            return [2 * t.reshape(-1) / eps for t in loss(x, y)]

        # It takes no tolerance: the coarsest annealing that reaches it is looked for first.
        for scaling in (0.5, 0.8, 0.9, 0.95, 0.99, 0.999):
            if error(x, y, eps, *run(scaling)) <= tol:
                break
        solve = lambda: run(scaling)
        return solve, lambda out: (error(x, y, eps, *out), None)
    return make_ott(solver, x, y, eps, tol)


def make_ott(solver, x, y, eps, tol):
    import jax
    import numpy as np
    from ott.geometry import pointcloud
    from ott.solvers import linear

    if x.element_size() == 8:
        jax.config.update("jax_enable_x64", True)
    u, v = jax.numpy.asarray(x.numpy()), jax.numpy.asarray(y.numpy())
    batch = 1024 if solver == "OTT online" else None

    @jax.jit
    def run(u, v):
        geometry = pointcloud.PointCloud(u, v, epsilon=eps, batch_size=batch)
        out = linear.solve(
            geometry, threshold=tol, max_iterations=20_000, lse_mode=solver != "OTT kernel"
        )
        return out.f, out.g, out.n_iters

    def read(out):
        # Their potentials are of densities against the plain kernel, weights 1/n outside.
        f, g = (np.array(t, dtype=float) / eps + math.log(len(x)) for t in out[:2])
        return error(x, y, eps, f, g), int(out[2])

    return lambda: jax.block_until_ready(run(u, v)), read


def peak():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024


def one(solver, n, d, share, tol):
    """Solve once or a few times, print a line of JSON."""
    import torch

    x, y, eps = problem(n, d, share, getattr(torch, GOALS[tol]))
    solve, read = make(solver, x, y, eps, tol)
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
        wrong, steps = read(out)
    result = dict(seconds=statistics.median(times), error=wrong, steps=steps, memory=memory)
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
