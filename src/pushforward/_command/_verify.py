"""`pushforward verify`: the statements of the papers, each with its experiment."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..pictures import STATUS
from ..statements import (
    FAMILIES,
    REGISTRY,
    Check,
    Result,
    as_dict,
    families,
    page,
    select,
    verify as run,
)
from ._shared import INTERRUPTED, Screen, check_apart, check_output, current_screen, write

STARTING = 3.0
"""Seconds until a process has imported everything."""


def verify(
    only: Annotated[
        str,
        typer.Option(
            help="A pattern of identifiers, such as 'A.eq*' or 'B.*'.",
            autocompletion=lambda: list(REGISTRY),
        ),
    ] = "*",
    family: Annotated[
        str | None,
        typer.Option(
            help="One family, such as 'supports' or 'rank'.",
            autocompletion=lambda: list(FAMILIES),
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of all random numbers.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="The short variants.")] = False,
    self_test: Annotated[
        bool,
        typer.Option("--self-test", help="Plant a defect in every experiment: all must be red."),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--json", help="Write the results to this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page that needs no network to this file.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.")] = 2,
) -> int:
    """Test the statements of the two papers, each by an experiment that could refute it.

    Nothing is ever proved: an identity holds to some digits, a bound is not refuted in so many
    trials. Statements that are false as they stand are expected to be refuted. The exit code is 1
    if an outcome is not the expected one. After Ctrl-C, what was finished is printed and written.

    Examples:
    - pushforward verify --quick
    - pushforward verify --only 'A.eq*' --json results.json
    - pushforward verify --family rank --seed 3 --verbose
    """
    screen = current_screen()
    check_output(output)
    check_output(html)
    check_apart({"--json": output, "--html": html})
    chosen = sorted(select(only, family), key=lambda s: list(FAMILIES).index(s.family))
    cost = {s.id: s.seconds[int(quick)] for s in chosen}
    found: dict[str, Result] = {}

    begin = time.perf_counter()
    with screen.progress("starting", sum(cost.values())) as advance:

        def show(result: Result) -> None:
            found[result.id] = result
            advance(cost[result.id], f"{len(found)} of {len(chosen)}: {result.id}")

        try:
            run(
                only, family=family, quick=quick, seed=seed, defects=self_test, workers=workers,
                show=show,
            )  # fmt: skip
        except KeyboardInterrupt:
            screen.live.print("Interrupted.", style="yellow")
    seconds = time.perf_counter() - begin
    results = [found[s.id] for s in chosen if s.id in found]
    record = as_dict(
        results, quick=quick, seed=seed, defects=self_test, seconds=seconds, asked=len(chosen)
    )
    _print(screen, results, record["statements"], self_test)
    if output is not None:
        write(output, json.dumps(record, indent=1, allow_nan=False) + "\n")
    if html is not None:
        write(html, page(record))
    if seconds > 2 * (sum(cost.values()) / max(workers, 1) + STARTING):
        screen.say("[yellow]It took more than twice as long as expected.[/yellow]")
    return _conclude(screen, results, len(chosen), self_test, seconds)


def _print(
    screen: Screen, results: Sequence[Result], record: Sequence[Mapping[str, Any]], self_test: bool
) -> None:
    """A table of all results and one of the families; with --verbose all that was measured."""
    table = Table("", "statement", "result", box=None, pad_edge=False, header_style="bold")
    for result in results:
        good = result.ok != self_test
        mark = "[green]as expected[/green]" if good else "[bold red]unexpected[/bold red]"
        text = escape(REGISTRY[result.id].text)
        table.add_row(mark, f"[bold]{result.id}[/bold] {text}", escape(result.said))
    for result in results:
        screen.detail(f"[bold]{result.id}[/bold], {result.seconds:.2f} seconds")
        for check in result.checks:
            screen.detail(f"  {'as expected' if check.ok else 'unexpected '}  {_measured(check)}")
        if result.error:
            screen.detail(f"  {escape(result.error)}")
    screen.say(table)
    if not self_test and len(results) > 1:
        screen.say()
        screen.say(_summary(record))
    screen.say()


def _measured(check: Check) -> str:
    """What a check says, and the numbers that it has."""
    numbers = {"measured": check.value, "limit": check.limit, "trials": check.trials or math.nan}
    seen = ", ".join(f"{name} {x:.6g}" for name, x in numbers.items() if not math.isnan(x))
    return escape(f"{check.said}: {seen}" if seen else check.said)


def _summary(record: Sequence[Mapping[str, Any]]) -> Table:
    """What became of each family."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("family")
    for name in ("statements", *(word.lower() for word in STATUS.values()), "worst ratio"):
        table.add_column(name, justify="right")
    for row in families(record):
        counts = (str(row.counts.get(name, "") or "") for name in STATUS)
        worst = "" if row.bounds is None else f"{row.bounds:.3g}"
        table.add_row(row.name, str(row.size), *counts, worst)
    return table


def _conclude(
    screen: Screen, results: Sequence[Result], asked: int, self_test: bool, seconds: float
) -> int:
    """The last sentence, and the exit code."""
    unexpected = [r.id for r in results if r.ok == self_test]
    count = len({REGISTRY[r.id].family for r in results})
    what = "red with their defect" if self_test else "as expected"
    said = (
        f"{len(results) - len(unexpected)} of {len(results)} statements of {count} "
        f"{'family' if count == 1 else 'families'} are {what}, in {seconds:.0f} seconds."
    )
    if unexpected:
        screen.conclude(f"Not as expected: {', '.join(unexpected)}.", style="bold red")
    if len(results) < asked:
        screen.conclude(f"Interrupted after {len(results)} of {asked} statements. {said}")
        return INTERRUPTED
    screen.conclude(said)
    return 1 if unexpected else 0
