"""`pushforward audit` and `pushforward relate`, as a person uses them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import malformed
import numpy as np
import pytest
import torch

import pushforward as pf
from pushforward._command import main

pytestmark = pytest.mark.unhooked

COMMAND = [
    sys.executable, "-c", "import sys; from pushforward._command import main; sys.exit(main())"
]  # fmt: skip

MODELS = '''
import time
import torch
import pushforward as pf

print("models.py runs")

def mean():
    """A model of sets."""
    return lambda x: x + x.mean(0)

def first():
    """It depends on the order."""
    return lambda x: x + x[:1]

def slow():
    def model(x):
        time.sleep(0.05)
        return x + x.mean(0)
    return model

def sequence(x):
    return x.cumsum(0)

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
    def forward(self, x):
        return self.layer(x) + x.mean(-2, keepdim=True)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with models and tokens."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    Path("models.py").write_text(MODELS)
    rows = generator.normal(size=(60, 3))
    np.save("rows.npy", rows)
    np.savetxt("rows.csv", rows, delimiter=",", header="a,b,c", comments="")
    np.save("b.npy", generator.normal(size=(50, 3)) + 0.5)
    np.save("b_mass.npy", generator.random(50))
    np.save("a_mass.npy", generator.random(60))
    return tmp_path


def clean(text: str) -> str:
    """Output in which nothing is left of colours and bars."""
    assert "\x1b" not in text
    return text


# relate


def test_relate_writes_what_the_library_computes(folder):
    options = ["--mass", "a_mass.npy", "b_mass.npy", "--eps", "0.5", "--tol", "1e-9", "--matrix"]
    run = [*COMMAND, "relate", "rows.csv", "b.npy", *options, "--out", "plan.npz"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert "Written: plan.npz" in clean(done.stdout) and "marginal error" in done.stdout
    mu = pf.Measure(np.load("rows.npy"), np.load("a_mass.npy"))
    nu = pf.Measure(np.load("b.npy"), np.load("b_mass.npy"))
    near, to = pf.SquaredDistance(0.5), pf.Sinkhorn(tol=1e-9)
    pi = pf.relate(mu, nu, affinity=near, normaliser=to)
    with np.load("plan.npz", allow_pickle=False) as plan:
        assert np.allclose(plan["matrix"], pi.matrix(), atol=1e-12)
        cost = ((np.load("rows.npy")[:, None] - np.load("b.npy")) ** 2).sum(-1)
        density = np.exp(-cost / 0.5 + plan["f"][:, None] + plan["g"])
        joint = density * np.outer(plan["a"], plan["b"])
        assert np.allclose(joint, plan["matrix"], atol=1e-10)
        assert np.allclose(plan["images"], pi.apply(nu.atoms), atol=1e-10)
        assert plan["value"] == pytest.approx(pi.value().item(), abs=1e-10)
        assert plan["value"] == pytest.approx(plan["cost"] + 0.5 * plan["mutual_information"])
        assert plan["marginal_error"] <= 1e-9 and bool(plan["converged"])
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("affinity", ["squared", "dot"])
def test_a_softmax_has_the_entropy_against_the_product_of_both_measures(folder, affinity, capfd):
    options = ["--eps", "0.7", "--normaliser", "softmax", "--affinity", affinity, "--matrix"]
    assert main(["relate", "rows.npy", "b.npy", *options, "--out", "plan.npz"]) == 0
    plan, x, y = np.load("plan.npz"), np.load("rows.npy"), np.load("b.npy")
    product = np.outer(plan["a"], plan["b"])
    cost = ((x[:, None] - y) ** 2).sum(-1) if affinity == "squared" else -x @ y.T
    pi = plan["matrix"]
    assert plan["cost"] == pytest.approx((cost * pi).sum())
    assert plan["mutual_information"] == pytest.approx((pi * np.log(pi / product)).sum())
    assert plan["marginal_error"] == pytest.approx(np.abs(pi.sum(0) - plan["b"]).sum())
    assert np.allclose(product * np.exp(-cost / 0.7 + plan["f"][:, None]), pi)


def test_an_exact_plan_costs_what_the_distance_says(folder, capfd):
    options = ["--eps", "1", "--normaliser", "exact", "--out", "plan.npz"]
    assert main(["relate", "rows.npy", "b.npy", *options]) == 0
    distance = pf.wasserstein(*(pf.Measure(np.load(f)) for f in ("rows.npy", "b.npy")), p=2)
    assert np.load("plan.npz")["cost"] == pytest.approx(distance.item() ** 2)


def test_a_plan_that_did_not_converge_says_so_and_exits_with_one(folder, capfd):
    options = ["--eps", "0.001", "--max-steps", "3", "--out", "plan.npz", "--quiet"]
    assert main(["relate", "rows.npy", "b.npy", *options]) == 1
    out, err = capfd.readouterr()
    assert "Not converged: a marginal error of" in err and "--max-steps" in err
    assert not np.load("plan.npz")["converged"]


def test_a_file_is_replaced_and_never_half_written(folder, capfd, monkeypatch):
    Path("plan.npz").write_bytes(b"old")
    run = ["relate", "rows.npy", "b.npy", "--eps", "1", "--out", "plan.npz"]
    assert main(run) == 0 and "f" in np.load("plan.npz")
    before = Path("plan.npz").read_bytes()

    def broken(file, **arrays):
        Path(file).write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", broken)
    files = set(folder.iterdir())
    assert main(run) == 2
    assert "No space left" in capfd.readouterr().err
    assert Path("plan.npz").read_bytes() == before and set(folder.iterdir()) == files


# audit


def test_audit_of_code_by_a_subprocess(folder):
    files = ["--json", "out.json", "--html", "out.html"]
    run = [*COMMAND, "audit", "models.py:first", "--mode", "set", "--data", "rows.csv", *files]
    only = ["--sections", "symmetries", "--require", "symmetries"]
    done = subprocess.run([*run, *only], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and not done.stderr, done.stderr
    assert "models.py runs" in clean(done.stdout) and "Written: out.html" in done.stdout
    record = json.loads(Path("out.json").read_text())
    assert record["model"] == "first" and record["exit_code"] == 1
    assert "<html" in Path("out.html").read_text()
    assert not Path("__pycache__").exists()


QUICK = ["--sections", "symmetries", "--tokens", "32"]


def test_a_module_by_its_name_a_class_and_a_plain_function_are_models(folder, capfd):
    run = ["--data", "rows.npy", *QUICK]
    assert main(["audit", "models:mean", *run]) == 0
    assert main(["audit", "models.py:Encoder", *run, "--quiet"]) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("Encoder: ")
    assert main(["audit", "models:sequence", *run]) in (0, 1)
    assert main(["audit", "torch.nn.functional:gelu", *run]) == 0


def test_a_required_check_that_was_not_tried_makes_the_exit_code_one(folder, capfd):
    run = ["audit", "models.py:mean", "--data", "rows.npy", *QUICK]
    assert main([*run, "--require", "padding"]) == 1
    assert "padding" in capfd.readouterr().out


def test_saved_models_are_audited_and_without_data_on_gaussian_tokens(folder, capfd):
    name = "<img src=x onerror=alert(1)>.safetensors"
    pf.maps.save(pf.Transformer(3, depth=1), name)
    assert main(["audit", name, *QUICK, "--html", "out.html", "--json", "out.json"]) == 0
    out, err = capfd.readouterr()
    assert "No --data: audited on Gaussian tokens in R^3, not on yours" in err
    page = Path("out.html").read_text()
    assert "<img src=x" not in page and "&lt;img src=x onerror=alert(1)&gt;" in page
    assert json.loads(Path("out.json").read_text())["model"] == name.removesuffix(".safetensors")


def test_an_export_is_audited_and_its_largest_number_of_tokens_respected(folder, capfd):
    n = torch.export.Dim("n", max=100)
    x = torch.zeros(9, 3, dtype=torch.float64)
    torch.export.save(
        torch.export.export(torch.nn.Linear(3, 3).double(), (x,), dynamic_shapes=({0: n},)),
        "linear.pt2",
    )
    run = ["audit", "linear.pt2", "--data", "rows.npy", "--sections", "symmetries"]
    assert main(run) == 2
    assert "takes at most 100 tokens" in capfd.readouterr().err
    assert main([*run, "--tokens", "100"]) == 0


def test_an_audit_is_compared_with_an_older_one(folder, capfd):
    run = ["--data", "rows.npy", *QUICK, "--mode", "set"]
    assert main(["audit", "models.py:mean", *run, "--json", "old.json"]) == 0
    assert main(["audit", "models.py:mean", *run, "--compare", "old.json", "--quiet"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "mean: Nothing has changed."
    assert (
        main(["audit", "models.py:first", *run, "--compare", "old.json", "--json", "new.json"])
        == 1
    )
    assert "Before: not refuted." in capfd.readouterr().out
    assert main(["audit", "models.py:first", *run, "--compare", "new.json"]) == 0
    late = [*run, "--compare", "old.json", "--require", "padding"]
    assert main(["audit", "models.py:mean", *late]) == 1


@pytest.mark.parametrize("arguments,words", [
    (["relate", "rows.npy", "b.npy", "--eps", "inf", "--out", "p.npz"], "positive and finite"),
    (["relat"], "No such command 'relat'. Did you mean 'relate'? See pushforward --help."),
])  # fmt: skip
def test_wrong_usage_is_said_in_a_sentence(arguments, words, folder, capfd):
    assert main(arguments) == 2
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("file", ["models.py", "rows.csv", "audit.html", "tensors.json"])
def test_no_output_replaces_what_is_read_or_another_output(file, folder, capfd):
    Path("tensors.json").write_text('{"class": "nn.Linear"}')
    before = {path: path.read_bytes() for path in folder.iterdir()}
    model = "tensors.safetensors" if file == "tensors.json" else "models.py:mean"
    run = ["audit", model, "--data", "rows.csv", "--html", "audit.html"]
    assert main([*run, "--json", str(folder / "." / file)]) == 2
    assert file in capfd.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "{}", '{"schema": 1}', "\0"])
def test_an_audit_that_is_none_is_refused_before_the_work(text, folder, capfd):
    Path("old.json").write_text(text)
    run = ["audit", "missing.py:model", "--data", "rows.npy", "--compare", "old.json"]
    assert main(run) == 2
    err = capfd.readouterr().err
    assert err.startswith("pushforward: 'old.json' ") and len(err.splitlines()) == 1


def test_a_sequence_model_and_a_tolerance_can_be_named(folder, capfd):
    run = ["audit", "models.py:first", "--data", "rows.npy", *QUICK]
    assert main([*run, "--mode", "set"]) == 1
    assert main([*run, "--mode", "sequence"]) == 0
    assert main([*run, "--mode", "set", "--tolerance", "0.5"]) == 1
    assert main([*run, "--mode", "poem"]) == 2
    assert main([*run, "--tolerance", "2"]) == 2
    assert main([*run, "--class-token", "5"]) == 2


def test_a_model_of_a_context_and_queries(folder, capfd):
    Path("two.py").write_text(
        "def kernel(context, x):\n    return (x @ context.mT).softmax(-1) @ context\n"
    )
    run = ["audit", "two.py:kernel", "--data", "rows.npy", "--queries", "b.npy", *QUICK]
    assert main(run) == 0
    assert "queries" in capfd.readouterr().out


def test_debug_shows_the_traceback_of_a_factory(folder, capfd):
    Path("bad.py").write_text("def make():\n    raise KeyError('no')\n")
    assert main(["audit", "bad.py:make", "--debug"]) == 2
    err = capfd.readouterr().err
    assert "Traceback" in err and "raise KeyError('no')" in err


# At a terminal


def at_a_terminal(command: list[str], interrupt_at: bytes = b"") -> tuple[int, str]:
    """Run a command in a pseudo-terminal; its exit code and all it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="40")
        os.environ.pop("NO_COLOR", None)
        os.execv(command[0], command)
    shown, begin, pending = b"", time.monotonic(), bool(interrupt_at)
    try:
        while time.monotonic() - begin < 240:
            data = os.read(fd, 65536)
            if not data:
                break
            shown += data
            if pending and interrupt_at in shown:
                os.kill(pid, signal.SIGINT)
                pending = False
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(fd)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), shown.decode(errors="replace")


