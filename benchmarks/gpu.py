"""The reductions on a CUDA device: time, peak memory and error. Prints a table."""

import statistics

import torch

from pushforward import ops


def measure(f, repeats=5):
    """Median milliseconds, by device events, after one warm-up."""
    f()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main():
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32, 8 heads, d = 64")
    for n in (4096, 16384, 65536):
        q, k, v = (torch.randn(8, n, 64, requires_grad=True) for _ in range(3))
        bias, part = torch.randn(1, n, requires_grad=True), slice(0, 64)
        wide = [t.detach().double() for t in (q[:, part], k, v, bias)]
        truth = ops.average(*wide, impl="reference")
        for impl in ops.runnable("cuda"):
            if impl == "reference" and n > 16384:
                continue
            call = lambda: ops.average(q, k, v, bias, impl=impl)  # noqa: B023
            with torch.no_grad():
                error = ((call()[:, part].double() - truth).norm() / truth.norm()).item()
                forward = measure(call)
            torch.cuda.reset_peak_memory_stats()
            both = measure(lambda: torch.autograd.grad(call().sum(), (q, k, v, bias)))  # noqa: B023
            peak = torch.cuda.max_memory_allocated() / 1e9
            print(
                f"n = {n:6d} {impl:9s} forward {forward:7.1f} ms, with gradients {both:7.1f} ms, "
                f"peak {peak:5.2f} GB, error {error:.0e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
