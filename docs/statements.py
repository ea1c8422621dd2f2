"""Fill the page "The papers, statement by statement" from the results of the last run."""

import json
from pathlib import Path

from pushforward.statements import FAMILIES, PAPERS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "statements.json"
PLACE = "<!-- statements -->"


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the tables where the page says."""
    return markdown.replace(PLACE, tables()) if PLACE in markdown else markdown


def tables() -> str:
    """A table for each family, under the name of its paper."""
    record = json.loads(RESULTS.read_text())
    found = record["statements"]
    lines = [
        f"{sum(s['ok'] for s in found)} of {len(found)} statements are as expected: commit "
        f"{record['commit']}, {record['date']}, {record['machine']}, torch {record['torch']}, "
        f"seed {record['seed']}, {record['seconds']:.0f} seconds with two processes.",
    ]
    for paper, title in PAPERS.items():
        lines += ["", f"## {title}"]
        for family, name in FAMILIES.items():
            rows = [s for s in found if (s["paper"], s["family"]) == (paper, family)]
            if rows:
                lines += ["", f"### {name}", "", "| | statement | result |", "|---|---|---|"]
                lines += [_row(s) for s in rows]
    return "\n".join(lines)


def _row(s: dict) -> str:
    """A row; a bar within a cell would end it."""
    note = f" *{s['note']}*" if s["note"] else ""
    formula = s["formula"].replace(r"\|", r"\Vert ").replace("|", r"\vert ").strip()
    cells = (f"`{s['id']}`<br>{s['source']}", f"{s['text']}{note}", s["said"])
    first, says, result = (cell.replace("|", "&#124;") for cell in cells)
    return f"| {first} | {says}<br>${formula}$ | {result} |"
