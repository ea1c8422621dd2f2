"""Results of a run as plain data, with what is needed to repeat it."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from datetime import date
from typing import Any

import torch

from .._tools.checks import check_flags, check_kind, check_number
from ._checks import Check
from ._run import Result
from ._statement import REGISTRY, Setting

SCHEMA = 2
"""The version of the layout of the data; it changes if a key changes its meaning."""


def as_dict(
    results: Sequence[Result],
    *,
    quick: bool,
    seed: int,
    defects: bool,
    seconds: float,
    asked: int | None = None,
) -> dict[str, Any]:
    """A run as data that JSON can hold.

    Args:
        results: of the statements.
        quick: whether the short variants were run.
        seed: of all random numbers.
        defects: whether defects were planted.
        seconds: how long the run took.
        asked: how many statements were asked for; more than there are results if the run was
            interrupted. By default as many as there are results.

    Examples:
        >>> results = pf.statements.verify("A.eq8", quick=True, workers=0)
        >>> record = pf.statements.as_dict(
        ...     results, quick=True, seed=0, defects=False, seconds=0.1
        ... )
        >>> record["statements"][0]["source"]
        '(8)'
    """
    check_kind("results", results, Sequence, "For example what `verify` returns.")
    for result in results:
        check_kind("results[k]", result, Result, "For example what `verify` returns.")
    check_flags(defects=defects)
    Setting(quick, seed)
    check_number("seconds", seconds)
    return {
        "schema": SCHEMA, "date": str(date.today()), "machine": platform.machine(),
        "python": platform.python_version(), "torch": torch.__version__, "quick": quick,
        "seed": seed, "defects": defects, "seconds": round(seconds, 1),
        "asked": len(results) if asked is None else asked,
        "statements": [_statement(result) for result in results],
    }  # fmt: skip


def _statement(result: Result) -> dict[str, Any]:
    s = REGISTRY[result.id]
    return {
        "id": s.id, "paper": s.paper, "family": s.family, "source": s.source, "text": s.text,
        "formula": s.formula, "note": s.note, "api": list(s.api), "experiment": s.experiment,
        "file": s.file, "ok": result.ok,
        "said": result.said, "seconds": round(result.seconds, 3), "error": result.error,
        "checks": [_check(check) for check in result.checks],
        "figures": [figure.to_dict() for figure in result.figures],
    }  # fmt: skip


def _check(check: Check) -> dict[str, Any]:
    return {
        "kind": check.kind.value, "ok": check.ok, "said": check.said,
        "value": _number(check.value), "limit": _number(check.limit), "trials": check.trials,
        "criterion": check.criterion,
    }  # fmt: skip


def _number(x: float) -> float | None:
    """A number with six digits, None where it is not finite."""
    return float(f"{x:.6g}") if math.isfinite(x) else None
