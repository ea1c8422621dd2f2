"""The page of an audit: what was found, what it means, and the figures that show it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from ..pictures import MEASURED, STATUS, chip, figure, frame, mark, typeset

Record = Mapping[str, Any]
"""An audit, a finding or a section as plain data."""

WORDS = {**STATUS, MEASURED: "Measured"}

SAYS = {
    "refuted": ("{} claim is refuted", "{} claims are refuted"),
    "open": ("{} is not refuted", "{} are not refuted"),
    "holds": ("{} holds", "{} hold"),
    "untried": ("{} was not tried", "{} were not tried"),
    "unable": ("{} could not be tried", "{} could not be tried"),
}
"""How findings of a status are counted."""

MEANING = {
    "holds": "It holds to the accuracy that is said, in everything that was tried.",
    "open": "Nothing that was tried speaks against it. That is no proof.",
    "refuted": "A case against it was found, which the seed repeats. Some symmetries are broken "
    "on purpose, such as that of order by a model of sequences.",
    "untried": "It was not tried; what would be needed is said beside it.",
    "unable": "It was tried, and something in the model or in the data forbade it.",
    MEASURED: "Numbers without a claim.",
}
"""What the words mean here."""

PARTS = {"meaning": "What it means", "cause": "Likely cause", "change": "What to change"}
"""What is said of a finding, beside its sentence."""

EXIT = {
    0: "nothing is refuted",
    1: "something is refuted, or a required check was not tried",
    3: "something could not be tried",
}
"""What the exit codes mean."""

BESIDE = 3
"""So many checks that were not tried stand beside the verdict, more below it."""

ROWS = 60
"""The most numbers of a section that its table holds; the JSON holds all."""


def page(record: Record) -> str:
    """An audit as one HTML page that needs nothing else.

    Args:
        record: the audit as plain data; `docs/audit.md` lists its keys.
    """
    findings, sections = record["findings"], record["sections"]
    run = (
        f"pushforward {record['version']}, {record['date']}, seed {record['seed']}, exit code "
        f"{record['exit_code']}"
    )
    pairs = [("Data", record["data"]), ("Called", record["how"]), ("Mode", record["mode"]),
             ("Run", run)]  # fmt: skip
    rows = "".join(f"<dt>{a}</dt><dd>{typeset(b)}</dd>" for a, b in pairs if b)
    facts = f'<dl class="facts"><dt>Model</dt><dd>{escape(record["model"])}</dd>{rows}</dl>'
    long = " long" if len(record["not_tried"]) > BESIDE else ""
    cards = "".join(_cards(findings, record["terms"], sections))
    parts = [
        f"<h1>{typeset(record['headline'])}</h1>", _lead(findings),
        f'<div class="verdict{long}"><div>{facts}{_units(findings, sections)}</div>'
        f"{_not_tried(record['not_tried'])}</div>",
        f'<section id="findings"><h2>Findings</h2>{cards}</section>' if cards else "",
        *(_section(section) for section in sections),
        _about(record),
    ]  # fmt: skip
    rail = _rail(sections, bool(cards), bool(record["not_tried"]))
    return frame(f"pushforward, audit of {record['model']}", "\n".join(parts), rail)


def _name(text: str) -> str:
    """A name in the page, for links."""
    return re.sub(r"\W+", "-", text)


def _lead(findings: Sequence[Record]) -> str:
    """How many findings there are of each status."""
    counts = {s: sum(f["status"] == s for f in findings) for s in SAYS}
    said = [SAYS[s][n > 1].format(n) for s, n in counts.items() if n]
    if not said:
        return ""
    listed = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"
    return f'<p class="lead">{listed}.</p>'


def _units(findings: Sequence[Record], sections: Sequence[Record]) -> str:
    """One mark for each finding, by section."""
    numbered = list(enumerate(findings))
    groups = []
    for section in sections:
        marks = "".join(
            f'<a class="mk {f["status"]}" href="#finding-{k}" '
            f'title="{escape(WORDS[f["status"]] + " " + f["claim"], True)}">'
            f'{mark(f["status"])}<span class="vh">{WORDS[f["status"]]} {typeset(f["claim"])}'
            "</span></a>"
            for k, f in numbered if f["section"] == section["name"]
        )  # fmt: skip
        if marks:
            title = typeset(section["title"])
            groups.append(
                f'<div class="ug"><p class="small">{title}</p><p class="us">{marks}</p></div>'
            )
    return f'<div class="units" aria-label="All findings, one mark each">{"".join(groups)}</div>'


def _not_tried(checks: Sequence[Record]) -> str:
    """What was not tried, why, and what would make it tried."""
    rows = "".join(
        f"<li><b>{typeset(c['name']).capitalize()}.</b> {typeset(_sentence(c['why']))} "
        f"{typeset(_sentence(c['how']))}</li>"
        for c in checks
    )
    if not rows:
        return ""
    return (
        f'<aside class="nottried" id="nottried"><h3>What was not tried</h3><ul>{rows}</ul></aside>'
    )


def _sentence(text: str) -> str:
    """A text with a capital and a full stop."""
    text = text[:1].upper() + text[1:] if text[:1] not in "`" else text
    return text if not text or text[-1] in ".?!" else f"{text}."


def _cards(
    findings: Sequence[Record], terms: Mapping[str, str], sections: Sequence[Record]
) -> Iterable[str]:
    """The findings, each with the terms that no finding before it explained."""
    explained: set[str] = set()
    drawn = {s["name"]: len(s["figures"]) for s in sections}
    for k, f in enumerate(findings):
        new = [term for term in f["terms"] if term in terms and term not in explained]
        explained.update(new)
        known = [term for term in f["terms"] if term in terms]
        more = "".join(
            f"<dt>{title}</dt><dd>{typeset(f[key])}</dd>" for key, title in PARTS.items() if f[key]
        )
        text = f"<h3>{typeset(f['said'])}</h3>{f'<dl>{more}</dl>' if more else ''}"
        link, index = f["section"], f["figure"]
        if index is not None and index < drawn.get(link, 0):
            link = f"{link}-{index}"
        to = f'<p class="small to"><a href="#{_name(link)}">Figures and numbers</a></p>'
        yield (
            f'<article class="finding" id="finding-{k}"><div class="head">{chip(f["status"])}'
            f'<p class="small claim">{typeset(f["claim"])}</p></div>'
            f"<div>{_linked(text, known)}{to if f['section'] in drawn else ''}</div>"
            f"{_gloss(new, terms)}</article>"
        )


def _gloss(names: Sequence[str], terms: Mapping[str, str]) -> str:
    """Terms and what they mean, to stand beside the text."""
    rows = "".join(
        f'<p id="term-{_name(t)}"><b>{typeset(t[:1].upper() + t[1:])}.</b> {typeset(terms[t])}</p>'
        for t in names
    )
    return f'<aside class="gloss" aria-label="Terms">{rows}</aside>' if rows else ""


def _linked(html: str, terms: Sequence[str]) -> str:
    """Sentences in which the first use of each term leads to its explanation."""
    for term in sorted(terms, key=len, reverse=True):
        word = rf"(?<!\w)({re.escape(typeset(term))}\w?)(?!\w)(?![^<]*>)(?![^<]*</(?:a|dt|code)>)"
        link = rf'<a class="term" href="#term-{_name(term)}">\1</a>'
        html = re.sub(word, link, html, count=1, flags=re.IGNORECASE)
    return html


def _section(section: Record) -> str:
    """Heading with its status, what was found, figures, and all numbers."""
    name = _name(section["name"])
    figures = "".join(
        figure(data, f"{name}-{k}") for k, data in enumerate(section["figures"])
    )  # fmt: skip
    drawn = f'<div class="figs">{figures}</div>' if figures else ""
    lines = "".join(f"<li>{typeset(line)}</li>" for line in section["lines"])
    details = f"<details><summary>Details</summary><ul>{lines}</ul></details>" if lines else ""
    return (
        f'<section id="{name}"><div class="sh"><h2>{typeset(section["title"])}</h2>'
        f"{chip(section['status'])}</div><p>{typeset(_sentence(section['said']))}</p>"
        f"{drawn}{details}{_numbers(section['numbers'])}</section>"
    )


def _numbers(numbers: Mapping[str, Any]) -> str:
    """The numbers of a section as a table that opens."""
    rows = list(_flat(numbers))
    cells = "".join(f"<tr><td>{escape(a)}</td><td>{typeset(b)}</td></tr>" for a, b in rows[:ROWS])
    if not cells:
        return ""
    left = len(rows) - ROWS
    more = f'<p class="small">The JSON of the audit holds {left} more.</p>' if left > 0 else ""
    return (
        "<details><summary>All numbers of this section</summary>"
        f'<div class="wide" tabindex="0"><table class="num"><tbody>{cells}</tbody></table></div>'
        f"{more}</details>"
    )


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    """Numbers of nested data with the way to each; of long lists how many there are."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}, {key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        plain = all(not isinstance(v, (Mapping, list, tuple)) for v in value)
        if plain and len(value) <= 12:
            yield name, ", ".join(map(_value, value))
        elif plain or len(value) > 12:
            yield name, f"{len(value)} entries"
        else:
            for k, inner in enumerate(value):
                yield from _flat(inner, f"{name} {k + 1}")
    else:
        yield name, _value(value)


