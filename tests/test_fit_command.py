"""`pushforward fit`: configurations, runs that are killed and go on, folders, pages, examples."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from browser import WIDTHS
from safetensors.torch import load_file
from test_house import ROOT

import pushforward as pf
from pushforward._command import main
from pushforward._command.training import Configuration, build, read_configuration

pytestmark = pytest.mark.unhooked

SMALL = """\
target:
  field: {kind: Linear, A: -1, B: 0.5}
  t1: 1
  solver: {kind: RK4, steps: 2}
law: {kind: Mixtures, dim: 2}
model: {depth: 1, heads: 1, width: 16}
training:
  steps: 12
  batches: {sizes: [4, 8], atoms: 32}
  evaluation: {every: 3, sizes: [4, 16], measures: 2}
report:
  sizes: [4, 16]
  measures: 3
  exact: 1
  attack: {sizes: [2, 3], starts: 4, steps: 3, seeds: 1}
page: {title: Five & <more>}
"""
COMMAND = "import sys; from pushforward._command import main; sys.exit(main())"
FILES = ["configuration.yaml", "log.csv", "model.safetensors", "page.html", "report.json",
         "state.safetensors"]  # fmt: skip


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own():
    """Float32, and one thread: networks are tiny here, and tests run side by side."""
    torch.set_default_dtype(torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write(tmp_path):
    def written(text, name="fit.yaml"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return written


def names(folder):
    return sorted(f.name for f in folder.iterdir() if f.name != "tensorboard")


def test_a_fit_and_what_it_writes(tmp_path, write, capsys):
    out = tmp_path / "run"
    assert main(["fit", str(write(SMALL)), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert (
        "mean error" in said and "worst found" in said and f"Written: {out / 'page.html'}" in said
    )
    assert re.search(r"wrong by at most [\d.]+% of the displacement", said.splitlines()[-1])
    assert names(out) == FILES
    with (out / "log.csv").open() as log:
        assert [float(row["step"]) for row in csv.DictReader(log)] == [3, 6, 9, 12]
    record = json.loads((out / "report.json").read_text())
    rows = record["scores"]["rows"]
    assert [row["n"] for row in rows] == [4, 16] and rows[0]["transport"] <= rows[0]["worst"]
    assert record["configuration"]["training"]["optimiser"]["ema"] == 0.998  # all defaults
    worst = record["attack"]["rows"]
    assert len(worst) == 2 and all(row["found"] >= row["start"] > 0 for row in worst)
    model = pf.maps.load(out / "model.safetensors")
    picture = record["pictures"]["held_out"]
    mu = pf.Measure(torch.tensor(picture["before"]).float())
    assert picture["paired"] and mu.n == 8
    weights = torch.tensor(picture["weights"])
    images = model.push(pf.Measure(mu.atoms, weights)).atoms
    assert torch.allclose(images, torch.tensor(picture["predicted"]).float(), atol=1e-5)


def test_the_page_says_what_the_report_says_and_needs_no_network(tmp_path, write):
    out = tmp_path / "run"
    assert main(["fit", str(write(SMALL)), "--out", str(out), "--quiet"]) == 0
    text = (out / "page.html").read_text()
    assert "<title>Five &amp; &lt;more&gt;</title>" in text
    assert not re.search(r"""(?:src|href)=["']?(?:http|//)|@import|url\(""", text)
    assert "Error against the number of atoms" in text and "The worst measure" in text
    assert f"pf.maps.load(&quot;{out.as_posix()}/model.safetensors&quot;)" in text
    assert len(text) < 150_000


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_in_a_browser(browse, tmp_path, write, width):
    """Charts are drawn, nothing is wider than the screen, and nothing is asked for."""
    out = tmp_path / "run"
    assert main(["fit", str(write(SMALL)), "--out", str(out), "--quiet"]) == 0
    view = browse(out / "page.html", width=width)
    view.scroll_through()
    view.page.click("text=Dark")
    view.check()
    figures = view.page.locator("figure").count()
    assert figures >= 6 and view.page.locator("figure svg").count() >= figures


SLOW = SMALL.replace("steps: 12", "steps: 400").replace("every: 3", "every: 20")


