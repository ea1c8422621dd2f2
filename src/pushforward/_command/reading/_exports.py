"""Exports of PyTorch, `.pt2`, without trusting them.

`torch.export.load` unpickles and evaluates parts of an archive, so it never sees the one a user
hands over. It sees a copy in memory that was written anew from the parts which are only data: the
program, whose every name, operation and formula was checked (`_programs.py`), and the raw numbers
of its weights. The example inputs, which PyTorch always pickles, are left out unread. Whatever
else could run code, such as compiled libraries and pickled weights, is refused by its name.
"""

from __future__ import annotations

import io
import json
import logging
import math
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ._plain import size
from ._programs import checked_inputs, checked_program

MOST_ENTRIES = 20_000
"""Files that an archive may have: two for each weight of a large model."""

LARGEST_JSON = 256 << 20
"""Bytes that the program of an archive may have."""

KEPT = re.compile(
    r"\.data/(version|serialization_id)|\.format_version|\.storage_alignment|byteorder|version|"
    r"archive_format|archive_version|models/model\.json|data/weights/weight_\d+|"
    r"data/constants/tensor_\d+|data/(weights/model_weights|constants/model_constants)_config\.json"
)
"""The entries of an archive that are data, and are read."""

DROPPED = re.compile(r"data/sample_inputs/model\.pt|extra/[^/]+")
"""Entries that a model does not need; they are not read."""

REFUSED = {
    "data/aotinductor/": "machine code",
    "data/mtia": "machine code",
    "data/executorch/": "a compiled program",
    "data/constants/custom_obj_": "a pickled object, which runs code when it is read",
    "data/constants/opaque_obj_": "a pickled object, which runs code when it is read",
    "data/weights/": "pickled weights of an old format, which can run code when they are read",
    "data/constants/": "pickled constants of an old format, which can run code when they are read",
    "data/sample_inputs/": "an example of another model",
    "models/": "a second model",
    "data.pkl": "a pickled object, which runs code when it is read",
}
"""What entries with these beginnings are."""

DAMAGED = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
    struct.error,
)
"""What Python's reader of archives raises on a damaged one."""

SAMPLES = "data/sample_inputs/model.pt"
AGAIN = "Export it again with `torch.export.save(torch.export.export(model, (x,)), file)`."


@dataclass(frozen=True)
class Export:
    """A model from an export, with what its program says of its inputs.

    Args:
        model: the module.
        dim: the dimension of tokens, None if any is accepted.
        least: the fewest tokens, None if unknown.
        most: the most tokens, None for no limit.
    """

    model: nn.Module
    dim: int | None
    least: int | None
    most: int | None


def read_export(path: Path) -> Export:
    """The model in a `.pt2` file; nothing in the file is unpickled or evaluated.

    Args:
        path: the file.
    """
    name = repr(str(path))
    entries = _entries(path, name)
    program = checked_program(_json(entries, "models/model.json", name), name)
    for kind, prefix in (("weights", "weight_"), ("constants", "tensor_")):
        at = f"data/{kind}/model_{kind}_config.json"
        config = _json(entries, at, name)
        _check_payloads(config, entries, f"data/{kind}/{prefix}", name)
        entries[at] = json.dumps(config).encode()
    inputs = checked_inputs(program, name)
    entries["models/model.json"] = json.dumps(program).encode()
    entries[SAMPLES] = b""
    return Export(_rebuilt(entries, name), inputs.dim, inputs.least, inputs.most)


def _entries(path: Path, name: str) -> dict[str, bytes]:
    """The entries of an archive that are kept, without the folder they are in."""
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
            _check_listed(listed, path.stat().st_size, name)
            root = listed[0].filename.split("/")[0] + "/"
            kept: dict[str, bytes] = {}
            for entry in listed:
                short = entry.filename.removeprefix(root)
                if _kept(short, entry, root, name):
                    kept[short] = archive.read(entry)
    except DAMAGED as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name} is damaged or no .pt2 archive: {reason}. {AGAIN}") from None
    for needed in ("archive_format", "archive_version", "models/model.json"):
        if needed not in kept:
            raise ValueError(f"{name} is no export of torch.export: it has no {needed!r}. {AGAIN}")
    return kept


