"""The folder of a fit: what is in it, and how it is written."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..._tools.output import atomic_file
from ..configuring import Document, begin_folder

STATE, MODEL, LOG = "state.safetensors", "model.safetensors", "log.csv"
REPORT, PAGE = "report.json", "page.html"
BOARD = "tensorboard"

LOOKS = ("report", "page")
"""Keys that may change when a fit goes on, because the training does not depend on them."""

LARGEST = 1 << 28
"""Bytes that a report may have."""

Record = Mapping[str, Any]
"""A fit as plain data."""


def begin_fit(folder: Path, document: Document, force: bool, resume: bool) -> None:
    """Make a folder ready for a fit; another one is never overwritten.

    Args:
        folder: the folder of the fit.
        document: the configuration.
        force: whether the files of an earlier fit are deleted.
        resume: whether an earlier fit goes on.
    """
    begin_folder(folder, document, force, resume, _earlier(folder))


def _earlier(folder: Path) -> Iterator[Path]:
    """The files of an earlier fit, and nothing else."""
    yield from (folder / name for name in (STATE, MODEL, LOG, REPORT, PAGE))
    yield from (folder / BOARD).glob("events.out.tfevents.*")


def begun(folder: Path) -> bool:
    """Whether a state was reached.

    Args:
        folder: the folder of the fit.
    """
    return (folder / STATE).is_file()


def reached(folder: Path, steps: int) -> str:
    """How far a fit came.

    Args:
        folder: the folder of the fit.
        steps: all steps.
    """
    try:
        with (folder / LOG).open(newline="") as log:
            last = [int(float(row["step"])) for row in csv.DictReader(log)][-1]
    except (OSError, ValueError, KeyError, IndexError):
        return "No state was reached yet."
    return f"{last:,} of {steps:,} steps are kept."


def finished(folder: Path, asked: Record) -> dict[str, Any] | None:
    """The report of a fit that is finished and was judged as it is asked for, or None.

    Args:
        folder: the folder of the fit.
        asked: what the report must say, by its keys; what concerns the page is left out.
    """
    file = folder / REPORT
    if not file.is_file() or file.stat().st_size > LARGEST:
        return None
    try:
        record = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    same = all(_without_page(record.get(key)) == _without_page(asked[key]) for key in asked)
    return record if same else None


def _without_page(data: Any) -> Any:
    return {k: v for k, v in data.items() if k != "page"} if isinstance(data, dict) else data


def write_report(folder: Path, record: Record) -> Path:
    """Write everything that is known of a fit.

    Args:
        folder: the folder of the fit.
        record: the fit.
    """
    with atomic_file(folder / REPORT) as draft:
        text = json.dumps(record, indent=1, allow_nan=False)
        draft.write_text(f"{text}\n", encoding="utf-8")
    return folder / REPORT
