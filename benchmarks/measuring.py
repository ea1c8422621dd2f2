"""How a row of the kernel benchmark is checked and timed, and where its figures go."""

import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from run import table, where

HERE = Path(__file__).parent
RESULTS = HERE / "results"
BURSTS = 5
LONG = 10
"""Seconds from which on one call is enough."""


@dataclass(frozen=True)
class Call:
    """One implementation of a row.

    Args:
        forward: computes the result.
        inputs: what gradients are taken in; empty if there are none to time.
        error: the error of a result against float64.
        counted: whether the memory it takes is PyTorch's, which is counted.
    """

    forward: Callable
    inputs: tuple = ()
    error: Callable = lambda out: math.nan
    counted: bool = True


@dataclass(frozen=True)
class Row:
    """What is computed, by us and by others.

    Args:
        name: what it is called on the command line.
        words: what it is called in tables.
        make: from a device, the calls of a row by name: ours first, as "ours" or "ours: ...".
        most: the largest error with which a time counts.
        pairs: pairs of points, each with an exponential; 0 where that says nothing.
        products: operations of matrix products in half precision.
        absent: others that could not be run here, and why.
    """

    name: str
    words: str
    make: Callable
    most: float
    pairs: float = 0
    products: float = 0
    absent: dict = field(default_factory=dict)


def measured(row, device):
    """The figures of a row, by implementation."""
    torch.manual_seed(0)
    found = {}
    for name, call in row.make(device).items():
        entry = {"error": None}
        try:
            with torch.no_grad():
                entry["error"] = float(call.error(call.forward()))
            right = entry["error"] <= row.most
            if math.isnan(entry["error"]) and not name.startswith("ours"):  # not comparable
                right = True
            if right or not name.startswith("ours"):
                entry |= timed(call, device)
        except Exception as failure:
            right, entry["failure"] = False, f"{type(failure).__name__}: {failure}"[:200]
        found[name] = entry | {"right": right}
        free(device)
    return found


def timed(call, device):
    """Seconds forward, and with gradients, and the memory above what there was before."""
    found = {}
    with torch.no_grad():
        found["forward"] = median(call.forward, device)
        found["memory"] = peak(call.forward, device) if call.counted else None
    if call.inputs:
        result = call.forward()
        upstream = torch.randn_like(result)
        del result

        def both():
            return torch.autograd.grad(call.forward(), call.inputs, upstream)

        found["both"] = median(both, device)
        found["memory, both"] = peak(both, device)
    return found


def median(run, device, least=0.02):
    """Median seconds of a call over bursts; the first call is not counted."""
    run()
    wait(device)
    begin = time.perf_counter()
    run()
    wait(device)
    once = time.perf_counter() - begin
    if once > LONG:
        return once
    count, times = max(1, min(200, int(least / once))), []
    for _ in range(BURSTS if once < 0.3 else 2):
        begin = time.perf_counter()
        for _ in range(count):
            run()
        wait(device)
        times.append((time.perf_counter() - begin) / count)
    return statistics.median(times)


def peak(run, device):
    """Bytes above what was held before; unknown on a CPU."""
    if device == "cpu":
        return None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def limits(device):
    """Exponentials, and operations of bfloat16 matrix products, that a GPU does in a second."""
    if device == "cpu":
        return None
    import exponentials

    a, b = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    return {
        "exponentials": exponentials.COUNT / median(exponentials.run, device),
        "products": 2 * 8192**3 / median(lambda: a @ b, device),
    }


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def free(device):
    if device != "cpu":
        torch.cuda.empty_cache()


def poison(device):
    """Fill free memory with NaN, so that what is not written shows."""
    if device != "cpu":
        rubbish = [torch.full((1 << 28,), torch.nan, device=device) for _ in range(4)]
        del rubbish


def relative(out, exact):
    """The norm of the difference over the norm."""
    return ((out.double() - exact).norm() / exact.norm()).item()


def machine(device):
    """What is measured on what."""
    name = torch.cuda.get_device_name() + ". " if device != "cpu" else ""
    return name + where()


def kept(file):
    """The figures of earlier runs, by row."""
    return json.loads(file.read_text()) if file.exists() else {}


