"""Draw the chapters and list who imports whom, from the table in `tests/test_house.py`."""

import ast
import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE, TABLE = "<!-- chapters -->", "<!-- who imports whom -->"

ABOUT = {
    "_tools": "what several chapters use; it imports none of them",
    "ops": "the two reductions",
    "measures": "weighted clouds",
    "affinities": "scores of pairs",
    "sinkhorn": "potentials of couplings",
    "relations": "conditionals, couplings",
    "distances": "between measures",
    "pictures": "figures and charts",
    "maps": "in-context maps, transformers",
    "flows": "fields, solvers, paths",
    "approximation": "paper B: which relations",
    "representation": "paper A: which maps",
    "auditing": "what kind of map is yours",
    "fitting": "maps learned from data",
    "statements": "the papers, tested",
    "_command": "the command `pushforward`",
}
COLUMN = {"ops": 0, "distances": 0, "fitting": 0, "measures": 2, "pictures": 2, "approximation": 2}
WIDTH, HEIGHT, ACROSS, UP, MARGIN = 190, 44, 230, 78, 12


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Fill in the page on the architecture."""
    if PICTURE not in markdown:
        return markdown
    return markdown.replace(PICTURE, picture(may_import())).replace(TABLE, table(may_import()))


def may_import() -> dict[str, list[str]]:
    """The table of the tests: each chapter with the chapters it may import."""
    text = (ROOT / "tests" / "test_house.py").read_text()
    literal = re.search(r"^MAY_IMPORT = (\{.*?^\})", text, re.M | re.S)
    return {name: above.split() for name, above in ast.literal_eval(literal[1]).items()}


def table(allowed: dict[str, list[str]]) -> str:
    """Who may import whom, as a table of Markdown."""
    lines = ["| chapter | about | may import |", "|---|---|---|"]
    for name, others in allowed.items():
        listed = ", ".join(f"`{other}`" for other in others) or "nothing of ours"
        lines.append(f"| `{name}` | {ABOUT.get(name, '')} | {listed} |")
    return "\n".join(lines)


def picture(allowed: dict[str, list[str]]) -> str:
    """Chapters as boxes, each above those it imports; imports that follow from others left out."""
    chapters = {name: [o for o in others if o != "_tools"] for name, others in allowed.items()}
    rank: dict[str, int] = {}
    for name, others in chapters.items():  # a chapter comes after all that it imports
        rank[name] = max((rank[other] + 1 for other in others), default=1 if name[0] != "_" else 0)
    top = max(rank.values())
    left = {name: MARGIN + ACROSS * COLUMN.get(name, 1) for name in chapters}
    above = {name: MARGIN + UP * (top - rank[name]) for name in chapters}
    size = 2 * MARGIN + 2 * ACROSS + WIDTH, 2 * MARGIN + UP * top + HEIGHT
    parts = [_arrow(left, above, a, b) for a in chapters for b in _direct(chapters, a)]
    parts += [_box(name, left[name], above[name]) for name in chapters]
    title = "The chapters of the package: an arrow points from a chapter to one that it imports"
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" style="max-width:{size[0]}px" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"><title>{title}</title>'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#7a8a99"/></marker></defs>'
        f"{''.join(parts)}</svg>"
    )


def _direct(chapters: dict[str, list[str]], name: str) -> list[str]:
    """The imports of a chapter that are not imports of its imports as well."""

    def below(other: str) -> set[str]:
        return set(chapters[other]).union(*(below(o) for o in chapters[other]))

    further = set().union(*(below(other) for other in chapters[name]))
    return [other for other in chapters[name] if other not in further]


def _arrow(left: dict[str, int], above: dict[str, int], a: str, b: str) -> str:
    """From the bottom of a box to the top of one in the next row; from its side to one further."""
    x, y, u, v = left[a] + WIDTH / 2, above[a] + HEIGHT, left[b] + WIDTH / 2, above[b] - 2
    if above[b] - above[a] > UP and u != x:
        x, y = x + (WIDTH / 2 if u > x else -WIDTH / 2), y - HEIGHT / 2
        path = f"M{x} {y} H{u - 12 if u > x else u + 12} Q{u} {y} {u} {y + 12} V{v}"
    else:
        bend = (v - y) / 2
        path = f"M{x} {y} C{x} {y + bend} {u} {v - bend} {u} {v}"
    line = 'fill="none" stroke="#7a8a99" stroke-width="1.4" marker-end="url(#tip)"'
    return f'<path d="{path}" {line}/>'


def _box(name: str, x: int, y: int) -> str:
    width = WIDTH
    if name == "_tools":  # below everything
        x, width = MARGIN, 2 * ACROSS + WIDTH
    middle = x + width / 2
    about = escape(ABOUT.get(name, "").replace("`", ""))  # Markdown would end the picture there
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="6" fill="#eef3f6" '
        f'stroke="#1f6f8b"/><text x="{middle}" y="{y + 18}" text-anchor="middle" font-size="14" '
        f'font-weight="600" fill="#17323f">{escape(name)}</text><text x="{middle}" y="{y + 34}" '
        f'text-anchor="middle" font-size="11" fill="#4a5c68">{about}</text>'
    )
