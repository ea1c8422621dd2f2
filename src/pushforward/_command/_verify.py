"""`pushforward verify`: the statements of the papers, each with its experiment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .._tools.output import atomic_file
from ..statements import REGISTRY, Result, as_dict, page, select, verify as run


def verify(
    only: Annotated[
        str, typer.Option(help="A pattern of identifiers, such as 'A.eq*' or 'B.*'.")
    ] = "*",
    family: Annotated[
        str | None, typer.Option(help="One family, such as 'supports' or 'rank'.")
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
    trials. Statements that are false as they stand are expected to be refuted.

    Examples:
      pushforward verify --quick
      pushforward verify --only 'A.eq*' --json results.json
      pushforward verify --family rank --seed 3
    """
    console = Console()
    chosen = select(only, family)
    expected = {s.id: s.seconds[int(quick)] for s in chosen}
    begin = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    live = Console(stderr=True)
    with Progress(*columns, console=live, disable=not live.is_terminal) as progress:
        task = progress.add_task("statements", total=sum(expected.values()))
        done = [0]

        def show(result: Result) -> None:
            done[0] += 1
            label = f"{done[0]} of {len(chosen)}: {result.id}"
            progress.update(task, advance=expected[result.id], description=label)

        results = run(
            only, family=family, quick=quick, seed=seed, defects=self_test, workers=workers,
            show=show,
        )  # fmt: skip
    seconds = time.perf_counter() - begin
    _print(console, results, self_test, seconds)
    record = as_dict(results, quick=quick, seed=seed, defects=self_test, seconds=seconds)
    for file, text in ((output, _json(record)), (html, "" if html is None else page(record))):
        if file is not None:
            with atomic_file(file) as draft:
                draft.write_text(text, encoding="utf-8")
            console.print(f"Written: {file}")
    return 0 if all(r.ok != self_test for r in results) else 1


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1, allow_nan=False) + "\n"


def _print(console: Console, results: Sequence[Result], self_test: bool, seconds: float) -> None:
    """A table of all results, then a sentence."""
    table = Table("", "statement", "result", box=None, pad_edge=False, header_style="bold")
    unexpected = [r for r in results if r.ok == self_test]
    for result in results:
        good = result.ok != self_test
        mark = "[green]as expected[/green]" if good else "[bold red]unexpected[/bold red]"
        text = REGISTRY[result.id].text
        table.add_row(mark, f"[bold]{result.id}[/bold] {_escaped(text)}", _escaped(result.said))
    console.print(table)
    families = len({REGISTRY[r.id].family for r in results})
    what = "red with their defect" if self_test else "as expected"
    console.print(
        f"\n{len(results) - len(unexpected)} of {len(results)} statements of {families} "
        f"families are {what}, in {seconds:.0f} seconds."
    )
    if unexpected:
        names = ", ".join(r.id for r in unexpected)
        console.print(f"Not as expected: {names}.", style="bold red")
    sys.stdout.flush()


def _escaped(text: str) -> str:
    """Text that rich takes as it is."""
    return text.replace("[", r"\[")
