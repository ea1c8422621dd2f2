"""`pushforward flow`: configurations, runs that are interrupted and go on, folders, examples."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_house import ROOT

from pushforward._command import main
from pushforward._command.running import OBSERVABLES, Configuration, build, read_configuration

pytestmark = pytest.mark.unhooked

SMALL = """\
initial: {law: sphere, points: 20, seed: 3}
field:
  kind: SelfAttention
  Q: 4
  manifold: Sphere
solver:
  kind: RK4
  steps: 8
t1: 2
save: 4
observables: [energy, clusters, mean]
"""
COMMAND = "import sys; from pushforward._command import main; sys.exit(main())"


@pytest.fixture
def write(tmp_path):
    def written(text, name="run.yaml"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return written


def test_a_run_and_what_it_writes(tmp_path, write, capsys):
    out = tmp_path / "run"
    assert main(["flow", str(write(SMALL)), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "energy" in said and f"Written: {out / 'page.html'}" in said
    assert sorted(f.name for f in out.iterdir()) == [
        "configuration.yaml", "flow", "observables.csv", "page.html", "path.npz", "run.json",
    ]  # fmt: skip
    arrays = np.load(out / "path.npz", allow_pickle=False)
    assert arrays["atoms"].shape == (5, 20, 3) and arrays["atoms"].dtype == np.float64
    assert np.abs(np.linalg.norm(arrays["atoms"], axis=-1) - 1).max() < 1e-12
    record = json.loads((out / "run.json").read_text())
    assert record["times"] == [0, 0.5, 1, 1.5, 2] and record["points"] == 20
    energy = record["observables"]["energy"]
    assert energy == sorted(energy)  # it grows along this gradient flow
    assert np.allclose(record["observables"]["mean_2"], arrays["atoms"][:, :, 1].mean(1))
    table = (out / "observables.csv").read_text().splitlines()
    assert table[0] == "time,energy,clusters,mean_1,mean_2,mean_3" and len(table) == 6
    assert "<title>" in (out / "page.html").read_text()


def test_what_is_in_a_folder_is_kept(tmp_path, write, capsys):
    """Another run, the files of somebody, and links are never overwritten by accident."""
    file, out = write(SMALL), tmp_path / "run"
    run = lambda *more: main(["flow", str(file), "--out", str(out), "--quiet", *more])
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert run() == 2 and "not empty" in capsys.readouterr().err
    assert run("--resume") == 2 and "no run" in capsys.readouterr().err
    assert run("--force", "--resume") == 2 and "exclude" in capsys.readouterr().err
    assert [f.name for f in out.iterdir()] == ["mine.txt"]
    assert run("--force") == 0
    first = {f.name: f.read_bytes() for f in (out / "flow").iterdir()}
    assert run() == 2 and "--resume" in capsys.readouterr().err
    file.write_text(SMALL.replace("points: 20", "points: 21"))
    assert run("--resume") == 2
    assert "line 1: `initial.points` is not that of the run" in capsys.readouterr().err
    assert {f.name: f.read_bytes() for f in (out / "flow").iterdir()} == first
    file.write_text(SMALL.replace("[energy, clusters, mean]", "[order]"))  # looks may change
    assert run("--resume") == 0
    assert {f.name: f.read_bytes() for f in (out / "flow").iterdir()} == first
    assert (out / "observables.csv").read_text().startswith("time,order")
    file.write_text(SMALL.replace("points: 20", "points: 21"))
    assert run("--force") == 0 and np.load(out / "path.npz")["atoms"].shape[1] == 21
    assert (out / "mine.txt").read_text() == "mine"


SLOW = """\
initial: {law: gaussian, points: 200, dim: 2}
field: {kind: SelfAttention, V: -0.2, normaliser: Sinkhorn}
solver: {kind: RK4, steps: 40}
t1: 1
save: 20
observables: [energy]
"""


def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path, write):
    """Ctrl-C in a process of its own, as a person presses it; then --resume."""
    file = str(write(SLOW))
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    victim = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "flow", file, "--out", str(tmp_path / "cut")],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.time() + 120
    flow = tmp_path / "cut" / "flow"
    while len(list(flow.glob("0*.safetensors"))) < 4 and time.time() < deadline:
        time.sleep(0.005)
    victim.send_signal(signal.SIGINT)
    out, err = victim.communicate(timeout=60)
    reached = len(list(flow.glob("0*.safetensors")))
    assert victim.returncode == 130 and 4 <= reached < 21, (victim.returncode, reached, err)
    assert f"interrupted. {reached} of 21 states are kept" in err and "Traceback" not in err
    assert f"--out {tmp_path / 'cut'} --resume" in err and out == ""
    assert not (tmp_path / "cut" / "page.html").exists()
    assert main(["flow", file, "--out", str(tmp_path / "cut"), "--resume", "--quiet"]) == 0
    assert main(["flow", file, "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    folders = tmp_path / "cut", tmp_path / "whole"
    for name in ("path.npz", "observables.csv"):
        cut, whole = ((folder / name).read_bytes() for folder in folders)
        assert cut == whole, name
    for k in range(21):  # the potentials too, from which it went on
        cut, whole = (load_file(folder / "flow" / f"{k:05d}.safetensors") for folder in folders)
        assert cut.keys() == whole.keys() and all(torch.equal(cut[t], whole[t]) for t in whole), k


WRONG = {
    "an unknown key": (("  steps: 8", "  stepz: 8"), "line 8: `solver.stepz` is not known here. "
                       "Did you mean `steps`?"),
    "an unknown key at the top": (("save: 4", "saves: 4"), "line 10: `saves` is not known here. "
                                  "Did you mean `save`?"),
    "a key of another kind": (("  Q: 4", "  coupling: 4"), "line 4: `field.coupling` is not"),
    "a missing key": (("  steps: 8\n", ""), "line 6: `solver` needs `steps`"),
    "no field": (("field:", "fields:"), "`fields` is not known here. Did you mean `field`?"),
    "an unknown kind": (("SelfAttention", "SelfAtention"), "line 3: `field` has no kind "
                        "`SelfAtention`. Did you mean `SelfAttention`?"),
    "no kind": (("  kind: RK4\n", ""), "line 6: `solver` needs `kind`"),
    "a word for a number": (("t1: 2", "t1: two"), "line 9: `t1` should be a valid number"),
    "a number for a word": (("kind: RK4", "kind: 4"), "line 7: `solver` has no kind `4`"),
    "a truth value": (("steps: 8", "steps: yes"), "line 8: `solver.steps` should be a valid"),
    "no steps": (("steps: 8", "steps: 0"), "line 8: `solver.steps` should be greater"),
    "not a number": (("t1: 2", "t1: .nan"), "line 9: `t1` should be a finite number"),
    "no time": (("t1: 2", "t1: 0"), "line 9: `t1` must differ from `t0`"),
    "too many saved times": (("save: 4", "save: 9"), "line 10: `save`: `save` asks for 9"),
    "a wrong matrix": (("Q: 4", "Q: [[1, 2], [3]]"), "line 4: `field.Q` must have rows of equal"),
    "a matrix of words": (("Q: 4", "Q: [one]"), "line 4: `field.Q` must be a number, a list"),
    "a matrix that does not fit": (("Q: 4", "Q: [1, 2]"), "line 2: `field`: Q must have 3 col"),
    "an unknown observable": (("mean]", "means]"), "line 11: `means` is no observable. Did you "
                              "mean `mean`?"),
    "an observable of other fields": (("  Q: 4", "  Q: 4\n  V: [1, 2, 3]"),
                                      "line 12: `observables[0]`: This field is no gradient"),
    "points off the sphere": (("law: sphere,", "law: gaussian, dim: 3,"), "line 1: `initial`: "
                              "points must lie on the manifold"),
    "a billion points": (("points: 20", "points: 1000000000"), "line 1: `initial.points`"),
    "no points": (("points: 20", "points: 0"), "`initial.points` should be greater"),
    "a file that is not there": (("law: sphere, points: 20, seed: 3", "law: file, points: no.npy"),
                                 "line 1: `initial`: There is no file"),
    "a pickle": (("law: sphere, points: 20, seed: 3", "law: file, points: x.pkl"), "pickle"),
    "a key twice": (("save: 4", "save: 4\nsave: 5"), "line 11: `save` is given twice, in line 10"),
    "a tag": (("t1: 2", "t1: !!python/object/apply:os.system ['touch hacked']"), "line 9: could "
              "not determine a constructor"),
    "an alias": (("seed: 3}", "seed: &a 3, masses: *a}"), "line 1: an alias"),
    "broken YAML": (("t1: 2", "t1: [2"), "line 10"),
    "a tab": (("  Q: 4", "\tQ: 4"), "line 4"),
    "a curve that is not computed": (("save: 4", "save: 4\npage: {curves: [order]}"), "line 11: "
                                     "`order` is not among the `observables`"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_configurations_are_said_by_key_and_line(case, tmp_path, write, capsys):
    """One line that names the file, the line and the key; nothing is written; exit code 2."""
    (old, new), words = WRONG[case]
    file = write(SMALL.replace(old, new, 1))
    assert old in SMALL and main(["flow", str(file), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err.strip()
    assert words in err and str(file) in err, err
    assert "Traceback" not in err and len(err.splitlines()) == 1
    assert sorted(f.name for f in tmp_path.iterdir()) == ["run.yaml"]
    assert not Path("hacked").exists()


@pytest.mark.parametrize("text", [
    b"", b"- a\n- b\n", b"\x00\x01\x02", b"\xff\xfe\xfa", b"t1: " + b"[" * 5000, b"t1: 1" * 300000,
    b"a: 1\n---\nb: 2\n", b"t1: " + b"9" * 5000, b"1: 2\n", b"? [a]\n: b\n", b"{}", b"<<: {t1: 2}",
], ids=lambda t: repr(t[:8]))  # fmt: skip
def test_files_that_are_no_configuration(text, tmp_path, write, capsys):
    file = write(text)
    assert main(["flow", str(file), "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith(f"pushforward: {file}") and len(err.splitlines()) == 1
    assert len(err) < 500 and not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "flows").glob("*.yaml")), ids=str)
def test_examples_describe_runs(file, tmp_path, write):
    """Each builds, and its first steps can be taken with fewer points."""
    found, document = read_configuration(file)
    text = document.text.decode().replace(f"points: {found.initial.points}", "points: 12")
    small = build(*read_configuration(write(text)))
    assert small.mu.n == 12 and small.flow.t1 == found.t1


def test_points_and_masses_from_files(tmp_path, write):
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    (tmp_path / "m.csv").write_text("mass\n1\n2\n5\n")
    text = (
        "initial: {law: file, points: x.npy, masses: m.csv}\nfield: {kind: Linear, A: [[0, 1], "
        "[-1, 0]], B: 1e-1}\nt1: 1\nsolver: {kind: Dopri5, rtol: 1e-8}\nsave: [0.5]\n"
    )
    run = build(*read_configuration(write(text)))
    assert run.mu.atoms.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert torch.allclose(run.mu.weights, torch.tensor([1.0, 2.0, 5.0]).to(run.mu.weights))
    assert run.flow.field.A.tolist() == [[0, 1], [-1, 0]] and run.save == [0.5]
    assert torch.equal(run.flow.field.B, 0.1 * torch.eye(2, dtype=torch.float64))


def test_the_page_on_flows_names_every_key_and_observable():
    """The table of the documentation is complete."""
    page = (ROOT / "docs" / "flows.md").read_text()
    keys = set()

    def collect(data):
        keys.update(data.get("properties", {}))
        for part in data.get("$defs", {}).values():
            collect(part)

    collect(Configuration.model_json_schema())
    missing = [name for name in sorted({*keys, *OBSERVABLES}) if f"`{name}`" not in page]
    assert not missing
