"""Training by CUDA graphs; all but the refusals run on a GPU, with `--device cuda`."""

import pytest
import torch

import pushforward as pf
from pushforward.fitting import Adversary, Batches, Evaluation, Mixtures, Training

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _single():
    torch.set_default_dtype(torch.float32)


def model(dropout=0.0):
    torch.manual_seed(0)
    block = pf.Block(norm=pf.PreNorm(), dropout=dropout)
    return pf.Residual(pf.Transformer(2, depth=2, heads=2, width=16, block=block))


def flow():
    eye = torch.eye(2)
    return pf.Flow(pf.fields.SelfAttention(eye, eye, eye / 4), t1=1.0, solver=pf.RK4(steps=4))


def training(every=100, **kwargs):
    return Training(
        batches=Batches(sizes=(5, 7), atoms=64),
        adversary=Adversary(count=16, atoms=32, sizes=(2, 5)),
        evaluation=Evaluation(every=every, sizes=(8,), measures=4),
        **kwargs,
    )


def learn(steps=12, dropout=0.0, folder=None, resume=None, **kwargs):
    return pf.fit(
        model(dropout), target=flow(), law=Mixtures(2), steps=steps, out=folder, resume=resume,
        training=training(**kwargs),
    )  # fmt: skip


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_replays_train_as_eager_steps_do(precision):
    """The same network up to the rounding of the order of sums; bfloat16 rounds much more."""
    eager, replayed = (learn(precision=precision, cuda_graphs=g) for g in (False, True))
    most = 1e-3 if precision == "float32" else 3e-2
    for a, b in zip(eager.model.parameters(), replayed.model.parameters(), strict=True):
        assert (a - b).norm() <= most * a.norm() + 1e-5
    assert replayed.log[-1]["loss"] == pytest.approx(eager.log[-1]["loss"], rel=most)


@on_gpu
def test_a_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """Interrupted between two checkpoints, with dropout, and with shapes not met before."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    settings = dict(dropout=0.2, every=6, cuda_graphs=True)
    whole = learn(24, folder=tmp_path / "whole", **settings)
    drawn = []

    def draw(*args):
        drawn.append(args)
        return original(*args) if len(drawn) != 21 else pytest.fail("the power went out")

    original = Mixtures.draw
    with monkeypatch.context() as patch, pytest.raises(pytest.fail.Exception):
        patch.setattr(Mixtures, "draw", draw)
        learn(24, folder=tmp_path / "stopped", **settings)
    again = learn(24, resume=tmp_path / "stopped", **settings)
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_cannot_be_recorded():
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="needs one process on an NVIDIA GPU, got 1 on cpu"):
            learn(cuda_graphs=True)
        return
    pairs = [(pf.Measure(torch.randn(4, 2)), pf.Measure(torch.randn(4, 2)))] * 4
    with pytest.raises(ValueError, match="needs an in-context map"):
        pf.fit(model(), pairs, steps=2, training=Training(cuda_graphs=True))

    class Peeking(pf.InContextMap):
        def evaluate(self, mu, x):
            return x * mu.atoms.sum().item()

    with pytest.raises(RuntimeError) as caught:
        pf.fit(
            pf.Compose(Peeking(), model()), target=flow(), law=Mixtures(2), steps=2,
            training=Training(cuda_graphs=True),
        )  # fmt: skip
    assert any("must not look at values" in note for note in caught.value.__notes__)
