"""Draw the charts of the page on benchmarks from the results in `benchmarks/`."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks"
PLACE = re.compile(r"<!-- chart: (\w+) -->")


def on_files(files: object, config: object) -> object:
    """Draw the charts that pages ask for."""
    asked = {}
    for page in files.documentation_pages():
        for name in PLACE.findall(page.content_string):
            asked[name] = None
    for name in asked:
        content = svg(CHARTS[name][0])
        files.append(File.generated(config, f"assets/charts/{name}.svg", content=content))
    return files


def on_page_content(content: str, **_: object) -> str:
    """Keep numbers in tables on one line: a browser breaks `4e-07` after its hyphen."""
    number = lambda found: f'<span class="number">{found[0]}</span>'
    cell = lambda found: re.sub(r"\b[\d.,]+e-\d+\b", number, found[0])
    return re.sub(r"<td\b[^>]*>[^<]*</td>", cell, content)


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Put each chart, with its caption, where the page says."""
    up = "../" * page.file.src_uri.count("/")

    def figure(match: re.Match) -> str:
        _, caption = CHARTS[match[1]]
        first = caption.split(". ")[0]
        image = f'<img src="{up}assets/charts/{match[1]}.svg" alt="{first}">'
        return f"<figure>\n{image}\n<figcaption>{caption}</figcaption>\n</figure>"

    return PLACE.sub(figure, markdown)


def svg(draw: Callable[[], Figure]) -> bytes:
    """A chart in the look of all pictures; equal results give equal bytes."""
    look = [str(ROOT / "examples" / "style.mplstyle"), {"svg.hashsalt": "pushforward"}]
    with matplotlib.style.context(look):
        target = io.BytesIO()
        draw().savefig(target, format="svg", metadata={"Date": None})
    return target.getvalue()


def tables(name: str) -> list[list[list[str]]]:
    """The tables of a Markdown file, each a list of rows of cells, with its header."""
    found, inside = [], False
    for line in (RESULTS / name).read_text().splitlines():
        if not line.startswith("|"):
            inside = False
        elif not set(line) <= set("|-"):
            if not inside:
                found.append([])
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
            inside = True
    return found


def number(text: str) -> float:
    """A number of a table, such as `4,096` or `35%`."""
    return float(text.replace(",", "").removesuffix("%"))


