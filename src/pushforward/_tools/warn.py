"""Warnings that point at the caller's line, not at a line of this library."""

import functools
import sys
import warnings
from pathlib import Path

import torch

INSIDE = (
    str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), functools.__file__, "<"
)  # fmt: skip
"""Files of this library, of PyTorch and of single dispatch, and code without a file."""


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
