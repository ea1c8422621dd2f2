"""Audits of models whose verdicts are known."""

import math

import pytest
import torch
from audited import DATA, FIRST_THREE, attend, encoder
from torch import nn

import pushforward as pf
from pushforward.auditing._calling import as_box
from pushforward.auditing._case import Baseline, selected
from pushforward.representation import Verdict, zoo

pytestmark = pytest.mark.unhooked


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = encoder(1)
        self.places = torch.linspace(0, 1, 5000, dtype=torch.float64)[:, None]

    def forward(self, x):
        return self.inner(x + 10 * self.places[: x.shape[-2]])


def test_an_encoder_is_an_in_context_map():
    found = pf.audit(encoder(), DATA)
    assert found.exit_code == 0 and found.headline.startswith("Nothing was refuted in ")
    assert found["symmetries"].status == "open"
    assert {"permutation", "duplication", "equal tokens", "padding"} == set(
        found["symmetries"].numbers
    )
    assert found["size"].status == "open"
    assert -0.65 < found["size"].numbers["rate"] < -0.35
    assert found["theorem"].numbers["verdict"] == str(Verdict.IN_CONTEXT)
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
    found = pf.audit(pf.auditing.Model(model, mode="set"), DATA, sections=FIRST_THREE)
    section = found["symmetries"]
    assert {name for name, seen in section.numbers.items() if not seen["holds"]} == broken
    assert found.exit_code == bool(broken)
    assert {f.name for f in section.findings if f.status == "refuted"} == broken
    verdict = found["theorem"].numbers["verdict"]
    assert (verdict == str(Verdict.NOT_A_MEASURE_MAP)) == bool(broken)


@pytest.mark.parametrize("f", [zoo.bayes, zoo.splitting, zoo.smooth_counterexample, zoo.top_k])
def test_maps_between_measures(f):
    """The verdict of the theorem, whatever can be said of the rest."""
    expected = {s.f: s.verdict for s in zoo.specimens(4)}.get(f, Verdict.NOT_A_MEASURE_MAP)
    data = lambda n, g: 2 * torch.rand(n, 4, generator=g).double() - 1
    found = pf.audit(f, data, sections=FIRST_THREE)
    assert found["theorem"].numbers["verdict"] == str(expected) and found.exit_code == 1


def test_in_context_maps_have_weights():
    found = pf.audit(pf.Transformer(4, depth=2).double(), DATA, sections=FIRST_THREE)
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
        wrapped = pf.auditing.Model(model, batched=model is batched)
        found = pf.audit(wrapped, DATA, queries=queries)
        assert found.exit_code == 0, found
        assert found["symmetries"].numbers["queries"]["holds"]
        assert "(1, n, d)" in found.how if model is batched else "(n, d)" in found.how
    found = pf.audit(near, DATA, queries=queries, sections=["theorem"])
    assert "(B2)" in found.verdict and found.exit_code == 1


def test_an_in_context_map_with_queries():
    """Its queries have no mass; the search moves them in one context."""
    gamma = pf.Attention(4).double()
    found = pf.audit(gamma, DATA, queries=DATA[:9] / 2)
    assert found.exit_code == 0 and "continuous in the query" in found.verdict
    assert found["depth"].status == "untried"
    assert "Every head gives all tokens the same" in found.verdict  # its weights are random


def test_queries_that_see_each_other():
    model = lambda c, q: q.mean(0) + q + c.mean(0)[:3]
    found = pf.audit(model, DATA, queries=torch.randn(9, 3).double(), sections=["symmetries"])
    assert not found["symmetries"].numbers["queries"]["holds"]


def test_one_output_for_a_set():
    found = pf.audit(lambda x: attend(x).mean(-2), DATA)
    assert "one output for the whole set" in found.how and found.exit_code == 0
    assert found["theorem"].status == "untried"
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
        model = pf.auditing.Model(lambda x: encoder()(x), padded=padded)
        found = pf.audit(model, DATA, sections=["symmetries"])
        assert found.exit_code == code


# Rounding


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_do_not_matter(scale, dtype):
    """Of data and of outputs: the first token is felt, attention is not refuted."""
    data = (DATA * scale).to(dtype)
    first = pf.auditing.Model(lambda x: 1e-5 * (x + x[:1]), mode="set")
    wrong = pf.audit(first, data, sections=["symmetries"])
    assert not wrong["symmetries"].numbers["permutation"]["holds"]
    right = pf.audit(lambda x: scale * attend(x / scale), data, sections=["symmetries", "size"])
    assert right.exit_code == 0 and right["size"].numbers["rate"] < -0.2


