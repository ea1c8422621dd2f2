"""Two audits compared: which findings are new, gone, or of another size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from ._finding import LABEL, ORDER, Finding, Status
from ._numbers import share

SCHEMA = 1
"""The version of the layout of an audit as JSON; it changes if a key changes its meaning."""

GROWN = 0.1
"""A size that changes by less than this share of itself counts as the same."""

MOST_FINDINGS = 1000
"""More than any audit has."""

LONGEST = 10_000
"""The most characters of a sentence of a finding."""

LARGEST = 1e300
"""Effects beyond this are no numbers."""

RUN = {"model": str, "data": str, "mode": str, "seed": int, "version": str, "date": str}
"""What says how an audit was run, and of which kind it is."""

WORDS = ("section", "name", "status", "claim", "said", "meaning", "cause", "change")
"""The keys of a finding that are words."""

FIX = 'Give the JSON that `report.save("audit.json")` writes.'


@dataclass(frozen=True, eq=False)
class Comparison:
    """What has changed between an old audit and a new one.

    Args:
        model: the name of the model of the new audit.
        old_date: the day of the old audit.
        new: findings that the old audit did not have.
        gone: findings of the old audit that the new one does not have.
        changed: pairs of an old and a new finding of other status or size.
        same: how many findings are the same.
        remarks: what else is different, such as the data, a sentence each.
    """

    model: str
    old_date: str
    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    changed: tuple[tuple[Finding, Finding], ...]
    same: int
    remarks: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[Finding, ...]:
        """Findings of the new audit that are refuted or could not be tried, and were not before.

        A refuted finding that has grown is one of them. So is an order that matters, if it did
        not before and nobody said that the model is one of sequences.
        """
        bad = ("refuted", "unable")
        turned = [new for old, new in self.changed if new.status in bad and _is_worse(old, new)]
        reads = [f for f in self.new if f.name == "order" and f.notable and self._was_free]
        return (*(f for f in self.new if f.status in bad), *reads, *turned)

    @property
    def _was_free(self) -> bool:
        """Whether the order did not matter in the old audit."""
        return any(f.name == "permutation" and f.status in ("holds", "open") for f in self.gone)

    @property
    def exit_code(self) -> int:
        """What a command returns to its shell.

        0 if nothing is worse, 1 if something is refuted that was not, or more than before, or the
        order matters and did not, 3 if something could not be tried that could be before.
        """
        statuses = {finding.status for finding in self.worse}
        return 0 if not statuses else 3 if statuses == {"unable"} else 1

    @property
    def headline(self) -> str:
        """The result in a sentence."""
        if self.worse:
            first = self.worse[0]
            many = "A finding is" if len(self.worse) == 1 else f"{len(self.worse)} findings are"
            return f"{many} worse. The first: {first.said}"
        if self.new or self.gone or self.changed:
            return "Something has changed, and nothing is worse."
        return "Nothing has changed."

    def to_dict(self) -> dict[str, Any]:
        """The comparison as data that JSON can hold."""
        return {
            "schema": SCHEMA, "model": self.model, "old_date": self.old_date,
            "headline": self.headline, "exit_code": self.exit_code,
            "worse": [f.to_dict() for f in self.worse],
            "new": [f.to_dict() for f in self.new],
            "gone": [f.to_dict() for f in self.gone],
            "changed": [{"old": a.to_dict(), "new": b.to_dict()} for a, b in self.changed],
            "same": self.same, "remarks": list(self.remarks),
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"Audit of {self.model}, compared with that of {self.old_date}"
        yield self.headline
        yield from self.remarks
        for title, findings in (("New", self.new), ("Gone", self.gone)):
            if findings:
                yield from ("", title, *(f"  {finding.line}" for finding in findings))
        if self.changed:
            yield from ("", "Changed")
            for old, new in self.changed:
                yield f"  {LABEL[new.status]}: {new.claim}. {_change(old, new)}"
                yield f"    Now: {new.said}"
                yield f"    Before: {old.said}"
        yield from ("", f"The same: {self.same} findings.")


def compared(new: Mapping[str, Any], old: Mapping[str, Any]) -> Comparison:
    """Compare the data of two audits.

    Args:
        new: an audit as `Audit.to_dict` makes it.
        old: another, perhaps read from a file. It is checked and nothing in it is run.
    """
    after, before = _findings(new), _findings(old)
    both = {s["name"] for s in new["sections"]} & _sections(old)
    shared = [key for key in after if key in before]
    changed = [(before[k], after[k]) for k in shared if _differ(before[k], after[k])]
    return Comparison(
        new["model"], old["date"],
        tuple(f for key, f in after.items() if key not in before and f.section in both),
        tuple(f for key, f in before.items() if key not in after and f.section in both),
        tuple(changed), len(shared) - len(changed),
        tuple(_remarks(new, old, both)),
    )  # fmt: skip


def _remarks(new: Mapping[str, Any], old: Mapping[str, Any], both: set[str]) -> Iterator[str]:
    """What else is different between the two audits."""
    for key in ("model", "data", "mode", "seed", "version"):
        if new[key] != old[key]:
            yield f"The {key} is not the same: {new[key]} now, {old[key]} before."
    for one, other, when in ((new, both, "now"), (old, both, "before")):
        alone = [s["name"] for s in one["sections"] if s["name"] not in other]
        if alone:
            yield f"Not compared, because they were run only {when}: {', '.join(alone)}."


def _differ(old: Finding, new: Finding) -> bool:
    """Whether a finding has another status, another size, or asks for a look and did not."""
    if old.status != new.status or old.notable != new.notable:
        return True
    # What was not refuted moves outputs by no more than rounding, which is noise.
    return new.status in ("refuted", "measured") and _ratio(old, new) > 1 + GROWN


def _ratio(old: Finding, new: Finding) -> float:
    """How many times larger the larger effect is, 1 if there are none."""
    if old.effect is None or new.effect is None or old.effect == new.effect:
        return 1.0
    small, large = sorted((old.effect, new.effect))
    return large / small if small > 0 else math.inf


def _is_worse(old: Finding, new: Finding) -> bool:
    """Whether a refuted finding was not refuted before, or was smaller."""
    if old.status != new.status:
        return ORDER.index(new.status) < ORDER.index(old.status)
    return (new.effect or 0.0) > (old.effect or 0.0)


def _change(old: Finding, new: Finding) -> str:
    """What has changed, in a sentence."""
    if old.status != new.status:
        return f"Before: {LABEL[old.status].lower()}."
    if old.effect is not None and new.effect is not None and old.effect != new.effect:
        way = "grown" if new.effect > old.effect else "fallen"
        return f"It has {way} from {share(old.effect)} to {share(new.effect)}."
    return "It asks for a look now." if new.notable else "It asks for no look any more."


# Checks of data that a user hands us.


def _findings(audit: Any) -> dict[tuple[str, str], Finding]:
    """The findings of an audit by section and name; an error if it is no audit."""
    if not isinstance(audit, Mapping):
        raise TypeError(f"`old` must be an audit as a dictionary, got {_kind(audit)}. {FIX}")
    if audit.get("schema") != SCHEMA or isinstance(audit.get("schema"), bool):
        given = repr(audit["schema"])[:40] if "schema" in audit else "none"
        raise ValueError(f"`old` must be an audit whose `schema` is {SCHEMA}, got {given}. {FIX}")
    for key, kind in RUN.items():
        _checked(audit, key, kind, "`old`")
    found = _checked(audit, "findings", list, "`old`")
    if len(found) > MOST_FINDINGS:
        raise ValueError(
            f"`old` must have at most {MOST_FINDINGS} findings, got {len(found)}. {FIX}"
        )
    _sections(audit)
    return {(f.section, f.name): f for f in (_finding(each, k) for k, each in enumerate(found))}


def _sections(audit: Mapping[str, Any]) -> set[str]:
    """The names of the sections of an audit that were run."""
    sections = _checked(audit, "sections", list, "`old`")
    if len(sections) > MOST_FINDINGS:
        raise ValueError(f"`old` must have a few sections, got {len(sections)}. {FIX}")
    for k, section in enumerate(sections):
        if not isinstance(section, Mapping):
            raise ValueError(
                f"Section {k} of `old` must be a dictionary, got {_kind(section)}. {FIX}"
            )
    return {
        _checked(section, "name", str, f"section {k} of `old`")
        for k, section in enumerate(sections)
    }


def _finding(data: Any, k: int) -> Finding:
    """One finding, checked."""
    where = f"finding {k} of `old`"
    if not isinstance(data, Mapping):
        raise ValueError(
            f"{where[:1].upper()}{where[1:]} must be a dictionary, got {_kind(data)}. {FIX}"
        )
    words = {key: _checked(data, key, str, where) for key in WORDS}
    if words["status"] not in ORDER:
        known = ", ".join(ORDER)
        raise ValueError(
            f"`status` of {where} must be one of {known}, got {words['status'][:40]!r}. {FIX}"
        )
    effect = data.get("effect")
    number = isinstance(effect, (int, float)) and not isinstance(effect, bool)
    if effect is not None and not (number and 0 <= effect < LARGEST):
        raise ValueError(
            f"`effect` of {where} must be a number from 0 or null, got {repr(effect)[:40]}. {FIX}"
        )
    status = cast(Status, words.pop("status"))
    return Finding(**words, status=status, effect=None if effect is None else float(effect))


def _checked(data: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """The value of a key; an error unless it is of the right kind."""
    value = data.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        given = "nothing" if key not in data else _kind(value)
        raise ValueError(f"`{key}` of {where} must be a {kind.__name__}, got {given}. {FIX}")
    if isinstance(value, str) and (len(value) > LONGEST or not _printable(value)):
        raise ValueError(f"`{key}` of {where} must be readable text of at most {LONGEST} "
                         f"characters. {FIX}")  # fmt: skip
    return value


def _printable(text: str) -> bool:
    """Whether a text has no characters that control a terminal."""
    return all(letter.isprintable() or letter == "\n" for letter in text)


def _kind(value: object) -> str:
    return type(value).__name__
