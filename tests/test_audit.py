"""Audits of models whose answers are known, and the page they make, in a real browser."""

import http.server
import json
import math
import re
import shutil
import subprocess
import threading

import pytest
import torch
from torch import nn

import pushforward as pf
from pushforward.auditing._calling import as_subject
from pushforward.auditing._inside import Attentions
from pushforward.auditing._look import Look, chosen
from pushforward.auditing._population import Population
from pushforward.auditing._subjects import repetitions
from pushforward.auditing.sections._depth import cloud_numbers
from pushforward.auditing.sections._relations import head_numbers
from pushforward.representation import Verdict, zoo

pytestmark = pytest.mark.unhooked

DATA = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SEEN = ["symmetries", "size", "theorem"]


def encoder(depth=2, dtype=torch.float64, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
        return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).to(dtype).eval()


def attend(x, scale=1.0):
    return x + (scale * x @ x.mT / 2).softmax(-1) @ x


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = encoder(1)
        self.places = torch.linspace(0, 1, 5000, dtype=torch.float64)[:, None]

    def forward(self, x):
        return self.inner(x + 10 * self.places[: x.shape[-2]])


# Verdicts


def test_an_encoder_is_an_in_context_map():
    found = pf.audit(encoder(), DATA)
    assert found.exit_code == 0 and "nothing refuted" in found.verdict
    assert found["symmetries"].status == "good"
    assert {"permutation", "duplication", "equal tokens", "padding"} == set(
        found["symmetries"].numbers
    )
    assert found["size"].status == "good"
    assert -0.65 < found["size"].numbers["rate"] < -0.35
    assert found["theorem"].verdict == str(Verdict.IN_CONTEXT)
    recovered = found["theorem"].numbers["recovered"]
    assert recovered["deviation"] < 1e-3 and recovered["deviation"] < 10 * recovered["estimate"]
    assert 0.9 < found["sensitivity"].numbers["exponent"] < 1.1
    assert min(c["w1"] for c in found["sensitivity"].numbers["moved"]) < 1e-4
    assert len(found["depth"].numbers["cosine"]) == 3
    assert [len(row) for row in found["relations"].numbers["heads"]] == [2, 2]


@pytest.mark.parametrize(
    "model,broken",
    [
        (Positions(), {"permutation", "duplication", "equal tokens"}),
        (lambda x: x + x[:1], {"permutation"}),
        (lambda x: x + x.sum(0), {"duplication"}),
        (lambda x: attend(x, math.log(len(x))), {"duplication"}),
        (attend, set()),
        (torch.tanh, set()),
    ],
    ids=["positions", "first token", "sum", "length temperature", "attention", "pointwise"],
)
def test_symmetries(model, broken):
    found = pf.audit(model, DATA, sections=SEEN)
    section = found["symmetries"]
    assert {name for name, seen in section.numbers.items() if not seen["holds"]} == broken
    assert found.exit_code == bool(broken)
    assert (found["theorem"].verdict == str(Verdict.NOT_A_MEASURE_MAP)) == bool(broken)


@pytest.mark.parametrize("f", [zoo.bayes, zoo.splitting, zoo.smooth_counterexample, zoo.top_k])
def test_maps_between_measures(f):
    """The verdict of the theorem, whatever can be said of the rest."""
    expected = {s.f: s.verdict for s in zoo.specimens(4)}.get(f, Verdict.NOT_A_MEASURE_MAP)
    data = lambda n, g: 2 * torch.rand(n, 4, generator=g).double() - 1
    found = pf.audit(f, data, sections=SEEN)
    assert found["theorem"].verdict == str(expected) and found.exit_code == 1


def test_in_context_maps_have_weights():
    found = pf.audit(pf.Transformer(4, depth=2).double(), DATA, sections=SEEN)
    assert set(found["symmetries"].numbers) == {
        "permutation", "duplication", "weights", "padding"
    }  # fmt: skip
    assert found.exit_code == 0
    assert found["theorem"].numbers["recovered"]["deviation"] < 1e-9


