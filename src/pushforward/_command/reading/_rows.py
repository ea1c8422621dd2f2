"""Rows of numbers in files: `.npy`, `.csv` and `.parquet`. Nothing is unpickled.

The header of an array is read first, and what it claims is compared with the length of the file,
so a file cannot make the command reserve memory that it does not fill. Every number must be
finite; the first that is not is named by its place.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from ._plain import LARGEST, plain_file, size

SUFFIXES = (".npy", ".csv", ".parquet")
LARGEST_TABLE = 1 << 30
"""Bytes that a text file may have; its numbers take several times as much while it is read."""


def read_rows(path: Path, *, sets: bool = False) -> np.ndarray:
    """Points from a file, `(n, d)`, in float64 unless the file holds other floating-point numbers.

    Args:
        path: the file.
        sets: whether several sets, `(b, n, d)`, are accepted too; a `.npy` file can hold them.
    """
    values = _read(path)
    shapes = "(n, d) or (b, n, d)" if sets else "(n, d)"
    if values.ndim != 2 and not (sets and values.ndim == 3):
        hint = " Points on a line are (n, 1)." if values.ndim == 1 else ""
        raise ValueError(
            f"{_name(path)} must hold an array of shape {shapes}, got {values.shape}.{hint}"
        )
    if 0 in values.shape:
        raise ValueError(f"{_name(path)} holds no rows: its array has shape {values.shape}.")
    _check_finite(path, values)
    return values


def read_masses(path: Path, count: int) -> np.ndarray:
    """Weights of points from a file, `(n,)` or one column.

    Args:
        path: the file.
        count: the number of points.
    """
    values = _read(path)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (count,):
        raise ValueError(
            f"{_name(path)} must hold one weight for each of the {count:,} points, got an array "
            f"of shape {values.shape}."
        )
    _check_finite(path, values[:, None])
    if (values < 0).any():
        row = int(np.argmax(values < 0))
        raise ValueError(
            f"{_name(path)} must hold no negative weights, got {values[row]:g} in row {row} "
            "(counted from 0)."
        )
    if not (values > 0).any():
        raise ValueError(f"{_name(path)} must hold a positive weight, and all are 0.")
    return values


def _read(path: Path) -> np.ndarray:
    """The array in a file, of whatever shape."""
    suffix = plain_file(path, SUFFIXES, "numbers")
    return {".npy": _npy, ".csv": _csv, ".parquet": _parquet}[suffix](path)


def _name(path: Path) -> str:
    return repr(str(path))


def _check_finite(path: Path, values: np.ndarray) -> None:
    """Raise unless every number is finite, and name the first row that is not."""
    good = np.isfinite(values).all(-1)
    if good.all():
        return
    at = np.argwhere(~good)[0]
    row = np.asarray(values[tuple(at)])
    column = int(np.argmax(~np.isfinite(row)))
    of = f" of set {at[0]}" if len(at) == 2 else ""
    many = int((~good).sum())
    more = f" {many} rows are not finite." if many > 1 else ""
    where = f"row {at[-1]}{of}, column {column} (counted from 0)"
    if path.suffix.lower() == ".csv":  # a csv names the line, when it is read
        where += ", the header not counted"
    raise ValueError(
        f"{_name(path)} must hold finite numbers, got {row[column]} in {where}.{more} Remove them."
    )


# Arrays of NumPy


def _npy(path: Path) -> np.ndarray:
    """The array of a `.npy` file, after its header was compared with its length."""
    with path.open("rb") as file:
        shape, fortran, dtype = _header(path, file)
        start, total = file.tell(), path.stat().st_size
    if dtype.hasobject:
        raise ValueError(
            f"{_name(path)} holds Python objects, which would have to be unpickled and could run "
            "code. Save numbers: `np.save(file, np.asarray(rows, dtype=float))`."
        )
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise ValueError(f"{_name(path)} must hold real numbers of at most 64 bits, got {dtype}.")
    claimed, present = math.prod(shape) * dtype.itemsize, total - start
    if claimed != present:
        words = "It was cut off" if claimed > present else "It has something after its array"
        raise ValueError(
            f"{_name(path)} is damaged: its header claims {_times(shape)} numbers of {dtype}, "
            f"{size(claimed)}, and {size(present)} follow. {words}, or its header is wrong."
        )
    flat = np.fromfile(path, dtype, offset=start)
    values = flat.reshape(shape, order="F" if fortran else "C")
    if dtype.kind in "iu":
        return values.astype(np.float64)
    return np.ascontiguousarray(values, dtype.newbyteorder("="))


def _header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and dtype that a `.npy` file claims."""
    read = np.lib.format
    try:
        version = read.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its version is {version}")
        found = read.read_array_header_1_0 if version == (1, 0) else read.read_array_header_2_0
        shape, fortran, dtype = found(file)
        if any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(f"its shape is {shape}")
    except Exception as error:  # the header is a Python literal, which can be wrong in many ways
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{_name(path)} is no .npy file: {reason}.") from None
    return shape, fortran, dtype


