"""One section of an audit: a verdict, its numbers and charts, and the seed that repeats it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..pictures import Chart

Status = Literal["good", "noted", "bad", "absent", "failed"]
"""As it should be; noteworthy; refuted; does not apply; could not be tested."""


@dataclass(frozen=True, eq=False)
class Section:
    """The result of one section of an audit.

    Args:
        name: the name of the section.
        status: `"good"`, `"noted"` (noteworthy), `"bad"` (refuted), `"absent"` (does not apply) or
            `"failed"` (could not be tested).
        verdict: the result in a sentence.
        lines: details, a sentence each.
        numbers: everything that was measured, as numbers, lists and dictionaries.
        plots: what a page draws.
        seed: the seed of all random draws of this section.
        tried: the checks that were made, for a section of several.
        not_tried: checks that would apply but were not made, each with the reason.
    """

    name: str
    status: Status
    verdict: str
    lines: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    plots: Sequence[Chart] = ()
    seed: int = 0
    tried: Sequence[str] = ()
    not_tried: Mapping[str, str] = field(default_factory=dict)

    def figures(self) -> list[Chart]:
        """The figures, as plain data to draw or to change."""
        return list(self.plots)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the plots, as data that JSON can hold."""
        return {
            "name": self.name,
            "status": self.status,
            "verdict": self.verdict,
            "lines": list(self.lines),
            "tried": list(self.tried),
            "not_tried": dict(self.not_tried),
            "numbers": json_data(self.numbers),
            "seed": self.seed,
        }

    def __str__(self) -> str:
        head = f"[{self.status:>6}] {self.name}: {self.verdict}"
        missing = [f"{name}: not tried, {reason}" for name, reason in self.not_tried.items()]
        return "\n".join([head, *(f"           {line}" for line in [*self.lines, *missing])])


def json_data(x: Any) -> Any:
    """Numbers, lists and dictionaries as JSON can hold them: NaN and infinity become None."""
    if isinstance(x, Mapping):
        return {str(k): json_data(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [json_data(v) for v in x]
    if isinstance(x, float) and not math.isfinite(x):
        return None
    return x


def count(n: int, what: str) -> str:
    """A number and a noun, in the plural unless the number is 1."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
