"""Progress bars."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


@contextmanager
def bar(what: str, total: int, show: bool | None) -> Iterator[Callable[[int], None]]:
    """A progress bar that appears after a second; the block calls the result with the count done.

    Args:
        what: the label of the bar.
        total: the count at the end.
        show: whether to show it; by default at a terminal, if rich is installed.
    """
    if show is None:
        show = sys.stderr.isatty() and find_spec("rich") is not None
    if not show:
        yield lambda done: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError as error:
        raise ImportError("A progress bar needs rich. Install it: `pip install rich`.") from error
    progress, begin = Progress(console=Console(stderr=True)), time.monotonic()
    task = progress.add_task(what, total=total)

    def tick(done: int) -> None:
        progress.update(task, completed=done)
        if not progress.live.is_started and time.monotonic() - begin > 1:
            progress.start()

    try:
        yield tick
    finally:
        progress.stop()