def test_queries():
    """Softmax regression is continuous in the query, the nearest neighbour is not."""
    queries = torch.randn(20, 3).double()
    soft = lambda c, q: (q @ c[:, :3].mT).softmax(-1) @ c[:, 3:]
    near = lambda c, q: c[torch.cdist(q, c[:, :3]).argmin(-1), 3:]
    batched = lambda c, q: torch.stack([soft(*pair) for pair in zip(c, q, strict=True)])
    for model in (soft, batched):
        found = pf.audit(model, DATA, queries=queries, batched=model is batched)
        assert found.exit_code == 0, found
        assert found["symmetries"].numbers["queries"]["holds"]
        assert "(1, n, d)" in found.how if model is batched else "(n, d)" in found.how
    found = pf.audit(near, DATA, queries=queries, sections=["theorem"])
    assert "(B2)" in found.verdict and found.exit_code == 1


def test_queries_that_see_each_other():
    model = lambda c, q: q.mean(0) + q + c.mean(0)[:3]
    found = pf.audit(model, DATA, queries=torch.randn(9, 3).double(), sections=["symmetries"])
    assert not found["symmetries"].numbers["queries"]["holds"]


def test_one_output_for_a_set():
    found = pf.audit(lambda x: attend(x).mean(-2), DATA)
    assert "one output for the whole set" in found.how and found.exit_code == 0
    assert found["theorem"].status == "absent"
    assert found["size"].numbers["rate"] < -0.3


def test_sets_with_an_axis():
    """Sets `(b, n, d)` are for a model with that axis; neighbours in the batch must not matter."""
    data = DATA.reshape(3, 20, 4)
    assert pf.audit(encoder(), data, sections=["symmetries"])["symmetries"].numbers["neighbours"][
        "holds"
    ]
    leaky = lambda x: x + x.mean((0, 1))
    found = pf.audit(leaky, data, sections=["symmetries"])
    assert not found["symmetries"].numbers["neighbours"]["holds"] and found.exit_code == 1


def test_padding():
    """A mask that is read, and one that is not."""
    good = lambda x, real: encoder()(x, src_key_padding_mask=~real)
    bad = lambda x, real: encoder()(x)
    for padded, code in ((good, 0), (bad, 1)):
        model = lambda x: encoder()(x)
        found = pf.audit(model, DATA, sections=["symmetries"], padded=padded)
        assert found.exit_code == code


# Models that misbehave


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
        (lambda x: torch.cat([x, x[:1]]), "changes the number of tokens: 30 in, 31 out"),
        (lambda x: x @ x.mT, "dimension of its outputs varies"),
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
    assert words in found.verdict and found.verdict.startswith("could not be audited")
    assert found.exit_code == 2 and found.sections == ()
    assert "could not be audited" in str(found)
    assert json.loads(found.to_json())["exit_code"] == 2


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
        (lambda x: torch.cat([x[..., :1, :], x], -2), {}, "a class token? Leave it out"),
        (nn.Linear(4, 4).float(), {}, "parameters are float32 and the data float64"),
        (lambda c, q: q, {}, "is given `queries=`"),
        (lambda x: x, {"queries": DATA}, "is given `queries=`"),
    ],
    ids=["class token", "dtype", "no queries", "queries"],
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
    assert found["symmetries"].status == "failed" and "too long" in found["symmetries"].verdict
    assert found["symmetries"].numbers["permutation"]["holds"]
    assert found["sensitivity"].status == "good" and found.exit_code == 2
    assert "could not be looked at: symmetries, size, theorem" in found.verdict
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
    assert found.exit_code == 2 and found["depth"].status == "failed"
    assert "one of its layers returns NaN" in found["depth"].verdict
    assert found["relations"].status == "good"


