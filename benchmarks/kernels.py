"""The reductions and what stands on them, beside others, on a CPU or a GPU.

    python benchmarks/kernels.py                      # on a CPU, minutes
    python benchmarks/kernels.py --device cuda        # on a GPU
    python benchmarks/kernels.py 'sinkhorn*'          # rows by name
    python benchmarks/kernels.py --page               # only tables and pictures

Our time is printed only after the result was compared with float64, and the results of others are
compared where they are the same. Others are timed in the same run; one that is not installed is
named: pip install pykeops POT geomloss ott-jax flash-sinkhorn, or have them in a folder on
PYTHONPATH. KeOps compiles with g++, and on a GPU with the headers and libraries of CUDA; it keeps
what it compiled in KEOPS_CACHE_FOLDER. Writes results/kernels_cpu or kernels_cuda, .json
and .md, and a picture for the docs. Rows that are not run again keep their figures, with commit
and day.
"""

import argparse
import json
import math
import sys
from copy import deepcopy
from dataclasses import replace
from fnmatch import fnmatch

import peers
import torch
from measuring import (
    RESULTS,
    Call,
    Row,
    kept,
    limits,
    machine,
    markdown,
    measured,
    picture,
    poison,
    relative,
    write,
)
from sinkhorn import Problem, error as marginal_error
from torch.nn.functional import scaled_dot_product_attention as sdpa

import pushforward as pf
from pushforward import ops

ASSETS = RESULTS.parents[1] / "docs" / "assets"
FEW = 64
"""Queries whose results are compared with float64; each is a reduction over all atoms."""


def points(device, heads, n, d, dtype=torch.float32, spread=1.0, width=None):
    """Queries, keys, values and log-weights of one batch, with gradients."""
    e = d if width is None else width
    q, k, v = (torch.randn(heads, n, w, device=device) for w in (d, d, e))
    bias = torch.randn(1, n, device=device)
    tensors = (spread * q).to(dtype), k.to(dtype), v.to(dtype), bias
    return tuple(t.requires_grad_() for t in tensors)


