"""The project as users meet it: what an import needs, README, docs, examples, memory."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from implementations import HERE

pytestmark = pytest.mark.unhooked

ROOT = Path(__file__).parents[1]

ONE_CORE = {"OMP_NUM_THREADS": "1"}
"""Tests run side by side, and threads that wait for each other's cores take ten times as long."""


SERVER = """
import json, os, runpy, signal, sys, traceback
import torch, pushforward
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.alarm(300)
        log = os.open(job["log"], os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.chdir(job["cwd"])
        sys.argv = job["argv"]
        try:
            runpy.run_path(job["argv"][0], run_name="__main__")
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs scripts in processes of their own that need not import PyTorch again: each is a fork of one
interpreter that has done nothing but that."""


@pytest.fixture(scope="module")
def fresh():
    """Run a script with arguments in a process of its own; an error fails the test."""
    environment = {**os.environ, **ONE_CORE, "MPLBACKEND": "Agg"}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def run_job(cwd, argv):
        log = cwd / "log.txt"
        job = {"cwd": str(cwd), "argv": argv, "log": str(log)}
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        assert server.stdout.readline() == "0\n", log.read_text()[-3000:]

    yield run_job
    server.stdin.close()
    server.wait()


def run(code, *arguments, cwd=ROOT, **environment):
    """Run code in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd,
        env={**os.environ, **ONE_CORE, **environment}, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_import_needs_torch_numpy_jaxtyping_only():
    """With every other dependency blocked, import, layers and 1-D distances work."""
    run("""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ot", "scipy", "matplotlib", "rich", "beartype", "triton",
                                  "torchdiffeq", "safetensors", "llvmlite"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
import torch
# torch itself may try, and do without
import pushforward as pf, pushforward.ops
mu = pf.Measure(torch.randn(9, 2))
pf.Transformer(2, depth=2).push(mu)
pf.wasserstein(pf.Measure(torch.randn(9, 1)), pf.Measure(torch.randn(8, 1)))
pf.ops.log_integral(torch.randn(1100, 2), torch.randn(1100, 2), torch.zeros(1100))
pf.sinkhorn_divergence(mu, mu, eps=1.0), pf.energy_distance(mu, mu), pf.mmd(mu, mu)
try:
    pf.wasserstein(mu, pf.Measure(torch.randn(8, 2)))
except ImportError as error:
    assert "pip install POT" in str(error)
else:
    raise AssertionError("expected an ImportError")
""")


def test_import_changes_nothing_global():
    run("""
import torch, warnings
before = torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters)
import pushforward
assert before == (torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters))
""")


def site(name):
    """A module of the documentation's machinery."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_blocks_of_pages_outside_the_site(page):
    """They run in order, by the program that runs those of the site when it is built."""
    site("blocks").results([ROOT / page])


EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples(example, tmp_path, fresh):
    """Those that can be made smaller are."""
    small = ["--small"] if '"--small"' in example.read_text() else []
    fresh(tmp_path, [str(example), *small])


FUSED = ("fused_average", "fused_causal_average") if "fused" in HERE else ()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read on Linux")
@pytest.mark.parametrize(
    "arguments",
    [
        ("average", "log_integral", "causal_average", *FUSED, "1024", "4096", "16384"),
        ("sinkhorn_steps", "512", "2048", "8192"),  # twenty reductions
        ("sinkhorn_implicit", "512", "2048", "8192"),  # forty reductions in its gradient
    ],
    ids=["reductions", "steps", "implicit"],
)
def test_memory_is_linear(arguments, record_property):
    """Forward and backward: peak memory grows at most in proportion to n.

    One dense matrix of 8192 x 8192 numbers in float32 takes 268 MB, of 16384 x 16384 1.07 GB; the
    streamed peak is below 100 MB.
    """
    code = (ROOT / "benchmarks" / "memory.py").read_text()
    peaks = {}
    for line in run(code, *arguments).splitlines():
        op, n, megabytes = line.split()
        peaks.setdefault(op, []).append(float(megabytes))
    for op, (small, middle, large) in peaks.items():
        record_property(f"{op} peaks in MB", f"{small} {middle} {large}")
        assert middle <= max(4 * small, 30) and large <= max(4 * middle, 30), (op, peaks[op])
        assert large < 100


def test_equation_by_equation():
    """Tags are written in one way, and every tag meets a statement about its formula."""
    page = site("equations")
    rows = page.rows()  # it raises for a tag without a statement
    places = {(row.paper, row.place): row for row in rows}
    compose = places["A", "(8)"]
    assert [tag.name for tag in compose.tags] == ["Compose"]
    assert compose.statement.source == "(8)"
    assert {("A", "(4)"), ("A", "(73)-(85)"), ("A", "Theorem 1"), ("B", "Section 4")} <= set(
        places
    )
    number = r"(eq\.|Def\.|Rem\.|Lem\.|Prop\.|Thm\.|Cor\.|§) ?[\w.]+$"
    label = re.compile(number + "|[a-zA-Z ]+$")  # what has no number has a name
    for tag in page.tags():
        assert label.match(tag.label), tag


def test_every_chapter_has_a_place_of_its_own_in_the_picture():
    """No box hides another, and nothing in them is Markdown."""
    page = site("chapters")
    drawn = page.picture(page.may_import())
    boxes = re.findall(r'<rect x="(\d+)" y="(\d+)"', drawn)
    assert len(boxes) == len(set(boxes)) == len(page.may_import()) and "`" not in drawn


def test_documentation_builds(tmp_path):
    """Strictly, with the blocks of all pages run, and no formula left as dollars in the text."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'class="output"' in (tmp_path / "quickstart.html").read_text()
    for page in set(tmp_path.rglob("*.html")) - set((tmp_path / "assets").rglob("*")):
        text = re.sub(r"<(code|script|pre)\b.*?</\1>", "", page.read_text(), flags=re.S)
        assert "$" not in text and "arithmatex" not in text, page.name
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="?(http[^"> ]+)', page.read_text())
        assert not loaded, f"{page.name} needs the network: {loaded}"
    table = (tmp_path / "benchmarks.html").read_text()
    assert '<td><span class="number">4e-07</span></td>' in table  # no line ends within a number
    assert (tmp_path / "search" / "search_index.js").exists()  # search in a site opened from disk


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.stem)
def test_no_page_is_empty(page):
    assert page.read_text().startswith("# ")


def test_no_stray_files():
    """Nothing large and no environment is tracked; the model that ships is under 1 MB."""
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT).stdout
    for name in files.split():
        assert not name.startswith((".venv", "site/", "out/")), name
        most = 1_000_000 if name.endswith("/flock.safetensors") else 300_000
        assert (ROOT / name).stat().st_size < most, name