@pytest.mark.parametrize("inside", [torch.float32, torch.bfloat16])
def test_coarser_arithmetic_inside(inside):
    """A symmetric model is not refuted for rounding more than its data."""
    model = lambda x: attend(x.to(inside)).to(x.dtype)
    assert pf.audit(model, DATA, sections=FIRST_THREE).exit_code == 0


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_deep_encoders_is_far_below_the_tolerance(dtype):
    """At most a few times the response to one rounding unit, of which fifty are allowed."""
    g, data = torch.Generator().manual_seed(0), DATA.to(dtype)
    box, _ = as_box(
        encoder(24, dtype), pf.Measure(data[:30]), pf.Measure(data[:31]), None, [False]
    )
    mu = pf.Measure(data)
    baseline, order = Baseline.measure(box, mu, None, g), torch.randperm(60, generator=g)
    assert 0 < baseline.change(selected(mu, order), order) < 5 * baseline.rounding
    twice = torch.arange(60).repeat(2)
    assert baseline.change(selected(mu, twice), twice) < 5 * baseline.rounding


def test_what_rounding_hides_is_not_tried():
    """In bfloat16 and far from the origin nothing can be said, and that is said."""
    half = pf.audit(attend, DATA.bfloat16(), sections=["symmetries"])
    assert half["symmetries"].status == "untried" and "inconclusive" in half["symmetries"].said
    assert {"permutation", "duplication"} <= {check.name for check in half.not_tried}
    assert pf.audit(
        attend, DATA.bfloat16(), sections=["symmetries"], require=["permutation"]
    ).missing
    assert pf.audit(lambda x: x + 100 * x[:1], DATA.bfloat16(), sections=["size"]).exit_code == 0
    far = (DATA + 1e5).float()
    found = pf.audit(attend, far, sections=["symmetries"])["symmetries"]
    assert found.status == "untried" and "inconclusive" in found.said


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
        wrapped = pf.auditing.Model(model, padded=padded)
        found = pf.audit(wrapped, DATA, queries=DATA, sections=["symmetries"])
        assert found["symmetries"].numbers["padding"]["holds"] == holds


def test_batches_that_go_wrong_are_not_passed_over():
    """A model that takes two sets and returns NaN for them; one that takes one set only."""
    sets = DATA.reshape(3, 20, 4)
    model = lambda x: x if len(x) == 1 else x / 0
    found = pf.audit(model, sets, sections=["symmetries"])["symmetries"]
    assert found.status == "unable"
    assert [f.name for f in found.findings if f.status == "unable"] == ["neighbours"]
    single = lambda x: attend(x[0])[None]
    assert pf.audit(single, sets, sections=["symmetries"])["symmetries"].status == "open"


def test_an_encoder_whose_axes_are_confused():
    """Without `batch_first` the sets of a batch attend to each other, and that is seen."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8).double().eval()
    model = pf.auditing.Model(layer, batched=True)
    found = pf.audit(model, DATA.reshape(3, 20, 4), sections=["symmetries"])
    assert not found["symmetries"].numbers["neighbours"]["holds"] and found.exit_code == 1
    assert "`src_key_padding_mask` is not understood" in found.how
    assert "Not tried: padding" in found.verdict


def test_padding_that_returns_nan():
    nan = lambda x, real: attend(x) / 0
    model = pf.auditing.Model(attend, padded=nan)
    found = pf.audit(model, DATA, sections=["symmetries"])
    assert found.exit_code == 3 and "NaN" in found["symmetries"].said


def test_steep_lists_in_float32():
    """The closer look has scales of its own, and says jump or slope."""
    data = DATA.float()
    jump = pf.audit(lambda x: x.sign() + attend(x), data, sections=["theorem"])["theorem"]
    (finding,) = [f for f in jump.findings if f.name == "in-context map"]
    assert finding.status == "open" and finding.change and "jumps" in finding.said
    assert jump.numbers["slope"] > 1e3


def test_a_jump_in_the_context_is_noted():
    """The median depends on the measure alone, and jumps."""
    median = lambda x: x - x.median(-2, keepdim=True).values
    found = pf.audit(median, DATA, sections=["theorem", "sensitivity"])
    assert found.exit_code == 0 and found["theorem"].findings[0].notable
    step = lambda x: x + (x.mean(-2, keepdim=True) > 0)
    found = pf.audit(step, DATA, sections=["sensitivity"])["sensitivity"]
    assert found.findings[0].notable and found.numbers["worst_exponent"] < 0.2


def test_two_readings_of_a_tensor_are_said():
    found = pf.audit(lambda x: x[:, :1] + x, DATA, sections=["symmetries"])
    assert "(1, n, d) but then gives other outputs" in found.how
    assert "other outputs" not in pf.audit(encoder(), DATA, sections=["symmetries"]).how
