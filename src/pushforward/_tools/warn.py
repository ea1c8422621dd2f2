"""Warnings that point at the caller's line, not at a line of this library."""

import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

INSIDE = (
    str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), functools.__file__,
    contextlib.__file__, "<",
)  # fmt: skip
"""Files of this library, of PyTorch, of single dispatch and `with`, and code without a file."""


class PushforwardWarning(UserWarning):
    """The category of all warnings of this library, so that tests can turn them into errors."""


def warn(message: str) -> None:
    """Warn at the line outside this library that led here.

    Frames of PyTorch between the two, such as a module's `__call__`, are skipped too.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, PushforwardWarning, stacklevel=level)


@contextlib.contextmanager
def each_warning_once(where: str) -> Iterator[None]:
    """Gather the warnings of this library, and give the first of each kind with their number.

    Warnings are of one kind if they begin with the same words, up to the first number. `where`
    says what was under way. Other warnings are passed on as they are.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    kinds: dict[str, list[str]] = {}
    for w in caught:
        if issubclass(w.category, PushforwardWarning):
            kinds.setdefault(re.split(r"\d", str(w.message))[0], []).append(str(w.message))
        else:
            warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    for messages in kinds.values():
        more = "" if len(messages) == 1 else f" ({len(messages)} such warnings in {where}.)"
        warn(messages[0] + more)
