"""The command line: options that all commands share, and how errors are said.

Exit codes: 0 nothing refuted, 1 refuted or not as expected, 2 wrong usage or input, 3 could not be
tried, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from ._audit import audit
from ._fit import fit
from ._flow import flow
from ._relate import relate
from ._shared import INTERRUPTED, UNTRIED, USAGE, open_screen
from ._tour import tour
from ._verify import verify

ANYWHERE = ("--debug", "--quiet", "-q", "--verbose", "-v")
"""Options of all commands, which may stand before or after the name of a command."""

app = typer.Typer(
    name="pushforward",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command()(verify)
app.command()(audit)
app.command()(flow)
app.command()(fit)
app.command()(relate)
app.command()(tour)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"pushforward {installed_version('pushforward')}")
        raise typer.Exit


@app.callback()
def _shared(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only the last sentence, files and errors.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Everything that was measured.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Transformers as maps between probability measures.

    --quiet, --verbose and --debug may stand before or after the name of a command. Exit codes:
    0 nothing refuted, 1 refuted or not as expected, 2 wrong usage, 3 could not be tried,
    130 interrupted.

    Examples:
    - pushforward verify --html verify.html --json verify.json
    - pushforward audit model.py:encoder --data cells.npy --html audit.html
    - pushforward flow clusters.yaml --out run
    - pushforward fit swarm.yaml --out run
    - pushforward relate a.npy b.npy --eps 0.05 --out plan.npz
    - pushforward tour
    - pushforward audit --help
    """
    open_screen(quiet, verbose)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code.

    Args:
        arguments: of the command line, those of the process by default.
    """
    given = _shared_first(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        result = app(given, standalone_mode=False, prog_name="pushforward")
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("pushforward: interrupted, nothing was finished.", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # such as `pushforward verify | head`: nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (typer.TyperException, ValueError, TypeError, OSError) as error:
        return _failed(error, USAGE, debug)
    except Exception as error:  # a defect of ours, or of the machine
        return _failed(error, UNTRIED, debug)


def _shared_first(arguments: list[str]) -> list[str]:
    """The same arguments, with the options of all commands moved to the front."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    shared = [a for a in arguments[:end] if a in ANYWHERE]
    return [*shared, *(a for a in arguments[:end] if a not in ANYWHERE), *arguments[end:]]


def _failed(error: Exception, code: int, debug: bool) -> int:
    """Say what is wrong in one line, or show the traceback."""
    if debug:
        traceback.print_exception(error)
        return code
    words = getattr(error, "format_message", lambda: str(error))()  # names the option
    if isinstance(error, typer.TyperException):
        end = "" if words.endswith(("?", ".")) else "."
        words = f"{words}{end} See pushforward --help."
    if code == UNTRIED:
        words = f"{type(error).__name__}: {words} (--debug shows where)"
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(words.split()))
    typer.echo(f"pushforward: {line}", err=True)  # no codes that a terminal would obey
    return code
