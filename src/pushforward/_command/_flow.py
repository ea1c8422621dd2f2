"""`pushforward flow`: a flow of measures from a configuration file, and the page that plays it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import Annotated

import torch
import typer
from rich.markup import escape
from rich.table import Table

from .. import flows
from .._tools.output import atomic_file
from ._shared import INTERRUPTED, QUIET, Screen, current_screen
from .configuring import same_run
from .running import (
    LOOKS,
    PAGE,
    Configuration,
    Run,
    begin_flow,
    build,
    read_configuration,
    write_results,
)


def flow(
    configuration: Annotated[
        Path, typer.Argument(help="A configuration file in YAML.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="The folder that everything is written to.", show_default=False)
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete the run in the folder, and begin again."),
    ] = False,
) -> int:
    """Let a measure flow, as a configuration file says, and make the page that plays it.

    The folder then has the measures (flow/), the same as arrays (path.npz), the observables
    (observables.csv), everything else (run.json), and the page (page.html). After Ctrl-C every
    state that was reached is kept, and --resume goes on to the same bits.

    Examples:
    - pushforward flow examples/flows/clusters.yaml --out run
    - pushforward flow examples/flows/clusters.yaml --out run --resume
    - pushforward flow examples/flows/clusters.yaml --out run --force --quiet
    """
    screen = current_screen()
    found, document = read_configuration(configuration)
    run = build(found, document)
    folder = begin_flow(out, document, force, resume)
    if resume:
        same_run(out, found, document, LOOKS)
    begin = time.perf_counter()
    try:
        path = _solved(run, folder, screen)
        observed = _observed(run, path, screen)
        files = write_results(out, path, observed, _about(found))
        files.append(_write_page(out, path, run, found, observed, screen))
    except KeyboardInterrupt:
        again = join(["pushforward", "flow", str(configuration), "--out", str(out), "--resume"])
        screen.live.print(
            f"pushforward: interrupted. {_reached(folder)} Go on with: {again}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        return INTERRUPTED
    screen.say(_table(path, observed))
    for file in files:
        screen.conclude(f"Written: {file}")
    seconds = time.perf_counter() - begin
    screen.conclude(f"{run.mu.n:,} points, {len(path)} saved times, {seconds:.1f} seconds.")
    return 0


def _solved(run: Run, folder: Path, screen: Screen) -> flows.Path:
    """The path in its folder, complete."""
    quiet = False if screen.loudness == QUIET else None
    with torch.no_grad():
        return run.flow.path(run.mu, save=run.save, folder=folder, progress=quiet)


def _observed(run: Run, path: flows.Path, screen: Screen) -> list[dict[str, float]]:
    """The observables at every saved time."""
    found = []
    with screen.progress("observables", len(path)) as advance, torch.no_grad():
        for k in range(len(path)):
            found.append(run.observed(path, k))
            advance(1, f"observables, time {path.times[k].item():.3g}")
    return found


def _about(found: Configuration) -> dict[str, object]:
    """What the JSON file says about a run: its configuration."""
    return {"title": found.page.title, "configuration": found.model_dump(mode="json")}


def _write_page(
    out: Path,
    path: flows.Path,
    run: Run,
    found: Configuration,
    observed: Sequence[Mapping[str, float]],
    screen: Screen,
) -> Path:
    """Write the page, with the curves that were asked for or the first two there are."""
    asked = found.page.curves
    names = asked if asked is not None else [n for n in run.observables if n != "clusters"][:2]
    columns = [c for c in observed[0] if any(c == n or c.startswith(f"{n}_") for n in names)]
    columns = [c for c in columns if c != "clusters"][:4]
    curves = {
        name.replace("_", " ").capitalize(): torch.tensor([row[name] for row in observed])
        for name in columns
    }
    quiet = False if screen.loudness == QUIET else None
    text = path.to_html(
        title=found.page.title, curves=curves, tol=run.tol, progress=quiet
    )  # fmt: skip
    with atomic_file(out / PAGE) as draft:
        draft.write_text(text, encoding="utf-8")
    return out / PAGE


def _reached(folder: Path) -> str:
    """How far a run came."""
    try:
        path = flows.Path.load(folder)
    except FileNotFoundError:
        return "No state was reached yet."
    whole = len(path.measures.times)  # type: ignore[attr-defined]
    last = f", up to time {path.times[-1].item():g}" if len(path) else ""
    return f"{len(path)} of {whole} states are kept{last}."


def _table(path: flows.Path, observed: Sequence[Mapping[str, float]]) -> Table:
    """The observables at the beginning and at the end."""
    table = Table("", box=None, pad_edge=False, header_style="bold")
    for k in (0, -1):
        table.add_column(f"time {path.times[k].item():g}", justify="right")
    for name in observed[0]:
        table.add_row(escape(name), *(f"{observed[k][name]:.6g}" for k in (0, -1)))
    return table
