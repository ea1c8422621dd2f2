"""Older audits, as `pushforward audit --json` wrote them."""

import json
from pathlib import Path
from typing import Any

from ...auditing import Audit
from ._plain import plain_file, size

LARGEST = 256 << 20
"""Bytes that an audit with all its figures does not reach."""


def read_audit(path: Path) -> dict[str, Any]:
    """The data of an older audit, checked before a new one is made to compare it with.

    Args:
        path: the file.
    """
    plain_file(path, (".json",), "an audit")
    name = repr(str(path))
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{name} has {size(path.stat().st_size)}: it is no audit.")
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is no JSON: {error}.") from None
    try:
        Audit("", "", "", 0).compare(data)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is no audit. {error}") from None
    return data
