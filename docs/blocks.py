"""Run the code blocks of a page and show under each what it prints, returns and draws.

All blocks of a page marked `python` run in order in one namespace, as in a notebook. So do blocks
marked `sh run`, in the same folder. What follows the word `python` on the first line is for us:

    ```python raises=ValueError           the block must raise this error, which is shown
    ```python not-run="why"               the block does not run, and the page says why
    ```sh run                             commands, with their output
    ```sh run exit=2                      the exit code that the commands must end with

A block that raises stops the build. Results are kept in `.cache/blocks` until a block of the page
or a file of the library changes. To see what the blocks of some pages give:

    python docs/blocks.py docs/flows.md
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import html
import importlib.metadata
import io
import json
import linecache
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "blocks"
PAGES = ROOT / "docs"
GIVEN = "import torch, pushforward as pf"
"""What the pages of the site assume; README and CONTRIBUTING have their own imports."""
LONGEST = 40
"""Lines of output. A block that prints more should print what a reader wants to see."""
AT_ONCE = 2
SHOWN = {".svg", ".png", ".gif", ".webp"}
STYLE = {
    "figure.figsize": (5.6, 3.6), "figure.dpi": 110, "savefig.bbox": "tight", "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "pushforward",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code: its language, its options, its lines and where they stand."""

    language: str
    options: dict[str, str]
    code: str
    first: int
    last: int

    @property
    def runs(self) -> bool:
        """Whether the block is one that we run."""
        kind = self.language == "python" or (self.language == "sh" and "run" in self.options)
        return kind and "not-run" not in self.options


# What is on a page


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page; `first` and `last` are the lines of the fences, from zero."""
    lines, found, start = text.splitlines(), [], None
    for number, line in enumerate(lines):
        if start is None and (match := re.match(r"(```+)(\w+)(.*)$", line)):
            start, fence, language, rest = number, *match.groups()
        elif start is not None and line.rstrip() == fence:
            code = "\n".join(lines[start + 1 : number]) + "\n"
            found.append(Block(language, _options(rest), code, start, number))
            start = None
    return found


def _options(rest: str) -> dict[str, str]:
    words = (word.partition("=") for word in shlex.split(rest))
    return {name: value for name, _, value in words}


# Running a page


def run(page: Path, folder: Path) -> list[dict]:
    """Run the blocks of a page in this process, with `folder` as working folder.

    Each result has the text of the block's output, the names of figures and pages that it wrote
    into the folder, and the error of a block that failed.
    """
    import matplotlib
    import numpy
    import torch

    matplotlib.use("svg")
    matplotlib.rcParams.update(STYLE)
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    torch.set_num_threads(1)
    namespace, results = {"__name__": "__main__"}, []
    os.chdir(folder)
    if page.is_relative_to(PAGES):
        exec(GIVEN, namespace)
    for number, block in enumerate(filter(lambda b: b.runs, blocks(page.read_text()))):
        runner = _python if block.language == "python" else _shell
        before = _files(folder)
        result = runner(block, page, namespace)
        figures = [_save(figure, f"{number}-{k}") for k, figure in enumerate(result["figures"])]
        written = sorted(set(_files(folder)) - set(before) - {name for name, _ in figures})
        pictures = [(name, name) for name in written if Path(name).suffix in SHOWN]
        result["figures"] = [*figures, *pictures]
        result["pages"] = [name for name in written if name.endswith(".html")]
        results.append(_checked(result, block, page))
        if results[-1]["error"]:
            break
    return results


def _python(block: Block, page: Path, namespace: dict) -> dict:
    """Execute a block; its last expression is shown, unless a semicolon ends it.

    A path is not shown: it stands for a file, which is.
    """
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    out, raised, value = io.StringIO(), None, None
    known = {id(thing) for thing in namespace.values() if isinstance(thing, Figure)}
    linecache.checkcache(str(page))
    try:
        tree = ast.increment_lineno(ast.parse(block.code), block.first + 1)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with _caught(out):
            exec(compile(tree, str(page), "exec"), namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), str(page), "eval"), namespace)
    except BaseException as error:
        raised = error
    figures = [plt.figure(number) for number in plt.get_fignums()]
    figures += [f for f in (*namespace.values(), value) if isinstance(f, Figure)]
    figures = [f for f in dict.fromkeys(figures) if id(f) not in known]
    plt.close("all")
    if isinstance(value, str) and value.lstrip().startswith("<svg"):
        figures.append(value)
    elif not isinstance(value, NoneType | Figure | Path) and not block.code.endswith(";\n"):
        out.write(repr(value) + "\n")
    return {"text": out.getvalue(), "figures": figures, "raised": raised}


def _shell(block: Block, page: Path, namespace: dict) -> dict:
    """Run commands by bash, which stops at the first one that fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "90", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        ["bash", "-ec", block.code], text=True, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    expected = int(block.options.get("exit", 0))
    wrong = f"exit code {done.returncode}, expected {expected}\n{done.stdout}"
    raised = RuntimeError(wrong) if done.returncode != expected else None
    return {"text": done.stdout, "figures": [], "raised": raised}


