"""One section of an audit: what it says, its findings, numbers and charts, and its seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..pictures import Chart
from .findings import LABEL, Finding, NotTried, Status, worst


@dataclass(frozen=True, eq=False)
class Section:
    """The result of one section of an audit.

    Args:
        name: the name of the section.
        said: the result in a sentence or two.
        findings: what was found, a finding each; none if the section does not apply.
        lines: details, a sentence each.
        numbers: everything that was measured, as numbers, lists and dictionaries.
        plots: what a page draws.
        seed: the seed of all random draws of this section.
        tried: the checks that were made, for a section of several.
        not_tried: checks that were not made, each with the reason.

    Examples:
        >>> report = pf.audit(torch.tanh, torch.randn(50, 4), sections=["symmetries"])
        >>> section = report["symmetries"]
        >>> section.status, section.tried
        ('open', ('permutation', 'duplication', 'equal tokens'))
    """

    name: str
    said: str
    findings: Sequence[Finding] = ()
    lines: Sequence[str] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    plots: Sequence[Chart] = ()
    seed: int = 0
    tried: Sequence[str] = ()
    not_tried: Sequence[NotTried] = ()

    @property
    def title(self) -> str:
        """The name as a heading."""
        return self.name.capitalize()

    @property
    def status(self) -> Status:
        """The most urgent status of the findings, `"untried"` if there are none."""
        return worst(self.findings)

    def figures(self) -> list[Chart]:
        """The figures, as plain data to draw or to change."""
        return list(self.plots)

    def to_dict(self) -> dict[str, Any]:
        """The section as data that JSON can hold; the findings stand in the audit."""
        return {
            "name": self.name,
            "title": self.title,
            "status": self.status,
            "said": self.said,
            "lines": list(self.lines),
            "tried": list(self.tried),
            "numbers": json_data(self.numbers),
            "seed": self.seed,
            "figures": json_data([chart.to_dict() for chart in self.plots]),
        }

    def __str__(self) -> str:
        head = f"{self.title}: {LABEL[self.status].lower()}, seed {self.seed}. {self.said}"
        return "\n".join([head, *(f"    {line}" for line in self.lines)])


def untried(name: str, why: str, how: str = "") -> Section:
    """A section that does not apply.

    Args:
        name: the name of the section.
        why: why it was not tried, in a sentence.
        how: what to give so that it is tried, in a sentence.
    """
    return Section(name, why, not_tried=(NotTried(name, why, how),))


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
