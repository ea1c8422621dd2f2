"""Malformed input for the command: files that are damaged, hostile, or not what they seem.

Each table has names, and functions that make such a file in a folder and return its path. All are
made from valid files, and differ from them in one thing.
"""

import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

Make = Callable[[Path], str]

ROWS = np.random.default_rng(0).normal(size=(40, 2))
TOUCH = "__import__('pathlib').Path('pwned').touch()"
"""Code that leaves a trace where it runs."""


class Evil:
    """An object whose pickle leaves a trace when it is read."""

    def __reduce__(self):
        return exec, (f"{TOUCH}",)


def written(name: str, data: bytes) -> Make:
    """A maker of a file with some contents."""

    def make(folder: Path) -> str:
        (folder / name).write_bytes(data)
        return str(folder / name)

    return make


# Arrays


def npy(array: np.ndarray, **options: bool) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def headed(header: str, body: bytes = bytes(640), version: bytes = b"\x01\x00") -> bytes:
    """A `.npy` file with a header of one's own."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode() + body


def header(descr: str = "'<f8'", shape: str = "(40, 2)", fortran: str = "False") -> bytes:
    return headed(f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n")


VALID = npy(ROWS)
HOLE = ROWS.copy()
HOLE[17, 1] = np.nan
INFINITE = ROWS.copy()
INFINITE[3, 0] = np.inf

ARRAYS = {
    "empty": b"",
    "magic": b"\x93NUMPZ" + VALID[6:],
    "cut in the magic": VALID[:4],
    "cut in the header": VALID[:60],
    "cut in the numbers": VALID[:-9],
    "more at the end": VALID + b"\0" * 16,
    "two arrays": VALID + VALID,
    "version 9": headed("{}", version=b"\x09\x00"),
    "no dictionary": headed("[1, 2]\n"),
    "missing keys": headed("{'descr': '<f8'}\n"),
    "no Python": headed("{'descr': \n"),
    "code in the header": headed(
        f"{{'descr': {TOUCH}, 'fortran_order': False, 'shape': (40, 2)}}\n"
    ),
    "nested header": headed("(" * 5000),
    "no utf-8": headed("{}").replace(b"{}", b"\xff\xfe"),
    "objects": npy(np.array([[1, None]], dtype=object), allow_pickle=True),
    "hostile objects": npy(np.array([[Evil(), 1]], dtype=object), allow_pickle=True),
    "claims objects": header("'|O'"),
    "claims 1e9 rows": header(shape="(1000000000, 16)"),
    "claims 1e30 rows": header(shape=f"({10**30}, 16)"),
    "negative shape": header(shape="(-40, 2)"),
    "shape of words": header(shape="('a', 2)"),
    "shape of truth": header(shape="(True, 80)"),
    "shape no tuple": header(shape="80"),
    "too small a shape": header(shape="(20, 2)"),
    "order no truth": header(fortran="7"),
    "text": npy(np.array([["a", "b"]])),
    "records": npy(np.zeros(40, dtype=[("x", "f8"), ("y", "f8")])),
    "complex": npy(ROWS + 1j),
    "truth": npy(ROWS > 0),
    "long double": npy(ROWS.astype(np.longdouble)),
    "dates": npy(np.zeros((3, 2), dtype="datetime64[s]")),
    "NaN": npy(HOLE),
    "infinity": npy(INFINITE),
    "a scalar": npy(np.array(1.0)),
    "five axes": npy(np.zeros((1, 1, 1, 2, 2))),
    "no rows": npy(np.zeros((0, 2))),
    "no columns": npy(np.zeros((5, 0))),
    "a pickle": pickle.dumps(Evil()),
    "a page": b"<html><script>alert(1)</script></html>",
    "an archive": b"PK\x03\x04" + bytes(60),
}
"""Contents of damaged `.npy` files."""


# Tables

TABLE = "x,y\n" + "\n".join(f"{a:.4f},{b:.4f}" for a, b in ROWS) + "\n"

TABLES = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "a header alone": b"x,y\n",
    "a word": b"x,y\n1,2\n3,four\n",
    "a word later": TABLE.encode() + b"1,end\n",
    "too few cells": b"1,2\n3\n",
    "too many cells": b"1,2\n3,4,5\n",
    "an empty cell": b"1,2\n3,\n",
    "NaN": b"x,y\n1,nan\n",
    "infinity": b"1,2\n-inf,0\n",
    "too large a number": b"1,2\n1e999,0\n",
    "Python's numbers": b"1,2\n1_000,3\n",
    "decimal commas": b"1,5;2,5\n3,5;4,5\n",
    "UTF-16": TABLE.encode("utf-16"),
    "Latin-1": "größe,y\n1,2\n".encode("latin-1"),
    "zero bytes": b"1,2\n3,\x004\n",
    "an open quote": b'1,2\n"3,4\n',
    "a quote inside": b'1,2\n"3"4,5\n',
    "a huge cell": b"1,2\n3," + b"4" * 200_000 + b"\n",
    "a script": b"1,2\n<script>alert(1)</script>,3\n",
    "a formula": b"1,2\n=cmd|' /C calc'!A0,3\n",
    "terminal codes": b"1,2\n\x1b[31mred,3\n",
    "a page": b"<html>\n<body>1,2</body>\n",
    "noise": bytes(np.random.default_rng(1).integers(128, 256, 500, dtype=np.uint8)),
}
"""Contents of damaged `.csv` files."""

PARQUETS = {
    "empty": b"",
    "noise": bytes(range(256)),
    "magic alone": b"PAR1PAR1",
    "a wild footer": b"PAR1" + bytes(40) + struct.pack("<I", 2**31 - 1) + b"PAR1",
    "a damaged footer": b"PAR1" + b"\xff" * 64 + struct.pack("<I", 64) + b"PAR1",
    "a pickle": pickle.dumps(Evil()),
}
"""Contents of damaged `.parquet` files."""


# Places


def _folder(folder: Path) -> str:
    (folder / "folder.npy").mkdir()
    return str(folder / "folder.npy")


def _dangling(folder: Path) -> str:
    (folder / "dangling.npy").symlink_to(folder / "gone.npy")
    return str(folder / "dangling.npy")


def _loop(folder: Path) -> str:
    (folder / "loop.npy").symlink_to(folder / "loop.npy")
    return str(folder / "loop.npy")


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe.npy")
    return str(folder / "pipe.npy")


PLACES: dict[str, Make] = {
    "a missing file": lambda folder: str(folder / "missing.npy"),
    "a missing folder": lambda folder: str(folder / "no" / "rows.npy"),
    "a file as a folder": lambda folder: written("f.npy", VALID)(folder) + "/rows.npy",
    "a folder": _folder,
    "a link to nothing": _dangling,
    "a link to itself": _loop,
    "a pipe": _pipe,
    "a long name": lambda folder: str(folder / ("x" * 300 + ".npy")),
    "a script as name": lambda folder: str(folder / "<script>alert(1)<" / "script>.npy"),
    "a name of two lines": lambda folder: str(folder / "two\nlines.npy"),
    "no suffix": written("rows", VALID),
    "text": written("rows.txt", TABLE.encode()),
    "an archive of arrays": written("rows.npz", VALID),
    "a pickle": written("rows.pkl", pickle.dumps(Evil())),
    "tensors": written("rows.pt", pickle.dumps(Evil())),
    "a table": written("rows.xlsx", b"PK"),
    "up and away": lambda folder: str(folder / ".." / ".." / "nowhere" / "rows.npy"),
}
"""Paths at which there is no file to read."""

FILES: dict[str, Make] = {
    **{f".npy, {name}": written("rows.npy", data) for name, data in ARRAYS.items()},
    **{f".csv, {name}": written("rows.csv", data) for name, data in TABLES.items()},
    **{f".parquet, {name}": written("r.parquet", data) for name, data in PARQUETS.items()},
    **PLACES,
}
"""All files of rows that no command can use."""


# Models as tensors


def safetensors(header: dict | bytes, body: bytes = b"") -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + body


def described(model: object, tensors: dict | None = None, body: bytes = b"") -> bytes:
    """A file of tensors that describes a model."""
    about = {"format": "pushforward model, version 1"}
    about["model"] = model if isinstance(model, str) else json.dumps(model)
    return safetensors({"__metadata__": about, **(tensors or {})}, body)


LINEAR = {"class": "nn.Linear", "in_features": 2, "out_features": 2, "bias": False}
NUMBERS = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
WEIGHT = {"weight": NUMBERS}

MODELS = {
    "empty": b"",
    "short": b"\x01\x02",
    "a wild length": struct.pack("<Q", 2**60) + b"{}",
    "a negative length": b"\xff" * 8 + b"{}",
    "no JSON": safetensors(b"{not json"),
    "a list": safetensors(b"[]"),
    "cut": described(LINEAR, WEIGHT, bytes(16))[:-5],
    "numbers missing": described(LINEAR, WEIGHT),
    "overlap": described(LINEAR, {**WEIGHT, "more": WEIGHT["weight"]}, bytes(16)),
    "wild shape": described(
        LINEAR,
        {"weight": {"dtype": "F32", "shape": [2**40, 2], "data_offsets": [0, 16]}},
        bytes(16),
    ),
    "unknown dtype": described(
        LINEAR, {"weight": {"dtype": "Q9", "shape": [2, 2], "data_offsets": [0, 16]}}, bytes(16)
    ),
    "no description": safetensors(WEIGHT, bytes(16)),
    "a pickle": pickle.dumps(Evil()),
    "an archive": b"PK\x03\x04" + bytes(60),
    "description no JSON": described("{", WEIGHT, bytes(16)),
    "description a number": described(3, WEIGHT, bytes(16)),
    "description a list": described([LINEAR], WEIGHT, bytes(16)),
    "deep description": described("[" * 100_000, WEIGHT, bytes(16)),
    "parts in parts": described(
        '{"class": "nn.Sequential", "args": [' * 200 + "]}" * 200, WEIGHT, bytes(16)
    ),
    "no class": described({"dim": 2}, WEIGHT, bytes(16)),
    "an unknown class": described({"class": "os.system", "command": "touch pwned"}, WEIGHT),
    "a class of Python": described({"class": "builtins.eval", "source": TOUCH}, WEIGHT),
    "a class of ours": described({"class": "Measure", "atoms": [[0.0]]}, WEIGHT, bytes(16)),
    "no module": described({"class": "Dot"}, WEIGHT, bytes(16)),
    "an unknown argument": described({**LINEAR, "code": TOUCH}, WEIGHT, bytes(16)),
    "a missing argument": described({"class": "nn.Linear"}, WEIGHT, bytes(16)),
    "a wrong argument": described({**LINEAR, "in_features": "2"}, WEIGHT, bytes(16)),
    "a wrong size": described({**LINEAR, "in_features": 3}, WEIGHT, bytes(16)),
    "a huge size": described({**LINEAR, "in_features": 10**18}, WEIGHT, bytes(16)),
    "a large size": described({**LINEAR, "in_features": 2**30}, WEIGHT, bytes(16)),
    "a tensor too few": described({**LINEAR, "bias": True}, WEIGHT, bytes(16)),
    "a tensor too many": described({"class": "nn.Identity", "args": []}, WEIGHT, bytes(16)),
    "depth without end": described({"class": "Transformer", "dim": 2, "depth": 10**9}, WEIGHT),
    "a claimed tensor": described(
        {"class": "SelfAttention", "Q": {"tensor": [10**9, 10**9]}}, WEIGHT, bytes(16)
    ),
}
"""Contents of damaged `.safetensors` files."""