def _times(shape: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" if n < 10**15 else f"{n:.3g}" for n in shape) or "1"


# Tables of text


def _csv(path: Path) -> np.ndarray:
    """The numbers of a `.csv` file; its first line may name the columns."""
    if path.stat().st_size > LARGEST_TABLE:
        raise ValueError(
            f"{_name(path)} has {size(path.stat().st_size)}, and a text file may have "
            f"{size(LARGEST_TABLE)}. Save the numbers as .npy."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{_name(path)} is no text in UTF-8: byte {error.start} is wrong. Save it as UTF-8."
        ) from None
    if "\0" in text:
        raise ValueError(f"{_name(path)} is no text: it contains zero bytes.")
    rows: list[list[float]] = []
    header: list[str] | None = None
    for line, cells in _lines(path, text):
        numbers = [_number(cell) for cell in cells]
        if header is None and not rows and any(x is None for x in numbers):
            header = cells
            continue
        width = len(rows[0]) if rows else len(header or cells)
        if len(cells) != width:
            raise ValueError(
                f"{_name(path)}, line {line}, has {len(cells)} cells and should have {width}, as "
                "the lines before."
            )
        for column, (cell, x) in enumerate(zip(cells, numbers, strict=True)):
            if x is None or not math.isfinite(x):
                title = f" ({_short(header[column])})" if header else ""
                raise ValueError(
                    f"{_name(path)}, line {line}, column {column + 1}{title}, must be a finite "
                    f"number, got {_short(cell)}."
                )
        rows.append([x for x in numbers if x is not None])
    if not rows:
        raise ValueError(f"{_name(path)} holds no rows of numbers.")
    return np.array(rows, dtype=np.float64)


def _lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a table with their numbers, those without any cell left out."""
    first = text[: text.find("\n")] if "\n" in text else text
    delimiter = next((d for d in ",;\t" if d in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(f"{_name(path)}, line {reader.line_num}: {error}.") from None


def _number(cell: str) -> float | None:
    """The number in a cell, None if there is none."""
    try:
        return None if "_" in cell else float(cell)  # Python alone reads 1_000
    except ValueError:
        return None


def _short(cell: str) -> str:
    return repr(cell if len(cell) <= 24 else cell[:24] + "...")


# Tables of Parquet


def _parquet(path: Path) -> np.ndarray:
    """The numbers of a `.parquet` file, all of whose columns must be numbers."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{_name(path)} needs the package pyarrow: `pip install pyarrow`. Or save the numbers "
            "as .npy or .csv."
        ) from None
    try:
        # Without the schema that Arrow and pandas store beside it: numbers need none.
        file = parquet.ParquetFile(path, arrow_extensions_enabled=False)
        _check_table(path, file.metadata.num_rows, file.schema_arrow, pyarrow)
        table = file.read(use_threads=False)
        columns = [np.asarray(c.to_numpy(), dtype=np.float64) for c in table.columns]
    except ValueError as error:
        if str(error).startswith(_name(path)):
            raise
        raise _damaged(path, error) from None
    except Exception as error:  # a damaged file can break any part of the reader
        raise _damaged(path, error) from None
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            row = column.is_null().to_numpy().argmax()
            raise ValueError(
                f"{_name(path)} has no number in row {row} (counted from 0) of column "
                f"{_short(name)}. Remove such rows."
            )
    return np.stack(columns, -1) if columns else np.empty((0, 0))


def _damaged(path: Path, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:160]
    return ValueError(f"{_name(path)} is damaged or no .parquet file: {reason}.")


def _check_table(path: Path, rows: int, schema: Any, pyarrow: Any) -> None:
    """Raise unless a table has numbers only, and as many as fit."""
    for field in schema:
        kind = field.type
        if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
            raise ValueError(
                f"{_name(path)} must hold numbers only, and column {_short(field.name)} is of "
                f"type {kind}. Leave it out."
            )
    need = rows * len(schema) * 8
    if need > LARGEST:
        raise ValueError(
            f"{_name(path)} claims {rows:,} rows of {len(schema)} numbers, {size(need)}, more "
            f"than {size(LARGEST)}. Give a part of it."
        )