def panels(count: int, rows: int = 1, height: float = 3.4, **options: object) -> tuple:
    """A figure of the width of the page, and its axes in a list."""
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.subplots(rows, count // rows, squeeze=False, **options)
    return figure, list(axes.flat)


def loglog(axes: Axes, sizes: list[int], **labels: str) -> None:
    """Logarithmic axes whose ticks are the sizes that were measured."""
    axes.set(xscale="log", yscale="log", **labels)
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    axes.set_xticks([], minor=True)


def memory() -> Figure:
    """Peak memory against the number of points, with that of one dense matrix."""
    rows = json.loads((RESULTS / "results.json").read_text())["memory"]
    figure, (ax,) = panels(1)
    sizes = [2048, 8192, 32768]
    for row, mark in zip(rows, "os^Dv<>", strict=True):
        ax.plot(sizes, [number(cell) for cell in row[1:4]], f"{mark}-", label=row[0])
    ax.plot(sizes, [4 * n * n / 1e6 for n in sizes], "--", color="C4", label="one dense matrix")
    loglog(ax, sizes, xlabel="queries and keys", ylabel="MB at the peak")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


SOLVERS = {
    "ours": ("C0", "o-"), "ours, streamed": ("C0", "o--"),
    "POT sinkhorn": ("C1", "s-"), "POT sinkhorn_log": ("C1", "s--"), "POT lazy": ("C1", "s:"),
    "GeomLoss": ("C2", "^-"),
    "OTT dense": ("C3", "D-"), "OTT online": ("C3", "D--"), "OTT kernel": ("C3", "D:"),
}  # fmt: skip


def sinkhorn() -> Figure:
    """Time of every solver that reached the accuracy, in eight settings."""
    rows = json.loads((RESULTS / "sinkhorn.json").read_text())["rows"]
    figure, axes = panels(8, rows=2, height=6, sharex=True, sharey=True)
    settings = list(dict.fromkeys((r["d"], r["share"], r["tol"]) for r in rows))
    for ax, (d, share, tol) in zip(axes, settings, strict=True):
        kept = [r for r in rows if (r["d"], r["share"], r["tol"]) == (d, share, tol)]
        for name, (colour, style) in SOLVERS.items():
            ran = [(r["n"], r[name]) for r in kept]
            good = [(n, found) for n, found in ran if found.get("error", 1.0) <= 1.05 * tol]
            done = [(n, found["seconds"]) for n, found in good]
            if done:
                ax.plot(*zip(*done, strict=True), style, color=colour, label=name, ms=4)
        loglog(ax, [1024, 4096, 16384])
        ax.set_title(f"d = {d}, ε = {100 * share:g} %, error {tol:g}", fontsize=9)
        ax.tick_params("x", labelsize=8)
    for ax in (axes[0], axes[4]):
        ax.set_ylabel("seconds")
    drawn = {line.get_label(): line for ax in axes for line in ax.lines}
    figure.legend(drawn.values(), drawn, loc="outside lower center", ncols=5)
    return figure


def stochastic() -> Figure:
    """Time for a matrix, and the share of matrices that 20 iterations leave inexact."""
    header, *rows = tables("stochastic.md")[0]
    rows = [dict(zip(header, map(number, row), strict=True)) for row in rows]
    figure, (left, right) = panels(2)
    sizes = [2, 3, 4, 8, 16, 32, 64]
    hard = [r for r in rows if r["std"] == 4]
    looks = {"ours": ("C0", "o-"), "20 log": ("C1", "s-"), "20 linear": ("C1", "s--")}
    for name, (colour, style) in looks.items():
        each = [1000 * r[name] / r["batch"] for r in hard]
        left.plot(sizes, each, style, color=colour, label=name)
    loglog(left, sizes, xlabel="rows", ylabel="microseconds a matrix")
    left.set_title("Logits of deviation 4")
    left.legend()
    for std, style in ((1, ":"), (2, "-."), (4, "--"), (8, "-")):
        share = [r["20 log above 1e-6"] for r in rows if r["std"] == std]
        right.plot(sizes, share, f"s{style}", color="C1", label=f"20 log, deviation {std}")
    right.plot(sizes, [r["above 1e-6"] for r in hard], "o-", color="C0", label="ours, all")
    right.set(xscale="log", xlabel="rows", ylabel="%", title="Matrices with an error above 1e-6")
    right.set_xticks(sizes, [str(n) for n in sizes])
    right.set_xticks([], minor=True)
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def flows() -> Figure:
    """Times of flows by three programs, and how a prediction shortens Sinkhorn."""
    (_, *rows), (_, *steps), *_ = tables("flows.md")
    figure, (left, right) = panels(2)
    rows = [r for r in rows if " s," in r[3]]
    names = [f"{r[1]}, {r[2]}" for r in rows][::-1]
    times = [number(r[3].split(" s")[0]) for r in rows][::-1]
    colours = ["C0" if "ours" in name else "C4" for name in names]
    bars = left.barh(names, times, color=colours)
    left.bar_label(bars, [f"{t:.1f}" for t in times], padding=3, fontsize=9)
    left.set(xlabel="seconds", title="100 steps of 4,096 points")
    for place, (column, label) in enumerate(((7, "predicted"), (6, "warm"))):
        share = [number(row[column]) for row in steps]
        right.plot(share, [place] * len(share), "o", color=f"C{place}", alpha=0.5)
        right.annotate(label, (max(share), place), (8, -3), textcoords="offset points")
    right.axvline(1, ls="--", color="C4", label="from zero")
    right.set(xlim=(0, 1.1), ylim=(-0.6, 1.8), yticks=[], xlabel="share of the steps")
    right.set_title("Sinkhorn steps along a flow")
    right.legend(loc="upper left")
    return figure


def verdicts() -> Figure:
    """Seconds for a verdict, by map."""
    (_, *rows), *_ = tables("verdicts.md")
    figure, (ax,) = panels(1, height=4.6)
    rows = rows[::-1]
    for k, row in enumerate(rows):
        ends = number(row[2]), number(row[3])
        ax.plot(ends, (k, k), "-", color="C4", lw=1)
    ax.plot([number(r[2]) for r in rows], range(len(rows)), "o", color="C0", label="in batches")
    ax.plot([number(r[3]) for r in rows], range(len(rows)), "s", color="C1", label="one at a time")
    ax.set_yticks(range(len(rows)), [row[0] for row in rows])
    ax.set(xlabel="seconds", xlim=(0, None))
    ax.legend(loc="lower right")
    return figure


CHARTS = {
    "memory": (memory, "Peak memory of a forward and a backward pass. It grows at most in "
        "proportion to the number of points. The dashed line is one dense matrix in float32."),
    "sinkhorn": (sinkhorn, "Seconds until the error that each title states. Solvers that missed "
        "it, or were not started because they would have taken too long, are left out. ε is given "
        "as a share of the mean cost."),
    "stochastic": (stochastic, "Small doubly stochastic matrices. On the left the time for a "
        "matrix, forward. On the right how many matrices 20 iterations leave with an error above "
        "1e-6; ours leaves none."),
    "flows": (flows, "Flows in three dimensions. On the left the time of 100 steps. On the right "
        "the Sinkhorn steps along a flow in 16 settings, relative to starts from zero."),
    "verdicts": (verdicts, "Seconds for the verdict on a map, with 30 atoms in the plane."),
}  # fmt: skip