def test_points_that_cannot_move():
    """One query, or a set of equal tokens: nothing to see, and nothing failed."""
    soft = lambda c, q: (q @ c.mT).softmax(-1) @ c
    assert pf.audit(soft, DATA, queries=DATA[:1])["theorem"].status == "absent"
    assert pf.audit(attend, torch.ones(20, 4).double()).exit_code == 0


def test_maps_on_a_sphere():
    eye, sphere = torch.eye(3).double(), pf.Sphere()
    field = pf.fields.SelfAttention(2 * eye, eye, eye, manifold=sphere)
    data = pf.Measure(torch.randn(40, 3).double()).push(sphere.retract)
    flow = pf.Flow(field, t1=0.5, solver=pf.Euler(steps=2))
    found = pf.audit(flow, data, sections=["symmetries", "sensitivity"])
    assert [s.status for s in found.sections] == ["good", "good"]


def test_searches_stay_in_the_box_of_the_data():
    """A model of positive numbers is never asked for others by the searches."""
    positive = DATA.abs() + 0.1
    constant = torch.cat([positive, torch.ones(60, 1).double()], -1)

    def model(x):
        assert (x[..., 4] == 1).all(), "the constant column moved"
        return attend(x[..., :4])

    found = pf.audit(model, constant)
    assert all(s.status in ("good", "noted") or s.name == "depth" for s in found.sections), found


# What rounding hides


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_do_not_matter(scale, dtype):
    """Of data and of outputs: the first token is felt, attention is not refuted."""
    data = (DATA * scale).to(dtype)
    wrong = pf.audit(lambda x: 1e-5 * (x + x[:1]), data, sections=["symmetries"])
    assert not wrong["symmetries"].numbers["permutation"]["holds"]
    right = pf.audit(lambda x: scale * attend(x / scale), data, sections=["symmetries", "size"])
    assert right.exit_code == 0 and right["size"].numbers["rate"] < -0.2


@pytest.mark.parametrize("inside", [torch.float32, torch.bfloat16])
def test_coarser_arithmetic_inside(inside):
    """A symmetric model is not refuted for rounding more than its data."""
    model = lambda x: attend(x.to(inside)).to(x.dtype)
    assert pf.audit(model, DATA, sections=SEEN).exit_code == 0


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_deep_encoders_is_far_below_the_tolerance(dtype):
    """At most a few times the response to one rounding unit, of which fifty are allowed."""
    g, data = torch.Generator().manual_seed(0), DATA.to(dtype)
    subject = as_subject(
        encoder(24, dtype), pf.Measure(data[:30]), pf.Measure(data[:31]), None, [False]
    )
    mu = pf.Measure(data)
    look, order = Look.at(subject, mu, None, g), torch.randperm(60, generator=g)
    assert 0 < look.deviation(chosen(mu, order), order) < 5 * look.rounding
    twice = torch.arange(60).repeat(2)
    assert look.deviation(chosen(mu, twice), twice) < 5 * look.rounding


def test_what_rounding_hides_is_not_called_good():
    """In bfloat16 and far from the origin nothing can be said, and that is said."""
    half = pf.audit(attend, DATA.bfloat16(), sections=["symmetries"])
    assert half["symmetries"].status == "noted" and "cannot tell" in half["symmetries"].verdict
    assert pf.audit(lambda x: x + 100 * x[:1], DATA.bfloat16(), sections=["size"]).exit_code == 0
    far = (DATA + 1e5).float()
    found = pf.audit(attend, far, sections=["symmetries"])["symmetries"]
    assert found.status == "noted" and "cannot tell" in found.verdict


def test_planted_errors_are_seen_in_float32():
    """A thousandth of the outputs, a hundred times below what a loose tolerance lets pass."""
    model = encoder(6, torch.float32)
    data = DATA.float()
    assert pf.audit(model, data, sections=["symmetries"]).exit_code == 0
    bent = lambda x: model(x) + 1e-3 * x[:1]
    assert pf.audit(bent, data, sections=["symmetries"]).exit_code == 1


