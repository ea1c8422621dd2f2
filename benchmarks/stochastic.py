"""Time doubly stochastic scalings beside plain Sinkhorn iterations, in float32, with the errors.

Usage: python benchmarks/stochastic.py     (under three minutes; writes stochastic.md)
"""

import statistics
import time
from datetime import date
from pathlib import Path

import torch
from rich.progress import track
from run import cpu, table

from pushforward.sinkhorn import doubly_stochastic

BATCHES = {2: 100_000, 3: 100_000, 4: 100_000, 8: 100_000, 16: 20_000, 32: 5_000, 64: 2_000}
SPREADS = (1, 2, 4, 8)
TOL, CAP = 1e-6, 10_000
FORWARD = [
    "n", "std", "batch", "ours", "20 log", "20 linear", "ours / log", "ours / linear",
    "Newton steps", "worst error", "above 1e-6", "20 log above 1e-6",
]  # fmt: skip


def seconds(*calls, repeats=3):
    """Median time of each call, the calls taken in turn so that they share the machine's moods."""
    times = [[] for _ in calls]
    for _ in range(repeats):
        for f, kept in zip(calls, times, strict=True):
            start = time.perf_counter()
            f()
            kept.append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]


def residual(matrix):
    return torch.maximum(*((matrix.sum(a) - 1).abs().amax(-1) for a in (-1, -2)))


def logarithmic(x, steps):
    for _ in range(steps):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x


def twenty_logarithmic(logits):
    matrix = logarithmic(logits, 20).exp()
    return matrix, residual(matrix)


def twenty_linear(logits):
    matrix = (logits - logits.amax(-1, keepdim=True)).exp()
    for _ in range(20):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / matrix.sum(-2, keepdim=True)
    return matrix, residual(matrix)


def plain(logits):
    """Iterate until the tolerance or the cap, finished matrices taken out every ten steps."""
    live, steps = logits, 0
    while len(live) and steps < CAP:
        live, steps = logarithmic(live, 10), steps + 10
        live = live[residual(live.exp()) > TOL]
    return len(live)


def compare(n, spread):
    """One row: times, ratios, and what was reached."""
    logits = spread * torch.randn(BATCHES[n], n, n)
    calls = (doubly_stochastic, twenty_logarithmic, twenty_linear)
    result, (_, reached), _ = (f(logits) for f in calls)
    ours, log, linear = seconds(*(lambda f=f: f(logits) for f in calls))
    errors = residual(result.scaled.double())
    left = (reached > TOL).float().mean().item()
    return [
        n, spread, f"{BATCHES[n]:,}", f"{ours * 1e3:.0f}", f"{log * 1e3:.0f}",
        f"{linear * 1e3:.0f}", f"{ours / log:.2f}", f"{ours / linear:.2f}", result.steps,
        f"{errors.max():.1e}", int((errors > TOL).sum()), f"{left:.0%}",
    ]  # fmt: skip


def to_tolerance(n):
    """One row: plain iterations to the tolerance on a small batch, since they take so long."""
    logits = 8 * torch.randn(max(32, 8192 // n**2), n, n)
    (ours,) = seconds(lambda: doubly_stochastic(logits))
    start = time.perf_counter()
    left = plain(logits)
    theirs = time.perf_counter() - start
    sizes = [n, len(logits), f"{ours * 1e3:.1f}", f"{theirs * 1e3:.0f}", f"{theirs / ours:.0f}"]
    return [*sizes, f"{left / len(logits):.0%}"]


def backward(n):
    """One row: forward and backward, beside twenty unrolled iterations."""
    logits = (4 * torch.randn(BATCHES[n], n, n)).requires_grad_()
    up = torch.randn_like(logits)
    both = lambda matrix: torch.autograd.grad(matrix, logits, up)
    ours, log = seconds(
        lambda: both(doubly_stochastic(logits).scaled),
        lambda: both(twenty_logarithmic(logits)[0]),
        repeats=2,
    )
    return [n, f"{BATCHES[n]:,}", f"{ours * 1e3:.0f}", f"{log * 1e3:.0f}", f"{ours / log:.2f}"]


def main():
    torch.manual_seed(0)
    cases = [(n, spread) for n in BATCHES for spread in SPREADS]
    rows = [compare(*case) for case in track(cases, "forward")]
    grads = [backward(n) for n in track(BATCHES, "backward")]
    slow = [to_tolerance(n) for n in track(BATCHES, "to the tolerance")]
    page = f"""\
{date.today()}, {cpu()}, {torch.get_num_threads()} threads, torch {torch.__version__}.

Forward pass in float32 on normal logits of standard deviation std, times in milliseconds. "20
log" and "20 linear" are 20 plain Sinkhorn iterations, in the log domain and in the linear
domain, whatever error they reach.

{table(FORWARD, rows)}

Forward and backward pass at std 4, in milliseconds.

{table(["n", "batch", "ours", "20 log, unrolled", "ratio"], grads)}

Comparison with plain iterations in the log domain until the error is 1e-6, at std 8 and for at
most {CAP:,} steps. Matrices that have converged leave the batch.

{table(["n", "batch", "ours ms", "plain ms", "times faster", "plain gave up"], slow)}
"""
    print(page)
    (Path(__file__).parent / "stochastic.md").write_text(page)


if __name__ == "__main__":
    main()
