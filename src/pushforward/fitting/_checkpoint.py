"""The folder of a run: its state, whole or not at all, its model, and its log.

Nothing is pickled: tensors are safetensors, all else is JSON. A state holds everything that the
next step depends on. There is no random state in it: what is random follows from the seed and
the number of the step.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._tools.checks import check_path
from .._tools.output import atomic_file
from ..maps import save
from ._muon import Muon

FORMAT = "pushforward training, version 1"
STATE, MODEL, LOG = "state.safetensors", "model.safetensors", "log.csv"

KEPT = {torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"), Muon: ("momentum_buffer",)}
"""What optimisers keep of a parameter."""

Row = dict[str, float]
"""A line of the log: the step, losses, errors."""

Tensors = Mapping[str, Tensor]
"""Tensors by name."""

ALWAYS = {"step", "loss", "lr", "seconds"}
"""What each line of a log has."""


@dataclass
class State:
    """Everything that the next step depends on.

    Args:
        step: the steps that were taken.
        model: the weights, by name.
        average: their moving average.
        moments: what the optimiser keeps of each weight.
        adversary: the measures of an adversary.
        log: the lines of the log.
    """

    step: int
    model: dict[str, Tensor]
    average: dict[str, Tensor]
    moments: dict[str, Tensor]
    adversary: dict[str, Tensor] = field(default_factory=dict)
    log: list[Row] = field(default_factory=list)

    PARTS = ("model", "average", "moments", "adversary")

    def write(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Write the state to a folder, in place of the last one.

        Args:
            folder: the folder.
            about: what the run is, by which it is known again.
        """
        from safetensors.torch import save as to_bytes

        tensors = {
            f"{part}/{name}": t.detach().cpu().contiguous().clone()
            for part in self.PARTS
            for name, t in getattr(self, part).items()
        }
        data = {"step": self.step, "log": self.log, "about": dict(about)}
        words = {"format": FORMAT, "run": json.dumps(data)}
        with atomic_file(folder / STATE) as draft:
            draft.write_bytes(to_bytes(tensors, words))
        write_log(folder / LOG, self.log)

    @classmethod
    def read(
        cls, folder: Path, about: Mapping[str, Any], steps: int, wanted: Mapping[str, Tensors]
    ) -> State:
        """The state in a folder, if it is of the same run and whole.

        Args:
            folder: the folder.
            about: what the run is.
            steps: all steps of the run.
            wanted: tensors of the names and shapes that parts of the state must have.
        """
        tensors, run = read_state(folder)
        key, old, new = _difference(run["about"], json.loads(json.dumps(about)))
        if key:
            raise ValueError(
                f"The run in {str(folder)!r} had another `{key}`: {_short(old)}, and now "
                f"{_short(new)}. Go on with what it began with, or begin in another folder."
            )
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in cls.PARTS}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            if part not in parts:
                raise ValueError(f"{folder / STATE} has a tensor {name!r} that is no part of it.")
            parts[part][key] = tensor
        logged = run["log"][-1]["step"] if run["log"] else None
        if not 0 < run["step"] <= steps or run["step"] != logged:
            raise ValueError(
                f"{folder / STATE} is damaged: it is of step {run['step']} of {steps}, and its "
                f"log ends at {logged}."
            )
        for part, those in wanted.items():
            _check_alike(folder / STATE, part, parts[part], those)
        return cls(run["step"], log=run["log"], **parts)


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a state, and what the file says about its run."""
    import safetensors

    file = folder / STATE
    if not file.is_file():
        raise FileNotFoundError(
            f"There is no run in {str(folder)!r} to go on with: it has no {STATE}. Begin one by "
            "`pf.fit(..., out=...)`."
        )
    try:
        with safetensors.safe_open(file, "pt") as opened:
            words = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}
        run = json.loads(words.get("run", "null"))
    except (safetensors.SafetensorError, ValueError, RuntimeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}.") from None
    whole = isinstance(run, dict) and type(run.get("step")) is int
    if words.get("format") != FORMAT or not whole or not isinstance(run.get("about"), dict):
        raise ValueError(f"{file} is no state of a training run.")
    if not isinstance(run.get("log"), list) or not all(map(_is_row, run["log"])):
        raise ValueError(f"{file} is no state of a training run: it has no log.")
    return tensors, run


def _is_row(row: Any) -> bool:
    """Whether it is a line of a log."""
    return (
        isinstance(row, dict) and row.keys() >= ALWAYS
        and all(type(x) in (int, float) for x in row.values())
    )  # fmt: skip


def _check_alike(file: Path, part: str, given: Tensors, wanted: Tensors) -> None:
    """Raise unless tensors have the names, shapes and dtypes of others."""
    words = lambda t: "none" if t is None else f"{str(t.dtype)[6:]} of shape {tuple(t.shape)}"
    for name in sorted({*given, *wanted}):
        got, must = words(given.get(name)), words(wanted.get(name))
        if got != must:
            raise ValueError(
                f"{file} is damaged: its tensor {f'{part}/{name}'!r} must be {must}, got {got}."
            )


def begin(folder: str | os.PathLike) -> Path:
    """A folder for a new run, which must not have another one.

    Args:
        folder: the folder; it is made if it is not there.
    """
    check_path("out", folder)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`out` must be a folder, and {str(folder)!r} is a file.")
    if (folder / STATE).exists():
        raise ValueError(
            f"There is a run in {str(folder)!r}. Go on with it by `resume=`, or give another "
            "folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_model(model: nn.Module, folder: Path) -> None:
    """Write the model, which `pf.maps.load` reads."""
    training = model.training
    save(model.eval(), folder / MODEL)
    model.train(training)


def write_log(file: Path, log: list[Row]) -> None:
    """Write the log as a table."""
    names = list(dict.fromkeys(name for row in log for name in row))
    with atomic_file(file) as draft, draft.open("w", newline="") as out:
        table = csv.DictWriter(out, names)
        table.writeheader()
        table.writerows(log)


def named_moments(
    optimisers: list[torch.optim.Optimizer], names: Mapping[nn.Parameter, str]
) -> dict[str, Tensor]:
    """What optimisers keep of each parameter, by the parameter's name and its own."""
    return {
        f"{names[p]}/{key}": torch.as_tensor(value)
        for optimiser in optimisers
        for p, kept in optimiser.state.items()
        if isinstance(p, nn.Parameter)
        for key, value in kept.items()
    }