def write(file, text):
    """Write a file as a whole."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text)
    os.replace(part, file)


def markdown(rows, found):
    """A table for each machine and day: a line for each implementation of each row."""
    parts = []
    header = ["", "", "forward, ms", "with gradients, ms", "ours / it", "Gpairs/s", "of the limit",
              "memory, MiB", "error"]  # fmt: skip
    for about in dict.fromkeys(entry["about"] for entry in found.values()):
        cells, absent = [], {}
        for row in rows:
            entry = found.get(row.name)
            if entry is None or entry["about"] != about:
                continue
            for k, (name, call, ours) in enumerate(compared(entry["calls"])):
                line = figures(row, ours, call, entry.get("limits"))
                cells.append([row.words if k == 0 else "", name, *line])
            for name, why in entry.get("absent", {}).items():
                absent.setdefault(f"{name} ({why})", []).append(row.words)
        if not cells:
            continue
        cells = [c + [""] * (len(header) - len(c)) for c in cells]
        columns = [k for k in range(len(header)) if k < 2 or any(c[k] for c in cells)]
        shown = [[c[k] for k in columns] for c in [header, *cells]]
        parts += [about, "", table(shown[0], shown[1:]), ""]
        for name, (first, *others) in absent.items():
            more = f" and {len(others)} more" if others else ""
            parts += [f'Not run: {name}, for "{first}"{more}.', ""]
    return "\n".join(parts)


def compared(calls):
    """Each implementation, and which of ours it is compared with.

    That is the last one before it, and for each of ours the first.
    """
    first = ours = next(iter(calls.values()), None)
    for name, call in calls.items():
        if name.startswith("ours"):
            ours = call
        yield name, call, first if call is ours else ours


def figures(row, ours, call, limits):
    """The cells of one implementation, beside one of ours."""
    if "failure" in call:
        return [f"failed: {call['failure'].splitlines()[0][:60]}"]
    if "forward" not in call:
        return ["wrong", "", "", "", "", "", f"{call['error']:.0e}"]
    ms = lambda key: f"{1e3 * call[key]:.3g}" if call.get(key) else ""
    ratios = [
        f"{ours[key] / call[key]:.2f}"
        for key in ("forward", "both")
        if ours.get(key) and call.get(key) and ours is not call
    ]
    rate = row.pairs / call["forward"] / 1e9
    rate = "" if not row.pairs else f"{rate:,.0f}" if rate >= 100 else f"{rate:.2g}"
    share = ""
    if limits and row.pairs and call["right"]:  # a less accurate one has another limit
        most = max(row.pairs / limits["exponentials"], row.products / limits["products"])
        share = f"{most / call['forward']:.0%}"
    memory = call.get("memory, both") or call.get("memory")
    memory = "" if memory is None else f"{memory / 2**20:,.0f}"
    error = "" if math.isnan(call["error"]) else f"{call['error']:.0e}"
    error += "" if call["right"] else ", too large"
    return [ms("forward"), ms("both"), " / ".join(ratios), rate, share, memory, error]


def picture(rows, found, file):
    """How long others take, as multiples of our time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(HERE.parent / "examples" / "style.mplstyle")
    points = []
    for row in rows:
        for name, call, ours in compared(found.get(row.name, {}).get("calls", {})):
            if name.startswith("ours") or "forward" not in call or "forward" not in ours:
                continue
            for key, marker in (("forward", "o"), ("both", "s")):
                if call.get(key) and ours.get(key):
                    points.append((row.words, name, call[key] / ours[key], marker))
    if not points:
        return
    lines = list(dict.fromkeys(p[0] for p in points))
    names = list(dict.fromkeys(p[1] for p in points))
    colours = plt.get_cmap("tab20").colors
    figure, axis = plt.subplots(figsize=(9, 1.0 + 0.28 * len(lines)))
    for line, name, ratio, marker in points:
        axis.plot(ratio, lines.index(line), marker, color=colours[names.index(name)])
    axis.axvline(1, color="0.6", linewidth=1)
    axis.set_xscale("log")
    axis.set_yticks(range(len(lines)), lines)
    axis.set_ylim(len(lines) - 0.5, -0.5)
    low, high = axis.get_xlim()
    ticks = (0.1, 0.2, 0.5, 0.7, 1, 1.5, 2, 5, 10, 20, 50, 100)
    if high > 100 * low:
        ticks = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
    ticks = [t for t in ticks if low <= t <= high]
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.set_xlabel("time of others / our time (circles forward, squares with gradients)")
    keys = [
        plt.Line2D([], [], color=colours[k], marker="o", linestyle="") for k in range(len(names))
    ]
    axis.legend(keys, names, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.savefig(file)
    plt.close(figure)
