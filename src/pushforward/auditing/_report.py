"""The report of an audit, as text, as numbers and as a page."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._tools.checks import check_kind, check_path
from .._tools.output import atomic_file
from ._page import page
from ._section import Section, Status, json_data


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found out about a model.

    Args:
        model: the name of the model.
        how: how it was called.
        data: what it was called with, in words.
        seed: the seed of all random draws.
        sections: the results.
        problem: why the model could not be audited, None if it could.
        required: sections and checks that must have been tried.

    Examples:
        >>> report = pf.audit(torch.tanh, torch.randn(50, 4), sections=["symmetries"])
        >>> report["symmetries"].status
        'good'
    """

    model: str
    how: str
    data: str
    seed: int
    sections: tuple[Section, ...] = ()
    problem: str | None = None
    required: tuple[str, ...] = ()

    @property
    def not_tried(self) -> dict[str, str]:
        """Checks that would apply but were not made, each with the reason."""
        return {name: why for s in self.sections for name, why in s.not_tried.items()}

    @property
    def missing(self) -> list[str]:
        """What is required and was not tried."""
        done = {s.name for s in self.sections if s.status not in ("absent", "failed")}
        done |= {name for s in self.sections for name in s.tried}
        return [name for name in self.required if name not in done]

    @property
    def verdict(self) -> str:
        """The result of all sections in a sentence."""
        if self.problem is not None:
            return f"could not be audited: {self.problem}"
        refuted = [f"{s.name}: {s.verdict}" for s in self.sections if s.status == "bad"]
        parts = refuted or ["nothing refuted"]
        if self.missing:
            parts.append(f"required but not tried: {', '.join(self.missing)}")
        skipped = [name for name in self.not_tried if name not in self.missing]
        if skipped:
            parts.append(f"not tried: {', '.join(skipped)}")
        for status, text in (("failed", "could not be tested"), ("noted", "noteworthy")):
            names = [s.name for s in self.sections if s.status == status]
            parts += [f"{text}: {', '.join(names)}"] if names else []
        return "; ".join(parts)

    @property
    def exit_code(self) -> int:
        """What a command returns to its shell.

        0 if nothing is refuted, 1 if something is or a required check was not tried, 3 if
        something could not be tried. (2 is a wrong use of the command, 130 an interruption.)
        """
        statuses = {s.status for s in self.sections}
        if "bad" in statuses or (self.missing and self.problem is None):
            return 1
        return 3 if self.problem is not None or "failed" in statuses else 0

    def __getitem__(self, name: str) -> Section:
        """The section of this name."""
        check_kind("name", name, str, 'For example `"symmetries"`.')
        for section in self.sections:
            if section.name == name:
                return section
        known = ", ".join(s.name for s in self.sections) or "none"
        raise KeyError(f"There is no section {name!r}; there are: {known}.")

    def __str__(self) -> str:
        head = [f"Audit of {self.model}", f"  {self.how}", f"  {self.data}, seed {self.seed}"]
        return "\n".join([*head, f"  {self.verdict}", "", *map(str, self.sections)]).rstrip()

    def to_json(self) -> str:
        """All numbers, as JSON."""
        return json.dumps(
            {
                "model": self.model, "how": self.how, "data": self.data, "seed": self.seed,
                "verdict": self.verdict, "exit_code": self.exit_code,
                "required": list(self.required), "not_tried": self.not_tried,
                "sections": [s.to_dict() for s in self.sections],
            },
            indent=2, allow_nan=False,
        )  # fmt: skip

    def to_html(self) -> str:
        """One HTML page with all figures inside, readable without a network."""
        return page(_record(self))

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


WORD: dict[Status, str] = {
    "good": "open", "noted": "measured", "bad": "refuted", "absent": "untried", "failed": "unable",
}  # fmt: skip
"""The words of a page for those of a section."""


def _record(audit: Audit) -> dict[str, Any]:
    """An audit as its page shows it: one finding for each section."""
    sections = [
        {"name": s.name, "title": s.name.capitalize(), "status": WORD[s.status], "said": s.verdict,
         "lines": list(s.lines), "numbers": json_data(s.numbers), "seed": s.seed,
         "figures": [figure.to_dict() for figure in s.figures()]}
        for s in audit.sections
    ]  # fmt: skip
    findings = [
        {"section": s["name"], "status": s["status"], "claim": "", "said": s["said"],
         "meaning": "", "cause": "", "change": "", "terms": [], "effect": None, "figure": None}
        for s in sections
    ]  # fmt: skip
    return {
        "model": audit.model, "how": audit.how, "data": audit.data, "mode": "",
        "seed": audit.seed, "version": version("pushforward"), "date": str(date.today()),
        "headline": audit.verdict, "exit_code": audit.exit_code, "findings": findings,
        "terms": {}, "sections": sections,
        "not_tried": [{"name": n, "why": why, "how": ""} for n, why in audit.not_tried.items()],
    }  # fmt: skip
