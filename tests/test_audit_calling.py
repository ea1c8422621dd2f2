"""How models are called: those that misbehave, unusual data, wrong arguments."""

import json

import pytest
import torch
from audited import DATA, attend, encoder
from torch import nn

import pushforward as pf

pytestmark = pytest.mark.unhooked


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Memory(nn.Module):
    """Answers otherwise once it has seen a context of 32 tokens."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += x.shape[-2] == 32
        return x + self.seen


def fail(x):
    raise ValueError("no such tokens")


@pytest.mark.parametrize(
    "model,words",
    [
        (lambda x: x / 0, "NaN or infinity"),
        (fail, "it raised ValueError: no such tokens"),
        (lambda x: torch.cat([x, x]), "changes the number of tokens: 30 in, 60 out"),
        (lambda x: x @ x.mT, "width of its outputs changes"),
        (lambda x: x[:, :, None, None], "not (n, e)"),
        (lambda x: x.argmax(-1), "scores or probabilities"),
        (lambda x: "tokens", "returned str"),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()).double(), "it is random"),
        (Counter(), "keeps state"),
    ],
    ids=["nan", "raises", "more tokens", "width", "axes", "labels", "text", "dropout", "state"],
)
def test_models_that_cannot_be_audited(model, words):
    found = pf.audit(model, DATA)
    assert words in found.headline and found.headline.startswith("It could not be audited")
    assert found.exit_code == 3 and found.sections == ()
    assert "could not be audited" in str(found)
    assert json.loads(found.to_json())["exit_code"] == 3


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4).double()

    def forward(self, x):
        return self.norm(x)


def test_running_statistics_are_state():
    """Of a module in training mode; the audit leaves them as they were."""
    model = Normed()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = pf.audit(model, DATA)
    assert "changes its buffer `norm.running_mean` (it is in training mode" in found.verdict
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert pf.audit(model.eval(), DATA).exit_code == 0


@pytest.mark.parametrize(
    "model,options,words",
    [
        (lambda x: torch.cat([x[..., :1, :], x], -2), {}, "adds a class token: say where"),
        (nn.Linear(4, 4).float(), {}, "parameters are float32 and the data float64"),
        (lambda c, q: q, {}, "pass `queries=`"),
        (lambda x: x, {"queries": DATA}, "pass `queries=`"),
        (nn.Embedding(9, 4), {}, "it looks up token ids: give the embeddings"),
    ],
    ids=["class token", "dtype", "no queries", "queries", "token ids"],
)
def test_what_helps_is_said(model, options, words):
    assert words in pf.audit(model, DATA, **options).verdict


@pytest.mark.parametrize("tokens", [32, 100])
def test_no_context_is_larger_than_allowed(tokens):
    longest = 0

    def model(x):
        nonlocal longest
        longest = max(longest, x.shape[-2])
        return attend(x)

    pf.audit(model, DATA, tokens=tokens)
    pf.audit(lambda c, q: model(c).mean(-2) + q, DATA, queries=DATA, tokens=tokens)
    assert tokens // 2 < longest <= tokens


def test_training_mode_is_named():
    model = encoder(dropout=0.5).train()
    assert "model.eval()" in pf.audit(model, DATA).verdict


def test_state_between_contexts():
    assert "a call changes the output of a later one" in pf.audit(Memory(), DATA).verdict


def test_a_model_that_fails_on_some_contexts():
    """Every section says so; none of them stops the others."""

    def picky(x):
        if len(x) > 40:
            raise RuntimeError("too long")
        return attend(x)

    found = pf.audit(picky, DATA)
    assert found["symmetries"].status == "unable" and "too long" in found["symmetries"].said
    assert found["symmetries"].numbers["permutation"]["holds"]
    assert found["sensitivity"].status == "open" and found.exit_code == 3
    unable = {f.section for f in found.findings if f.status == "unable"}
    assert unable == {"symmetries", "size", "theorem", "relations"}
    assert pf.audit(picky, DATA, tokens=40).exit_code == 0


def test_the_model_is_left_as_it_was():
    """No hook stays, no mode changes, and neither does the stream of random numbers."""
    model = encoder()
    before = torch.random.get_rng_state()
    pf.audit(model, DATA, sections=["symmetries", "depth", "relations"])
    assert torch.equal(before, torch.random.get_rng_state())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not model.training and torch.is_grad_enabled()


def test_models_that_write_into_their_input():
    """They get copies: neither the data nor the verdict suffers."""
    data, queries = DATA.clone(), torch.randn(9, 4).double()
    kept = data.clone(), queries.clone()
    assert pf.audit(lambda x: x.mul_(0.5), data.reshape(3, 20, 4)).exit_code == 0
    model = lambda c, q: q.mul_(0.5) + c.mul_(2).mean(-2)
    assert pf.audit(model, data, queries=queries).exit_code == 0
    assert torch.equal(data, kept[0]) and torch.equal(queries, kept[1])


def test_trouble_in_one_section_is_said_there():
    """Depth looks inside, where anything can happen; the other sections go on."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Identity()) for _ in range(3)])

        def forward(self, x):
            for k, layer in enumerate(self.layers):
                layer(x / 0 if k == 1 else x)
            return torch.softmax(input=x @ x.mT, dim=-1) @ x

    found = pf.audit(Odd(), DATA)
    assert found.exit_code == 3 and found["depth"].status == "unable"
    assert "one of its layers returns NaN" in found["depth"].said
    assert found["relations"].status == "measured"


