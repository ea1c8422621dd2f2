"""One finding of an audit: what was claimed, what was seen, what it means and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ...pictures import STATUS

Status = Literal["holds", "open", "refuted", "untried", "unable", "measured"]
"""The five words of our pages, and "measured" for numbers without a claim."""

LABEL: dict[str, str] = {**STATUS, "measured": "Measured"}
"""The words that a reader sees for each status."""

ORDER: tuple[Status, ...] = ("refuted", "unable", "open", "measured", "holds", "untried")
"""Statuses, the most urgent first."""


@dataclass(frozen=True)
class Finding:
    """What one test or measurement of an audit has shown.

    Args:
        section: the section that it belongs to.
        name: what was tested or measured, one word or a few. Names do not change with the result,
            so that two audits can be compared.
        status: `"holds"`, `"open"` (not refuted), `"refuted"`, `"untried"`, `"unable"` (could not
            be tried) or `"measured"` (a number without a claim).
        claim: what was tested, such as "that the order of tokens does not matter".
        said: what was seen, in a sentence, with its size in units of the outputs.
        meaning: what that means.
        cause: the likely cause, empty if nothing is amiss.
        change: what to change, empty if nothing need be.
        terms: the technical terms in these sentences, keys of the glossary.
        effect: how far outputs moved, as a share of their size; None where that has no meaning.
        figure: which figure of the section shows it.
    """

    section: str
    name: str
    status: Status
    claim: str
    said: str
    meaning: str = ""
    cause: str = ""
    change: str = ""
    terms: tuple[str, ...] = ()
    effect: float | None = None
    figure: int | None = None

    @property
    def notable(self) -> bool:
        """Whether it asks for a look: refuted, not tried for a reason, or with advice."""
        return self.status in ("refuted", "unable") or bool(self.change)

    @property
    def line(self) -> str:
        """The finding in one line: status, claim and what was seen."""
        return f"{LABEL[self.status]}: {self.claim}. {self.said}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as data that JSON can hold."""
        effect = self.effect
        return {
            "section": self.section, "name": self.name, "status": self.status,
            "claim": self.claim, "said": self.said, "meaning": self.meaning, "cause": self.cause,
            "change": self.change, "terms": list(self.terms),
            "effect": None if effect is None or not math.isfinite(effect) else effect,
            "figure": self.figure,
        }  # fmt: skip


@dataclass(frozen=True)
class NotTried:
    """A check that was not made.

    Args:
        name: of the check.
        why: why it was not made, in a sentence.
        how: what to give so that it is made, in a sentence; empty if it cannot be made.
    """

    name: str
    why: str
    how: str = ""

    def to_dict(self) -> dict[str, str]:
        """The check as data that JSON can hold."""
        return {"name": self.name, "why": self.why, "how": self.how}


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The most urgent first: refuted, then what asks for a look; of these the larger effect first.

    Args:
        findings: in the order of the sections, which the others keep.
    """

    def urgency(f: Finding) -> tuple[int, bool, int, float]:
        first = ORDER.index(f.status) if f.status in ("refuted", "unable") else len(ORDER)
        effect = (f.effect or 0.0) if f.notable else 0.0
        return first, not f.notable, 0 if f.notable else ORDER.index(f.status), -effect

    return tuple(sorted(findings, key=urgency))


def worst(findings: Iterable[Finding]) -> Status:
    """The most urgent status of several findings, "untried" if there are none.

    Args:
        findings: of one section.
    """
    seen = {finding.status for finding in findings}
    return next((status for status in ORDER if status in seen), "untried")
