"""The report of an audit, as text, as numbers and as a page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import wrap
from typing import Any

from .._tools.checks import check_kind, check_path
from .._tools.output import atomic_file
from ._model import Mode
from ._page import page
from ._section import Section, count
from .findings import (
    LABEL,
    SCHEMA,
    TERMS,
    Comparison,
    Finding,
    NotTried,
    compared,
    sort_findings,
)

WIDTH = 96
"""The most characters of a line of the text."""


def _version() -> str:
    """The version of this library, "unknown" where it is not installed."""
    try:
        return version("pushforward")
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found out about a model.

    Args:
        model: the name of the model.
        how: how it was called, in sentences.
        data: what it was called with, in words.
        seed: the seed of all random draws.
        sections: the results.
        problem: why the model could not be audited, None if it could.
        required: sections and checks that must have been tried.
        mode: whether it was audited as a model of sets or of sequences.
        version: of this library.
        date: the day of the audit.

    Examples:
        >>> report = pf.audit(torch.tanh, torch.randn(50, 4), sections=["symmetries"])
        >>> report["symmetries"].status, report.headline
        ('open', 'Nothing was refuted in 3 tests.')
        >>> report.findings[0].claim
        'that the order of the tokens does not matter'
    """

    model: str
    how: str
    data: str
    seed: int
    sections: tuple[Section, ...] = ()
    problem: str | None = None
    required: tuple[str, ...] = ()
    mode: Mode = "set"
    version: str = field(default_factory=_version)
    date: str = field(default_factory=lambda: str(date.today()))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, the most urgent first."""
        return sort_findings(f for section in self.sections for f in section.findings)

    @property
    def not_tried(self) -> tuple[NotTried, ...]:
        """Checks that were not made, each with the reason and what would make them."""
        return tuple(check for section in self.sections for check in section.not_tried)

    @property
    def missing(self) -> list[str]:
        """What is required and was not tried."""
        done = {s.name for s in self.sections if s.status not in ("untried", "unable")}
        done |= {name for s in self.sections for name in s.tried}
        return [name for name in self.required if name not in done]

    @property
    def terms(self) -> dict[str, str]:
        """The technical terms of the findings and what they mean."""
        return {name: TERMS[name] for name in TERMS if any(name in f.terms for f in self.findings)}

    @property
    def headline(self) -> str:
        """The two largest findings, in a sentence each."""
        if self.problem is not None:
            return f"It could not be audited: {self.problem}."
        refuted = [f.said for f in self.findings if f.status == "refuted"]
        parts = refuted[:2]
        if not refuted:
            tests = sum(f.status in ("open", "holds") for f in self.findings)
            tried = f" in {count(tests, 'test')}" if tests else ""
            notes = [f.said for f in self.findings if f.notable]
            parts = [f"Nothing was refuted{tried}.", *notes[:1]]
        if self.missing:
            parts.append(f"Required but not tried: {', '.join(self.missing)}.")
        return " ".join(parts)

    @property
    def verdict(self) -> str:
        """The headline, and a line for each finding and for each check that was not tried."""
        skipped = [f"Not tried: {c.name}. {c.why} {c.how}".rstrip() for c in self.not_tried]
        return "\n".join([self.headline, *(f.line for f in self.findings), *skipped])

    @property
    def exit_code(self) -> int:
        """What a command returns to its shell.

        0 if nothing is refuted, 1 if something is or a required check was not tried, 3 if
        something could not be tried. (2 is a wrong use of the command, 130 an interruption.)
        """
        statuses = {s.status for s in self.sections}
        if "refuted" in statuses or (self.missing and self.problem is None):
            return 1
        return 3 if self.problem is not None or self._unable else 0

    @property
    def _unable(self) -> bool:
        return any(f.status == "unable" for f in self.findings)

    def __getitem__(self, name: str) -> Section:
        """The section of this name."""
        check_kind("name", name, str, 'For example `"symmetries"`.')
        for section in self.sections:
            if section.name == name:
                return section
        known = ", ".join(s.name for s in self.sections) or "none"
        raise KeyError(f"There is no section {name!r}; there are: {known}.")

    def __str__(self) -> str:
        return "\n".join(_text(self)).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Everything as data that JSON can hold, figures too."""
        return {
            "schema": SCHEMA, "model": self.model, "how": self.how, "data": self.data,
            "mode": self.mode, "seed": self.seed, "version": self.version, "date": self.date,
            "headline": self.headline, "exit_code": self.exit_code,
            "required": list(self.required),
            "findings": [finding.to_dict() for finding in self.findings],
            "terms": self.terms,
            "not_tried": [check.to_dict() for check in self.not_tried],
            "sections": [section.to_dict() for section in self.sections],
        }  # fmt: skip

    def to_json(self) -> str:
        """Everything as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def compare(self, old: Mapping[str, Any]) -> Comparison:
        """What has changed since an older audit.

        Args:
            old: the older audit as data, what `json.loads` makes of a file that `save` wrote. It
                is checked, and nothing in it is run.

        Examples:
            >>> data = torch.randn(50, 4)
            >>> before = pf.audit(torch.tanh, data, sections=["symmetries"])
            >>> ordered = pf.auditing.Model(lambda x: x + x[:1], mode="set")
            >>> after = pf.audit(ordered, data, sections=["symmetries"])
            >>> comparison = after.compare(before.to_dict())
            >>> comparison.worse[0].claim, comparison.exit_code
            ('that the order of the tokens does not matter', 1)
        """
        return compared(self.to_dict(), old)

    def to_html(self) -> str:
        """One HTML page with all figures inside, readable without a network."""
        return page(self.to_dict())

    def save(self, file: str | os.PathLike) -> Path:
        """Write a page (`.html`), the numbers (`.json`) or the text (`.txt`).

        Args:
            file: the file to write; its suffix decides what is written.
        """
        check_path("file", file)
        file = Path(file)
        write = {".html": self.to_html, ".json": self.to_json, ".txt": self.__str__}
        if file.suffix not in write:
            raise ValueError(f"`file` must end in .html, .json or .txt, got {file.name!r}.")
        if not file.parent.is_dir():
            raise FileNotFoundError(f"There is no folder {str(file.parent)!r} to write into.")
        with atomic_file(file) as draft:
            draft.write_text(write[file.suffix](), encoding="utf-8")
        return file


def _text(audit: Audit) -> Iterator[str]:
    """The lines of the report as text."""
    yield f"Audit of {audit.model}"
    yield f"pushforward {audit.version}, {audit.date}, seed {audit.seed}"
    yield from _wrapped(f"{audit.how} Data: {audit.data}.")
    yield ""
    yield from _wrapped(audit.headline)
    if audit.findings:
        yield from ("", "Findings")
        for finding in audit.findings:
            yield from _finding(finding)
    if audit.not_tried:
        yield from ("", "Not tried")
        for check in audit.not_tried:
            yield from _wrapped(f"{check.name}: {check.why} {check.how}".rstrip(), 2, 4)
    if audit.findings:
        yield from ("", "Numbers")
        for section in audit.sections:
            yield f"  {section.title}: {LABEL[section.status].lower()}, seed {section.seed}"
            for line in section.lines:
                yield from _wrapped(line, 4, 6)
    if audit.terms:
        yield from ("", "Terms")
        for name, meaning in audit.terms.items():
            yield from _wrapped(f"{name}: {meaning}", 2, 4)


def _finding(finding: Finding) -> Iterator[str]:
    """The lines of a finding: one if all is as it should be, else with meaning and advice."""
    yield from _wrapped(finding.line, 2, 4)
    if finding.notable:
        parts = {
            "Meaning": finding.meaning, "Likely cause": finding.cause,
            "What to change": finding.change,
        }  # fmt: skip
        for name, text in parts.items():
            if text:
                yield from _wrapped(f"{name}: {text}", 6, 8)


def _wrapped(text: str, indent: int = 0, further: int = 0) -> list[str]:
    kept = re.sub(r" (?=[%×])|(?<=×) ", "\u00a0", text)  # a number stays in one line
    lines = wrap(
        kept, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * further,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\u00a0", " ") for line in lines]
