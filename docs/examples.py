"""Make a page of each program in `examples/`: what it says about itself, and its code."""

import ast
from pathlib import Path

from mkdocs.structure.files import File

FOLDER = Path(__file__).parents[1] / "examples"


def on_files(files: object, config: object) -> object:
    """Add the pages, such as `examples/flows/polytope.md`, which other pages may link to."""
    for program in sorted(FOLDER.rglob("*.py")):
        name = program.relative_to(FOLDER.parent)
        place = str(name.with_suffix(".md"))
        files.append(File.generated(config, place, content=page(name, program.read_text())))
    return files


def page(name: Path, code: str) -> str:
    """The page of a program, as Markdown."""
    tree = ast.parse(code)
    says, _, rest = ast.get_docstring(tree).partition("\n\n")
    code = "".join(code.splitlines(keepends=True)[tree.body[0].end_lineno :]).lstrip()
    title = f"---\nsearch:\n  boost: 0.5\n---\n# `{name.relative_to('examples')}`"
    how = f"Run it with `python {name}` in the folder of the project."
    return "\n\n".join([title, says, rest, how, f"```python\n{code}```\n"])
