"""What is checked of every file before it is opened."""

import os
import stat
from pathlib import Path

PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".joblib", ".npz", ".mat")
"""Suffixes of files that are pickles, or hold some."""

LARGEST = 4 << 30
"""Bytes that a file may have, and that its contents may take in memory."""


def plain_file(path: Path, suffixes: tuple[str, ...], what: str) -> str:
    """The suffix of a file that can be read, in small letters; an error for all others.

    Args:
        path: the file; links are followed.
        suffixes: the suffixes that are known, such as `.npy`.
        what: what the file should hold, in messages.
    """
    known = ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}" if len(suffixes) > 1 else suffixes[0]
    suffix = path.suffix.lower()
    name = repr(str(path))
    if "\0" in str(path):
        raise ValueError(f"{name} is no name of a file: it contains a zero byte.")
    if suffix not in suffixes:
        why = "" if suffix not in PICKLES else f" {suffix} files can hold pickles, which run code."
        raise ValueError(f"{name} must be a {known} file of {what}.{why}")
    try:
        found = os.stat(path)
    except FileNotFoundError:
        link = " It is a link to a file that is gone." if path.is_symlink() else ""
        raise FileNotFoundError(f"There is no file {name}.{link}") from None
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{name} is a folder. Give a {known} file of {what}.")
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name} is no ordinary file. Give a {known} file of {what}.")
    if found.st_size == 0:
        raise ValueError(f"{name} is empty. Give a {known} file of {what}.")
    if found.st_size > LARGEST:
        raise ValueError(
            f"{name} has {size(found.st_size)}, more than {size(LARGEST)}. Give a part of it."
        )
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{name} may not be read. Change its permissions.")
    return suffix


def size(count: int) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.3g} {unit}"
        count /= 1024  # type: ignore[assignment]
    return ""
