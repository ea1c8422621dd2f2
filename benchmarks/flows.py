"""Time flows of softmax attention beside a naive loop and torchdiffeq with SDPA; write flows.md.

Usage: python benchmarks/flows.py             (a quarter of an hour on two cores; writes flows.md)
       python benchmarks/flows.py --cuda 4096 100000     (on a GPU; prints gpu_flows.txt)

Each flow runs in a process of its own: N particles in R^3, float32, 100 steps of Euler or RK4 to
t = 1. The error is against RK4 in float64 with 100 steps, up to 4,096 particles. KeOps is taken
where it is installed.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
WAYS = ("ours", "naive dense loop", "torchdiffeq with SDPA", "KeOps")


def problem(n, device):
    """A cloud in the cube, and matrices that let it contract and turn."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=generator)
    x = (2 * draw(n, 3) - 1).to(device)
    Q, K = (2 * (2 * draw(3, 3) - 1)).to(device), torch.eye(3, device=device)
    return x, Q, K, (-torch.eye(3) + 0.5 * (2 * draw(3, 3) - 1)).to(device)


def velocity(way, Q, K, V):
    """The field as a function of the cloud."""
    if way == "naive dense loop":
        return lambda x: torch.softmax(x @ Q.mT @ (x @ K.mT).mT, -1) @ (x @ V.mT)
    if way == "KeOps":
        from pykeops.torch import LazyTensor

        def lazy(x):
            q, k = LazyTensor((x @ Q.mT)[:, None]), LazyTensor((x @ K.mT)[None])
            return (q | k).sumsoftmaxweight(LazyTensor((x @ V.mT)[None]), dim=1)

        return lazy
    sdpa = torch.nn.functional.scaled_dot_product_attention
    head = lambda x: x[None, None]
    return lambda x: sdpa(head(x @ Q.mT), head(x @ K.mT), head(x @ V.mT), scale=1.0)[0, 0]


def make(way, method, n, device):
    x, Q, K, V = problem(n, device)
    if way == "ours":
        import pushforward as pf

        field = pf.fields.SelfAttention(Q, K, V)
        solver = {"Euler": pf.Euler, "RK4": pf.RK4}[method](steps=100)
        return lambda: pf.flow(field, pf.Measure(x), t1=1.0, solver=solver)[-1].atoms
    v, h = velocity(way, Q, K, V), 0.01
    if way == "torchdiffeq with SDPA":
        from torchdiffeq import odeint

        times = torch.linspace(0, 1, 101, device=device)
        name = {"Euler": "euler", "RK4": "rk4"}[method]
        return lambda: odeint(lambda t, y: v(y), x, times, method=name)[-1]

    def run():
        y = x
        for _ in range(100):
            if method == "Euler":
                y = y + h * v(y)
                continue
            a = v(y)
            b = v(y + h / 2 * a)
            c = v(y + h / 2 * b)
            y = y + h / 6 * (a + 2 * b + 2 * c + v(y + h * c))
        return y

    return run


def truth(n, device):
    import pushforward as pf

    file = Path(tempfile.gettempdir()) / f"flow-{n}.npy"
    if not file.exists():
        x, Q, K, V = (t.double() for t in problem(n, device))
        field = pf.fields.SelfAttention(Q, K, V)
        end = pf.flow(field, pf.Measure(x), t1=1.0, solver=pf.RK4(steps=100))[-1].atoms
        np.save(file, end.cpu().numpy())
    return torch.from_numpy(np.load(file)).to(device)


def one(way, method, n, device):
    """Run it, print a line of JSON."""
    with torch.no_grad():
        run = make(way, method, n, device)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times, wait = [], torch.cuda.synchronize if device == "cuda" else (lambda: None)
        if device == "cuda":
            run()
            torch.cuda.reset_peak_memory_stats()
        while not times or (sum(times) < 20 and len(times) < 5):
            wait()
            start = time.perf_counter()
            end = run()
            wait()
            times.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        if device == "cuda":
            peak = torch.cuda.max_memory_allocated() / 2**20
        error = (end - truth(n, device)).abs().max().item() if n <= 4096 else None
    print(json.dumps(dict(seconds=statistics.median(times), memory=peak, error=error)))


