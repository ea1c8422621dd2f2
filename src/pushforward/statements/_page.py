"""The page of a run: every statement with its formula, its result and its figures."""

from __future__ import annotations

import base64
import gzip
import json
import operator
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from typing import Any

from .._tools.checks import check_kind
from ..pictures import STATUS, chip, figure, formula, frame, mark
from ._caveats import CAVEATS, Caveat
from ._left_out import LEFT_OUT
from ._statement import REGISTRY
from ._summary import FAMILIES, KINDS, PAPERS, Found, statuses, tally

MEANING = {
    "holds": "An equality, computed on both sides, to the accuracy said.",
    "open": "A bound, a rate or a construction: nothing that was tried speaks against it. That is "
    "no proof.",
    "refuted": "False as it stands, or a tempting variant: a case against it is shown.",
    "untried": "Quoted from elsewhere. Nothing is run.",
    "unable": "The experiment broke off, or its outcome is not the expected one.",
}
"""What a status means here."""

AS_READ = (
    "The formulas of the papers were recovered from their texts, so every statement is given as "
    "we read it."
)


def page(record: Mapping[str, Any]) -> str:
    """A run as one HTML page that needs nothing else.

    Args:
        record: the run, as `as_dict` makes it.
    """
    check_kind("record", record, Mapping, "For example what `as_dict` returns.")
    found = _in_order(record["statements"])
    count = tally(found)
    parts = [
        *_head(record, found, count), _units(found), _legend(count), _families(found),
        _bar(count), _caveats(found), *(_section(name, found) for name in FAMILIES),
        '<p id="none" hidden>No statement matches. '
        '<button class="btn" type="button" id="clear">Show all</button></p>',
        _left_out(), _interfaces(found), _foot(),
    ]  # fmt: skip
    return frame("pushforward, verify", _packed("\n".join(parts), found))


def cards(statements: Iterable[Found]) -> str:
    """Statements as they are on the page, without anything around them.

    Figures carry their data, for whoever draws them.

    Args:
        statements: of a run, as `as_dict` makes them.
    """
    return "".join(_card(s) for s in statements)


def caveats(statements: Sequence[Found]) -> str:
    """What the statements show to be false as we read it, or to need a hypothesis, as on the page.

    Args:
        statements: of a run, as `as_dict` makes them.
    """
    by_id = {s["id"]: s for s in statements}
    return "".join(_caveat(c, by_id) for c in CAVEATS if by_id.keys() & set(c.ids))


def _in_order(found: Iterable[Found]) -> list[Found]:
    """By family, in the order of the page."""
    order = list(FAMILIES)
    return sorted(found, key=lambda s: order.index(s["family"]))


def _head(
    record: Mapping[str, Any], found: Sequence[Found], count: Mapping[str, int]
) -> list[str]:
    """The result in sentences, and when it was computed."""
    wrong = count.get("unable", 0)
    first = "All are as expected." if not wrong else f"{wrong} are not as expected."
    if len(found) < record["asked"]:
        first = f"The run was interrupted, and {record['asked'] - len(found)} are missing. {first}"
    lead = (
        f"{first} {count.get('holds', 0)} have equalities that hold to the accuracy said. "
        f"{count.get('open', 0)} have bounds, rates or constructions that were not refuted. In "
        f"{count.get('refuted', 0)} a claim is refuted, as it must be, by a counterexample."
    )
    facts = {
        "Computed": f"{record['date']}, in {record['seconds']:.0f} seconds, in float64",
        "Repeat": f"pushforward verify --seed {record['seed']}"
        f"{' --quick' if record['quick'] else ''}{' --self-test' if record['defects'] else ''}",
        "With": f"torch {record['torch']}, Python {record['python']}, {record['machine']}",
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(said)}</dd>" for name, said in facts.items())
    return [
        f"<h1>{len(found)} statements of two papers, each with an experiment</h1>",
        f'<p class="lead">{lead}</p><p class="read">{AS_READ} Nothing is ever proved here.</p>',
        f'<dl class="facts">{rows}</dl>',
    ]


def _units(found: Sequence[Found]) -> str:
    """One mark for each statement, by paper."""
    groups = []
    for paper, title in PAPERS.items():
        marks = "".join(_unit(s) for s in found if s["paper"] == paper)
        name, _, rest = title.partition(": ")
        if marks:
            groups.append(
                f'<div class="ug"><p class="small"><b>{escape(rest)}</b><br>{escape(name)}</p>'
                f'<p class="us">{marks}</p></div>'
            )
    return f'<div class="units" aria-label="All statements, one mark each">{"".join(groups)}</div>'


def _unit(s: Found) -> str:
    kind = statuses(s)[0]
    said = escape(f"{s['id']}: {STATUS[kind].lower()}", True)
    return f'<a class="mk {kind}" href="#{escape(s["id"], True)}" title="{said}">{mark(kind)}</a>'


