"""Results of a run as plain data, with what is needed to repeat it."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from datetime import date
from typing import Any

import torch

from ._checks import Check
from ._figure import Figure
from ._run import Result
from ._statement import REGISTRY

SCHEMA = 1
"""The version of the layout of the data; it changes if a key changes its meaning."""


def as_dict(
    results: Sequence[Result], *, quick: bool, seed: int, defects: bool, seconds: float
) -> dict[str, Any]:
    """A run as data that JSON can hold.

    Args:
        results: of the statements.
        quick: whether the short variants were run.
        seed: of all random numbers.
        defects: whether defects were planted.
        seconds: how long the run took.
    """
    return {
        "schema": SCHEMA, "date": str(date.today()), "machine": platform.machine(),
        "python": platform.python_version(), "torch": torch.__version__, "quick": quick,
        "seed": seed, "defects": defects, "seconds": round(seconds, 1),
        "statements": [_statement(result) for result in results],
    }  # fmt: skip


def _statement(result: Result) -> dict[str, Any]:
    s = REGISTRY[result.id]
    return {
        "id": s.id, "paper": s.paper, "family": s.family, "source": s.source, "text": s.text,
        "formula": s.formula, "note": s.note, "api": list(s.api), "ok": result.ok,
        "said": result.said, "seconds": round(result.seconds, 3), "error": result.error,
        "checks": [_check(check) for check in result.checks],
        "figures": [_figure(figure) for figure in result.figures],
    }  # fmt: skip


def _check(check: Check) -> dict[str, Any]:
    return {
        "kind": check.kind.value, "ok": check.ok, "said": check.said,
        "value": _number(check.value), "limit": _number(check.limit), "trials": check.trials,
    }  # fmt: skip


def _figure(figure: Figure) -> dict[str, Any]:
    curves = [
        {"name": c.name, "style": c.style, "x": [_number(v) for v in c.x],
         "y": [_number(v) for v in c.y]}
        for c in figure.series
    ]  # fmt: skip
    return {
        "title": figure.title, "x": figure.x, "y": figure.y, "log": figure.log,
        "caption": figure.caption, "series": curves,
    }  # fmt: skip


def _number(x: float) -> float | None:
    """A number with six digits, None where it is not finite."""
    return float(f"{x:.6g}") if math.isfinite(x) else None
