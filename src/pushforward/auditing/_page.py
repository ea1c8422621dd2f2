"""An audit as one page of HTML, with its pictures inside and no need of a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from ._section import Section, plain

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
    "absent": "nothing to see",
    "failed": "failed",
}

DRAW = """
const config = {responsive: true, displayModeBar: false};
for (const node of document.querySelectorAll(".plot")) {
  const figure = JSON.parse(document.getElementById(node.id + "-data").textContent);
  Plotly.newPlot(node, figure.data, {...figure.layout, autosize: true}, config);
}
"""


def page(
    title: str,
    verdict: str,
    exit_code: int,
    about: Sequence[tuple[str, str]],
    sections: Sequence[Section],
) -> str:
    """All of an audit in one file.

    Args:
        title: of the page.
        verdict: in a sentence.
        exit_code: 0, 1 or 2.
        about: names and values to stand above.
        sections: what was found.
    """
    kind = {0: "good", 1: "bad", 2: "failed"}[exit_code]
    facts = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in about if b)
    links = "".join(
        f'<a href="#{s.name}"><span class="mark {s.status}">&nbsp;</span> {escape(s.name)}</a>'
        for s in sections
    )
    mark = {"good": "passed", "bad": "refuted", "failed": "failed"}[kind]
    body = "".join(_section(s) for s in sections)
    scripts = f"<script>{_plotly()}</script><script>{DRAW}</script>" if sections else ""
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
    """What draws the figures."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("A page needs Plotly: `pip install plotly`.") from error
    return get_plotlyjs()


def _section(section: Section) -> str:
    plots = "".join(
        f'<div><div class="plot" id="{section.name}-{k}"></div>'
        f'<p class="caption">{escape(plot.get("caption", ""))}</p></div>'
        f'<script type="application/json" id="{section.name}-{k}-data">{_data(plot)}</script>'
        for k, plot in enumerate(section.plots)
    )
    lines = "".join(f"<li>{escape(line)}</li>" for line in section.lines)
    more = f"<details><summary>Numbers</summary><ul>{lines}</ul></details>" if lines else ""
    mark = f'<span class="mark {section.status}">{MARKS[section.status]}</span>'
    return (
        f'<section id="{section.name}"><header><h2>{escape(section.name)}</h2>{mark}</header>'
        f'<p>{escape(section.verdict)}</p><div class="plots">{plots}</div>{more}</section>\n'
    )


def _data(plot) -> str:
    """As JSON that cannot end the script it stands in."""
    return json.dumps(plain(plot), allow_nan=False).replace("</", "<\\/")
