"""Training by CUDA graphs: on a GPU with `--device cuda`, elsewhere what surrounds the graphs."""

import pytest
import torch

import pushforward as pf
from pushforward.fitting import (
    Adversary,
    Batches,
    Evaluation,
    Mixtures,
    Optimiser,
    Training,
    _fit,
    _recording,
)

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


def run_again(run, pool):
    """Instead of a graph: the passes, whose results are put where the first ones were."""
    run()
    result = run()

    def launch():
        for kept, new in zip(result, run(), strict=True):
            if kept is not None:
                kept.copy_(new)

    return launch, result


@pytest.fixture
def without_gpu(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("the graphs themselves are tested here")
    recorder = lambda loop: _recording.Recorder(loop.model, loop.task)
    monkeypatch.setattr(_fit._Loop, "_recorder", recorder)
    monkeypatch.setattr(_recording, "recorded", run_again)


class Odd(pf.InContextMap):
    """A model with a parameter that is not used, one that is frozen, and a buffer that counts."""

    def __init__(self, replaced=False):
        super().__init__()
        self.inner, self.replaced = model(), replaced
        self.unused = torch.nn.Parameter(torch.ones(2, 2))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("calls", torch.zeros(()))

    def evaluate(self, mu, x):
        if self.replaced:
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return self.inner(mu, x) * self.frozen


class Constant(pf.InContextMap):
    """Its image does not depend on the measure, nor does that of the target."""

    def __init__(self):
        super().__init__()
        self.place = torch.nn.Parameter(torch.zeros(2))

    def evaluate(self, mu, x):
        return x.detach() + self.place


def test_steps_around_the_graphs(without_gpu):
    """Unused parameters keep their values, whatever the weight decay, as in eager steps."""
    found = []
    for graphs in (False, True):
        rule = Optimiser(weight_decay=1.0)
        settings = training(cuda_graphs=graphs, optimiser=rule)
        result = pf.fit(Odd(), target=flow(), law=Mixtures(2), steps=12, training=settings)
        found.append(result.model)
    for (name, a), (_, b) in zip(*(m.state_dict().items() for m in found), strict=True):
        assert name == "calls" or (a - b).norm() <= 1e-5 * a.norm()
    assert found[1].unused.eq(1).all()


def test_what_is_refused_while_recording(without_gpu):
    settings = training(cuda_graphs=True)
    learn = lambda m, target: pf.fit(m, target=target, law=Mixtures(2), steps=2, training=settings)
    with pytest.raises(ValueError, match="buffer `calls` of the model must be changed in place"):
        learn(Odd(replaced=True), flow())
    with pytest.raises(ValueError, match="does not depend on the measures of the adversary"):
        learn(Constant(), pf.Pointwise(lambda x: x.detach(), dim=2, out_dim=2))


@on_gpu
def test_sinkhorn_steps_in_a_graph():
    """A target whose steps are one launch of programs that wait for each other."""
    near, to = pf.SquaredDistance(0.5), pf.Sinkhorn(steps=5)

    class Barycentric(pf.InContextMap):
        def evaluate(self, mu, x):
            return pf.relate(mu, mu, affinity=near, normaliser=to).apply(mu.atoms)

    batches = Batches(sizes=(2100, 2100), atoms=4200)
    losses = [
        pf.fit(
            model(), target=Barycentric(), law=Mixtures(2), steps=4,
            training=Training(cuda_graphs=graphs, batches=batches),
        ).log[-1]["loss"]
        for graphs in (False, True)
    ]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


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
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_a_run_goes_on_to_the_same_bits(tmp_path, monkeypatch, request, graphs):
    """Interrupted between two checkpoints, with dropout, and with shapes not met before."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not graphs:  # replays have the same bits without being told
        request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
        torch.use_deterministic_algorithms(True)
    settings = dict(dropout=0.2, every=6, cuda_graphs=graphs)
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
    assert torch.randn(3, device="cuda").isfinite().all()  # the process goes on
