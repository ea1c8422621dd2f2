"""Peak memory of reductions and relations, forward and backward, as n grows (Linux).

Usage: python benchmarks/memory.py [names] [sizes]
"""

import ctypes
import gc
import sys
from pathlib import Path

import torch

import pushforward as pf
from pushforward import ops


def status(field):
    """A field of /proc/self/status, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024


def peak(f):
    """Highest resident memory during f, above where it started."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    start = status("VmRSS")
    f()
    return status("VmHWM") - start


def relation(n, normaliser):
    """Two steps, the plan applied, and gradients in points and weights; no kernel is stored."""
    x, y = torch.rand(n, 4, requires_grad=True), torch.rand(n, 4, requires_grad=True)
    mu, nu = pf.Measure(x, torch.rand(n, requires_grad=True)), pf.Measure(y)
    near = pf.SquaredDistance(2.0)
    pf.relate(mu, nu, affinity=near, normaliser=normaliser).apply(y).sum().backward()


def work(name, n):
    if "sinkhorn" in name:
        implicit = pf.Sinkhorn(tol=0.5, max_steps=2, memory=0)
        return relation(n, pf.Sinkhorn(steps=2) if "steps" in name else implicit)
    q, k, v = (torch.randn(n, 4, requires_grad=True) for _ in range(3))
    bias = torch.randn(n, requires_grad=True)
    times = (torch.arange(n), torch.arange(n)) if "causal" in name else None
    impl = "fused" if "fused" in name else "streamed"
    if "average" in name:
        out = ops.average(q, k, v, bias, times=times, impl=impl)
    else:
        out = ops.log_integral(q, k, bias, times=times, impl=impl)
    out.sum().backward()


NAMES = (
    "average", "log_integral", "causal_average", "fused_average", "fused_causal_average",
    "sinkhorn_steps", "sinkhorn_implicit",
)  # fmt: skip

if __name__ == "__main__":
    torch.manual_seed(0)
    chosen = [a for a in sys.argv[1:] if not a.isdigit()]
    sizes = [int(a) for a in sys.argv[1:] if a.isdigit()]
    for name in chosen or NAMES:
        work(name, 2048)  # warm up: libraries, thread pools
        for n in sizes or (2048, 8192, 32768):
            print(name, n, round(peak(lambda: work(name, n)), 1))  # noqa: B023
            sys.stdout.flush()