def _legend(count: Mapping[str, int]) -> str:
    rows = (
        f'<div class="{name}"><dt>{chip(name)} <span class="n">{count.get(name, 0)}</span></dt>'
        f"<dd>{MEANING[name]}</dd></div>"
        for name in STATUS
    )
    return (
        f'<dl class="leg">{"".join(rows)}</dl>'
        '<p class="small">A statement may have results of several kinds.</p>'
    )


def _families(found: Sequence[Found]) -> str:
    """Links to the parts of the page."""
    links = "".join(
        f'<a href="#{name}">{escape(title)} <span class="n">{size}</span></a>'
        for name, title in FAMILIES.items() if (size := sum(s["family"] == name for s in found))
    )  # fmt: skip
    links = f'<a href="#caveats">What needs another word</a>{links}' if caveats(found) else links
    return f'<nav class="parts noprint" aria-label="Parts of the page">{links}</nav>'


def _bar(count: Mapping[str, int]) -> str:
    """Search and filters."""
    buttons = "".join(
        f'<button class="btn {name}" type="button" aria-pressed="false" data-f="{name}">'
        f'{chip(name)} <span class="n">{count[name]}</span></button>'
        for name in STATUS if count.get(name)
    )  # fmt: skip
    return (
        '<form class="bar noprint" role="search" onsubmit="return false">'
        '<label class="vh" for="q">Search statements</label>'
        '<input id="q" type="search" placeholder="Search statements   /" autocomplete="off">'
        f'<div class="fs" role="group" aria-label="Show only">{buttons}</div>'
        '<p class="small" id="n" role="status" aria-live="polite"></p></form>'
    )


def _caveats(found: Sequence[Found]) -> str:
    text = caveats(found)
    if not text:
        return ""
    return (
        '<section id="caveats" data-sec="caveats"><h2>What needs another word</h2>'
        "<p>Some sentences of the papers are false as we read them, or need a hypothesis. The "
        f"theorems are not hurt where nothing else is said.</p>{text}</section>"
    )


def _caveat(c: Caveat, by_id: Mapping[str, Found]) -> str:
    seen = "".join(
        f'<p><a href="#{id}">{id}</a> {_typeset(_plain(check["said"]))}</p>'
        for id in c.ids if id in by_id
        for check in by_id[id]["checks"] if check["kind"] == "x" or len(by_id[id]["checks"]) == 1
    )  # fmt: skip
    links = " ".join(f'<a href="#{id}">{id}</a>' for id in c.ids if id in by_id)
    rows = {
        "As we read it": _prose(c.says), "Why not": _prose(c.why),
        "Counterexample": _prose(c.counterexample), "Instead": _prose(c.instead),
        "Seen": seen or f"<p>{links}</p>",
    }  # fmt: skip
    text = "".join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in rows.items())
    head = f"<h3>{_prose(c.title)}</h3>"
    return f'<article class="caveat" data-s="refuted">{head}<dl>{text}</dl></article>'


def _section(family: str, found: Sequence[Found]) -> str:
    text = cards(s for s in found if s["family"] == family)
    if not text:
        return ""
    head = f'<section id="{family}" data-sec="{family}"><h2>{escape(FAMILIES[family])}</h2>'
    return f"{head}{text}</section>"


def _card(s: Found) -> str:
    note = f'<p class="note">{_typeset(s["note"])}</p>' if s["note"] else ""
    names = " ".join(
        f'<a href="#pf.{name}"><code>pf.{escape(name)}</code></a>' for name in s["api"]
    )
    figures = "".join(figure(data) for data in s["figures"])
    wanted = dict.fromkeys(c["criterion"] for c in s["checks"] if c["criterion"])
    rows = {"Experiment": s["experiment"], "Criterion": " ".join(wanted)}
    words = "".join(f"<dt>{k}</dt><dd>{_typeset(v)}</dd>" for k, v in rows.items() if v)
    source = ""
    if s["id"] in REGISTRY:
        source = (
            f'<details data-source="{escape(s["id"], True)}"><summary>Source</summary></details>'
        )
    return (
        f'<article class="card" id="{escape(s["id"], True)}" data-s="{" ".join(statuses(s))}">'
        f'<div class="ct"><p class="kicker">{escape(s["id"])} · {escape(s["source"])}</p>'
        f"<h3>{_typeset(s['text'])}</h3>{_results(s)}"
        f'<div class="fm">{_lean(formula(s["formula"]))}</div>{note}</div>'
        f'<div class="cf">{figures}</div><div class="cx"><dl class="ex">{words}</dl>'
        f'<p class="lk">{names}</p>{source}</div></article>'
    )


def _results(s: Found) -> str:
    """What the checks say, by status."""
    lines: dict[str, list[str]] = {}
    if s["error"]:
        lines["unable"] = [s["said"]]
    for check in s["checks"]:
        name = KINDS[check["kind"]] if check["ok"] else "unable"
        lines.setdefault(name, []).append(_plain(check["said"]))
    lines = lines or {"unable": ["Nothing was measured."]}
    return "".join(
        f'<div class="res {name}">{chip(name)}<div>'
        f"{''.join(f'<span>{_typeset(line)}</span>' for line in said)}</div></div>"
        for name, said in lines.items()
    )


