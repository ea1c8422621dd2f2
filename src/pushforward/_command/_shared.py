"""What all commands share: how much they say, progress, interruptions, files that they write.

A command asks for the screen, checks its files before the work, and writes them after it:

    screen = current_screen()
    check_output(html)                        # before hours of work, not after
    check_apart({"--html": html}, inputs=[data])
    with screen.progress("layers", total=8) as advance:
        advance(1, "layer 1")
    screen.say(table)                         # not with --quiet
    screen.detail("layer 1: 0.2 seconds")     # with --verbose only
    write(html, page)                         # whole or not at all, and says where
    screen.conclude("8 layers, in 2 seconds.")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .._tools.output import atomic_file

USAGE, UNTRIED, INTERRUPTED = 2, 3, 130
"""Exit codes of a command that could not end as it should."""

QUIET, NORMAL, VERBOSE = 0, 1, 2
"""How much a command says."""

PIPED = 120
"""Columns of output that goes to no terminal, unless COLUMNS says otherwise."""


def _console(stderr: bool = False) -> Console:
    """Colours at a terminal only, and never with NO_COLOR: rich sees to that."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED
    return console


@dataclass(frozen=True)
class Screen:
    """Where a command speaks, and how much it says.

    Args:
        loudness: `QUIET`, `NORMAL` or `VERBOSE`.
        out: results.
        live: progress and warnings, beside the results.
    """

    loudness: int = NORMAL
    out: Console = field(default_factory=_console)
    live: Console = field(default_factory=lambda: _console(stderr=True))

    def say(self, what: Any = "") -> None:
        """A table or a text with rich's markup, unless the command is quiet."""
        if self.loudness >= NORMAL:
            self.out.print(what)

    def detail(self, what: Any) -> None:
        """What only the curious want to read."""
        if self.loudness >= VERBOSE:
            self.out.print(what)

    def conclude(self, what: str, style: str | None = None) -> None:
        """The last sentence, and where files are: always said, never wrapped."""
        self.out.print(escape(what), style=style, soft_wrap=True)

    @contextmanager
    def progress(self, what: str, total: float) -> Iterator[Callable[[float, str], None]]:
        """A bar with the time that is left, at a terminal and unless the command is quiet.

        The block calls the result with the amount done since the last call, and what is going on.

        Args:
            what: the label at the start.
            total: the amount at the end.
        """
        columns = (
            TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(),
            TextColumn("left"),
        )  # fmt: skip
        hidden = self.loudness == QUIET or not self.live.is_terminal
        with Progress(*columns, console=self.live, disable=hidden, transient=True) as progress:
            task = progress.add_task(escape(what), total=total)

            def advance(amount: float, label: str) -> None:
                progress.update(task, advance=amount, description=escape(label))

            yield advance


_SCREEN: ContextVar[Screen] = ContextVar("screen")


def open_screen(quiet: bool = False, verbose: bool = False) -> None:
    """Set how much the command says that runs next.

    Args:
        quiet: only the last sentence, files and errors.
        verbose: everything.
    """
    if quiet and verbose:
        raise ValueError("--quiet and --verbose exclude each other. Give one of them.")
    _SCREEN.set(Screen(QUIET if quiet else VERBOSE if verbose else NORMAL))


def current_screen() -> Screen:
    """The screen of the command that runs."""
    return _SCREEN.get()


def check_output(file: Path | None, suffix: str = "") -> None:
    """Refuse a file that cannot be written, before the work that it is meant for.

    Args:
        file: the file, None for none.
        suffix: how its name must end, if that matters.
    """
    if file is None:
        return
    if file.is_dir():
        raise ValueError(f"{str(file)!r} is a folder. Give the name of a file in it.")
    if not file.parent.is_dir():
        raise ValueError(
            f"There is no folder {str(file.parent)!r} to write into. Create it, or choose another."
        )
    if suffix and file.suffix != suffix:
        raise ValueError(f"The file must end in {suffix}, got {file.name!r}.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"{str(file)!r} may not be written. Choose another file.")


def check_apart(outputs: dict[str, Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Refuse two outputs of one name, and an output that would replace what is read.

    Args:
        outputs: files by the options that name them, None where there is none.
        inputs: files that the command reads.
    """
    read = {_place(file) for file in inputs if file is not None}
    taken: dict[str, str] = {}
    for option, file in outputs.items():
        if file is None:
            continue
        place = _place(file)
        if place in read:
            raise ValueError(
                f"{option} would replace {str(file)!r}, which is read. Choose another file."
            )
        if place in taken:
            raise ValueError(
                f"{taken[place]} and {option} both name {str(file)!r}. Choose another for one."
            )
        taken[place] = option


def _place(file: Path) -> str:
    """Where a file is; links in a circle and impossible names are refused when it is read."""
    try:
        return os.path.realpath(file)
    except ValueError:
        return str(file)


def write(file: Path | None, text: str) -> None:
    """Write a text file, whole or not at all, and say where it is.

    Args:
        file: the file, None for none.
        text: what is in it.
    """
    if file is not None:
        with atomic_file(file) as draft:
            draft.write_text(text, encoding="utf-8")
        current_screen().conclude(f"Written: {file}")


def output_folder(folder: Path, force: bool) -> Path:
    """A folder to write into, made if it is not there; nothing in it is deleted.

    Args:
        folder: the folder; its parent must exist.
        force: whether it may hold files already, which are then replaced one by one.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file. Give the name of a folder.")
    if not folder.parent.is_dir():
        raise ValueError(f"There is no folder {str(folder.parent)!r}. Create it first.")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise ValueError(
            f"The folder {str(folder)!r} is not empty. Choose another, or replace files with "
            "--force."
        )
    folder.mkdir(exist_ok=True)
    return folder
