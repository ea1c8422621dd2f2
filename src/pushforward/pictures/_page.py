"""A report as one page of HTML: verdicts, numbers and charts, readable without a network.

The page is given plain data, numbers and strings in lists and dictionaries, so that whoever makes
a report needs to know nothing about HTML, and this file nothing about reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

STYLE = """
:root { --ink: #1a202c; --soft: #4a5568; --line: #e2e8f0; --good: #2f855a; --noted: #b7791f;
  --bad: #c53030; --absent: #718096; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.25rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0; text-transform: capitalize; }
.lead { font-size: 1.1rem; margin: .5rem 0 1rem; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 0 1rem;
  color: var(--soft); font-size: .9rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .5rem; margin-bottom: 1.5rem; }
nav a { color: inherit; text-decoration: none; border: 1px solid var(--line); border-radius: 6px;
  padding: .2rem .6rem; font-size: .9rem; }
section { border-top: 1px solid var(--line); padding: 1.25rem 0; }
header { display: flex; align-items: center; gap: .75rem; flex-wrap: wrap; }
.mark { color: #fff; border-radius: 6px; padding: .05rem .5rem; font-size: .8rem; }
.good { background: var(--good); } .noted { background: var(--noted); }
.bad { background: var(--bad); } .absent { background: var(--absent); }
.failed { background: var(--ink); }
.caption { color: var(--soft); font-size: .85rem; margin: 0 0 .5rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 1rem; }
.plot { height: 22rem; min-width: 0; }
.plots > div { min-width: 0; }
details { color: var(--soft); font-size: .9rem; margin-top: .5rem; }
summary { cursor: pointer; }
li { overflow-wrap: anywhere; }
"""

MARKS = {
    "good": "good",
    "noted": "worth a look",
    "bad": "refuted",
    "absent": "does not apply",
    "failed": "could not be tested",
}

DRAW = """
const config = {responsive: true, displayModeBar: false};
for (const node of document.querySelectorAll(".plot")) {
  const figure = JSON.parse(document.getElementById(node.id + "-data").textContent);
  Plotly.newPlot(node, figure.data, {...figure.layout, autosize: true}, config);
}
"""


Part = Mapping[str, Any]
"""A section of a page: its `name`, `status` (a key of `MARKS`), `verdict`, `lines` and `plots`."""


def page(
    title: str,
    verdict: str,
    exit_code: int,
    about: Sequence[tuple[str, str]],
    parts: Sequence[Part],
) -> str:
    """Write a report as the text of one HTML file.

    Args:
        title: the heading.
        verdict: the result of the whole report in a sentence.
        exit_code: 0 (passed), 1 (refuted) or 2 (failed).
        about: pairs of a name and a value, shown as a list below the verdict.
        parts: the sections, as plain data that JSON can hold; `plots` are figures of Plotly as
            dictionaries with `data`, `layout` and a `caption`.
    """
    kind = {0: "good", 1: "bad", 2: "failed"}[exit_code]
    facts = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in about if b)
    links = "".join(
        f'<a href="#{part["name"]}"><span class="mark {part["status"]}">&nbsp;</span> '
        f"{escape(part['name'])}</a>"
        for part in parts
    )
    mark = {"good": "passed", "bad": "refuted", "failed": "failed"}[kind]
    body = "".join(_section(part) for part in parts)
    scripts = f"<script>{_plotly()}</script><script>{DRAW}</script>" if parts else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n"
        f'<h1>{escape(title)}</h1><p class="lead"><span class="mark {kind}">{mark}</span> '
        f"{escape(verdict)}</p><dl>{facts}</dl><nav>{links}</nav>\n{body}"
        f"{scripts}\n</body></html>\n"
    )


def _plotly() -> str:
    """The source of Plotly's JavaScript library, which draws the figures in the browser."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("A page needs Plotly: `pip install plotly`.") from error
    return get_plotlyjs()


def _section(part: Part) -> str:
    """One section: heading with its status, verdict, figures, and the lines folded away."""
    name, status = part["name"], part["status"]
    plots = "".join(
        f'<div><div class="plot" id="{name}-{k}"></div>'
        f'<p class="caption">{escape(plot.get("caption", ""))}</p></div>'
        f'<script type="application/json" id="{name}-{k}-data">{_data(plot)}</script>'
        for k, plot in enumerate(part["plots"])
    )
    lines = "".join(f"<li>{escape(line)}</li>" for line in part["lines"])
    more = f"<details><summary>Numbers</summary><ul>{lines}</ul></details>" if lines else ""
    mark = f'<span class="mark {status}">{MARKS[status]}</span>'
    return (
        f'<section id="{name}"><header><h2>{escape(name)}</h2>{mark}</header>'
        f'<p>{escape(part["verdict"])}</p><div class="plots">{plots}</div>{more}</section>\n'
    )


def _data(plot: Mapping[str, Any]) -> str:
    """A figure as JSON; a string `</script>` inside it must not end the script it is part of."""
    return json.dumps(plot, allow_nan=False).replace("</", "<\\/")
