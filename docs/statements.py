"""Fill the pages on the statements of the papers from the results of the last run.

The cards are those of the page of `pushforward verify`, with its stylesheet and its charts.
"""

import importlib.util
import json
import re
from html import escape
from importlib.resources import files as resources
from pathlib import Path

from mkdocs.structure.files import File

from pushforward import pictures, statements
from pushforward.pictures._frame import SYMBOLS

RESULTS = Path(__file__).parents[1] / "benchmarks"
ASSETS = resources(pictures) / "assets"
STYLE, SCRIPT = "assets/statements.css", "assets/statements.js"
FAMILIES, SCHEMA, LEFT_OUT = "<!-- families -->", "<!-- schema -->", "<!-- left out -->"
PAPER = re.compile(r"<!-- paper (\w) -->")
PART = re.compile(r"<!-- (caveats|family) (\w) (\w*) -->")


def on_files(files: object, config: dict) -> object:
    """Add the stylesheet and the script of our pages, fit for a page of the site."""
    script = (ASSETS / "charts.js").read_text("utf-8")
    files.append(File.generated(config, STYLE, content=scoped((ASSETS / "style.css").read_text())))
    files.append(File.generated(config, SCRIPT, content=script))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """The outline of the page of a paper, and tables."""
    if FAMILIES in markdown:
        markdown = markdown.replace(FAMILIES, benchmark().table(record()))
    if SCHEMA in markdown:
        markdown = markdown.replace(SCHEMA, schema())
    reasons = "\n".join(f"- {why}" for why in statements.LEFT_OUT.values())
    markdown = markdown.replace(LEFT_OUT, reasons)
    return PAPER.sub(lambda found: outline(found[1]), markdown)


def on_page_content(content: str, **_: object) -> str:
    """Put the cards where the outline says; the page loads what draws them."""
    if not PART.search(content):
        return content
    content = PART.sub(lambda found: part(*found.groups()), content)
    style = f'<link rel="stylesheet" href="{STYLE}">'
    return f'{style}{SYMBOLS}{content}<script src="{SCRIPT}"></script>'


def record() -> dict:
    """The results of the last run, with their figures."""
    found = json.loads((RESULTS / "statements.json").read_text())
    figures = json.loads((RESULTS / "statements_figures.json").read_text())
    for s in found["statements"]:
        s["figures"] = figures.get(s["id"], [])
    return found


def benchmark() -> object:
    """The script that makes the table of the README."""
    spec = importlib.util.spec_from_file_location("table", RESULTS / "statements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def schema() -> str:
    """The layout of the JSON, as tables."""
    text = (resources(statements) / "schema.json").read_text("utf-8")
    run = json.loads(text)
    one = run["properties"]["statements"]["items"]
    parts = {"A run": run, "A statement": one}
    parts["A check"] = one["properties"]["checks"]["items"]
    parts["A figure"] = one["properties"]["figures"]["items"]
    lines = []
    for title, part in parts.items():
        lines += ["", f"**{title}**", "", "| key | meaning |", "|---|---|"]
        lines += [
            f"| `{key}` | {about['description']} |" for key, about in part["properties"].items()
        ]
    return "\n".join(lines)


def of_paper(paper: str) -> list[dict]:
    """The statements of a paper."""
    return [s for s in record()["statements"] if s["paper"] == paper]


def outline(paper: str) -> str:
    """The headings of a page, each with the place of its cards."""
    lines = ["## What needs another word", "", f"<!-- caveats {paper} all -->"]
    kept = {s["family"] for s in of_paper(paper)}
    for family, title in statements.FAMILIES.items():
        if family in kept:
            lines += ["", f"## {title}", "", f"<!-- family {paper} {family} -->"]
    return "\n".join(lines)


def part(what: str, paper: str, family: str) -> str:
    """The cards of a family, or what needs another word."""
    found = of_paper(paper)
    if what == "caveats":
        text = statements.caveats(found)
    else:
        text = statements.cards(s for s in found if s["family"] == family)
        text = re.sub(
            r'<a href="#pf\.([^"]+)">(.*?)</a>',
            r'<autoref identifier="pushforward.\1" optional>\2</autoref>', text,
        )  # fmt: skip
        text = re.sub(r'<details data-source="(.*?)"><summary>.*?</details>', source, text)
    return f'<div class="pf">{text}</div>'


def source(found: re.Match) -> str:
    """The experiment as it is written."""
    s = statements.REGISTRY[found[1]]
    code = escape(s.source_code)
    return f"<details><summary>Source</summary><pre><code>{code}</code></pre></details>"


def scoped(css: str) -> str:
    """Our stylesheet for the parts of a page in `<div class="pf">`, below a base of 20 px.

    Colours follow the scheme of the site. Rules of whole pages are left out.
    """
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    css = re.sub(r"(?<![\w.])(\d*\.?\d+)rem", lambda m: f"{float(m[1]) * 0.8:.5g}rem", css)
    return rules(css)


def rules(css: str) -> str:
    """Rules with selectors within our part of the page."""
    out, at = [], 0
    while (opening := css.find("{", at)) >= 0:
        head, closing = css[at:opening].strip(), end(css, opening)
        inside, at = css[opening + 1 : closing], closing + 1
        if head.startswith("@media"):
            if "color-scheme" not in head:
                out.append(f"{head}{{{rules(inside)}}}")
        elif not head.startswith("@"):
            names = [name for name in map(placed, head.split(",")) if name]
            if names:
                out.append(f"{','.join(names)}{{{inside}}}")
    return "".join(out)


def end(css: str, opening: int) -> int:
    """The brace that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(css)):
        depth += {"{": 1, "}": -1}.get(css[at], 0)
        if depth == 0:
            return at
    raise ValueError("A brace of the stylesheet is not closed.")


def placed(selector: str) -> str:
    """A selector within our part of the page, empty if it is about the page as a whole."""
    selector = selector.strip()
    if selector == ":root":
        return ".pf"
    if selector == ":root.dark":
        return '[data-md-color-scheme="slate"] .pf'
    if re.match(r":root|html|body|\*|h1|h2|\.page|\.top|\.skip|\.rail|\.cols", selector):
        return ""
    return f".pf {selector}"
