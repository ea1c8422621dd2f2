"""The training loop: what is learned from, what is kept, what is refused, several processes."""

import csv
import json
import os
import subprocess
import sys
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.utils.data import Dataset, IterableDataset

import pushforward as pf
from pushforward import fitting
from pushforward.fitting import (
    Adversary,
    Batches,
    Box,
    Evaluation,
    Law,
    Mixtures,
    Optimiser,
    Paired,
    Training,
    TrainingError,
)

pytestmark = pytest.mark.unhooked
FLOW = dict(t1=1.0, solver=pf.RK4(steps=2))


@pytest.fixture(autouse=True)
def _float32():
    torch.set_default_dtype(torch.float32)


def flow():
    return pf.Flow(pf.fields.Linear(-torch.eye(2), 0.5 * torch.eye(2)), **FLOW)


def network(dim=2, **options):
    torch.manual_seed(0)
    block = pf.Block(norm=pf.PreNorm(), **options)
    return pf.Residual(pf.Transformer(dim, depth=1, heads=2, width=16, block=block))


def brief(every=5, **options):
    evaluation = {"sizes": (4,), "measures": 2} | options.pop("evaluation", {})
    return Training(
        batches=Batches((4, 8), atoms=32), evaluation=Evaluation(every=every, **evaluation),
        **options,
    )  # fmt: skip


class Failing(Law):
    """The usual law; at one seed, which is one more than the step, something else happens."""

    dim = 2

    def __init__(self, at=None, event=None):
        self.at, self.event = at, event

    def __repr__(self):
        return "Failing()"

    def draw(self, count, n, generator):
        mu = Mixtures(2).draw(count, n, generator)
        return self.event(mu) if generator.initial_seed() == self.at else mu


def interrupted(mu):
    raise KeyboardInterrupt


def not_a_number(mu):
    mu.atoms[1, 0] = torch.nan
    return mu


# What is kept


def learn(law, steps=12, model=None, training=None, **kept):
    training = training or brief(adversary=Adversary(count=8, sizes=(2, 4), atoms=16))
    model = model or network(dropout=0.1)
    return pf.fit(model, target=flow(), law=law, steps=steps, training=training, **kept)


def test_a_run_that_goes_on_ends_with_the_same_bits(tmp_path):
    """With dropout and an adversary, cut three steps after a state; logs agree, too."""
    whole = learn(Failing(), out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        learn(Failing(at=9, event=interrupted), out=tmp_path / "cut")
    cut = learn(Failing(), resume=tmp_path / "cut")
    a, b = (load_file(tmp_path / name / "state.safetensors") for name in ("whole", "cut"))
    assert {name.split("/")[0] for name in a} == {"model", "average", "moments", "adversary"}
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    without_seconds = lambda log: [{k: v for k, v in r.items() if k != "seconds"} for r in log]
    assert without_seconds(whole.log) == without_seconds(cut.log)


def test_what_a_run_writes(tmp_path, monkeypatch):
    """The log as a table and for TensorBoard, held-out laws and sizes, and the model."""
    seen = []

    class SummaryWriter:
        def __init__(self, folder):
            seen.append(folder)

        def add_scalar(self, *scalar):
            seen.append(scalar)

        def close(self):
            seen.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    training = brief(evaluation={"sizes": (4, 64), "laws": {"box": Box(2)}})
    result = learn(Mixtures(2), 10, training=training, out=tmp_path)
    errors = [name for name in result.log[0] if name.startswith("error")]
    assert errors == ["error n = 4", "error n = 64", "error box, n = 4", "error box, n = 64"]
    with (tmp_path / "log.csv").open() as log:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(log)]
    assert rows == result.log and [row["step"] for row in rows] == [5, 10]
    assert seen[0] == str(tmp_path / "tensorboard") and seen[-1] == "closed"
    assert ("loss", result.log[1]["loss"], 10) in seen
    mu, again = Mixtures(2)(9, torch.Generator()), pf.maps.load(tmp_path / "model.safetensors")
    assert torch.equal(again.push(mu).atoms, result.model.push(mu).atoms)