def load_moments(
    file: Path,
    optimisers: list[torch.optim.Optimizer],
    names: Mapping[nn.Parameter, str],
    moments: Tensors,
) -> None:
    """Put back what `named_moments` took.

    Args:
        file: where the moments were read, for messages.
        optimisers: where they go.
        names: names of the parameters.
        moments: the moments.
    """
    count = torch.zeros(())
    for optimiser in optimisers:
        kinds = KEPT[type(optimiser)]
        for p in (p for group in optimiser.param_groups for p in group["params"]):
            given = {k: t for k, t in moments.items() if k.rpartition("/")[0] == names[p]}
            if not given:  # a parameter that never had a gradient
                continue
            like = {kind: count if kind == "step" else p for kind in kinds}
            _check_alike(file, "moments", given, {f"{names[p]}/{k}": t for k, t in like.items()})
            for kind in kinds:
                value = given[f"{names[p]}/{kind}"]
                optimiser.state[p][kind] = value.to("cpu" if kind == "step" else p.device)
    for key in moments:
        if key.rpartition("/")[0] not in names.values():
            raise ValueError(f"{file} is damaged: it has moments {key!r} of no parameter.")


def _difference(old: Any, new: Any, key: str = "") -> tuple[str, Any, Any]:
    """Where two pieces of data differ first, and what they have there; no key if they agree."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            at = f"{key}.{name}" if key else name
            if (found := _difference(old.get(name), new.get(name), at))[0]:
                return found
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for k, (a, b) in enumerate(zip(old, new, strict=True)):
            if (found := _difference(a, b, f"{key}[{k}]"))[0]:
                return found
    elif old != new:
        return key, old, new
    return "", None, None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:77]}..."