def few(q):
    """The first queries, the last and some between."""
    n = q.shape[-2]
    return torch.arange(0, n, max(1, n // FEW), device=q.device)[:FEW]


def attention(heads, n, d, dtype=torch.float32, spread=1.0):
    """Averages with weights; where others take none, they are compared with averages without."""

    def make(device):
        q, k, v, bias = inputs = points(device, heads, n, d, dtype, spread)
        scale, rows = d**-0.5, few(q)

        def against(bias):
            exact = ops.average(
                *(t.detach().double() for t in (q[:, rows], k, v, bias)), scale=scale,
                impl="reference",
            )  # fmt: skip
            return lambda out: relative(out.reshape(heads, n, d)[:, rows], exact)

        error, off = against(bias), against(torch.zeros_like(bias))
        found = {"ours": Call(lambda: ops.average(q, k, v, bias, scale=scale), inputs, error)}
        if device != "cpu" and dtype == torch.float32 and d > 4:
            rounded = lambda: ops.average(q, k, v, bias, scale=scale, impl="triton_half")
            found["the same with impl=triton_half"] = Call(rounded, inputs, error)
        for name, call in peers.averages(*inputs, scale).items():
            weighted = "without weights" not in name
            differentiable = weighted and "as a mask" not in name
            of = inputs if differentiable else inputs[:3]
            found[name] = Call(call, of, error if weighted else off)
        return found

    return make


def attention_alone(n, d):
    """Averages of so many points that nothing else runs."""

    def make(device):
        q, k, v, bias = inputs = points(device, 1, n, d)
        rows = few(q)
        exact = torch.cat([
            ops.average(
                *(t.detach().double() for t in (q[:, rows[i : i + 8]], k, v, bias)),
                scale=d**-0.5, impl="reference",
            ) for i in range(0, FEW, 8)
        ], 1)  # fmt: skip
        error = lambda out: relative(out[:, rows], exact)
        return {"ours": Call(lambda: ops.average(q, k, v, bias, scale=d**-0.5), inputs, error)}

    return make


def log_integral(n, d):
    """Log-sum-exp of scores; SDPA has none to return."""

    def make(device):
        q, k, _, bias = points(device, 1, n, d)
        scale, rows = d**-0.5, few(q)
        exact = ops.log_integral(
            *(t.detach().double() for t in (q[:, rows], k, bias)), scale=scale, impl="reference"
        )
        error = lambda out: relative(out[:, rows], exact)
        inputs = q, k, bias
        found = {"ours": Call(lambda: ops.log_integral(*inputs, scale=scale), inputs, error)}
        for name, call in peers.log_integrals(*inputs, scale).items():
            found[name] = Call(call, inputs, error)
        if device == "cpu":
            streamed = lambda: ops.log_integral(*inputs, scale=scale, impl="streamed")
            found["ours: streamed"] = Call(streamed, inputs, error)
        return found

    return make


def clouds(device, n, d):
    """Two clouds in the unit cube with unequal weights."""
    x, y = torch.rand(n, d, device=device), 0.8 * torch.rand(n, d, device=device) + 0.1
    a, b = (torch.rand(n, device=device) + 0.5 for _ in range(2))
    return x, y, a / a.sum(), b / b.sum()


def sinkhorn(n, d, steps=None, tol=None, without=()):
    """Potentials after a number of steps, or a plan to a marginal error, which is measured."""

    def make(device):
        x, y, a, b = clouds(device, n, d)
        mu, nu, eps = pf.Measure(x, a), pf.Measure(y, b), 0.1 * d / 3
        normaliser = pf.Sinkhorn(steps=steps) if tol is None else pf.Sinkhorn(tol=tol)
        given = Problem(x, y, a, b, eps)

        def solve(*measures):
            return pf.relate(*measures, affinity=pf.SquaredDistance(eps), normaliser=normaliser)

        if tol is not None:
            error = lambda plan: marginal_error(given, *plan.potentials)
            found = {"ours": Call(lambda: solve(mu, nu), (), error)}
            return found | peers.solvers(given, tol=tol, without=without)
        exact = peers.centred(solve(mu.to(torch.float64), nu.to(torch.float64)).g)
        found = {"ours": Call(lambda: solve(mu, nu).g, (), lambda g: peers.far(g, exact))}
        found |= peers.flash_sinkhorn(given, exact, steps)
        return found | peers.solvers(given, exact, steps=steps, without=without)

    return make


def sinkhorn_row(device, name, size, steps, without):
    """The row of so many steps, or of a marginal error of 1e-3 if `steps` is None.

    Solvers in `without` are not run; it says why.
    """
    (n, d), tol = size, 1e-3 if steps is None else None
    words = f"Sinkhorn{' to 1e-3' if tol else f', {steps} steps'}, d = {d}, n = {n:,}"
    packages = ["POT", "GeomLoss", "OTT-JAX", "KeOps"]
    if device != "cpu" and tol is None:
        packages.append("flash-sinkhorn")
    return Row(
        name, words, sinkhorn(n, d, steps, tol, without), tol or 1e-4,
        0 if tol else 2 * steps * float(n) ** 2, absent=peers.absent(*packages) | without,
    )  # fmt: skip


def sinkhorn_attention(heads, n, width, steps):
    """A layer of Sinkhorn attention, and the same with matrices."""

    def make(device):
        to = pf.Sinkhorn(steps=steps)
        gamma = pf.Attention(heads * width, heads=heads, head_dim=width, normaliser=to).to(device)
        x = torch.randn(n, heads * width, device=device, requires_grad=True)
        wide = pf.Attention(heads * width, heads=heads, head_dim=width, normaliser=to)
        wide = wide.to(device, torch.float64)
        wide.load_state_dict(gamma.state_dict())
        with torch.no_grad():
            exact = wide.push(pf.Measure(x.detach().double())).atoms

        def matrices():
            split = lambda f: f(x).reshape(n, heads, width).transpose(0, 1)
            q, k, v = map(split, (gamma.Q, gamma.K, gamma.V))
            scores = q @ k.mT * width**-0.5
            for _ in range(steps):
                scores = scores - scores.logsumexp(-1, keepdim=True)
                scores = scores - scores.logsumexp(-2, keepdim=True)
            return gamma.W((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))

        error = lambda out: relative(out, exact)
        ours = lambda: gamma.push(pf.Measure.unchecked(x, logs)).atoms
        logs = torch.full((n,), -math.log(n), device=device)
        return {"ours": Call(ours, (x,), error), "matrices": Call(matrices, (x,), error)}

    return make


def flow(n, steps):
    """The flow of softmax attention in three dimensions, by Euler's method."""

    def make(device):
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: (2 * torch.rand(*shape, generator=generator) - 1).to(device)
        x, eye = draw(n, 3), torch.eye(3, device=device)
        matrices = 2 * draw(3, 3), eye, 0.5 * draw(3, 3) - eye
        solve = lambda x, *m: pf.flow(
            pf.fields.SelfAttention(*m), pf.Measure(x), t1=1.0, solver=pf.Euler(steps=steps)
        )[-1].atoms  # fmt: skip
        # In float64 a tenth of the steps, and those of both are compared.
        rough = lambda x, *m: pf.flow(
            pf.fields.SelfAttention(*m), pf.Measure(x), t1=0.02, solver=pf.Euler(steps=2)
        )[-1].atoms  # fmt: skip
        exact = rough(x.double(), *(m.double() for m in matrices))
        return {
            "ours": Call(
                lambda: solve(x, *matrices), (), lambda _: relative(rough(x, *matrices), exact)
            )
        }

    return make


def small_layer():
    """Attention on 64 atoms, compiled, beside the same of PyTorch, compiled."""

    def make(device):
        gamma = pf.Attention(16, heads=4, head_dim=16).to(device)
        x = torch.randn(64, 16, device=device, requires_grad=True)
        logs = torch.full((64,), -math.log(64), device=device)

        def by_hand(x):
            q, k, v = (
                f(x).reshape(64, 4, 16).transpose(0, 1) for f in (gamma.Q, gamma.K, gamma.V)
            )
            out = sdpa(q[None], k[None], v[None], scale=0.25)[0]
            return gamma.W(out.transpose(0, 1).flatten(1))

        exact = by_hand(x).detach().double()
        error = lambda out: relative(out, exact)
        push = lambda x: gamma.push(pf.Measure.unchecked(x, logs)).atoms
        ours, theirs = torch.compile(push), torch.compile(by_hand)
        return {
            "ours: compiled": Call(lambda: ours(x), (x,), error),
            "SDPA by hand, compiled": Call(lambda: theirs(x), (x,), error),
            "ours: eager": Call(lambda: push(x), (x,), error),
            "SDPA by hand, eager": Call(lambda: by_hand(x), (x,), error),
        }

    return make


class Pushed(torch.nn.Module):
    """A model as a module of tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, atoms, logs):
        return self.model.push(pf.Measure.unchecked(atoms, logs)).atoms


def training_step(low, high, count=16):
    """A network of the benchmarks of Corollary 1 on measures of unequal sizes, and an encoder.

    The encoder pads measures to one size and masks the rest. Gradients are those of parameters.
    """

    def make(device):
        from corollary import standard
        from training import Encoder

        sizes = (low * (high / low) ** torch.rand(count)).round().int().tolist()
        clouds = [pf.Measure(torch.randn(n, 4, device=device)) for n in sizes]
        mu = pf.Measure.stack(clouds)
        model, encoder = standard(4).to(device), Encoder(4).to(device)
        wide = standard(4).to(device, torch.float64)
        wide.load_state_dict(model.state_dict())
        real = mu.log_weights > -torch.inf
        with torch.no_grad():
            exact = wide.push(mu.to(torch.float64)).atoms[real]
        error = lambda out: relative(out, exact)
        pushed = Pushed(model)
        of_ours, of_encoder = tuple(model.parameters()), tuple(encoder.parameters())
        given, masked = (mu.atoms, mu.log_weights), (mu.atoms, real)
        found = {
            "ours": Call(lambda: pushed(*given)[real], of_ours, error),
            "padded nn.TransformerEncoder": Call(lambda: encoder(*masked)[real], of_encoder),
        }
        if device != "cpu":
            for name, module, tensors in (
                ("ours: CUDA graph", pushed, given),
                ("the encoder as a CUDA graph", encoder, masked),
            ):
                graph = torch.cuda.make_graphed_callables(deepcopy(module), tensors)
                call = lambda graph=graph, tensors=tensors: graph(*tensors)[real]
                found[name] = Call(call, tuple(graph.parameters()))
            found["ours: CUDA graph"] = replace(found["ours: CUDA graph"], error=error)
        return found

    return make


def tiny(count, n):
    """Many small matrices, doubly stochastic to 1e-6."""

    def make(device):
        logits = torch.randn(count, n, n, device=device)
        solve = lambda: pf.doubly_stochastic(logits, tol=1e-6).scaled

        def error(out):
            sums = torch.cat([out.sum(-1), out.sum(-2)], -1)
            return (sums - 1).abs().max().item()

        others = peers.pot_batch(logits, 1e-6)
        found = {name: Call(call, (), error) for name, call in others.items()}
        return {"ours": Call(solve, (), error)} | found

    return make


def rows(device):
    """All rows of a device."""
    if device == "cpu":
        return on_cpu()
    half, spread = torch.bfloat16, 4.0
    missing, keops = {"KeOps": "it has no bfloat16"}, peers.absent("KeOps")
    found = [
        Row("attention/bf16-64", "8 heads, bf16, d = 64, n = 16,384",
            attention(8, 16384, 64, half, spread), 1e-2, 8 * 16384**2, 8 * 256 * 16384**2,
            absent=missing),
        Row("attention/bf16-64-small", "the same, small scores",
            attention(8, 16384, 64, half, 0.25), 1e-2, 8 * 16384**2, 8 * 256 * 16384**2,
            absent=missing),
        Row("attention/bf16-16", "8 heads, bf16, d = 16, n = 16,384",
            attention(8, 16384, 16, half), 1e-2, 8 * 16384**2, absent=missing),
    ]  # fmt: skip
    products = lambda n, d, kinds: 3 * kinds * 2 * d * n**2 if d > 4 else 0  # of split numbers
    for d in (2, 16, 64):
        row = Row(f"attention/{d}", f"average, d = {d}, n = 65,536",
                  attention(1, 65536, d), 5e-6, 65536**2, products(65536, d, 2),
                  absent=keops)  # fmt: skip
        found.append(row)
    row = Row("attention/million", "average, d = 16, n = 1,048,576",
              attention_alone(1 << 20, 16), 5e-6, 2.0**40)  # fmt: skip
    found.append(row)
    for d in (3, 64):
        row = Row(f"log_integral/{d}", f"log_integral, d = {d}, n = 65,536",
                  log_integral(65536, d), 1e-5, 65536**2, products(65536, d, 1),
                  absent=keops)  # fmt: skip
        found.append(row)
    without = {"POT lazy": "it computes distances on a CPU"}
    large = without | {"OTT dense": "JAX would keep its memory from others"}
    for d in (3, 64):
        found += [
            sinkhorn_row(device, f"sinkhorn/4096-{d}", (4096, d), 100, without),
            sinkhorn_row(device, f"sinkhorn/65536-{d}", (65536, d), 10, large),
        ]
    found += [
        sinkhorn_row(device, "sinkhorn/tol", (16384, 3), None, without),
        Row("sinkhorn/attention", "Sinkhorn attention, 8 heads, d = 64, n = 4,096, 10 steps",
            sinkhorn_attention(8, 4096, 64, 10), 1e-5),
        Row("flow", "flow, 100 steps, d = 3, n = 100,000", flow(100_000, 100), 1e-5, 1e12),
        Row("stochastic/4", "100,000 matrices 4 x 4, doubly stochastic", tiny(100_000, 4), 1e-5),
        Row("stochastic/32", "100,000 matrices 32 x 32", tiny(100_000, 32), 1e-5),
        Row("layer", "a layer on 64 atoms", small_layer(), 1e-5),
        Row("training/128", "16 measures of 16 to 128 atoms, 4 blocks",
            training_step(16, 128), 1e-5),
        Row("training/4096", "16 measures of 16 to 4,096 atoms, 4 blocks",
            training_step(16, 4096), 1e-5),
    ]  # fmt: skip
    return found


def on_cpu():
    """Rows of a CPU, in float32."""
    found, keops = [], peers.absent("KeOps")
    average = lambda n, d: attention(1, n, d)
    for name, words, make in (
        ("attention", "average", average), ("log_integral", "log_integral", log_integral),
    ):  # fmt: skip
        for n in (4096, 16384):
            for d in (2, 3, 16, 64):
                row = Row(f"{name}/{d}-{n}", f"{words}, d = {d}, n = {n:,}", make(n, d), 1e-5,
                          n * n, absent=keops)  # fmt: skip
                found.append(row)
    slow = ("GeomLoss online", "GeomLoss", "POT lazy")
    found += [
        sinkhorn_row("cpu", "sinkhorn/4096-3", (4096, 3), 10, {}),
        sinkhorn_row("cpu", "sinkhorn/4096-64", (4096, 64), 10, {}),
        sinkhorn_row("cpu", "sinkhorn/tol-4096", (4096, 3), None, {slow[0]: "takes minutes"}),
        sinkhorn_row(
            "cpu", "sinkhorn/tol", (16384, 3), None, dict.fromkeys(slow, "takes minutes")
        ),
        Row("sinkhorn/attention", "Sinkhorn attention, 8 heads, d = 16, n = 1,024, 10 steps",
            sinkhorn_attention(8, 1024, 16, 10), 1e-5),
        Row("stochastic/4", "100,000 matrices 4 x 4, doubly stochastic", tiny(100_000, 4), 1e-5),
        Row("layer", "a layer on 64 atoms", small_layer(), 1e-5),
    ]  # fmt: skip
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"], help="names or patterns of rows")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--page", action="store_true", help="only tables and pictures")
    options = parser.parse_args()
    device, every = options.device, rows(options.device)
    file, drawing = (folder / f"kernels_{device}" for folder in (RESULTS, ASSETS))
    file, drawing = file.with_suffix(".json"), drawing.with_suffix(".png")
    found = kept(file)
    rates = None if options.page else limits(device)
    for row in [] if options.page else every:
        if not any(fnmatch(row.name, pattern) for pattern in options.names):
            continue
        poison(device)
        calls = measured(row, device)
        wrong = [
            name for name, call in calls.items() if name.startswith("ours") and not call["right"]
        ]
        found[row.name] = {
            "about": machine(device), "limits": rates, "calls": calls, "absent": row.absent,
        }  # fmt: skip
        print(markdown([row], found), flush=True)
        if wrong:
            sys.exit(f"{row.name}: {', '.join(wrong)}: the result is wrong, or there is none.")
        write(file, json.dumps(found, indent=1) + "\n")
    write(file.with_suffix(".md"), markdown(every, found))
    picture(every, found, drawing)
    print(f"{file.with_suffix('.md')}, {drawing}")


if __name__ == "__main__":
    main()
