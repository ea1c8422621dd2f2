"""The folder of a run: what is in it, when it may be used, how it is written."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path as File

import numpy as np

from ..._tools.output import atomic_file
from ...flows import Path
from ..configuring import Document, begin_folder

FLOW = "flow"
PAGE, NUMBERS, TABLE, ARRAYS = "page.html", "run.json", "observables.csv", "path.npz"
FORMAT = "pushforward run, version 1"

LARGEST = 2 << 30
"""Bytes that the arrays of a path may take; the measures in the folder have no limit."""

LOOKS = {"observables", "cluster_tolerance", "page"}
"""Keys that may change when a run goes on, because the flow does not depend on them."""


def begin_flow(folder: File, document: Document, force: bool, resume: bool) -> File:
    """The folder of the flow, which is ready for a run; another run is never overwritten.

    Args:
        folder: the folder of the run.
        document: the configuration.
        force: whether the files of an earlier run are deleted.
        resume: whether an earlier run goes on.
    """
    flow = folder / FLOW
    if flow.is_symlink():
        raise ValueError(f"{str(flow)!r} is a link. Choose another folder for the run.")
    begin_folder(folder, document, force, resume, _earlier(folder))
    flow.mkdir(exist_ok=True)
    return flow


def _earlier(folder: File) -> Iterator[File]:
    """The files of an earlier run, and nothing else."""
    yield from (folder / name for name in (PAGE, NUMBERS, TABLE, ARRAYS))
    flow = folder / FLOW
    for file in list(flow.iterdir()) if flow.is_dir() else ():
        if file.name == "flow.json" or re.fullmatch(r"\d{5}\.safetensors", file.name):
            yield file


def write_results(
    folder: File, path: Path, observed: Sequence[Mapping[str, float]], about: Mapping[str, object]
) -> list[File]:
    """Write the numbers of a finished run; which files there are now.

    Args:
        folder: the folder of the run.
        path: the path.
        observed: the observables at every saved time.
        about: what else the JSON file holds.
    """
    times = path.times.tolist()
    names = list(observed[0])
    written = [folder / NUMBERS]
    numbers = {name: [_finite(row[name]) for row in observed] for name in names}
    record = {
        "format": FORMAT, "version": version("pushforward"), **about, "points": path[0].n,
        "dimension": path[0].dim, "sinkhorn_steps": path.sinkhorn_steps, "times": times,
        "observables": numbers,
    }  # fmt: skip
    with atomic_file(folder / NUMBERS) as draft:
        draft.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if names:
        with atomic_file(folder / TABLE) as draft, draft.open("w", newline="") as out:
            table = csv.writer(out)
            table.writerow(["time", *names])
            for t, row in zip(times, observed, strict=True):
                table.writerow([repr(t), *(repr(row[name]) for name in names)])
        written.append(folder / TABLE)
    first = path[0]
    if len(path) * first.atoms.numel() * first.atoms.element_size() <= LARGEST:
        with atomic_file(folder / ARRAYS) as draft:
            atoms = np.stack([mu.atoms.numpy() for mu in path])
            np.savez(draft, times=np.array(times), atoms=atoms, weights=first.weights.numpy())
        written.append(folder / ARRAYS)
    return written


def _finite(x: float) -> float | None:
    """A number, or None for one that JSON cannot hold."""
    return x if np.isfinite(x) else None
