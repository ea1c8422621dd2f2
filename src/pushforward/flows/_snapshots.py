"""Flows on disk: a folder of safetensors files that can be read without this library.

`flow.json` describes the run and lists the saved times. Each saved time has a file,
`00000.safetensors`, `00001.safetensors` and so on, with the tensors `atoms`, `log_weights`,
`token_times` if the tokens have times, `queries` if there are any, and under `memory/` the
Sinkhorn potentials from which a resumed run continues. Its metadata contain the time. A file is
written under another name first and then renamed, so a file that exists is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path as File
from typing import overload

import torch
from torch import Tensor

from .._tools.output import atomic_file
from ..measures import Measure
from ..sinkhorn import PotentialHistory
from ._dynamics import Characteristics, State
from ._solve import Solve

FORMAT = "pushforward flow, version 1"
CLOUDS = ("atoms", "queries")
"""What the clouds of a state are called; there may be no queries."""


class Snapshots(Sequence[Measure]):
    """The measures in the folder of a run, read when they are needed."""

    def __init__(self, folder: str | os.PathLike) -> None:
        self.folder = File(folder)
        self.device: torch.device | str = "cpu"
        """The device that measures are loaded to."""
        self._seen = 0
        try:
            self.about = json.loads((self.folder / "flow.json").read_text())
            found, self.times = self.about.get("format"), self.about.get("times")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"No flow in {self.folder}: there is no flow.json. Runs write one with "
                "`pf.flow(..., folder=...)`."
            ) from None
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{self.folder}/flow.json is damaged: {error}.") from None
        if found != FORMAT or not isinstance(self.times, list):
            raise ValueError(
                f"{self.folder}/flow.json must say {FORMAT!r} and list the times, got {found!r}."
            )

    @classmethod
    def begin(cls, folder: str | os.PathLike, about: dict) -> Snapshots:
        """The folder of a run: a new one, or that of the same run started before."""
        file = File(folder) / "flow.json"
        if file.exists():
            found = cls(folder)
            differ = [k for k in about if found.about.get(k) != about[k]]
            if differ:
                raise ValueError(
                    f"{folder} holds another flow: its {', '.join(differ)} differ. Give the same "
                    "arguments to continue it, or another folder."
                )
            return found
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as draft:
            draft.write_text(json.dumps({"format": FORMAT, **about}, indent=1))
        return cls(folder)

    def __len__(self) -> int:
        """The number of saved times, up to the first that is missing."""
        while self._file(self._seen).exists():  # files are added and never removed
            self._seen += 1
        return self._seen

    @overload
    def __getitem__(self, index: int) -> Measure: ...

    @overload
    def __getitem__(self, index: slice) -> list[Measure]: ...

    def __getitem__(self, index: int | slice) -> Measure | list[Measure]:
        """The measure at a saved time."""
        count = len(self)
        if isinstance(index, slice):
            return [self[k] for k in range(count)[index]]
        if not -count <= index < count:
            raise IndexError(f"There are {count} measures, got index {index}.")
        tensors = self.tensors(range(count)[index], self.device)
        return Measure.unchecked(
            tensors["atoms"], tensors["log_weights"], tensors.get("token_times")
        )

    def tensors(self, index: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """All tensors that were saved at a time."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        file = self._file(index)
        try:
            return load_file(file, device=str(device))
        except SafetensorError as error:
            raise ValueError(
                f"{file} is damaged ({error}). Delete it and all that come after it; the same "
                "call of `flow` makes them again."
            ) from None

    def queries(self) -> Tensor | None:
        """The queries at all saved times, if there were any."""
        clouds = [self.tensors(k).get("queries") for k in range(len(self))]
        present = [x for x in clouds if x is not None]
        return torch.stack(present) if present else None

    def steps(self) -> int:
        """Sinkhorn steps until the last saved time."""
        return int(self._about(len(self) - 1)["steps"]) if len(self) else 0

    def write(self, index: int, time: float, state: State, dynamics: Characteristics) -> None:
        """Save a state, and the potentials from which a resumed run continues."""
        from safetensors.torch import save

        mu, history = dynamics.mu, dynamics.history
        tensors = dict(zip(CLOUDS, state, strict=False)) | {"log_weights": mu.log_weights}
        if mu.times is not None:
            tensors["token_times"] = mu.times
        moments: dict[str, list[float]] = {}
        for name, past in history.past.items():
            moments[name] = [t for t, _ in past]
            tensors |= {f"memory/{name}/{k}": g for k, (_, g) in enumerate(past)}
        about = {"time": repr(time), "memory": json.dumps(moments), "steps": str(history.steps)}
        whole = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
        with atomic_file(self._file(index)) as draft:
            draft.write_bytes(save(whole, {"format": FORMAT, **about}))

    def resume(self, index: int, device: torch.device, history: PotentialHistory) -> State:
        """The state at a saved time; its potentials are put into the history."""
        tensors, about = self.tensors(index, device), self._about(index)
        history.steps = int(about["steps"])
        for name, moments in json.loads(about["memory"]).items():
            potentials = [tensors[f"memory/{name}/{k}"] for k in range(len(moments))]
            history.past[name] = list(zip(moments, potentials, strict=True))
        return tuple(tensors[name] for name in CLOUDS if name in tensors)

    def _about(self, index: int) -> dict[str, str]:
        """The metadata of a file."""
        from safetensors import safe_open

        with safe_open(self._file(index), "pt") as file:
            return file.metadata()

    def _file(self, index: int) -> File:
        return self.folder / f"{index:05d}.safetensors"


def describe(solve: Solve, state: State) -> dict:
    """What identifies a run; the code of a user's functions is not compared."""
    grid, field, mu = solve.grid, solve.dynamics.field, solve.dynamics.mu
    tensors = [*state, mu.log_weights, *([] if mu.times is None else [mu.times])]
    tensors += [*field.parameters(), *field.buffers()]
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(repr((tuple(t.shape), t.dtype)).encode())
        flat = t.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return {
        "field": repr(field),
        "solver": repr(solve.solver),
        "times": [grid.times[k] for k in grid.saved],
        "tensors": digest.hexdigest(),
    }