@pytest.mark.slow
def test_progress_is_shown_at_a_terminal_and_ctrl_c_leaves_nothing(folder):
    run = [*COMMAND, "audit", "models.py:slow", "--data", "rows.npy", *QUICK]
    code, shown = at_a_terminal(run)
    assert code == 0 and "audit" in shown and "%" in shown and "\x1b[" in shown, shown
    code, shown = at_a_terminal([*run, "--json", "out.json"], interrupt_at=b"models.py runs")
    assert code == 130 and "interrupted" in shown.lower() and "Traceback" not in shown, shown
    assert not Path("out.json").exists()


@pytest.mark.slow
def test_a_dozen_malformed_inputs_by_subprocess(folder):
    names = [
        ".npy, hostile objects", ".npy, claims 1e9 rows", ".npy, code in the header",
        ".csv, noise", ".csv, UTF-16", ".csv, an open quote", ".parquet, a wild footer",
        "a folder", "a link to itself", "an archive of arrays",
    ]  # fmt: skip
    commands = []
    for k, name in enumerate(names):
        (place := folder / str(k)).mkdir()
        file = malformed.FILES[name](place)
        commands.append(["relate", file, "b.npy", "--eps", "1", "--out", "plan.npz"])
    Path("model.safetensors").write_bytes(malformed.MODELS["an unknown class"])
    Path("model.pt2").write_bytes(malformed.pickle.dumps(malformed.Evil()))
    commands += [["audit", "model.safetensors"], ["audit", "model.pt2"]]
    files = set(folder.rglob("*"))
    for pair in zip(commands[::2], commands[1::2], strict=True):
        running = [subprocess.Popen([*COMMAND, *c], stdout=-1, stderr=-1, text=True) for c in pair]
        for process in running:
            out, err = process.communicate(timeout=300)
            assert process.returncode == 2 and not out, (out, err)
            assert len(err.splitlines()) == 1 and err.startswith("pushforward: "), err
    assert set(folder.rglob("*")) == files