def test_the_result_has_averaged_weights(tmp_path):
    """One step of the average, from the states before and after it; 0 keeps the last weights."""
    ema = 0.3
    training = brief(1, optimiser=Optimiser(ema=ema))
    with pytest.raises(KeyboardInterrupt):
        learn(Failing(at=5, event=interrupted), 5, training=training, out=tmp_path)
    before = load_file(tmp_path / "state.safetensors")
    learn(Failing(), 5, training=training, resume=tmp_path)
    after = load_file(tmp_path / "state.safetensors")
    for name in (name for name in after if name.startswith("average/")):
        last = after[name.replace("average", "model")]
        assert torch.allclose(after[name], ema * before[name] + (1 - ema) * last, atol=1e-7)
        assert not torch.equal(after[name], last)
    model = network()
    result = learn(Failing(), 3, model=model, training=brief(optimiser=Optimiser(ema=0.0)))
    pairs = zip(result.model.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_training_stops_when_nothing_gets_better():
    still = Optimiser(lr=1e-12, matrix_lr=None, ema=0.0)
    training = brief(2, optimiser=still, evaluation={"patience": 3})
    assert learn(Mixtures(2), 100, training=training).steps == 8


def test_half_precision_trains_nearly_as_well():
    """Products have eight bits: the losses differ, by less than a twentieth."""
    both = [
        learn(Mixtures(2), 30, training=brief(30, precision=p)).log[-1]["loss"]
        for p in ("float32", "bfloat16")
    ]
    assert 0 < abs(both[1] / both[0] - 1) < 0.05


# What is refused


def test_a_batch_that_is_not_a_number_is_named(tmp_path):
    """The measure and the step, by the loop or by the target."""
    stay = pf.Pointwise(lambda x: x + 1)
    law = Failing(at=8, event=not_a_number)
    with pytest.raises(TrainingError, match="step 7 .* source of measure 1 .* last good state"):
        pf.fit(network(), target=stay, law=law, steps=9, training=brief(), out=tmp_path)
    assert json.loads(metadata(tmp_path)["run"])["step"] == 5
    with pytest.raises(pf.flows.FlowError) as error:
        learn(law, training=brief())
    assert "step 7" in error.value.__notes__[0]
    with pytest.raises(TrainingError, match="step 0 .* the model overflowed"):
        pf.fit(network(), target=pf.Pointwise(lambda x: x + 1e30), law=law, training=brief())


def metadata(folder):
    with safe_open(folder / "state.safetensors", "pt") as file:
        return file.metadata()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("kept")
    with pytest.raises(KeyboardInterrupt):
        learn(Failing(at=9, event=interrupted), out=folder)
    return folder


WEIGHT = "model/gamma.maps.0.f.weight"
MOMENT = "moments/gamma.maps.0.f.weight/exp_avg"


@pytest.mark.parametrize(
    ("tensors", "run", "words"),
    [
        ({WEIGHT: None}, {}, "model/gamma.maps.0.f.weight' must be .*, got none"),
        ({WEIGHT: torch.ones(3)}, {}, r"shape \(16, 2\), got float32 of shape \(3,\)"),
        ({WEIGHT: torch.ones(16, 2).int()}, {}, "got int32"),
        ({"model/more": torch.ones(3)}, {}, "'model/more' must be none"),
        ({"code/more": torch.ones(3)}, {}, "'code/more' that is no part"),
        ({MOMENT: None}, {}, "exp_avg' must be .*, got none"),
        ({MOMENT: torch.ones(3)}, {}, r"exp_avg' must be .*, got .* \(3,\)"),
        ({"moments/more/exp_avg": torch.ones(3)}, {}, "of no parameter"),
        ({"adversary/atoms/2": torch.ones(1, 2, 2)}, {}, "adversary/atoms/2' must be"),
        ({}, {"step": -1}, "step -1 of 12"),
        ({}, {"step": True}, "no state of a training run"),
        ({}, {"step": 7}, "its log ends at 5"),
        ({}, {"log": []}, "its log ends at None"),
        ({}, {"log": [{"step": 5}]}, "it has no log"),
        ({}, {"log": [{"step": 5, "loss": "1", "lr": 1, "seconds": 1}]}, "it has no log"),
    ],
)  # fmt: skip
def test_a_state_that_was_changed_is_refused(tensors, run, words, kept, tmp_path):
    state, about = load_file(kept / "state.safetensors"), metadata(kept)
    state = {name: t for name, t in (state | tensors).items() if t is not None}
    about["run"] = json.dumps(json.loads(about["run"]) | run)
    save_file(state, tmp_path / "state.safetensors", about)
    with pytest.raises(ValueError, match=words):
        learn(Failing(), resume=tmp_path)


def test_another_run_is_refused_by_what_differs(kept):
    with pytest.raises(ValueError, match=r"another `model\.gamma\.block\.dropout`: 0.1, .* null"):
        learn(Failing(), model=network(), resume=kept)
    with pytest.raises(ValueError, match='another `seed`: "0", and now "1"'):
        adversary = Adversary(count=8, sizes=(2, 4), atoms=16)
        learn(Failing(), training=brief(adversary=adversary, seed=1), resume=kept)
    with pytest.raises(ValueError, match="There is a run in"):
        learn(Failing(), out=kept)


class Couples(Dataset):
    """A data set of PyTorch, which reads pairs as they are asked for."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(())


def couple(n, dim=2, atom=0.0, weight=1.0):
    """A measure and its shift, with something wrong in the last atom of the target."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(n))
    y = torch.cat([x + 1, torch.zeros(n, dim - 2)], -1)
    y[-1] += atom
    logs = torch.full((n,), weight / n).log()
    return pf.Measure(x), pf.Measure.unchecked(y, logs)


def test_a_data_set_is_learned_from_like_a_list():
    pairs = [couple(n) for n in (3, 5, 4, 6)]
    training = brief(2, evaluation={"pairs": pairs[:2]})
    a, b = (pf.fit(network(), d, steps=4, training=training) for d in (pairs, Couples(pairs)))
    assert a.log[-1]["error, held out"] == b.log[-1]["error, held out"] > 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (couple(4, atom=torch.nan), "`target 1` must have finite atoms and weights"),
        (couple(4, weight=0.0), "`target 1` must have atoms with mass, got none"),
        (couple(4, weight=torch.nan), "`target 1` must have finite atoms and weights"),
        (couple(4, dim=3), r"Pair 1 of `data` must be in R\^2 and R\^2 like the first"),
        ((couple(4)[0], couple(5)[1]), "pair 1 has 4 atoms and 5 images"),
        (couple(4)[:1], r"Pair 1 of `data` must be \(source, target\), got 1 things"),
    ],
)
def test_wrong_pairs_are_refused_before_the_first_step(wrong, words, monkeypatch):
    """In a list by whom makes the task; in a data set as soon as it is read."""
    monkeypatch.setattr(fitting._fit._Loop, "_one_step", None)
    for data in ([couple(3), wrong], Couples([couple(3), wrong])):
        with pytest.raises((ValueError, TypeError), match=words):
            pf.fit(network(), data, training=brief(loss=Paired()))


