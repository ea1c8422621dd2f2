"""Peak memory of the streamed reductions, forward and backward, as n grows (Linux)."""

import ctypes
import gc
import sys
from pathlib import Path

import torch

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


def work(name, n):
    q, k, v = (torch.randn(n, 4, requires_grad=True) for _ in range(3))
    bias = torch.randn(n, requires_grad=True)
    times = (torch.arange(n), torch.arange(n)) if "causal" in name else None
    if "average" in name:
        out = ops.average(q, k, v, bias, times=times, impl="streamed")
    else:
        out = ops.log_integral(q, k, bias, times=times, impl="streamed")
    out.sum().backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    for name in ("average", "log_integral", "causal_average"):
        work(name, 2048)  # warm up: libraries, thread pools
        for n in (2048, 8192, 32768):
            print(name, n, round(peak(lambda: work(name, n)), 1))  # noqa: B023
            sys.stdout.flush()
