"""One part of an audit: a verdict, numbers, pictures, a seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Status = Literal["good", "noted", "bad", "absent", "failed"]
"""As it should be; worth a look; refuted; nothing to see; could not be looked at."""


@dataclass(frozen=True, eq=False)
class Section:
    """What one part of an audit found.

    Args:
        name: which part.
        status: how that is.
        verdict: what was found, in a sentence.
        lines: more of it, a sentence each.
        numbers: all that was measured, as plain numbers, lists and dictionaries.
        plots: pictures of it, as plain data of Plotly.
        seed: of all that was random.
    """

    name: str
    status: Status
    verdict: str
    lines: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    plots: Sequence[Mapping[str, Any]] = ()
    seed: int = 0

    def figures(self) -> list[Figure]:
        """The pictures as figures of Plotly, to show or to change."""
        try:
            from plotly.graph_objects import Figure
        except ImportError as error:
            raise ImportError("Figures need Plotly: `pip install plotly`.") from error
        return [Figure({k: plot[k] for k in ("data", "layout")}) for plot in self.plots]

    def to_dict(self) -> dict[str, Any]:
        """All but the pictures, as plain data."""
        return {
            "name": self.name,
            "status": self.status,
            "verdict": self.verdict,
            "lines": list(self.lines),
            "numbers": plain(self.numbers),
            "seed": self.seed,
        }

    def __str__(self) -> str:
        head = f"[{self.status:>6}] {self.name}: {self.verdict}"
        return "\n".join([head, *(f"           {line}" for line in self.lines)])


def plain(x: Any) -> Any:
    """As data that JSON has: what is no finite number becomes None."""
    if isinstance(x, Mapping):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x


def count(n: int, what: str) -> str:
    """So many of something."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