def _value(x: Any) -> str:
    """A number with four digits."""
    if x is None:
        return "–"
    if isinstance(x, bool):
        return "yes" if x else "no"
    return f"{x:.4g}".replace("-", "−", 1) if isinstance(x, float) else str(x)


def _rail(sections: Sequence[Record], findings: bool, not_tried: bool) -> str:
    """Links to the parts of the page, with their marks."""
    links = ['<a href="#findings"><b>Findings</b></a>'] if findings else []
    for s in sections:
        word = WORDS[s["status"]].lower()
        links.append(
            f'<a class="{s["status"]}" href="#{_name(s["name"])}"><span class="mk">'
            f'{mark(s["status"])}</span>{typeset(s["title"])}<span class="vh">, {word}</span></a>'
        )
    if not_tried:
        links.append(
            f'<a class="untried" href="#nottried"><span class="mk">{mark("untried")}</span>'
            "Not tried</a>"
        )
    links.append('<a href="#about">About this audit</a>')
    return f'<nav aria-label="Parts of this page">{"".join(links)}</nav>'


def _about(record: Record) -> str:
    """What is needed to repeat the audit and to read it."""
    code = record["exit_code"]
    seen = {x["status"] for x in (*record["findings"], *record["sections"])}
    legend = "".join(
        f"<div><dt>{chip(name)}</dt><dd>{MEANING[name]}</dd></div>"
        for name in WORDS
        if name in seen
    )
    seeds = ", ".join(f"{s['title']} {s['seed']}" for s in record["sections"])
    pairs = [
        ("Version", record["version"]), ("Date", record["date"]), ("Seed", str(record["seed"])),
        ("Seeds of the sections", seeds), ("Exit code", f"{code}: {EXIT[code]}"),
    ]  # fmt: skip
    facts = "".join(f"<dt>{a}</dt><dd>{typeset(b)}</dd>" for a, b in pairs if b)
    return (
        f'<section id="about"><h2>About this audit</h2><dl class="facts">{facts}</dl>'
        "<p>An audit only calls the model, so nothing here proves what it does. The same seed "
        "gives the same audit, and every number is in its JSON.</p>"
        f'<dl class="leg">{legend}</dl></section>'
    )
