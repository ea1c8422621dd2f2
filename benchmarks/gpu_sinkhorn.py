"""Sinkhorn on a CUDA device: time, peak memory and marginal error. Prints a table."""

import torch
from gpu import measure

import pushforward as pf


def row(what, call, gradient, residual):
    """One line: forward, with gradient, peak of both."""
    with torch.no_grad():
        forward = measure(call)
        error = residual(call())
    torch.cuda.reset_peak_memory_stats()
    both = measure(lambda: gradient(call()))
    peak = torch.cuda.max_memory_allocated() / 1e9
    print(
        f"{what:44s} forward {forward:8.1f} ms, with gradient {both:8.1f} ms, peak {peak:5.2f} GB"
        f", error {error:.0e}",
        flush=True,
    )


def main():
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32")
    for d in (3, 64):
        for n in (4096, 16384, 65536):
            x, y = torch.rand(n, d, requires_grad=True), 0.8 * torch.rand(n, d) + 0.3
            mu, nu = pf.Measure(x), pf.Measure(y)
            mean = (x.detach()[:, None, :8][:999] - y[None, :999, :8]).square().mean().item() * d
            for to in (pf.Sinkhorn(steps=10), pf.Sinkhorn(tol=1e-3)):
                if n > 16384 and (d > 3 or to.steps is None):
                    continue
                near = pf.SquaredDistance(0.05 * mean)
                call = lambda: pf.relate(mu, nu, affinity=near, normaliser=to)  # noqa: B023
                gradient = lambda pi: torch.autograd.grad(pi.apply(y).square().sum(), x)  # noqa: B023
                name = "10 steps" if to.steps else "tol 1e-3"
                row(f"n = {n}, d = {d}, {name}", call, gradient, lambda pi: pi.residual.item())
    for n in (4096, 8192):
        for to in (pf.Sinkhorn(steps=3), pf.Sinkhorn(steps=10), pf.Sinkhorn(tol=1e-3)):
            gamma = pf.Attention(512, heads=8, head_dim=64, normaliser=to)
            mu = pf.Measure(torch.randn(n, 512))
            name = f"{to.steps} steps" if to.steps else "tol 1e-3"
            row(
                f"attention, 8 heads, d = 64, n = {n}, {name}",
                lambda: gamma.push(mu).atoms,  # noqa: B023
                lambda out: out.square().sum().backward(),
                lambda out: gamma.relation(mu).residual.max().item(),  # noqa: B023
            )


if __name__ == "__main__":
    main()