def _checked(result: dict, block: Block, page: Path) -> dict:
    """The result as it is kept: errors as text, and what must not happen as an error."""
    error, raised, expected = "", result.pop("raised"), block.options.get("raises")
    text = result["text"].replace(os.getcwd() + os.sep, "").replace(os.getcwd(), ".")
    text = re.sub(r" at 0x[0-9a-f]+", "", text)
    if raised is not None and expected == type(raised).__name__:
        text += f"{expected}: {raised}\n"
    elif raised is not None:
        error = "".join(traceback.format_exception(raised))
    elif expected is not None:
        error = f"expected the block to raise {expected}, and nothing was raised"
    elif len(text.splitlines()) > LONGEST:
        error = f"prints {len(text.splitlines())} lines; show at most {LONGEST}"
    if error:
        error = f"{page.name}, block at line {block.first + 1}: {error}\n{text[-1000:]}"
    return {**result, "text": text, "error": error}


@contextlib.contextmanager
def _caught(out: io.StringIO) -> Iterator[None]:
    """What is printed goes to `out`, and so do warnings, without the file and the line."""
    told = lambda message, category, *_: out.write(f"{category.__name__}: {message}\n")
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(out))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        warnings.showwarning = told
        yield


def _files(folder: Path) -> list[str]:
    return [str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()]


def _save(figure: object, name: str) -> tuple[str, str]:
    """Write a figure, as SVG unless that is large; its file and what it shows in words."""
    if isinstance(figure, str):
        Path(f"{name}.svg").write_text(figure)
        return f"{name}.svg", "Figure drawn by the code above"
    titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    labels = [f"{a.get_ylabel()} against {a.get_xlabel()}" for a in figure.axes if a.get_ylabel()]
    says = "; ".join(t for t in titles if t) or "; ".join(labels) or "Figure drawn by the code"
    figure.savefig(f"{name}.svg", metadata={"Date": None})
    if Path(f"{name}.svg").stat().st_size > 150_000:
        Path(f"{name}.svg").unlink()
        figure.savefig(f"{name}.png", dpi=160)
        return f"{name}.png", says
    return f"{name}.svg", says


# Keeping results


