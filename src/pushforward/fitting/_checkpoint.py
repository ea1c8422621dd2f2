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

FORMAT = "pushforward training, version 1"
STATE, MODEL, LOG = "state.safetensors", "model.safetensors", "log.csv"

Row = dict[str, float]
"""A line of the log: the step, losses, errors."""


@dataclass
class State:
    """Everything that the next step depends on.

    Args:
        step: the steps that were taken.
        model: the weights, by name.
        average: their moving average.
        moments: what the optimiser keeps of each weight.
        adversary: the measures of a pool.
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
    def read(cls, folder: Path, about: Mapping[str, Any]) -> State:
        """The state in a folder, if it is of the same run.

        Args:
            folder: the folder.
            about: what the run is.
        """
        tensors, run = read_state(folder)
        for key in sorted({*about, *run["about"]}):
            old, new = run["about"].get(key), about.get(key)
            if old != json.loads(json.dumps(new)):
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
    whole = isinstance(run, dict) and isinstance(run.get("step"), int)
    if words.get("format") != FORMAT or not whole or not isinstance(run.get("about"), dict):
        raise ValueError(f"{file} is no state of a training run.")
    if not isinstance(run.get("log"), list) or not all(isinstance(r, dict) for r in run["log"]):
        raise ValueError(f"{file} is no state of a training run: it has no log.")
    return tensors, run


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
    optimisers: list[torch.optim.Optimizer],
    names: Mapping[nn.Parameter, str],
    moments: Mapping[str, Tensor],
) -> None:
    """Put back what `named_moments` took."""
    place = {name: p for p, name in names.items()}
    owner = {
        p: optimiser
        for optimiser in optimisers
        for group in optimiser.param_groups
        for p in group["params"]
    }
    for key, value in moments.items():
        name, _, kind = key.rpartition("/")
        p = place[name]
        owner[p].state[p][kind] = value.to("cpu" if kind == "step" else p.device)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:77]}..."
