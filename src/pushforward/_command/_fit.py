"""`pushforward fit`: a network that learns a map between measures, and the page on its errors."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import join
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from .. import fitting
from .._tools.output import atomic_file, silent
from .._tools.warn import PushforwardWarning
from ._shared import INTERRUPTED, QUIET, Screen, current_screen
from .configuring import same_run
from .training import (
    LOG,
    LOOKS,
    MODEL,
    PAGE,
    STATE,
    Configuration,
    Plan,
    asked,
    begin_fit,
    begun,
    build,
    finished,
    headline,
    held_out,
    one_measure,
    page,
    pictured,
    reached,
    read_configuration,
    trained,
    write_report,
)


def fit(
    configuration: Annotated[
        Path, typer.Argument(help="A configuration file in YAML.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option(help="The folder that everything is written to.", show_default=False)
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the fit in the folder.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete the fit in the folder, and begin again."),
    ] = False,
) -> int:
    """Train a network to be a map between measures, as a configuration file says.

    The folder then has the model (model.safetensors, which pf.maps.load reads), the state of the
    training (state.safetensors), losses and errors (log.csv), everything else (report.json), and
    a page (page.html). After Ctrl-C the last evaluated state is kept, and --resume goes on to the
    same bits. With a finished fit, --resume writes the page again.

    Examples:
    - pushforward fit examples/fit/linear.yaml --out run
    - pushforward fit examples/fit/linear.yaml --out run --resume
    - pushforward fit examples/fit/linear.yaml --out run --force --quiet
    """
    screen = current_screen()
    found, document = read_configuration(configuration)
    plan = build(found, document)
    begin_fit(out, document, force, resume)
    if resume:
        same_run(out, found, document, LOOKS)
    command = ["pushforward", "fit", str(configuration), "--out", str(out)]
    begin = time.perf_counter()
    try:
        record = finished(out, asked(found)) if resume else None
        files = []
        if record is None:
            with silent(screen.loudness == QUIET), _warnings_on(screen):
                record = _judged(found, plan, out)
            files = [out / STATE, out / MODEL, out / LOG, write_report(out, record)]
        text = page(record, found.page.title, join(command), out.as_posix())
        with atomic_file(out / PAGE) as draft:
            draft.write_text(text, encoding="utf-8")
    except KeyboardInterrupt:
        screen.live.print(
            f"pushforward: interrupted. {reached(out, found.training.steps)} Go on with: "
            f"{join([*command, '--resume'])}",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        return INTERRUPTED
    _print(screen, record)
    for file in (*files, out / PAGE):
        screen.conclude(f"Written: {file}")
    seconds = time.perf_counter() - begin
    screen.conclude(f"{headline(record)} {record['steps']:,} steps, {seconds:.1f} seconds.")
    return 0


def _judged(found: Configuration, plan: Plan, out: Path) -> dict[str, Any]:
    """The fit, trained to its end and judged, as plain data."""
    kept = {"resume": out} if begun(out) else {"out": out}
    result = plan.fit(**kept)
    record, report = trained(found, plan, result), found.report
    if plan.target is not None and plan.law is not None:
        record["scores"] = fitting.evaluate(
            result.model, plan.target, plan.law, sizes=report.sizes, measures=report.measures,
            exact=report.exact, seed=report.seed,
        ).to_dict()  # fmt: skip
    if plan.target is not None and plan.law is not None and plan.effort is not None:
        worst = fitting.attack(
            result.model, plan.target, plan.law, plan.effort, seed=report.seed
        )  # fmt: skip
        record["attack"] = worst.to_dict()
        measure = max(worst.rows, key=lambda row: row.found).measure
        record["pictures"]["worst"] = pictured(plan, result.model, measure)
    record["pairs"] = held_out(plan, result.model)
    record["pictures"]["held_out"] = one_measure(plan, result.model)
    return record


@contextmanager
def _warnings_on(screen: Screen) -> Iterator[None]:
    """Warnings of the library as lines of the command, unless it is quiet."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], *where: Any, **more: Any
        ) -> None:
            if not issubclass(category, PushforwardWarning):
                shown(message, category, *where, **more)
            elif screen.loudness != QUIET:
                screen.live.print(f"pushforward: {message}", markup=False, soft_wrap=True)

        warnings.showwarning = show
        yield


def _print(screen: Screen, record: Mapping[str, Any]) -> None:
    """Tables of errors, and what no push-forward can do."""
    percent = lambda x: "" if x is None else f"{float(x):.2%}"
    if record["scores"] is not None:
        table = _table("atoms", "mean error", "+-", "worst draw", "W1", "measures")
        for row in record["scores"]["rows"]:
            shares = (row[key] for key in ("mean", "standard_error", "worst", "transport"))
            table.add_row(f"{row['n']:,}", *map(percent, shares), f"{row['measures']:,}")
        screen.say(table)
    if record["attack"] is not None:
        table = _table("attack, atoms", "worst start", "worst found", "median found")
        for row in record["attack"]["rows"]:
            shares = (row[key] for key in ("start", "found", "median"))
            table.add_row(f"{row['n']:,}", *map(percent, shares))
        screen.say()
        screen.say(table)
    if record["obstructions"]:
        screen.say()
        screen.say(escape(record["obstructions"]))
    for row in record["log"]:
        line = ", ".join(f"{k} {'nan' if v is None else f'{v:.4g}'}" for k, v in row.items())
        screen.detail(escape(line))


def _table(*columns: str) -> Table:
    """A table of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right")
    return table