def test_points_that_cannot_move():
    """One query, or a set of equal tokens: nothing to see, and nothing failed."""
    soft = lambda c, q: (q @ c.mT).softmax(-1) @ c
    assert pf.audit(soft, DATA, queries=DATA[:1])["theorem"].status == "untried"
    assert pf.audit(attend, torch.ones(20, 4).double()).exit_code == 0


def test_maps_on_a_sphere():
    eye, sphere = torch.eye(3).double(), pf.Sphere()
    field = pf.fields.SelfAttention(2 * eye, eye, eye, manifold=sphere)
    data = pf.Measure(torch.randn(40, 3).double()).push(sphere.retract)
    flow = pf.Flow(field, t1=0.5, solver=pf.Euler(steps=2))
    found = pf.audit(flow, data, sections=["symmetries", "sensitivity"])
    assert found["symmetries"].status == "open" and found.exit_code == 0


def test_searches_stay_in_the_box_of_the_data():
    """A model of positive numbers is never asked for others by the searches."""
    positive = DATA.abs() + 0.1
    constant = torch.cat([positive, torch.ones(60, 1).double()], -1)

    def model(x):
        assert (x[..., 4] == 1).all(), "the constant column moved"
        return attend(x[..., :4])

    found = pf.audit(model, constant)
    assert all(s.status in ("open", "measured") or s.name == "depth" for s in found.sections)


# Arguments


@pytest.mark.parametrize(
    "arguments,error,words",
    [
        ({"data": "cells.csv"}, TypeError, "a list of such sets"),
        ({"data": DATA[0]}, ValueError, r"\(n, d\)"),
        (
            {"data": DATA[:, None]},
            ValueError,
            r"60 sets of one token each.*give them as \(60, 4\)",
        ),
        ({"data": DATA[:1]}, ValueError, "at least two tokens"),
        ({"data": DATA / 0}, ValueError, "`data` must be finite"),
        ({"require": ["dancing"]}, ValueError, "`require` must be some of"),
        ({"data": []}, ValueError, "empty list"),
        ({"data": [DATA, DATA[:, :2]]}, ValueError, "one dimension"),
        ({"data": lambda n, g: DATA[:3]}, ValueError, "must draw n"),
        ({"data": DATA.long()}, ValueError, "floating point"),
        ({"data": DATA / 0}, ValueError, "finite"),
        ({"sections": ["symetries"]}, ValueError, "symmetries, size"),
        ({"queries": DATA[0]}, ValueError, r"\(m, q\)"),
        ({"tokens": 0}, ValueError, "whole number"),
        ({"tokens": 16}, ValueError, "at least 32"),
        ({"model": 3}, TypeError, "a module, a function"),
        ({"model": nn.Linear}, TypeError, "the class Linear"),
        ({"sections": None}, ValueError, "some of symmetries"),
        ({"seed": "a"}, ValueError, "whole number"),
        ({"seed": 2**70}, ValueError, "whole number"),
        ({"queries": DATA.float()}, ValueError, "share dtype"),
    ],
)
def test_wrong_arguments(arguments, error, words):
    arguments = {"model": attend, "data": DATA, **arguments}
    with pytest.raises(error, match=words):
        pf.audit(**arguments)


@pytest.mark.parametrize(
    "options,words",
    [
        ({"padded": 3}, "padded"),
        ({"batched": "yes"}, "must be True or False"),
        ({"name": 3}, "`name` must be a str"),
        ({"model": 3}, "a module, a function"),
        ({"model": pf.auditing.Model(attend)}, "a module, a function"),
    ],
)
def test_wrong_models(options, words):
    with pytest.raises(TypeError, match=words):
        pf.auditing.Model(**{"model": attend, **options})


def test_names_of_models():
    """A given name; else that of a function, or of the class of a module."""
    names = [pf.auditing.Model(attend, name="mine"), attend, encoder()]
    reports = [pf.audit(model, DATA, sections=["symmetries"]) for model in names]
    assert [r.model for r in reports] == ["mine", "attend", "TransformerEncoder"]


@pytest.mark.parametrize(
    "data",
    [
        DATA.numpy(),
        [DATA[:20], DATA[20:50]],
        pf.Measure(DATA, weights=torch.rand(60).double()),
        pf.Measure.stack([pf.Measure(DATA[:9]), pf.Measure(DATA)]),
        lambda n, g: torch.randn(n, 4, generator=g).double(),
        DATA[:2],
        DATA[:3].repeat(20, 1),
        DATA.clone().requires_grad_(),
    ],
    ids=["numpy", "list", "measure", "batch", "law", "two tokens", "few", "gradient"],
)
def test_unusual_data(data):
    found = pf.audit(attend, data, sections=["symmetries", "size"])
    assert found["symmetries"].status == "open"
