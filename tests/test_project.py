"""The project as users meet it: what an import needs, README, docs, examples, memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unhooked

ROOT = Path(__file__).parents[1]

ONE_CORE = {"OMP_NUM_THREADS": "1"}
"""Tests run side by side, and threads that wait for each other's cores take ten times as long."""


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
                                  "torchdiffeq", "safetensors", "plotly"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
import torch
# torch itself may try, and do without
import pushforward as pf, pushforward.ops
mu = pf.Measure(torch.randn(9, 2))
pf.Transformer(2, depth=2).push(mu)
pf.wasserstein(pf.Measure(torch.randn(9, 1)), pf.Measure(torch.randn(8, 1)))
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


def test_readme_blocks(tmp_path):
    """Each block runs after those before it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    run("\n".join(blocks), cwd=tmp_path, MPLBACKEND="Agg")


PAGES = sorted(p for p in (ROOT / "docs").glob("**/*.md") if "```python" in p.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_blocks_of_the_documentation(page, tmp_path):
    """All blocks of a page run, in order, after the two imports the pages assume."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    code = "import torch, pushforward as pf\n" + "\n".join(blocks)
    run(code, cwd=tmp_path, MPLBACKEND="Agg")


EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.stem)
def test_examples(example, tmp_path):
    """Those that can be made smaller are."""
    small = ["--small"] if '"--small"' in example.read_text() else []
    done = subprocess.run(
        [sys.executable, str(example), *small], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, **ONE_CORE, "MPLBACKEND": "Agg"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read on Linux")
@pytest.mark.parametrize(
    "arguments",
    [
        ("average", "log_integral", "causal_average"),
        ("sinkhorn_steps", "1024", "4096", "16384"),  # twenty reductions
        ("sinkhorn_implicit", "512", "2048", "8192"),  # forty reductions in its gradient
    ],
    ids=["reductions", "steps", "implicit"],
)
def test_memory_is_linear(arguments, record_property):
    """Forward and backward at up to 32k atoms: peak memory at most proportional to n.

    A dense 32k x 32k matrix in float32 takes 4.3 GB; the streamed peak is below 100 MB.
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


def test_documentation_builds(tmp_path):
    """Strictly, and with no formula left as dollars in the text."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for page in tmp_path.glob("*.html"):
        text = re.sub(r"<(code|script|pre)\b.*?</\1>", "", page.read_text(), flags=re.S)
        assert "$" not in text and "arithmatex" not in text, page.name


def test_no_stray_files():
    """Nothing large and no environment is tracked."""
    files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT).stdout
    for name in files.split():
        assert not name.startswith((".venv", "site/", "out/")), name
        assert (ROOT / name).stat().st_size < 300_000, name