def measure(*case, limit=900):
    command = [sys.executable, __file__, "--one", *map(str, case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"over {limit} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["killed"])[-1]
        return "not installed" if "ModuleNotFoundError" in last else last[:60]
    r = json.loads(done.stdout.splitlines()[-1])
    error = "" if r["error"] is None else f", error {r['error']:.0e}"
    return f"{r['seconds']:.2f} s, {r['memory']:.0f} MB{error}"


def sinkhorn_steps():
    """Sinkhorn steps of 100 steps to t = 1: cold, warm and predicted."""
    import pushforward as pf
    from pushforward.flows._dynamics import Characteristics
    from pushforward.sinkhorn import PotentialHistory

    rows = []
    for n, d, scale in ((256, 2, 1.0), (256, 2, 2.0), (256, 3, 1.5), (512, 2, 1.5)):
        for tol in (1e-6, 1e-3):
            for solver in (pf.Euler(100), pf.RK4(100)):
                torch.manual_seed(0)
                Q, x = scale * torch.eye(d).double(), torch.randn(n, d).double()
                field = pf.fields.SelfAttention(
                    Q, Q, -torch.eye(d).double(), normaliser=pf.Sinkhorn(tol=tol)
                )
                counts = []
                for history in (0, 1, 4):
                    move = Characteristics(field, pf.Measure(x), history=PotentialHistory(history))
                    grid = solver.grid(0.0, 1.0, 1)
                    with torch.no_grad():
                        for _ in solver.solve(move, move.start(), grid, 0, 100):
                            pass
                    counts.append(move.history.steps)
                cold, warm, predicted = counts
                evaluations = 100 * len(solver.nodes)
                rows.append([
                    n, d, scale, f"{tol:g}", type(solver).__name__, f"{cold / evaluations:.1f}",
                    f"{warm / cold:.2f}", f"{predicted / cold:.2f}",
                ])  # fmt: skip
    return rows


def token_rate():
    """The mean-field limit in three dimensions, to ten thousand particles."""
    import pushforward as pf

    _, Q, K, V = problem(1, "cpu")
    law = lambda n, generator: pf.Measure(2 * torch.rand(n, 3, generator=generator) - 1)
    field, solver = pf.fields.SelfAttention(Q, K, V), pf.flows.Midpoint(steps=3)
    study = pf.flows.token_study(
        field, law, [100, 1_000, 10_000], solver=solver, queries=torch.eye(3), repetitions=40
    )
    return [
        [f"{n:,}", f"{e:.2e}", f"{e * n**0.5:.3f}"]
        for n, e in zip(study.sizes, study.errors, strict=True)
    ]


def main():
    device = "cuda" if "--cuda" in sys.argv else "cpu"
    if device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {date.today()}.")
    rows = []
    for n in [int(a) for a in sys.argv[1:] if a.isdigit()] or [4096]:
        for method in ("Euler", "RK4"):
            for way in WAYS:
                rows.append([f"{n:,}", method, way, measure(way, method, n, device)])
                print("{:>7}  {:5}  {:22}  {}".format(*rows[-1]), flush=True)
    if device == "cuda":
        return
    from run import table, where

    page = table(["N", "method", "", "time, memory"], rows)
    head = ["n", "d", "scale", "tol", "solver", "cold steps per solve", "warm / cold",
            "predicted / cold"]  # fmt: skip
    page = f"""\
{where()}

{page}

Sinkhorn steps along a flow of 100 steps to t = 1. A cold start begins at zero, a warm start at
the last potential, and a predicted start at an extrapolation of the last few:

{table(head, sinkhorn_steps())}

The difference between the flows of two independent clouds in the cube at fixed queries, d = 3,
over 40 pairs of clouds:

{table(["N", "RMSE", "RMSE sqrt(N)"], token_rate())}
"""
    print(page)
    (HERE / "flows.md").write_text(page)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        way, method, n, device = sys.argv[2:]
        one(way, method, int(n), device)
    else:
        main()