def _check_listed(listed: list[zipfile.ZipInfo], length: int, name: str) -> None:
    """Raise unless an archive is one that PyTorch could have written."""
    if not listed or len(listed) > MOST_ENTRIES:
        raise ValueError(
            f"{name} has {len(listed):,} entries; an export has 1 to {MOST_ENTRIES:,}. {AGAIN}"
        )
    seen: set[str] = set()
    for entry in listed:
        shown = repr(entry.filename[:80])
        parts = entry.filename.split("/")
        if not re.fullmatch(r"[\w.+ ()-]+(/[\w.+ ()-]+)+", entry.filename) or ".." in parts:
            raise ValueError(f"{name} has an entry {shown}, whose name leaves the archive.")
        if entry.filename in seen:
            raise ValueError(f"{name} has two entries {shown}: it was made to mislead.")
        seen.add(entry.filename)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise ValueError(
                f"{name} has a compressed or encrypted entry {shown}, and PyTorch writes none."
            )
    total = sum(entry.file_size for entry in listed)
    if total > length:
        raise ValueError(f"{name} claims {size(total)} of contents in a file of {size(length)}.")


def _kept(short: str, entry: zipfile.ZipInfo, root: str, name: str) -> bool:
    """Whether an entry is data that is needed; an error for one that is not allowed."""
    if not entry.filename.startswith(root):
        raise ValueError(f"{name} has an entry {entry.filename!r} outside its folder {root!r}.")
    if DROPPED.fullmatch(short):
        return False
    if KEPT.fullmatch(short):
        if short.endswith(".json") and entry.file_size > LARGEST_JSON:
            raise ValueError(f"{name} has a program of {size(entry.file_size)}: it is too large.")
        return True
    what = next((text for start, text in REFUSED.items() if short.startswith(start)), "unknown")
    raise ValueError(
        f"{name} has an entry {short!r}: {what}. It is not opened. Export plain tensors and "
        "operations of PyTorch, with torch.export.save of PyTorch 2.9 or newer."
    )


def _json(entries: dict[str, bytes], at: str, name: str) -> dict[str, Any]:
    """A dictionary in an archive."""
    if at not in entries:
        raise ValueError(
            f"{name} has no entry {at!r}. It was written by an old PyTorch, or cut. {AGAIN}"
        )
    try:
        data = json.loads(entries[at].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: {at} is no JSON: {' '.join(str(error).split())}.") from None
    if not isinstance(data, dict):
        raise ValueError(f"{name}: {at} must be a dictionary, got {type(data).__name__}.")
    return data


def _check_payloads(
    config: dict[str, Any], entries: dict[str, bytes], prefix: str, name: str
) -> None:
    """Raise unless every tensor is raw numbers, as many as its shape claims."""
    folder, each = prefix.rpartition("/")[0] + "/", config.get("config")
    if not isinstance(each, dict):
        raise ValueError(f"{name}: the list of its tensors is damaged. {AGAIN}")
    for tensor, about in each.items():
        shown = repr(tensor[:80])
        try:
            file, sizes = about["path_name"], about["tensor_meta"]["sizes"]
            pickled = about["use_pickle"]
            shape = [n["as_int"] for n in sizes]
            good = all(type(n) is int and n >= 0 for n in shape) and math.prod(shape) < 2**33
        except (KeyError, TypeError):
            good, pickled, file, shape = False, False, "", []
        if pickled is not False:
            raise ValueError(
                f"{name} has a pickled tensor {shown} in {file!r}, which could run code when it "
                "is read. Export a model of plain tensors."
            )
        if not good or not re.fullmatch(r"[A-Za-z_][\w.]*", tensor):
            raise ValueError(f"{name} describes the tensor {shown} in a wrong way. {AGAIN}")
        data = entries.get(folder + str(file))
        if data is None or not (folder + str(file)).startswith(prefix):
            raise ValueError(f"{name} has no numbers for the tensor {shown}. {AGAIN}")
        if not data and math.prod(shape) > 0:
            raise ValueError(f"{name} has an empty entry for the tensor {shown}. {AGAIN}")


def _rebuilt(entries: dict[str, bytes], name: str) -> nn.Module:
    """The module of a checked archive, which PyTorch reads from a copy of it in memory."""
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as archive:
        for short, data in entries.items():
            archive.writestr(f"model/{short}", data)
    copy.seek(0)
    with _errors_logged("torch.export", "torch._export.serde.serialize") as logged:
        try:
            return torch.export.load(copy).module(check_guards=False)
        except Exception as error:  # PyTorch checks little, and breaks in many ways
            cause = logged[0] if logged else error
            lines = [line for line in str(cause).splitlines() if line.strip()]
            reason = lines[-1].strip()[:200].rstrip(".") if lines else "no reason given"
            raise ValueError(
                f"{name} cannot be rebuilt by PyTorch {torch.__version__}: "
                f"{type(cause).__name__}: {reason}. {AGAIN}"
            ) from cause


@contextmanager
def _errors_logged(*names: str) -> Iterator[list[BaseException]]:
    """Loggers say nothing, and the errors that they would show are collected."""
    found: list[BaseException] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            found.append(record.exc_info[1])
        return False

    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(collect)
    try:
        yield found
    finally:
        for logger in loggers:
            logger.removeFilter(collect)
