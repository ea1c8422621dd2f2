"""The page of a run: every statement with its formula, its result and its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..pictures import STATUS, chip, formula, frame, mark

PAPERS = {
    "A": "Furuya, de Hoop, Lassas: Transformers through the lens of support-preserving maps "
    "between measures",
    "B": "Fraiman: On the expressive power of contextual relations in transformers",
}
"""The two papers, as a reader finds them."""

FAMILIES = {
    "supports": "Support-preserving maps, distances, convergence",
    "in_context": "In-context maps",
    "derivative": "The regular part of the derivative",
    "representation": "Theorem 1: which maps are in-context maps",
    "counterexample": "Proposition 1: continuity and supports are not enough",
    "transformers": "Transformers, and Corollary 1",
    "flows": "Depth, Vlasov flows, Proposition 2",
    "mean_field": "Many tokens",
    "causal": "Masked maps",
    "relations": "Conditionals and couplings",
    "approximation": "Which relations attention approximates",
    "rank": "The dimension of a head",
}
"""The families, in the order of the page."""

MEANING = {
    "holds": "An equality, computed on both sides, to the accuracy said.",
    "open": "A bound, a rate or a construction: nothing that was tried speaks against it. That is "
    "no proof.",
    "refuted": "False as it stands, or a tempting claim: a case against it is shown.",
    "untried": "Quoted from elsewhere; nothing is run.",
    "unable": "The experiment failed, or its outcome is not the expected one.",
}
"""What a status means here."""

Statement = Mapping[str, Any]


def status(found: Statement) -> str:
    """The status of a statement: the strongest claim that its checks allow."""
    kinds = {check["kind"] for check in found["checks"]}
    if not found["ok"]:
        return "unable"
    if "x" in kinds:
        return "refuted"
    if kinds <= {"quoted"}:
        return "untried"
    return "holds" if kinds <= {"=", "quoted"} else "open"


def page(record: Mapping[str, Any]) -> str:
    """A run as one HTML page that needs nothing else.

    Args:
        record: the run, as `as_dict` makes it.
    """
    found: Sequence[Statement] = record["statements"]
    count = {name: sum(status(s) == name for s in found) for name in STATUS}
    good = len(found) - count["unable"]
    headline = f"{len(found)} statements of two papers, each with an experiment"
    lead = (
        f"{good} of {len(found)} are as expected. {count['holds']} hold to the accuracy said, "
        f"{count['open']} were not refuted, and {count['refuted']} are refuted as they must be."
    )
    about = (
        f"Computed on {record['date']} in {record['seconds']:.0f} seconds, in float64, seed "
        f"{record['seed']}{', the short variants' if record['quick'] else ''}, torch "
        f"{record['torch']}. The formulas of the papers are given as we read them."
    )
    parts = [
        f"<h1>{headline}</h1>", f'<p class="lead">{lead}</p>', f'<p class="small">{about}</p>',
        _units(found), _legend(count), _bar(count), _exceptions(found),
        *(_section(name, found) for name in FAMILIES),
        '<p id="none" hidden>No statement matches. '
        '<button class="btn" type="button" id="clear">Show all</button></p>',
    ]  # fmt: skip
    return frame("pushforward, verify", "\n".join(parts))


def _units(found: Sequence[Statement]) -> str:
    """One mark for each statement, by paper."""
    groups = []
    for paper, title in PAPERS.items():
        marks = "".join(
            f'<a class="mk {status(s)}" href="#{s["id"]}" title="{escape(s["id"], True)}: '
            f'{STATUS[status(s)].lower()}">{mark(status(s))}</a>'
            for s in found if s["paper"] == paper
        )  # fmt: skip
        name, _, rest = title.partition(": ")
        groups.append(
            f'<div class="ug"><p class="small"><b>{escape(rest)}</b><br>{escape(name)}</p>'
            f'<p class="us">{marks}</p></div>'
        )
    return f'<div class="units" aria-label="All statements, one mark each">{"".join(groups)}</div>'


def _legend(count: Mapping[str, int]) -> str:
    rows = (
        f'<div class="{name}"><dt>{chip(name)} <span class="n">{count[name]}</span></dt>'
        f"<dd>{MEANING[name]}</dd></div>"
        for name in STATUS
    )
    return f'<dl class="leg">{"".join(rows)}</dl>'


def _bar(count: Mapping[str, int]) -> str:
    """Search and filters."""
    buttons = "".join(
        f'<button class="btn {name}" type="button" aria-pressed="false" data-f="{name}">'
        f'{chip(name)} <span class="n">{count[name]}</span></button>'
        for name in STATUS if count[name]
    )  # fmt: skip
    return (
        '<form class="bar noprint" role="search" onsubmit="return false">'
        '<label class="vh" for="q">Search statements</label>'
        '<input id="q" type="search" placeholder="Search statements   /" autocomplete="off">'
        f'<div class="fs" role="group" aria-label="Show only">{buttons}</div>'
        '<p class="small" id="n" role="status" aria-live="polite"></p></form>'
    )


def _exceptions(found: Sequence[Statement]) -> str:
    """What is false as stated, or needs a hypothesis."""
    rows = "".join(
        f'<li><a href="#{s["id"]}">{escape(s["source"])}</a>: {escape(s["note"])}</li>'
        for s in found if s["note"]
    )  # fmt: skip
    if not rows:
        return ""
    return (
        '<div class="nottried"><h3>What needs a word, as we read the papers</h3>'
        f"<ul>{rows}</ul></div>"
    )


def _section(family: str, found: Sequence[Statement]) -> str:
    cards = "".join(_card(s) for s in found if s["family"] == family)
    if not cards:
        return ""
    return f'<section data-sec="{family}"><h2>{escape(FAMILIES[family])}</h2>{cards}</section>'


def _card(s: Statement) -> str:
    kind = status(s)
    said = "; ".join(check["said"] for check in s["checks"]) if not s["error"] else s["said"]
    note = f'<p class="note">{escape(s["note"])}</p>' if s["note"] else ""
    names = " ".join(f"<code>pf.{escape(name)}</code>" for name in s["api"])
    figures = "".join(_figure(figure) for figure in s["figures"])
    return (
        f'<article class="card" id="{escape(s["id"], True)}" data-s="{kind}"><div class="ct">'
        f'<p class="kicker">{escape(s["id"])} · {escape(s["source"])}</p>'
        f"<h3>{escape(s['text'])}</h3>"
        f'<p class="res {kind}">{chip(kind)}<span>{escape(said)}</span></p>'
        f'<div class="fm">{formula(s["formula"])}</div>{note}'
        f'<p class="lk">{names}</p></div><div class="cf">{figures}</div></article>'
    )


def _figure(figure: Mapping[str, Any]) -> str:
    data = escape(json.dumps(figure, separators=(",", ":")), True)
    return (
        f'<figure><p class="ft">{escape(figure["title"])}</p><div data-figure="{data}"></div>'
        f"<figcaption>{escape(figure['caption'])}</figcaption></figure>"
    )
