"""Flows on disk: what is written, what a killed run goes on from."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from cases import measure

import pushforward as pf


def field():
    torch.manual_seed(0)
    Q, K, V = torch.randn(3, 2, 2).unbind(0)
    return pf.fields.SelfAttention(Q, K, V, normaliser=pf.Sinkhorn(tol=1e-6))


@pytest.mark.parametrize("solver", [pf.RK4(20), pf.Dopri5(1e-6)], ids=repr)
def test_a_folder_is_a_path(tmp_path, solver):
    mu, x = measure(6), torch.randn(3, 2)
    run = lambda: pf.flow(
        field(), mu, t1=1.0, solver=solver, save=5, queries=x, folder=tmp_path / "a"
    )
    path = run()
    again = pf.Path.load(tmp_path / "a", field())
    assert len(path) == len(again) == 6
    for a, b in zip(path, again, strict=True):
        assert torch.equal(a.atoms, b.atoms) and torch.equal(a.log_weights, b.log_weights)
        assert torch.equal(a.times, mu.times)
    if isinstance(solver, pf.RK4):
        memory = pf.flow(field(), mu, t1=1.0, solver=solver, save=5, queries=x)
        assert all(torch.equal(a.atoms, b.atoms) for a, b in zip(memory, path, strict=True))
    assert (again.radius() > 0).all() and again.queries.shape == (6, 3, 2)
    assert again.sinkhorn_steps == path.sinkhorn_steps > 0
    stamp = (tmp_path / "a" / "00005.safetensors").stat().st_mtime_ns
    run()  # there is nothing left to do
    assert (tmp_path / "a" / "00005.safetensors").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("solver", [pf.RK4(20), pf.Dopri5(1e-6)], ids=repr)
@pytest.mark.parametrize("left", [1, 3, 5])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, solver, left):
    mu = measure(6)
    run = lambda name: pf.flow(field(), mu, t1=1.0, solver=solver, save=5, folder=tmp_path / name)
    whole = run("whole")
    run("cut")
    for k in range(left, 6):
        (tmp_path / "cut" / f"{k:05d}.safetensors").unlink()
    resumed = run("cut")
    for a, b in zip(whole, resumed, strict=True):
        assert torch.equal(a.atoms, b.atoms)


def test_another_run_is_refused(tmp_path):
    mu = measure(6)
    pf.flow(field(), mu, t1=1.0, solver=pf.RK4(4), save=2, folder=tmp_path)
    with pytest.raises(ValueError, match="holds another flow: its solver"):
        pf.flow(field(), mu, t1=1.0, solver=pf.RK4(8), save=2, folder=tmp_path)
    with pytest.raises(ValueError, match="its tensors differ"):
        pf.flow(field(), measure(6), t1=1.0, solver=pf.RK4(4), save=2, folder=tmp_path)
    for one, other in (
        (pf.fields.Kuramoto(1.0, dim=2), pf.fields.Kuramoto(2.0, dim=2)),
        (pf.fields.Layers([field(), field()]), pf.fields.Layers([field(), field()], t1=2.0)),
    ):
        folder = tmp_path / type(one).__name__
        pf.flow(one, mu, t1=1.0, solver=pf.Euler(1), folder=folder)
        with pytest.raises(ValueError, match="its field differ"):
            pf.flow(other, mu, t1=1.0, solver=pf.Euler(1), folder=folder)
    with pytest.raises(FileNotFoundError, match=r"no flow\.json"):
        pf.Path.load(tmp_path / "nothing")


def test_damaged_files_are_said(tmp_path):
    pf.flow(field(), measure(6), t1=1.0, solver=pf.RK4(4), save=2, folder=tmp_path)
    (tmp_path / "00001.safetensors").write_bytes(b"not what it was")
    with pytest.raises(ValueError, match=r"00001.safetensors is damaged .* Delete it"):
        pf.Path.load(tmp_path)[1]
    for text, said in (("{", "damaged"), ("[]", "damaged"), ("{}", "must say")):
        (tmp_path / "flow.json").write_text(text)
        with pytest.raises(ValueError, match=said):
            pf.Path.load(tmp_path)


def test_files_speak_for_themselves(tmp_path):
    """Readable with safetensors and json alone."""
    from safetensors import safe_open
    from safetensors.numpy import load_file

    mu = measure(6)
    pf.flow(field(), mu, t1=1.0, solver=pf.RK4(4), save=2, folder=tmp_path)
    about = json.loads((tmp_path / "flow.json").read_text())
    assert about["times"] == [0.0, 0.5, 1.0] and "RK4" in about["solver"]
    arrays = load_file(tmp_path / "00002.safetensors")
    assert arrays["atoms"].shape == (6, 2) and arrays["log_weights"].shape == (6,)
    with safe_open(tmp_path / "00002.safetensors", "np") as file:
        assert float(file.metadata()["time"]) == 1.0


def test_a_bar_appears_after_a_second(capsys):
    """Long runs say how far they are, short ones nothing."""
    slow = pf.Pointwise(lambda x: time.sleep(0.15) or -x)
    pf.Flow(slow, t1=1.0, solver=pf.Euler(2)).path(measure(3), progress=True)
    assert capsys.readouterr().err.strip() == ""
    pf.Flow(slow, t1=1.0, solver=pf.Euler(10)).path(measure(3), save=10, progress=True)
    assert "100%" in capsys.readouterr().err


KILLED = """
import sys, torch, pushforward as pf
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
Q, K, V = torch.randn(3, 2, 2).unbind(0)
field = pf.fields.SelfAttention(Q, K, V, normaliser=pf.Sinkhorn(tol=1e-6))
mu = pf.Measure(torch.randn(300, 2))
pf.flow(field, mu, t1=1.0, solver=pf.RK4(steps=60), save=30, folder=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.unhooked
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    """SIGKILL in the middle, the same call again: atoms and remembered potentials."""
    from safetensors.torch import load_file

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = lambda name: subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / name)], env=environment
    )
    assert start("whole").wait(300) == 0
    victim = start("cut")
    deadline = time.time() + 120
    while len(list((tmp_path / "cut").glob("0*.safetensors"))) < 8 and time.time() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    reached = len(list((tmp_path / "cut").glob("0*.safetensors")))
    assert 8 <= reached < 31, "it was killed too late to see anything"
    assert start("cut").wait(300) == 0
    for k in range(31):
        whole, cut = (load_file(tmp_path / n / f"{k:05d}.safetensors") for n in ("whole", "cut"))
        assert whole.keys() == cut.keys() and any("memory" in name for name in whole) or k == 0
        assert all(torch.equal(whole[name], cut[name]) for name in whole), k
