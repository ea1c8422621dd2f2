"""Output of long runs: progress bars, and files that are written whole or not at all."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Protocol


class Tick(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: int, label: str | None = None) -> None:
        """Show how much is done, perhaps with another label."""


_SILENT: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent(quiet: bool) -> Iterator[None]:
    """No progress bars in the block, but those that are asked for by `show=True`.

    Args:
        quiet: whether this is so; if not, nothing changes.
    """
    token = _SILENT.set(quiet or _SILENT.get())
    try:
        yield
    finally:
        _SILENT.reset(token)


@contextmanager
def bar(what: str, total: int, show: bool | None) -> Iterator[Tick]:
    """A progress bar that appears after a second; the block calls the result with the count done.

    A second argument changes the label.

    Args:
        what: the label of the bar.
        total: the count at the end.
        show: whether to show it; by default at a terminal, if rich is installed.
    """
    if show is None:
        show = not _SILENT.get() and sys.stderr.isatty() and find_spec("rich") is not None
    if not show:
        yield lambda done, label=None: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError as error:
        raise ImportError("A progress bar needs rich. Install it: `pip install rich`.") from error
    progress, begin = Progress(console=Console(stderr=True)), time.monotonic()
    task = progress.add_task(what, total=total)

    def tick(done: int, label: str | None = None) -> None:
        progress.update(task, completed=done, description=label)
        if not progress.live.is_started and time.monotonic() - begin > 1:
            progress.start()

    try:
        yield tick
    finally:
        progress.stop()


def ticker(
    show: Callable[[int], None], start: int = 0, most: int | None = None
) -> Callable[[], None]:
    """A function that counts its calls and shows the count on a bar, which `show` moves.

    The bar is at `start` before the first call, and the calls move it by at most `most`.
    """
    steps = count(1)
    return lambda: show(start + (next(steps) if most is None else min(next(steps), most)))


@contextmanager
def atomic_file(file: str | os.PathLike) -> Iterator[Path]:
    """A temporary file beside `file` that replaces it when the block ends without an error.

    Readers see the old file or the new one, never a part. The temporary file is always removed.
    """
    file = Path(file)
    temporary = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
