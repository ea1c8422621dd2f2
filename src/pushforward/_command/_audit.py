"""`pushforward audit`: what kind of map is a model?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

from ..auditing import Audit, Model, audit as run
from ._options import command
from ._shared import check_output, current_screen, write
from .reading import Named, read_model, read_rows

SECTIONS = ("symmetries", "size", "theorem", "sensitivity", "depth", "relations")


@dataclass(frozen=True)
class AuditOptions:
    """What `pushforward audit` is told.

    Every field is an option, and its help says what it is.
    """

    model: Annotated[
        str,
        typer.Argument(
            help="`module.py:factory`, `package.module:factory`, a .safetensors file of "
            "`pf.maps.save`, or a .pt2 file of `torch.export.save`.",
            show_default=False,
        ),
    ]
    data: Annotated[
        Path | None,
        typer.Option(help="Your tokens: rows in a .npy, .csv or .parquet file.", metavar="FILE"),
    ] = None
    queries: Annotated[
        Path | None,
        typer.Option(help="Queries, for a model of a context and queries.", metavar="FILE"),
    ] = None
    html: Annotated[
        Path | None, typer.Option(help="Write a page that needs no network.", metavar="FILE")
    ] = None
    output: Annotated[
        Path | None, typer.Option("--json", help="Write all numbers.", metavar="FILE")
    ] = None
    sections: Annotated[
        list[str] | None,
        typer.Option(help="Run this section only; repeat for several.",
                     autocompletion=lambda: list(SECTIONS)),
    ] = None  # fmt: skip
    require: Annotated[
        list[str] | None,
        typer.Option(help="A section or check that must be tried; repeat for several.",
                     autocompletion=lambda: list(SECTIONS)),
    ] = None  # fmt: skip
    tokens: Annotated[int, typer.Option(help="The most tokens of a context, at least 32.")] = 256
    seed: Annotated[int, typer.Option(help="The seed of all random numbers.")] = 0


@command(AuditOptions)
def audit(options: AuditOptions) -> int:
    """Say what kind of map a model on sets is: what it depends on, and how strongly.

    The exit code is 1 if something is refuted, or required and not tried, and 3 if something
    could not be tested. Without --data the model is called on Gaussian tokens.

    A module:factory is code, and it runs. Data, .safetensors and .pt2 files are only read:
    nothing in them is unpickled or executed.

    Examples:
    - pushforward audit model.py:encoder --data cells.npy --html audit.html
    - pushforward audit encoder.pt2 --data cells.csv --sections symmetries --require padding
    - pushforward audit model.safetensors --data cells.parquet --json audit.json
    """
    screen = current_screen()
    check_output(options.html)
    check_output(options.output)
    data = None if options.data is None else read_rows(options.data, sets=True)
    queries = None if options.queries is None else read_rows(options.queries)
    named = read_model(options.model)
    _check_tokens(named, options.tokens)
    report = run(
        Model(named.model, name=named.name),
        _gaussian(named) if data is None else data,
        queries=queries,  # type: ignore[arg-type]
        sections=options.sections or SECTIONS,
        require=options.require or (),
        tokens=options.tokens,
        seed=options.seed,
        progress=None if screen.loudness else False,
    )
    if data is None:
        screen.live.print(
            f"No --data: audited on Gaussian tokens in R^{named.dim}, not on yours. Findings on "
            "real data may differ.",
            style="bold yellow", soft_wrap=True,
        )  # fmt: skip
    screen.say(Text(str(report)))
    if options.output is not None:
        write(options.output, report.to_json() + "\n")
    if options.html is not None:
        write(options.html, report.to_html())
    _conclude(report)
    return report.exit_code


def _conclude(report: Audit) -> None:
    """The verdict, last and always."""
    style = {0: "green", 1: "bold red"}.get(report.exit_code, "yellow")
    current_screen().conclude(f"{report.model}: {report.verdict}", style=style)


def _gaussian(named: Named) -> Any:
    """A law for a model that came without data; an error if its dimension cannot be seen."""
    dim = named.dim
    if dim is None:
        raise ValueError(
            f"The dimension of the tokens of {named.name!r} cannot be seen. Give tokens with "
            "--data rows.npy (.csv and .parquet work too)."
        )
    model = named.model
    given = model.parameters() if isinstance(model, torch.nn.Module) else ()
    dtype = next((p.dtype for p in given if p.is_floating_point()), torch.float32)
    return lambda n, generator: torch.randn(n, dim, dtype=dtype, generator=generator)


def _check_tokens(named: Named, tokens: int) -> None:
    """Raise if the model takes fewer tokens than contexts have."""
    if named.most is not None and named.most < tokens:
        raise ValueError(
            f"{named.name!r} takes at most {named.most} tokens, and contexts have up to {tokens}. "
            f"Add --tokens {named.most}, or export it with a larger `max` of its token axis."
        )
