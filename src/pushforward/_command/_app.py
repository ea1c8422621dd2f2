"""The command line: options that all commands share, and how errors are said.

Exit codes: 0 nothing refuted, 1 refuted or not as expected, 2 wrong usage or input, 3 could not be
tried, 130 interrupted.
"""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from ._flow import flow
from ._verify import verify

USAGE, UNTRIED, INTERRUPTED = 2, 3, 130
"""Exit codes of a command that could not end as it should."""

app = typer.Typer(
    name="pushforward",
    help="Transformers as maps between probability measures.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(verify)
app.command()(flow)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"pushforward {installed_version('pushforward')}")
        raise typer.Exit


@app.callback()
def _shared(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Transformers as maps between probability measures."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code.

    Args:
        arguments: of the command line, those of the process by default.
    """
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    try:
        result = app(given, standalone_mode=False, prog_name="pushforward")
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("Interrupted.", err=True)
        return INTERRUPTED
    except (typer.TyperException, ValueError, TypeError, OSError) as error:
        return _failed(error, USAGE, debug)
    except Exception as error:  # a defect of ours, or of the machine
        return _failed(error, UNTRIED, debug)


def _failed(error: Exception, code: int, debug: bool) -> int:
    """Say what is wrong in one line, or show the traceback."""
    if debug:
        traceback.print_exception(error)
    else:
        words = getattr(error, "format_message", lambda: str(error))()  # names the option
        typer.echo(f"pushforward: {words}", err=True)
    return code
