"""Write a file whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(file: str | os.PathLike) -> Iterator[Path]:
    """A draft beside `file` that takes its place when the block ends without an error.

    Readers see the old file or the new one, never a part; the draft is gone in either case.
    """
    file = Path(file)
    draft = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    try:
        yield draft
        with open(draft, "rb") as written:
            os.fsync(written.fileno())
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