def key(page: Path) -> str:
    """A hash of the page's blocks and of everything that they depend on."""
    parts = [repr([dataclasses.astuple(b) for b in blocks(page.read_text()) if b.runs]), _basis()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _basis() -> str:
    """A hash of this file, the library and the versions of what it uses."""
    total = hashlib.sha256(Path(__file__).read_bytes())
    for file in sorted((ROOT / "src").rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            total.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    for name in ("torch", "numpy", "scipy", "matplotlib", "POT", "torchdiffeq"):
        total.update(importlib.metadata.version(name).encode())
    return total.hexdigest()


def kept(page: Path) -> Path:
    """The folder of a page's results, whether they are there or not."""
    name = "-".join(page.relative_to(ROOT).with_suffix("").parts)
    return CACHE / f"{name}-{key(page)}"


def results(pages: Iterable[Path]) -> dict[Path, list[dict]]:
    """The results of all blocks of pages; what is not kept from an earlier time is run."""
    pages = [page for page in pages if any(block.runs for block in blocks(page.read_text()))]
    missing = [str(page) for page in pages if not kept(page).exists()]
    if missing:
        done = subprocess.run([sys.executable, __file__, *missing], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
    return {page: json.loads((kept(page) / "results.json").read_text()) for page in pages}


def make(page: Path) -> None:
    """Run a page in this process and keep the results; the first error ends it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    target = kept(page)
    draft = Path(tempfile.mkdtemp(dir=CACHE, prefix="draft-"))
    try:
        found = run(page, draft)
        if found and found[-1]["error"]:
            raise SystemExit(found[-1]["error"])
        (draft / "results.json").write_text(json.dumps(found))
        for old in CACHE.glob(f"{target.name.rpartition('-')[0]}-{'[0-9a-f]' * 16}"):
            shutil.rmtree(old, ignore_errors=True)
        draft.rename(target)
    finally:
        os.chdir(ROOT)
        shutil.rmtree(draft, ignore_errors=True)


def main(pages: list[str]) -> int:
    """Make pages, each in a process of its own that need not import PyTorch again."""
    import matplotlib.pyplot  # noqa: F401
    import torch  # noqa: F401

    import pushforward  # noqa: F401

    waiting, running, failed = [Path(page).resolve() for page in pages], set(), 0
    while waiting or running:
        if waiting and len(running) < AT_ONCE:
            if child := os.fork():
                running.add(child)
                waiting.pop(0)
                continue
            os._exit(_child(waiting[0]))
        child, status = os.wait()
        running.discard(child)
        failed += status != 0
    return int(failed > 0)


def _child(page: Path) -> int:
    try:
        make(page)
    except BaseException as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        sys.stdout.flush(), sys.stderr.flush()
    return 0


# The site


_found: dict[str, list[dict]] = {}


def on_files(files: object, config: object) -> object:
    """Run the blocks of all pages, and add their figures to the site."""
    from mkdocs.exceptions import PluginError
    from mkdocs.structure.files import File

    uris = {Path(f.abs_src_path): f.src_uri for f in files.documentation_pages() if f.abs_src_path}
    try:
        found = results(uris)
    except RuntimeError as error:
        raise PluginError(str(error)) from None
    for page, outputs in found.items():
        uri = uris[page]
        _found[uri] = outputs
        for name in _named(outputs):
            source = str(kept(page) / name)
            files.append(File.generated(config, _place(uri, name), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Put the output of each block under it."""
    uri = page.file.src_uri
    if uri not in _found:
        return markdown
    lines, outputs = markdown.splitlines(), iter(_found[uri])
    for block in blocks(markdown):
        lines[block.first] = f"```{block.language}"
        if block.runs:
            lines[block.last] += "\n\n" + _shown(next(outputs), uri)
        elif why := block.options.get("not-run"):
            note = f"Not run when this page was made: {html.escape(why)}."
            lines[block.last] += f'\n\n<p class="not-run">{note}</p>\n'
    return "\n".join(lines)


def _named(outputs: list[dict]) -> Iterator[str]:
    for output in outputs:
        yield from (name for name, _ in output["figures"])
        yield from output["pages"]


def _place(uri: str, name: str) -> str:
    return f"assets/blocks/{uri.removesuffix('.md').replace('/', '-')}/{name}"


def _shown(output: dict, uri: str) -> str:
    """The output of a block as HTML, which the search leaves out."""
    address = lambda name: f"{'../' * uri.count('/')}{_place(uri, name)}"
    parts = []
    if output["text"].strip():
        parts.append(f"<pre>{html.escape(output['text'].rstrip())}</pre>")
    for name, says in output["figures"]:
        parts.append(f'<img src="{address(name)}" alt="{html.escape(says)}" loading="lazy">')
    for name in output["pages"]:
        parts.append(f'<p><a href="{address(name)}">{html.escape(name)}</a></p>')
    inside = "\n".join(parts)
    group = 'class="output" role="group" aria-label="Output" data-search-exclude'
    return f"<div {group}>\n{inside}\n</div>\n" if parts else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
