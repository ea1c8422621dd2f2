"""A fitted regressor on disk: the network as safetensors, all else as JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from .._tools.output import atomic_file
from ..maps import load, save
from ..maps.saving import build, describe
from ..measures import Measure
from ._checkpoint import Row
from .problems import Scale

FORMAT = "pushforward regressor, version 1"
MODEL, ABOUT = "model.safetensors", "regressor.json"
LONGEST = 1 << 24
"""Bytes that regressor.json may have."""


@dataclass(frozen=True)
class Kept:
    """What the files of a regressor hold.

    Args:
        params: the arguments of its constructor.
        scales: the units of sources, targets and conditions.
        model: the network.
        log: the log of the training.
    """

    params: dict[str, Any]
    scales: dict[str, Any]
    model: Any
    log: list[Row]


def write(
    folder: Path,
    model: nn.Module,
    params: Mapping[str, Any],
    scales: Mapping[str, Scale | None],
    log: list[Row],
) -> None:
    """Write both files; the second holds the checksum of the first."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`folder` must be a folder, and {str(folder)!r} is a file.")
    numbers = lambda s: {"mean": s.mean.tolist(), "size": s.size.tolist()}
    data = {
        "format": FORMAT,
        "params": {name: describe(python(v), f"`{name}`") for name, v in params.items()},
        "scales": {name: None if s is None else numbers(s) for name, s in scales.items()},
        "log": log,
    }
    json.dumps(data, allow_nan=False)  # fails before anything is replaced
    folder.mkdir(parents=True, exist_ok=True)
    save(model, folder / MODEL)
    text = json.dumps(data | {"sha256": _checksum(folder / MODEL)}, indent=1, allow_nan=False)
    with atomic_file(folder / ABOUT) as draft:
        draft.write_text(text)


def read(folder: Path, known: set[str]) -> Kept:
    """What the files hold; an error says what is wrong with them.

    Args:
        folder: the folder.
        known: the arguments of the constructor.
    """
    file = folder / ABOUT
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no regressor in {str(folder)!r}: it has no {ABOUT}. "
            "`MeasureRegressor.save(folder)` writes one."
        )
    if file.stat().st_size > LONGEST:
        raise ValueError(f"{file} is longer than {LONGEST >> 20} MiB: it holds no regressor.")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {error}.") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{file} holds no regressor: its format must be {FORMAT!r}.")
    params, scales, log = (data.get(name) for name in ("params", "scales", "log"))
    if not isinstance(params, dict) or set(params) != known:
        raise ValueError(f"{file} is damaged: its `params` must be {', '.join(sorted(known))}.")
    if not isinstance(scales, dict) or set(scales) != {"start", "end", "conditions"}:
        raise ValueError(f"{file} is damaged: its `scales` must be start, end and conditions.")
    if not isinstance(log, list) or not all(isinstance(row, dict) for row in log):
        raise ValueError(f"{file} is damaged: its `log` must be a list of lines.")
    if not (folder / MODEL).is_file():
        raise FileNotFoundError(f"{folder / MODEL} is missing: it holds the network.")
    if data.get("sha256") != _checksum(folder / MODEL):
        raise ValueError(f"{folder / MODEL} is not the network that {file} was written with.")
    units = {
        name: None if value is None and name == "conditions" else _scale(file, name, value)
        for name, value in scales.items()
    }
    model = load(folder / MODEL)
    _check_fits(file, model, units)
    made = {name: build(value, f"`{name}` of {file}") for name, value in params.items()}
    return Kept(made, units, model, log)


def python(value: Any) -> Any:
    """A number of NumPy, which a grid of parameters may hold, as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _scale(file: Path, name: str, data: Any) -> Scale:
    """A scale of the file."""
    mean, size = (data.get(k) for k in ("mean", "size")) if isinstance(data, dict) else (0, 0)
    if not isinstance(mean, list) or not isinstance(size, list) or not mean:
        raise ValueError(f"{file} is damaged: the scale {name!r} must have mean and size.")
    finite = all(isinstance(x, float) and math.isfinite(x) for x in [*mean, *size])
    if len(mean) != len(size) or not finite or not all(x > 0 for x in size):
        raise ValueError(
            f"{file} is damaged: mean and size of the scale {name!r} must be finite numbers, as "
            "many of one as of the other, and the sizes positive."
        )
    return Scale(*(torch.tensor(part, dtype=torch.float64) for part in (mean, size)))


def _check_fits(file: Path, model: Any, units: Mapping[str, Scale | None]) -> None:
    """Raise unless the network maps between the spaces of the scales."""
    start, end, given = (units[name] for name in ("start", "end", "conditions"))
    dim, out = (len(s.mean) if s is not None else 0 for s in (start, end))
    dim += 0 if given is None else len(given.mean)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    try:
        found = model.push(Measure(torch.zeros(1, dim, dtype=dtype))).dim
    except (AttributeError, TypeError, ValueError, RuntimeError):
        found = None
    if found != out:
        raise ValueError(
            f"{file} is damaged: its network must map points of {dim} numbers to {out} numbers."
        )


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