def test_padding_of_a_context():
    """With queries, `padded` is given them too."""
    model = lambda c, q: q + c.mean(0)
    good = lambda c, real, q: q + c[real].mean(0)
    bad = lambda c, real, q: q + c.mean(0)
    for padded, holds in ((good, True), (bad, False)):
        found = pf.audit(model, DATA, queries=DATA, padded=padded, sections=["symmetries"])
        assert found["symmetries"].numbers["padding"]["holds"] == holds


def test_batches_that_go_wrong_are_not_passed_over():
    """A model that takes two sets and returns NaN for them; one that takes one set only."""
    sets = DATA.reshape(3, 20, 4)
    model = lambda x: x if len(x) == 1 else x / 0
    found = pf.audit(model, sets, sections=["symmetries"])["symmetries"]
    assert found.status == "failed" and "neighbours" in found.verdict
    single = lambda x: attend(x[0])[None]
    assert pf.audit(single, sets, sections=["symmetries"])["symmetries"].status == "good"


def test_an_encoder_whose_axes_are_confused():
    """Without `batch_first` the sets of a batch attend to each other, and that is seen."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8).double().eval()
    found = pf.audit(layer, DATA.reshape(3, 20, 4), batched=True, sections=["symmetries"])
    assert not found["symmetries"].numbers["neighbours"]["holds"] and found.exit_code == 1
    assert any(line.startswith("padding: failed") for line in found["symmetries"].lines)


def test_padding_that_returns_nan():
    nan = lambda x, real: attend(x) / 0
    found = pf.audit(attend, DATA, sections=["symmetries"], padded=nan)
    assert found.exit_code == 2 and "NaN" in found["symmetries"].verdict


def test_steep_lists_in_float32():
    """The closer look has scales of its own, and says jump or slope."""
    data = DATA.float()
    jump = pf.audit(lambda x: x.sign() + attend(x), data, sections=["theorem"])["theorem"]
    assert jump.status == "noted" and "jumps" in jump.verdict
    assert jump.numbers["slope"] > 1e3


def test_a_jump_in_the_context_is_noted():
    """The median depends on the measure alone, and jumps."""
    median = lambda x: x - x.median(-2, keepdim=True).values
    found = pf.audit(median, DATA, sections=["theorem", "sensitivity"])
    assert found.exit_code == 0 and found["theorem"].status == "noted"
    step = lambda x: x + (x.mean(-2, keepdim=True) > 0)
    found = pf.audit(step, DATA, sections=["sensitivity"])["sensitivity"]
    assert found.status == "noted" and found.numbers["worst_exponent"] < 0.2


def test_two_readings_of_a_tensor_are_said():
    found = pf.audit(lambda x: x[:, :1] + x, DATA, sections=["symmetries"])
    assert "(1, n, d) give other outputs" in found.how
    assert "other outputs" not in pf.audit(encoder(), DATA, sections=["symmetries"]).how


# Arguments


@pytest.mark.parametrize(
    "arguments,error,words",
    [
        ({"data": "cells.csv"}, TypeError, "a list of such sets"),
        ({"data": DATA[0]}, ValueError, r"\(n, d\)"),
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
        ({"padded": 3}, TypeError, "padded"),
        ({"batched": "yes"}, TypeError, "True, False or None"),
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
    "data",
    [
        DATA.numpy(),
        [DATA[:20], DATA[20:50]],
        pf.Measure(DATA, weights=torch.rand(60).double()),
        pf.Measure.stack([pf.Measure(DATA[:9]), pf.Measure(DATA)]),
        lambda n, g: torch.randn(n, 4, generator=g).double(),
        DATA[:1],
        DATA[:3].repeat(20, 1),
        DATA.clone().requires_grad_(),
    ],
    ids=["numpy", "list", "measure", "batch", "law", "one token", "few", "gradient"],
)
def test_unusual_data(data):
    found = pf.audit(attend, data, sections=["symmetries", "size"])
    alone = isinstance(data, torch.Tensor) and len(data) == 1  # whose outputs are all the same
    assert found["symmetries"].status == ("noted" if alone else "good")


# What is measured


def test_contexts_are_draws_of_the_data():
    few = DATA[:3].detach().repeat(20, 1)
    assert Population(few).typical == 4
    mu = Population(DATA).context(torch.Generator().manual_seed(0))
    assert mu.n == 30 and mu.merge().n == 30


def test_weights_as_repetitions():
    mu = pf.Measure(torch.zeros(3, 1).double(), weights=torch.tensor([3.0, 1.5, 6.0]).double())
    assert repetitions(mu).tolist() == [2, 1, 4]
    with pytest.raises(pf.representation.BlackBoxError, match="repetitions"):
        odd = torch.tensor([1.0, math.pi, math.e]).double()
        repetitions(pf.Measure(torch.zeros(3, 1).double(), weights=odd))


@pytest.mark.parametrize("how", ["module", "sdpa", "softmax"])
def test_attention_is_seen_as_it_is_computed(how):
    """Three ways to write attention, one matrix."""
    torch.manual_seed(0)
    module = nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
    x = DATA[:7].detach()
    with torch.no_grad():
        Q, K, V = (x @ module.in_proj_weight.T).split(4, -1)
        cut = lambda t: t.reshape(7, 2, 2).transpose(0, 1)
        expected = (cut(Q) @ cut(K).mT / math.sqrt(2)).softmax(-1)
        run = {
            "module": lambda: module(x, x, x, need_weights=False)[0],
            "sdpa": lambda: nn.functional.scaled_dot_product_attention(cut(Q), cut(K), cut(V)),
            "softmax": lambda: (cut(Q) @ cut(K).mT / math.sqrt(2)).softmax(dim=-1) @ cut(V),
        }[how]
        plain = run()
        with Attentions([(7, 7)]) as seen:
            watched = run()
    assert torch.allclose(plain, watched, rtol=1e-12, atol=1e-14)  # another kernel
    assert len(seen.found) == 1 and torch.allclose(seen.found[0], expected)


def test_attention_with_a_class_token_and_across():
    """Heads over one key more than there are tokens, and of queries to the context."""

    def with_class(x):
        y = torch.cat([x[..., :1, :] * 0, x], -2)
        return ((y @ y.mT).softmax(-1) @ y)[..., 1:, :]

    found = pf.audit(with_class, DATA, sections=["relations"])["relations"]
    assert len(found.numbers["heads"]) == 1 and "61 queries to 61 keys" in found.lines[0]

    def tabular(c, q):
        return (q @ attend(c).mT).softmax(-1) @ c

    found = pf.audit(tabular, DATA, queries=DATA, sections=["relations"])["relations"]
    assert len(found.numbers["heads"]) == 2


def test_masks_of_attention_are_read():
    q = torch.randn(1, 5, 3).double()
    causal = torch.ones(5, 5).tril().bool()
    sdpa = nn.functional.scaled_dot_product_attention
    for options in ({"is_causal": True}, {"attn_mask": causal}):
        with Attentions([(5, 5)]) as seen:
            out = sdpa(q, q, q, **options)
        assert torch.allclose(seen.found[0] @ q, out)


def test_measures_of_a_head():
    """Uniform, identity and rank-one scores have known entropies, columns and ranks."""
    n = 8
    uniform = head_numbers(torch.full((n, n), 1 / n).double())
    assert uniform == {"entropy": pytest.approx(1), "columns": 0, "rank": 0, "self": 1 / n}
    one = head_numbers(torch.eye(n).double())
    assert one == {"entropy": 0, "columns": 0, "rank": None, "self": 1}
    q, k = torch.randn(2, n, 3).double()
    assert head_numbers((q @ k.mT).softmax(-1))["rank"] == 3
    last = torch.zeros(n, n).double()
    last[:, 0] = 1
    assert head_numbers(last)["columns"] == pytest.approx(1 - 1 / n)


def test_measures_of_a_cloud():
    """An orthonormal basis, and one point many times."""
    basis = cloud_numbers(torch.eye(6).double())
    assert basis["cosine"] == pytest.approx(0) and basis["rank"] == pytest.approx(6)
    assert basis["clusters"] == 6
    assert basis["energy"] == pytest.approx((math.e / 6 + 5 / 6) / 2)
    point = cloud_numbers(torch.ones(6, 3).double())
    assert point["cosine"] == pytest.approx(1) and point["rank"] == pytest.approx(1)
    assert point["clusters"] == 1 and point["energy"] == pytest.approx(math.e / 2)


def test_small_sets_share():
    """Contexts differ, even of sets with few tokens."""
    share = pf.audit(encoder(), DATA[:20].detach(), sections=["sensitivity"])
    assert share["sensitivity"].numbers["share"] > 0.01


def test_a_pointwise_softmax_is_no_attention():
    """Of as many features as there are tokens."""
    for d in (53, 60, 61):
        data = torch.randn(200, d).double()
        found = pf.audit(lambda x: x.softmax(-1), data, sections=["relations"])
        assert found["relations"].status == "absent"


def test_oversmoothing_is_noted():
    """Attention that averages gathers tokens; a rotation does not."""
    mix = pf.Compose(*[pf.fields.SelfAttention(*[torch.eye(4).double() * s for s in (0, 1, 0.9)])])
    gather = pf.Compose(*[pf.Residual(mix) for _ in range(6)])
    found = pf.audit(gather, DATA + 1, sections=["depth"])
    assert found["depth"].status == "noted" and found.exit_code == 0
    assert found["depth"].numbers["cosine"][-1] > 0.9
    turn = torch.linalg.qr(torch.randn(4, 4).double())[0]
    still = pf.Compose(*[pf.Pointwise(lambda x: x @ turn) for _ in range(3)])
    kept = pf.audit(still, DATA, sections=["depth"])["depth"].numbers
    assert kept["cosine"][0] == pytest.approx(kept["cosine"][-1])
    assert kept["rank"][0] == pytest.approx(kept["rank"][-1])


def test_tied_layers_and_flows_have_depth():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([encoder(1)])

        def forward(self, x):
            for _ in range(5):
                x = self.layers[0](x)
            return x

    data = DATA
    assert len(pf.audit(Tied(), data, sections=["depth"])["depth"].numbers["cosine"]) == 6
    flow = pf.Flow(pf.Attention(4).double(), t1=1.0, solver=pf.Euler(steps=7))
    assert len(pf.audit(flow, data, sections=["depth"])["depth"].numbers["cosine"]) == 8


def test_the_response_to_replaced_tokens():
    """The mean moves by at most W1: ratio 1. Its square root at 0 is Hoelder of exponent 1/2."""
    found = pf.audit(lambda x: x.mean(-2), DATA, sections=["sensitivity"])
    assert found["sensitivity"].numbers["worst"]["ratio"] == pytest.approx(1, abs=1e-6)
    worst = found["sensitivity"].numbers["worst"]
    mu, nu = (pf.Measure(torch.tensor(worst[k]).double()) for k in ("mu", "nu"))
    assert float(pf.wasserstein(mu, nu)) == pytest.approx(worst["w1"])
    moved = float((mu.mean() - nu.mean()).norm())
    assert moved == pytest.approx(worst["response"], rel=1e-6)
    alone = pf.audit(torch.tanh, DATA, sections=["sensitivity", "size"])
    assert alone["sensitivity"].numbers["share"] == 0
    assert "do not depend" in alone["size"].verdict


# Rendering


def test_the_same_seed_is_the_same_audit():
    a, b = (pf.audit(encoder(), DATA, seed=3) for _ in range(2))
    assert a.to_json() == b.to_json() and a.to_html() == b.to_html() and str(a) == str(b)
    part = pf.audit(encoder(), DATA, seed=3, sections=["sensitivity"])
    assert part["sensitivity"].to_dict() == a["sensitivity"].to_dict()
    assert pf.audit(encoder(), DATA, seed=4).to_json() != a.to_json()


def test_files(tmp_path):
    found = pf.audit(attend, DATA, sections=["symmetries"])
    for name in ("audit.html", "audit.json", "audit.txt"):
        assert found.save(tmp_path / name).exists()
    assert json.loads((tmp_path / "audit.json").read_text())["verdict"] == found.verdict
    assert (tmp_path / "audit.txt").read_text() == str(found)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["audit.html", "audit.json", "audit.txt"]
    with pytest.raises(ValueError, match=".html, .json or .txt"):
        found.save(tmp_path / "audit.pdf")
    with pytest.raises(KeyError, match="there are: symmetries"):
        found["depth"]
    assert found["symmetries"].figures()[0].data


def test_names_cannot_break_the_page():
    def model(x):
        return x

    model.__name__ = "</script><script>alert(1)</script>"
    page = pf.audit(model, DATA, sections=["symmetries"]).to_html()
    assert "<script>alert(1)" not in page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    pf.audit(encoder(), DATA).save(folder / "audit.html")
    return folder


FRAME = """<!DOCTYPE html><body style="margin:0"><iframe id="f" src="audit.html"
 style="border:0;width:WIDTHpx;height:900px"></iframe><script>
