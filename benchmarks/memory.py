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


def work(op, n, times):
    q, k, v = (torch.randn(n, 4, requires_grad=True) for _ in range(3))
    bias = torch.randn(n, requires_grad=True)
    clock = (torch.rand(n).add(1), torch.rand(n)) if times else None
    args = (q, k, v, bias) if op == "average" else (q, k, bias)
    getattr(ops, op)(*args, times=clock, impl="streamed").sum().backward()


if __name__ == "__main__":
    torch.manual_seed(0)
    for op in ("average", "log_integral"):
        work(op, 2048, False)  # warm up: libraries, thread pools
        for n in (2048, 8192, 32768):
            print(op, n, round(peak(lambda: work(op, n, False)), 1))  # noqa: B023
            sys.stdout.flush()
