"""Fill the page "Equation by equation" from the statements and the tags in docstrings.

A statement says where it stands in its paper, such as "Lemma 3, (41)-(42)". A docstring says which
formula an object implements, such as `[A, eq. 20]`. The table puts both together.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pushforward.statements import REGISTRY, Statement

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pushforward"
TAG = re.compile(r"\[([AB]), ([^\]]+)\]")
NUMBERS = re.compile(r"\((\d+)\)(?:-\((\d+)\))?")
NAMED = re.compile(r"(Def\.|Remark|Lemma|Proposition|Theorem|Corollary) (\d+)")
PLACE = "<!-- equations -->"
SHORT = {
    "Rem.": "Remark", "Lem.": "Lemma", "Prop.": "Proposition", "Thm.": "Theorem",
    "Cor.": "Corollary",
}  # fmt: skip

WORDS = {
    "conditional": "definition of a conditional relation",
    "coupling": "definition of a coupling relation",
    "Thm. S": "universal approximation by softmax",
    "Thm. K": "universal approximation by Sinkhorn",
    "§4": "Section 4",
}
"""Tags of paper B, whose formulas have no numbers here, and the sources of its statements."""


class Tag(NamedTuple):
    """What the docstring of an object says that it implements."""

    paper: str
    label: str
    name: str
    file: str


class Row(NamedTuple):
    """One statement at one place of a paper."""

    paper: str
    place: str
    statement: Statement
    tags: list[Tag]


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table where the page says."""
    return markdown.replace(PLACE, table()) if PLACE in markdown else markdown


def table() -> str:
    """One row for every statement at a place of a paper, as a table of Markdown."""
    lines = ["| | what it says | objects | statement |", "|---|---|---|---|"]
    for row in sorted(rows(), key=lambda row: order(row.paper, row.place)):
        text = row.statement.text.replace("|", r"\vert ")
        lines.append(
            f"| {row.paper}, {row.place} | {text} | {objects(row)} | `{row.statement.id}` |"
        )
    return "\n".join(lines)


def rows() -> list[Row]:
    """Every statement at each of its places, with the tags that belong there."""
    found, used = list(tags()), set()
    made = []
    for statement in REGISTRY.values():
        for paper, place in places_of(statement):
            own = [t for t in found if t.paper == paper and covers(place, t.label)]
            used.update(own)
            made.append(Row(paper, place, statement, own))
    if alone := sorted(f"[{t.paper}, {t.label}] of {t.name}" for t in set(found) - used):
        raise ValueError(f"No statement has the source of these tags: {', '.join(alone)}.")
    return made


def objects(row: Row) -> str:
    """What the docstrings name, with its file, then what else the experiment is about."""
    named = {tag.name: f"`{tag.name}` in `{tag.file}`" for tag in row.tags}
    others = [api for api in row.statement.api if api.rpartition(".")[2] not in named]
    return "<br>".join([*named.values(), *(f"`{api}`" for api in others)])


def places_of(statement: Statement) -> Iterator[tuple[str, str]]:
    """The numbered places in the source of a statement; what is only beside one is left out."""
    if statement.paper == "B":
        yield from (("B", w) for w in WORDS.values() if statement.source.split(", ")[0] == w)
        return
    for part in statement.source.removeprefix("as we read ").split(", "):
        if NUMBERS.fullmatch(part) or NAMED.fullmatch(part):
            yield "A", part


def covers(place: str, label: str) -> bool:
    """Whether a tag belongs to a place: the same name, or an equation within its numbers."""
    if label.startswith("eq. ") and (span := NUMBERS.fullmatch(place)):
        return int(span[1]) <= int(label[4:]) <= int(span[2] or span[1])
    kind, _, number = label.partition(" ")
    return WORDS.get(label) == place or f"{SHORT.get(kind, kind)} {number}" == place


def order(paper: str, place: str) -> tuple:
    """By paper; numbered equations first, then definitions, then what is proved."""
    if span := NUMBERS.fullmatch(place):
        return paper, 0, int(span[1]), place
    kinds = ["Def.", "Remark", "Lemma", "Proposition", "Theorem", "Corollary"]
    kind, _, number = place.partition(" ")
    if kind in kinds:
        return paper, 1 + kinds.index(kind), int(number), place
    return paper, 1 + len(kinds), 0, place


def tags() -> Iterator[Tag]:
    """Every tag in the docstring of a class, a method or a function."""
    for file in sorted(SOURCE.rglob("*.py")):
        where = str(file.relative_to(SOURCE))
        for name, docstring in documented(ast.parse(file.read_text()), ""):
            for paper, label in dict.fromkeys(TAG.findall(docstring)):
                yield Tag(paper, label, name, where)


def documented(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Names with their docstrings, methods as `Class.method`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            name = f"{prefix}{child.name}"
            if docstring := ast.get_docstring(child):
                yield name, docstring
            yield from documented(child, f"{name}.")
