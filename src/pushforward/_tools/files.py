"""Write a file whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
