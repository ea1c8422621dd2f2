"""`pushforward audit`: what kind of map is a model?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.text import Text

from ..auditing import Model, audit as run
from ..maps import trained_flock
from ._options import command
from ._shared import check_apart, check_output, current_screen, write
from .reading import Named, files_of_model, read_audit, read_model, read_rows

SECTIONS = ("symmetries", "size", "theorem", "sensitivity", "depth", "relations")


class ModeName(StrEnum):
    """What a model takes its tokens for."""

    set = "set"
    sequence = "sequence"


@dataclass(frozen=True)
class AuditOptions:
    """What `pushforward audit` is told.

    Every field is an option, and its help says what it is.
    """

    model: Annotated[
        str | None,
        typer.Argument(
            help="`module.py:factory`, `package.module:factory`, a .safetensors file of "
            "`pf.maps.save`, or a .pt2 file of `torch.export.save`. Without it, a trained model "
            "that comes with the library is audited.",
            show_default=False,
            metavar="MODEL",
        ),
    ] = None
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
    mode: Annotated[
        ModeName | None,
        typer.Option(help="Whether the order of tokens may matter; seen from the outputs."),
    ] = None
    class_token: Annotated[
        int | None,
        typer.Option(help="0 or -1 if the first or last token has a role of its own."),
    ] = None
    tolerance: Annotated[
        float, typer.Option(help="A change of outputs up to this share of their size is none.")
    ] = 0.0
    compare: Annotated[
        Path | None,
        typer.Option(help="An older audit, as --json wrote it: what is new, gone, worse?",
                     metavar="FILE"),
    ] = None  # fmt: skip
    seed: Annotated[int, typer.Option(help="The seed of all random numbers.")] = 0


@command(
    AuditOptions,
    "nothing was written. Audit fewer sections at a time: --sections symmetries, then others.",
)
def audit(options: AuditOptions) -> int:
    """Say what kind of map a model on sets is: what it depends on, and how strongly.

    The exit code is 1 if something is refuted, or required and not tried, and 3 if something
    could not be tested. With --compare it is 1 only if something is worse than before. Without
    --data the model is called on Gaussian tokens.

    A module:factory is code, and it runs. Data, .safetensors and .pt2 files are only read:
    nothing in them is unpickled or executed.

    Examples:
    - pushforward audit --html audit.html
    - pushforward audit model.py:encoder --data cells.npy --html audit.html
    - pushforward audit encoder.pt2 --data cells.csv --sections symmetries --require padding
    - pushforward audit model.safetensors --data cells.parquet --json new.json --compare old.json
    """
    screen = current_screen()
    check_output(options.html)
    check_output(options.output)
    check_apart(
        {"--html": options.html, "--json": options.output},
        inputs=[options.data, options.queries, *files_of_model(options.model or "")],
    )
    data = None if options.data is None else read_rows(options.data, sets=True)
    queries = None if options.queries is None else read_rows(options.queries)
    old = None if options.compare is None else read_audit(options.compare)
    named = _shipped() if options.model is None else read_model(options.model)
    _check_tokens(named, options.tokens)
    report = run(
        Model(
            named.model,
            name=named.name,
            mode=None if options.mode is None else options.mode.value,
            class_token=options.class_token,
            tolerance=options.tolerance,
        ),
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
    if old is None:
        return _conclude(report.model, report.headline, report.exit_code)
    comparison = report.compare(old)
    screen.say(Text(f"\n{comparison}\n"))
    code = report.exit_code if report.problem or report.missing else comparison.exit_code
    said = report.headline if report.problem or report.missing else comparison.headline
    return _conclude(report.model, said, code)


def _conclude(model: str, said: str, code: int) -> int:
    """Say the result, last and always."""
    style = {0: "green", 1: "bold red"}.get(code, "yellow")
    current_screen().conclude(f"{model}: {said}", style=style)
    return code


def _shipped() -> Named:
    """The trained model of the library."""
    model = trained_flock()
    return Named(model, "a trained flock", model.dim)


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