class Thinned(pf.InContextMap):
    """Every second image: another number of tokens."""

    def evaluate(self, mu, x):
        return x[..., ::2, :]


@pytest.mark.parametrize(
    ("model", "arguments", "words"),
    [
        (network(), {"target": Thinned()}, "one image per query"),
        (network(), {"target": lambda mu: mu.atoms}, "image under `target`. must be a Measure"),
        (network(), {"target": lambda mu: mu.push(lambda x: x / 0)}, "`a target .* finite"),
        (network(3), {"target": pf.Pointwise(lambda x: x + 1)}, r"contexts in R\^3, got"),
        (network(), {"target": pf.Pointwise(lambda x: x[..., :1])}, r"images in R\^1 like the"),
        (network(), {"data": Endless()}, "map-style .* got Endless. Read an iterable"),
        (network(), {"data": [couple(4)], "target": Thinned()}, "Give pairs of measures"),
    ],
)
def test_wrong_targets_are_refused_before_the_first_step(model, arguments, words, monkeypatch):
    monkeypatch.setattr(fitting._fit._Loop, "_one_step", None)
    law = None if "data" in arguments else Mixtures(2)
    with pytest.raises((ValueError, TypeError), match=words):
        pf.fit(model, law=law, training=brief(), **arguments)


# Several processes


PROGRAM = """
import sys, torch, pushforward as pf
sys.path.insert(0, sys.argv[1])
from test_fitting import Mixtures, brief, flow, network
result = pf.fit(
    network(), target=flow(), law=Mixtures(2), steps=3, training=brief(1), out=sys.argv[2]
)
"""


class Both(fitting.Task):
    """In one process the batches of two, whose losses count equally."""

    def __init__(self, task):
        self.task = task

    def batch(self, generator, index):
        seeded = lambda k: torch.Generator().manual_seed(k + 1)
        return [self.task.batch(seeded(k), k) for k in (2 * index, 2 * index + 1)]

    def losses(self, model, batch):
        return torch.stack([self.task.losses(model, one).mean() for one in batch])

    def describe(self):
        return {}


@pytest.mark.slow
def test_two_processes_learn_from_the_batches_of_both(tmp_path):
    """By torchrun: the weights of one process that takes the mean over both batches."""
    program, out = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, str(program), os.path.dirname(__file__), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    task = fitting.Simulation(flow(), Mixtures(2), batches=brief().batches)
    alone = pf.fit(network(), Both(task), steps=3, training=brief(1))
    together = load_file(out / "state.safetensors")
    for name, tensor in alone.model.state_dict().items():
        # Gradients are summed in another order.
        assert torch.allclose(tensor, together[f"average/{name}"], rtol=0, atol=1e-5)
    assert json.loads(metadata(out)["run"])["about"]["processes"] == "2"
    losses = [row["loss"] for row in json.loads(metadata(out)["run"])["log"]]
    assert losses == pytest.approx([row["loss"] for row in alone.log], rel=1e-4)


# Ragged batches


def test_like_sizes_are_computed_together_and_nothing_changes(monkeypatch):
    """Losses and gradients are those of the padded batch, in its order; padding is cut."""
    torch.set_default_dtype(torch.float64)
    sizes, seen = (90, 3, 80, 4, 5, 100, 2, 3), []
    pairs = [
        (mu, mu.moved(mu.atoms + mu.n)) for mu in (couple(n)[0].to(torch.float64) for n in sizes)
    ]
    for loss in (Paired(), fitting.EnergyDistance()):
        task, model = fitting.FromPairs(pairs, loss), network()
        batch = task.batch(torch.Generator(), 0)
        push = lambda mu, model=model: seen.append(mu.atoms.shape[:2]) or model.push(mu)
        found = task.losses(types.SimpleNamespace(push=push), batch)
        whole = loss.between(model.push(batch.source), batch.target)
        assert torch.allclose(found, whole, rtol=1e-12)
        gradients = [
            torch.autograd.grad(t.mean(), list(model.parameters())) for t in (found, whole)
        ]
        assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(*gradients, strict=True))
    assert seen == [(5, 5), (3, 100)] * 2
