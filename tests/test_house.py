"""The house itself: who imports whom, what users see, sizes, annotations, classes."""

import ast
import importlib
import inspect
import operator
import re
from abc import ABC
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

import pushforward as pf

pytestmark = pytest.mark.unhooked

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCE = ROOT / "src" / "pushforward"

MAY_IMPORT = {
    "_tools": "",
    "ops": "_tools",
    "measures": "_tools",
    "affinities": "_tools ops measures",
    "sinkhorn": "_tools ops affinities",
    "relations": "_tools measures affinities sinkhorn",
    "distances": "_tools measures affinities sinkhorn relations",
    "pictures": "_tools measures relations",
    "maps": "_tools ops measures affinities sinkhorn relations",
    "flows": "_tools ops measures affinities sinkhorn relations distances pictures maps",
    "approximation": "_tools measures affinities relations distances",
    "representation": "_tools measures distances maps flows",
    "auditing": "_tools measures distances relations pictures maps flows approximation "
    "representation",
    "fitting": "_tools measures relations distances pictures maps flows approximation",
    "statements": "_tools ops measures affinities sinkhorn relations distances pictures maps "
    "flows approximation representation auditing",
    "_command": "_tools ops measures affinities sinkhorn relations distances pictures maps "
    "flows approximation representation auditing fitting statements",
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
    for file in SOURCE.rglob("*.py"):
        parts = ("pushforward", *file.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        found = importlib.import_module(name)
        walked = importlib.import_module("pushforward")
        for part in name.split(".")[1:]:
            walked = getattr(walked, part)
        assert isinstance(walked, ModuleType) and walked is found, name


def check(rule: str, found: Iterable[str]) -> None:
    """Fail with a list of everything that breaks a rule."""
    wrong = sorted(set(found))
    assert not wrong, f"{rule}:\n" + "\n".join(wrong)


# What users see


NAMES = (HERE / "public_names.txt").read_text().split()


def test_the_root_exports_the_committed_list():
    """New names are added to `tests/public_names.txt` on purpose, or not at all."""
    assert sorted(pf.__all__) == NAMES
    for name in pf.__all__:
        assert hasattr(pf, name), name


def test_dir_shows_the_names_and_the_chapters():
    chapters = {name for name in MAY_IMPORT if not name.startswith("_")}
    assert set(dir(pf)) == set(pf.__all__) | chapters


def api_pages() -> str:
    """The text of all pages of the API."""
    return "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "api").glob("*.md")))


def public_objects() -> dict[str, object]:
    """The root's names, and everything the API pages document."""
    paths = re.findall(r"^::: pushforward\.(\S+)", api_pages(), re.M)
    return {path: operator.attrgetter(path)(pf) for path in sorted({*paths, *pf.__all__})}


def arguments(thing: object) -> list[str]:
    """Parameters of a function, or of a class's constructor; members of an Enum are given."""
    if inspect.isclass(thing) and issubclass(thing, Enum):
        return []
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in parameters if name not in ("self", "cls", "args", "kwargs")]


def test_every_public_object_has_a_real_docstring():
    """More than a line for whatever takes arguments; something for every public method."""

    def poor() -> Iterator[str]:
        for path, thing in public_objects().items():
            if not inspect.isclass(thing) and not inspect.isroutine(thing):
                continue
            text = thing.__doc__ or ""  # not inherited: an object has its own
            made_up = text.startswith(f"{path.rpartition('.')[2]}(")  # by `dataclass`
            if made_up or len(text) < 20 or (arguments(thing) and "\n" not in text.strip()):
                yield path
            if inspect.isclass(thing):
                for name, member in vars(thing).items():
                    routine = inspect.isroutine(member) or isinstance(member, property)
                    if (
                        routine
                        and not name.startswith("_")
                        and not inspect.getdoc(getattr(thing, name))
                    ):
                        yield f"{path}.{name}"

    check("without a real docstring", poor())


def test_the_api_pages_document_every_root_name():
    page = api_pages()
    objects = (name for name in pf.__all__ if not isinstance(getattr(pf, name), ModuleType))
    missing = [name for name in objects if f"::: pushforward.{name}\n" not in page + "\n"]
    check("not in the API pages", missing)


# Sizes


def test_folders_and_files_are_small():
    """At most ten files in a folder, beside its face; none above 450 lines."""

    def large() -> Iterator[str]:
        for folder in {file.parent for file in FILES}:
            count = sum(file.name != "__init__.py" for file in folder.glob("*.py"))
            if count > 10:
                yield f"{folder.relative_to(SOURCE)} has more than ten files"
        for file in FILES:
            if len(file.read_text().splitlines()) > 450:
                yield f"{file.relative_to(SOURCE)} has more than 450 lines"

    check("too large", large())


def functions() -> Iterator[tuple[str, ast.FunctionDef, bool]]:
    """Every function of the package, nested ones too: where, what, and whether it is a method.

    Kernels are left out: Triton wants each pointer, size and stride as an argument of its own.
    """
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        methods = {
            id(item)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for item in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and not is_kernel(node):
                yield f"{file.relative_to(SOURCE)} {node.name}", node, id(node) in methods


def is_kernel(node: ast.FunctionDef) -> bool:
    return any(
        ast.unparse(decorator).startswith(("triton.jit", "gluon.jit"))
        for decorator in node.decorator_list
    )


def parameters(node: ast.FunctionDef, method: bool) -> list[ast.arg]:
    """All parameters but `self` and `cls`."""
    static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
    plain = [*node.args.posonlyargs, *node.args.args]
    return [*plain[1 if method and not static else 0 :], *node.args.kwonlyargs]


def test_every_function_is_annotated():
    def bare() -> Iterator[str]:
        for where, node, method in functions():
            extra = [a for a in (node.args.vararg, node.args.kwarg) if a is not None]
            every = [*parameters(node, method), *extra]
            if node.returns is None or any(a.annotation is None for a in every):
                yield where

    check("not annotated", bare())


def test_functions_take_at_most_eight_arguments():
    many = (where for where, node, method in functions() if len(parameters(node, method)) > 8)
    check("more than eight arguments", many)


# Classes


def classes() -> list[type]:
    """Every class of the package."""
    found: set[type] = set()
    for file in FILES:
        name = ".".join(("pushforward", *file.relative_to(SOURCE).with_suffix("").parts))
        module = importlib.import_module(name.removesuffix(".__init__"))
        found |= {c for c in vars(module).values() if inspect.isclass(c) and ours(c)}
    return sorted(found, key=title)


def ours(cls: type) -> bool:
    return cls.__module__.startswith("pushforward.")


def title(cls: type) -> str:
    return f"{cls.__module__.removeprefix('pushforward.')}.{cls.__qualname__}"


def is_abstract(cls: type) -> bool:
    return inspect.isabstract(cls) or ABC in cls.__bases__


def test_a_class_is_abstract_or_final():
    """Exceptions and warnings aside, no concrete class is subclassed."""

    def subclassed() -> Iterator[str]:
        for cls in classes():
            for base in cls.__bases__:
                if ours(base) and not is_abstract(base) and not issubclass(base, Exception):
                    yield f"{title(cls)} < {title(base)}"

    check("concrete class subclassed", subclassed())


OPEN = {"forward", "extra_repr"}
"""Methods that PyTorch means to be overridden."""


def test_no_concrete_method_is_overridden():
    def overridden() -> Iterator[str]:
        for cls in classes():
            own = {n for n, v in vars(cls).items() if is_method(v) and not n.startswith("__")}
            for base in filter(ours, cls.__mro__[1:]):
                for name in own - OPEN:
                    was = vars(base).get(name)
                    if is_method(was) and not getattr(was, "__isabstractmethod__", False):
                        yield f"{title(cls)}.{name} over {title(base)}"

    check("concrete method overridden", overridden())


def is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def test_no_method_only_says_that_it_is_not_implemented():
    """Functions may: the default of single dispatch, to which kinds are registered."""

    def empty() -> Iterator[str]:
        for where, node, method in functions():
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if method and len(body) == 1 and isinstance(body[0], ast.Raise):
                if "NotImplementedError" in ast.dump(body[0]):
                    yield where

    check("only raises NotImplementedError", empty())


def test_no_assert_and_no_bare_warning():
    """Errors have a type and a message; warnings go through `_tools/warn.py`."""

    def wrong() -> Iterator[str]:
        for file in FILES:
            text, where = file.read_text(), file.relative_to(SOURCE)
            if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))):
                yield f"{where} assert"
            if "warnings.warn(" in text and where != Path("_tools/warn.py"):
                yield f"{where} warnings.warn"

    check("assert or warnings.warn", wrong())
