"""Fill the page "Equation by equation" from the tags in docstrings, such as `[A, eq. 20]`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pushforward"
TAG = re.compile(r"\s*\[([AB]), ([^\]]+)\]")
PLACE = "<!-- equations -->"
KINDS = ["eq.", "Def.", "Rem.", "Lemma", "Prop.", "Thm.", "Cor."]


class Row(NamedTuple):
    """One tag of one object."""

    paper: str
    label: str
    says: str
    name: str
    file: str
    tests: list[str]


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the table where the page says."""
    return markdown.replace(PLACE, table()) if PLACE in markdown else markdown


def table() -> str:
    """All tags as a table of Markdown."""
    lines = ["| | what it says | object | file | test |", "|---|---|---|---|---|"]
    for row in sorted(rows(), key=_order):
        tests = ", ".join(f"`{name}`" for name in row.tests) or "its docstring"
        lines.append(
            f"| {row.paper}, {row.label} | {row.says} | `{row.name}` | `{row.file}` | {tests} |"
        )
    return "\n".join(lines)


def rows() -> Iterator[Row]:
    """Every tag in the docstring of a class, a method or a function."""
    texts = {file.name: file.read_text() for file in sorted((ROOT / "tests").glob("test_*.py"))}
    for file in sorted(SOURCE.rglob("*.py")):
        for name, docstring in _documented(ast.parse(file.read_text()), ""):
            for paper, label in dict.fromkeys(TAG.findall(docstring)):
                where = str(file.relative_to(SOURCE))
                yield Row(paper, label, _sentence(docstring), name, where, _tests(name, texts))


def _documented(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Names with their docstrings, methods as `Class.method`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            name = f"{prefix}{child.name}"
            if docstring := ast.get_docstring(child):
                yield name, docstring
            yield from _documented(child, f"{name}.")


def _sentence(docstring: str) -> str:
    """The first sentence, without tags, with bars that do not end a cell."""
    paragraph = " ".join(TAG.sub("", docstring).split("\n\n")[0].split())
    first = re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph)[0]
    return first.replace("|", r"\vert ")


def _tests(name: str, texts: dict[str, str]) -> list[str]:
    """The two test files that name the object most often."""
    word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
    counts = {file: len(word.findall(text)) for file, text in texts.items()}
    most = sorted(filter(counts.get, counts), key=lambda file: -counts[file])
    return most[:2]


def _order(row: Row) -> tuple:
    """By paper, then equations before definitions before theorems, then by number."""
    kind = next((k for k, word in enumerate(KINDS) if row.label.startswith(word)), len(KINDS))
    number = re.search(r"\d+", row.label)
    return row.paper, kind, int(number[0]) if number else 0, row.label, row.file, row.name