def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, write):
    """SIGKILL in the middle, then Ctrl-C soon after --resume, then --resume to the end."""
    file, out = str(write(SLOW)), tmp_path / "cut"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMAND, "fit", file, "--out", str(out)]

    def stopped(how, *more):
        """The exit code and the errors of a process that was stopped after another state."""
        before = steps(out)
        victim = subprocess.Popen([*command, *more], env=environment, stderr=subprocess.PIPE)
        deadline = time.time() + 120
        while steps(out) <= before + 40 and time.time() < deadline:
            time.sleep(0.005)
        victim.send_signal(how)
        _, err = victim.communicate(timeout=60)
        return victim.returncode, err.decode()

    code, _ = stopped(signal.SIGKILL)
    assert code == -signal.SIGKILL and 0 < steps(out) < 400
    code, err = stopped(signal.SIGINT, "--resume")
    assert code == 130 and f"interrupted. {steps(out)} of 400 steps are kept" in err, err
    assert f"--out {out} --resume" in err and "Traceback" not in err and steps(out) < 400
    assert not (out / "page.html").exists()
    assert main(["fit", file, "--out", str(out), "--resume", "--quiet"]) == 0
    assert main(["fit", file, "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    for name in ("model.safetensors", "state.safetensors"):
        cut, whole = (load_file(folder / name) for folder in (out, tmp_path / "whole"))
        assert cut.keys() == whole.keys() and all(torch.equal(cut[t], whole[t]) for t in whole)
    cut, whole = ((folder / "log.csv").read_text() for folder in (out, tmp_path / "whole"))
    seconds = re.compile(r",[^,\n]*$", re.MULTILINE)
    assert seconds.sub("", cut) == seconds.sub("", whole)


def steps(folder):
    """The last step in the log of a run."""
    try:
        return int(float((folder / "log.csv").read_text().splitlines()[-1].split(",")[0]))
    except (OSError, ValueError, IndexError):
        return 0


def test_what_is_in_a_folder_is_kept(tmp_path, write, capsys):
    """Another fit and the files of somebody are never overwritten by accident."""
    file, out = write(SMALL), tmp_path / "run"
    run = lambda *more: main(["fit", str(file), "--out", str(out), "--quiet", *more])
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert run() == 2 and "not empty" in capsys.readouterr().err
    assert run("--resume") == 2 and "no run" in capsys.readouterr().err
    assert names(out) == ["mine.txt"]
    assert run("--force") == 0
    first = {name: (out / name).read_bytes() for name in FILES}
    assert run() == 2 and "--resume" in capsys.readouterr().err
    file.write_text(SMALL.replace("depth: 1", "depth: 2"))
    assert run("--resume") == 2
    assert "line 6: `model.depth` is not that of the run" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in FILES} == first
    file.write_text(SMALL.replace("Five", "Six"))  # the page alone
    assert run("--resume") == 0
    changed = {name for name in FILES if (out / name).read_bytes() != first[name]}
    assert changed == {"page.html"} and "<title>Six" in (out / "page.html").read_text()
    file.write_text(SMALL.replace("measures: 3", "measures: 2"))  # the report and the page
    assert run("--resume") == 0
    record = json.loads((out / "report.json").read_text())
    assert record["scores"]["rows"][0]["measures"] == 2
    assert (out / "model.safetensors").read_bytes() == first["model.safetensors"]
    (out / "report.json").write_text('{"format": [')  # damaged: it is made anew
    assert run("--resume") == 0 and json.loads((out / "report.json").read_text()) == record
    file.write_text(SMALL.replace("depth: 1", "depth: 2"))
    assert run("--force") == 0 and (out / "mine.txt").read_text() == "mine"


WRONG = {
    "an unknown key": (("  t1: 1", "  t1: 1\n  solvers: RK4"), "line 4: `target.solvers` is not "
                       "known here. Did you mean `solver`?"),
    "an unknown key of the model": (("depth: 1", "deep: 1"), "line 6: `model.deep` is not known "
                                    "here. Did you mean `depth`?"),
    "an unknown field": (("Linear", "Lineal"), "line 2: `target.field` has no kind `Lineal`. Did "
                         "you mean `Linear`?"),
    "an unknown law": (("Mixtures", "Mixture"), "line 5: `law` has no kind `Mixture`"),
    "an unknown loss": (("steps: 12", "steps: 12\n  loss: Paird"), "line 9: `training.loss` has "
                        "no kind `Paird`. Did you mean `Paired`?"),
    "an unknown architecture": (("depth: 1", "architecture: universe, depth: 1"), "line 6: "
                                "`model` has no architecture `universe`. Did you mean `univ"),
    "no law": (("law: {kind: Mixtures, dim: 2}\n", ""), "needs `law`"),
    "no steps": (("steps: 12", "steps: 0"), "line 8: `training.steps` should be greater"),
    "sizes in a wrong order": (("sizes: [4, 8]", "sizes: [8, 4]"), "line 9: `training.batches`: "
                               "`sizes` must be (least, largest)"),
    "an unknown precision": (("steps: 12", "steps: 12\n  precision: half"),
                                             "line 9: `training.precision`"),
    "a matrix that does not fit": (("A: -1", "A: [1, 2, 3]"), "line 2: `target.field`: A must "
                                   "have 2 columns"),
    "a norm that forgets": (("width: 16", "width: 1"), "line 6: `model`: A LayerNorm of one"),
    "a field on the sphere": (("B: 0.5", "B: 0.5, manifold: Sphere"), "line 2: `target.field`: a "
                              "law draws points of all of R^2"),
    "a flow that stands still": (("A: -1, B: 0.5", "A: 0"), "line 5: `law`: The mean displacement "
                                 "of the target must be positive"),
    "a small box of the attack": (("starts: 4", "radius: 1, starts: 4"), "line 15: `report.attack`"
                                  ": its `radius` must be at least that of the law"),
    "sizes of the attack": (("sizes: [2, 3]", "sizes: [3, 2]"), "line 15: `report.attack`: "
                            "`sizes` must increase"),
    "pairs and a flow": (("page:", "pairs: {sources: a.npy, targets: b.npy}\npage:"), "line 1: "
                         "`target` belongs to a flow"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_configurations_are_said_by_key_and_line(case, tmp_path, write, capsys):
    """One line that names the file, the line and the key; nothing is written; exit code 2."""
    (old, new), words = WRONG[case]
    file = write(SMALL.replace(old, new, 1))
    assert old in SMALL and main(["fit", str(file), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err.strip()
    assert words in err and str(file) in err, err
    assert "Traceback" not in err and len(err.splitlines()) == 1
    assert names(tmp_path) == ["fit.yaml"]


PAIRS = """\
pairs: {sources: a.safetensors, targets: [b.npy, c.npy], held_out: 0.4}
model: {depth: 1, heads: 1, width: 16}
training: {steps: 6, loss: EnergyDistance, evaluation: {every: 3}}
"""


@pytest.fixture
def pairs(tmp_path):
    """Five pairs in files: sources of unequal sizes, targets moved by one."""
    generator = torch.Generator().manual_seed(0)
    mus = [torch.randn(n, 2, generator=generator) for n in (3, 4, 5, 4, 3)]
    pf.Measure.stack([pf.Measure(x) for x in mus]).save(tmp_path / "a.safetensors")
    np.save(tmp_path / "b.npy", np.stack([mus[k].numpy()[:3] + 1 for k in range(4)]))
    np.save(tmp_path / "c.npy", mus[4].numpy() + 1)


def test_pairs_from_files(tmp_path, write, pairs, capsys):
    plan = build(*read_configuration(write(PAIRS)))
    assert [len(plan.pairs.pairs), len(plan.held_out)] == [3, 2]
    sizes = sorted(mu.n for mu, _ in [*plan.pairs.pairs, *plan.held_out])
    assert sizes == [3, 3, 4, 4, 5]  # padding is gone
    assert main(["fit", str(write(PAIRS)), "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "On 2 pairs that it did not see, the network is wrong by" in out
    assert "On 2 pairs" in (tmp_path / "run" / "page.html").read_text()


@pytest.mark.parametrize("old,new,words", [
    ("a.safetensors", "no.safetensors", "line 1: `pairs.sources`: There is no file"),
    ("a.safetensors", "a.pt", "line 1: `pairs.sources`: "),
    ("[b.npy, c.npy]", "b.npy", "line 1: `pairs` needs as many targets as sources, got 5"),
    ("EnergyDistance", "Paired", "line 1: `pairs`: Paired() compares atoms one by one"),
    ("steps: 6", "steps: 6, batches: {}", "`training.batches` belongs to a flow"),
])  # fmt: skip
def test_wrong_pairs(old, new, words, tmp_path, write, pairs, capsys):
    (tmp_path / "a.pt").write_bytes(b"\x80\x04N.")
    assert main(["fit", str(write(PAIRS.replace(old, new))), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err.strip()
    assert words in err and len(err.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_kuramoto_is_learned_without_jumps(write):
    """Angles are not brought back to one period: an image is near its point."""
    text = SMALL.replace("{kind: Linear, A: -1, B: 0.5}", "Kuramoto")
    plan = build(*read_configuration(write(text)))
    mu = plan.law.draw(5, 8, torch.Generator().manual_seed(0))
    assert (plan.target.push(mu).atoms - mu.atoms).abs().max() <= 1  # the coupling, for time 1


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "fit").glob("*.yaml")), ids=str)
def test_examples_describe_fits(file):
    """Each builds, and says how to run it."""
    found, document = read_configuration(file)
    plan = build(found, document)
    assert plan.law.dim == plan.target.push(plan.law.draw(1, 3, torch.Generator())).dim
    assert f"pushforward fit examples/fit/{file.name} --out run" in document.text.decode()


def test_the_page_on_the_command_names_every_key():
    page = (ROOT / "docs" / "command.md").read_text().partition("## Fit")[2]
    keys = set()

    def collect(data):
        keys.update(data.get("properties", {}))
        for name, part in data.get("$defs", {}).items():
            if name not in FIELDS:
                collect(part)

    collect(Configuration.model_json_schema())
    assert not [name for name in sorted(keys) if f"`{name}`" not in page]


FIELDS = {"SelfAttention", "Linear", "Kuramoto", "CuckerSmale", "Sum", "Softmax", "Exponential",
          "Bilinear", "Hardmax", "Sinkhorn", "Dot", "SquaredDistance", "Euclidean", "Sphere",
          "Torus", "Euler", "Midpoint", "RK4", "LieSplit", "Dopri5"}  # fmt: skip
"""Fields and solvers, which the page on flows explains."""