const frame = document.getElementById("f");
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, root = page.documentElement;
  const plots = [...page.querySelectorAll(".plot")];
  document.body.dataset.seen = JSON.stringify({
    drawn: plots.map(p => p.querySelectorAll(".main-svg").length),
    marks: plots.map(p => p.querySelectorAll(".trace, .heatmaplayer image, .bars path").length),
    inside: plots.every(p => p.getBoundingClientRect().right <= root.clientWidth + 1),
    svg: plots.every(p => p.querySelector(".main-svg").getBoundingClientRect().width
      <= p.getBoundingClientRect().width + 1),
    scrolls: root.scrollWidth > root.clientWidth + 1,
    width: root.clientWidth,
  });
}, 3000);
</script>"""


class Served(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, under a policy that forbids the page to load anything else."""

    asked: list[str] = []

    def end_headers(self):
        if "audit.html" in self.path:
            self.send_header(
                "Content-Security-Policy",
                "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                "img-src data: blob:",
            )
        super().end_headers()

    def log_message(self, *args):
        self.asked.append(self.path)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_the_page_in_a_browser(page, width, tmp_path):
    """Every picture is drawn, nothing is wider than the screen, nothing is asked of anybody."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    (page / f"frame{width}.html").write_text(FRAME.replace("WIDTH", str(width)))
    Served.asked.clear()
    handler = lambda *args: Served(*args, directory=str(page))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/frame{width}.html"
        done = subprocess.run(
            [chromium, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--enable-logging=stderr", "--disable-background-networking",
             "--no-first-run", "--window-size=1400,1000",
             f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom", address],
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip
        server.shutdown()
    told = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not told, told
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(seen.group(1).replace("&quot;", '"'))
    assert found["width"] == width or found["width"] == width - 15  # a scroll bar
    assert len(found["drawn"]) == 10 and all(found["drawn"]) and all(found["marks"]), found
    assert found["inside"] and found["svg"] and not found["scrolls"], found
    assert {path.split("?")[0] for path in Served.asked} <= {
        f"/frame{width}.html", "/audit.html", "/favicon.ico"
    }  # fmt: skip