def _left_out() -> str:
    """What the papers use and no experiment could refute."""
    rows = "".join(f"<li>{_prose(why)}</li>" for why in LEFT_OUT.values())
    return f'<section class="nottried" id="left-out"><h2>Left out</h2><ul>{rows}</ul></section>'


def _interfaces(found: Sequence[Found]) -> str:
    """What of the library the experiments are about, in a line each."""
    names = sorted({name for s in found for name in s["api"]}, key=str.lower)
    rows = "".join(
        f'<dt id="pf.{escape(name)}"><code>pf.{escape(name)}</code></dt><dd>{_about(name)}</dd>'
        for name in names
    )
    head = "<h2>What of the library is tested</h2>"
    return f'<section id="api">{head}<dl class="api">{rows}</dl></section>'


def _about(name: str) -> str:
    """The first sentence of a docstring."""
    import pushforward

    text = (operator.attrgetter(name)(pushforward).__doc__ or "").replace("$$", "$")
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    paragraph = re.sub(r" \[[AB], [^\]]*\]", "", paragraph)  # where it stands in a paper
    first = re.split(r"(?<=[.:])\s", paragraph)[0].rstrip(".:")
    return _prose(f"{first.replace('``', '`')}.")


def _packed(body: str, found: Sequence[Found]) -> str:
    """The data of figures and the sources of experiments, compressed at the end of the body."""
    figures: list[str] = []

    def take(data: re.Match[str]) -> str:
        figures.append(json.dumps(_rounded(json.loads(unescape(data[1])))))
        return f"data-figure={len(figures) - 1} hidden"

    body = re.sub("data-figure='([^']*)'", take, body)
    known = [REGISTRY[s["id"]] for s in found if s["id"] in REGISTRY]
    sources = {s.id: s.source_code for s in known}
    text = json.dumps({"figures": figures, "sources": sources})
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'{body}\n<script type="application/gzip" id="packed">{packed}</script>'


def _rounded(data: Any) -> Any:
    """Numbers with the four digits that a figure can show."""
    if isinstance(data, float):
        return float(f"{data:.4g}")
    if isinstance(data, list):
        return [_rounded(x) for x in data]
    return {k: _rounded(x) for k, x in data.items()} if isinstance(data, dict) else data


def _foot() -> str:
    return (
        '<footer class="small"><p>Statements are named as in the library: '
        "<code>pushforward verify --only A.eq8</code> repeats one. The same seed gives the same "
        "numbers. The same results as JSON: <code>pushforward verify --json verify.json</code>."
        "</p></footer>"
    )


def _plain(said: str) -> str:
    """A result without the words that its mark says already."""
    said = re.sub(r"^(not refuted|refuted as it must be): ", "", said)
    said = re.sub(r"(?<=[ :])not refuted: ", "", said)
    return re.sub(r"(?<!which )(?<!it )(?<!this )\bholds to ", "to ", said)


def _typeset(text: str) -> str:
    """Numbers as people write them: 2e-16 and 3,000 become powers and spaced digits."""
    text = re.sub(
        r"(?<![\w.])(\d+(?:\.\d+)?)e(-?)[+0]*(\d+)(?!\w)",
        lambda m: f"{m[1]} × 10^{m[2]}{m[3]}^",
        text,
    )
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "\u202f", escape(text))
    return re.sub(r"\^(-?)(\d+)\^", lambda m: f"<sup>{'−' * len(m[1])}{m[2]}</sup>", text)


def _prose(text: str) -> str:
    """A text with formulas between dollars, and code between backquotes."""
    parts = text.split("$")
    for k, part in enumerate(parts):
        if k % 2:
            parts[k] = _lean(formula(part))
        else:
            parts[k] = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(part))
    return "".join(parts)


def _lean(math: str) -> str:
    """The same formula in fewer letters: rows of one symbol, and the LaTeX beside the MathML."""
    math = re.sub(r' alttext="[^"]*"', "", math)
    math = re.sub(r"&#x(\w+);", lambda m: escape(chr(int(m[1], 16))), math)
    letter = r'<mi mathvariant="(script|double-struck)">([A-Z])</mi>'
    math = re.sub(letter, lambda m: f"<mi>{_letter(m[1].upper(), m[2])}</mi>", math)
    math = re.sub(r"<mrow>(<(m[ino])>[^<]*</\2>)</mrow>", r"\1", math)
    return re.sub(r"^<math><mrow>(.*)</mrow></math>$", r"<math>\1</math>", math)


def _letter(kind: str, letter: str) -> str:
    """A script or double-struck letter as a symbol of its own: browsers do not change letters."""
    try:
        return unicodedata.lookup(f"MATHEMATICAL {kind} CAPITAL {letter}")
    except KeyError:  # the oldest of them have shorter names
        return unicodedata.lookup(f"{kind} CAPITAL {letter}")
