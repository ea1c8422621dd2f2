"""The house itself: which chapter imports which, and what each shows to the others."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unhooked

SOURCE = Path(__file__).parents[1] / "src" / "pushforward"

MAY_IMPORT = {
    "_tools": "",
    "ops": "_tools",
    "measures": "_tools",
    "affinities": "_tools ops measures",
    "sinkhorn": "_tools ops affinities",
    "relations": "_tools measures affinities sinkhorn",
    "distances": "_tools measures affinities sinkhorn",
    "pictures": "_tools measures relations",
    "maps": "_tools ops measures affinities sinkhorn relations",
    "flows": "_tools ops measures affinities sinkhorn relations distances pictures maps",
    "approximation": "_tools measures affinities relations distances",
    "representation": "_tools measures distances maps flows",
    "auditing": "_tools measures distances relations pictures maps flows approximation "
    "representation",
}
"""Which chapters a chapter may import; the root imports all of them."""

FILES = [file for file in SOURCE.rglob("*.py") if file.parent != SOURCE]


def imports(file: Path) -> Iterator[tuple[str, ...]]:
    """The dotted paths, from the root of the package, that a file imports from it."""
    package = file.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            if node.module:
                yield *base, *node.module.split(".")
            else:
                yield from ((*base, alias.name) for alias in node.names)


def test_the_chapters_are_those_of_the_table():
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_a_chapter_imports_what_the_table_allows_and_only_faces(file):
    """Never a private file of another chapter; `_tools` is a box whose files are its face."""
    chapter = file.relative_to(SOURCE).parts[0]
    for target in imports(file):
        if target[0] == chapter:
            continue
        assert target[0] in MAY_IMPORT[chapter].split(), f"{chapter} imports {target[0]}"
        private = [part for part in target[1:] if part.startswith("_")]
        assert not private, f"{chapter} reaches into {'.'.join(target)}"


def test_every_module_can_be_imported_by_its_full_name():
    """No object hides a module of the same name."""
    import importlib
    from types import ModuleType

    for file in SOURCE.rglob("*.py"):
        parts = ("pushforward", *file.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        found = importlib.import_module(name)
        walked = importlib.import_module("pushforward")
        for part in name.split(".")[1:]:
            walked = getattr(walked, part)
        assert isinstance(walked, ModuleType) and walked is found, name
