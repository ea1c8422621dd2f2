"""What an audit says: findings that explain themselves, modes, class tokens, comparisons."""

import json
import re
from dataclasses import replace

import pytest
import torch
from audited import DATA, attend, encoder
from torch import nn

import pushforward as pf
from pushforward.auditing import Model
from pushforward.auditing.findings import LABEL, TERMS, TEXTS, number, share, terms_in

pytestmark = pytest.mark.unhooked

SYMMETRIES = ["symmetries"]


def named(report):
    return {finding.name: finding for finding in report.findings}


class Positions(nn.Module):
    """An encoder that adds position embeddings, of the size of the tokens."""

    def __init__(self):
        super().__init__()
        self.inner = encoder(1)
        generator = torch.Generator().manual_seed(0)
        self.places = torch.randn(400, 4, generator=generator, dtype=torch.float64)

    def forward(self, x):
        return self.inner(x + self.places[: x.shape[-2]])


class Prepending(nn.Module):
    """An encoder that puts a token of its own before the others."""

    def __init__(self, model=None):
        super().__init__()
        self.inner = encoder(2) if model is None else model
        self.token = torch.ones(1, 4, dtype=torch.float64)

    def forward(self, x):
        return self.inner(torch.cat([self.token.expand(*x.shape[:-2], 1, 4), x], -2))


# Words


@pytest.mark.parametrize(
    "x,expected",
    [
        (0.0, "0"), (2.54, "2.5"), (-0.42, "−0.42"), (10_000.0, "10 000"), (53.1, "53"),
        (9e-16, "9 × 10⁻¹⁶"), (1e-9, "10⁻⁹"), (1.8, "1.8"), (0.00123, "0.0012"), (99.7, "100"),
        (float("inf"), "infinite"), (float("nan"), "unknown"), (3.2e9, "3.2 × 10⁹"),
    ],
)  # fmt: skip
def test_numbers_are_written_for_readers(x, expected):
    assert number(x) == expected


def test_errors_are_rounded_up_and_never_down():
    assert number(8.01e-16, 1, up=True) == "9 × 10⁻¹⁶" and number(9.01e-5, 1, up=True) == "10⁻⁴"
    assert number(0.0121, up=True) == "0.013" and number(0.012, up=True) == "0.012"
    assert share(0.0254) == "2.5 %" and share(1e-7) == "10⁻⁷" and share(0.99999) == "100 %"


def test_all_texts_are_plain():
    """No semicolons, no claims that a sample cannot support; terms are explained."""
    sentences = [t for text in TEXTS.values() for t in vars(text).values()]
    for sentence in [*sentences, *TERMS.values()]:
        assert not re.search(r"[;—]|\b(passed|failed|good|bad|proved|significant)\b", sentence)
    for name, text in TEXTS.items():
        assert bool(text.cause) <= bool(text.amiss), name
        assert text.claim.split()[0] in ("that", "how", "what", "whether"), name
    assert terms_in("Outputs change by 3 % of their size, by padding.") == (
        "size of the outputs", "padding",
    )  # fmt: skip


@pytest.mark.parametrize(
    "model,names",
    [
        (lambda x: x + x.sum(-2, keepdim=True), {"duplication", "length", "measure map"}),
        (Model(Positions(), mode="set"), {"permutation", "equal tokens"}),
    ],
    ids=["sum", "positions"],
)
def test_refuted_findings_explain_themselves_and_the_largest_comes_first(model, names):
    report = pf.audit(model, DATA, sections=["symmetries", "size", "theorem"])
    refuted = [f for f in report.findings if f.status == "refuted"]
    assert names <= {f.name for f in refuted} and report.exit_code == 1
    for f in refuted:
        assert f.meaning and f.cause and f.change and f.claim.startswith("that ")
        assert "size of the outputs" in f.terms and set(f.terms) <= set(report.terms)
    effects = [f.effect for f in refuted if f.effect is not None]
    assert len(effects) > 1 and effects == sorted(effects, reverse=True)
    assert report.headline == f"{refuted[0].said} {refuted[1].said}"
    assert report.findings[: len(refuted)] == tuple(refuted)
    text = " ".join(str(report).split())
    for part in (refuted[0].said, refuted[0].meaning, refuted[0].cause, refuted[0].change):
        assert " ".join(part.split()) in text
    assert len(report.verdict.splitlines()) == 1 + len(report.findings) + len(report.not_tried)


def test_the_effect_is_a_share_of_the_size_of_the_outputs():
    """Of x + a x_1 the change is a |x_1 - x_k| at most, whatever the scale of the outputs."""
    effects = []
    for scale in (1e-3, 1.0, 1e4):
        model = Model(lambda x, scale=scale: scale * (x + 0.01 * x[:1]), mode="set")
        effects.append(named(pf.audit(model, DATA, sections=SYMMETRIES))["permutation"].effect)
    assert 0 < effects[0] < 0.03 and effects == pytest.approx([effects[0]] * 3)


def test_the_record():
    report = pf.audit(encoder(), DATA, sections=["symmetries", "depth"])
    record = json.loads(report.to_json())
    assert set(record) == {
        "schema", "model", "how", "data", "mode", "seed", "version", "date", "headline",
        "exit_code", "required", "findings", "terms", "not_tried", "sections",
    }  # fmt: skip
    assert record["mode"] == "set" and re.fullmatch(r"\d{4}-\d\d-\d\d", record["date"])
    assert {f["status"] for f in record["findings"]} <= set(LABEL)
    assert all(set(f["terms"]) <= set(record["terms"]) for f in record["findings"])
    assert {c["name"] for c in record["not_tried"]} == {"weights", "neighbours"}
    assert all(c["why"] and set(c) == {"name", "why", "how"} for c in record["not_tried"])
    assert [s["title"] for s in record["sections"]] == ["Symmetries", "Depth"]
    for f in record["findings"]:
        (section,) = [s for s in record["sections"] if s["name"] == f["section"]]
        assert f["figure"] is None or 0 <= f["figure"] < len(section["figures"])
    text = str(report)
    assert record["version"] in text and record["date"] in text and "seed 0" in text


# Sequences


def test_a_model_of_sequences_is_seen_and_not_refuted():
    """That it reads positions is measured; what the tests for sets say is one note."""
    report = pf.audit(Positions(), DATA, sections=["symmetries", "size", "theorem", "sensitivity"])
    assert report.mode == "sequence" and report.exit_code == 0
    found = named(report)
    assert found["order"].status == "measured" and found["order"].effect > 0.1
    assert 'mode="set"' in found["order"].change and "later tokens" in found
    assert "equal tokens" in found["set checks"].said and not found["set checks"].notable
    assert not {"permutation", "duplication", "measure map"} & set(found)
    assert {s.name for s in report.sections if s.status == "untried"} == {"size", "theorem"}
    assert {"size", "theorem", "one token"} <= {check.name for check in report.not_tried}
    assert report["sensitivity"].status == "measured"
    required = pf.audit(Positions(), DATA, sections=SYMMETRIES, require=["permutation"])
    assert required.missing == ["permutation"] and required.exit_code == 1


def test_a_mode_that_is_said_is_kept():
    said = pf.audit(Model(Positions(), mode="sequence"), DATA, sections=SYMMETRIES)
    assert said.exit_code == 0 and not any(f.notable for f in said.findings)
    as_set = pf.audit(Model(Positions(), mode="set"), DATA, sections=SYMMETRIES)
    assert as_set.mode == "set" and as_set.exit_code == 1
    small = pf.audit(lambda x: attend(x) + 1e-3 * x.cumsum(-2), DATA, sections=SYMMETRIES)
    assert small.mode == "set" and named(small)["permutation"].status == "refuted"
    with pytest.raises(ValueError, match="a measure has no order"):
        pf.audit(Model(pf.Attention(4).double(), mode="sequence"), DATA)


def test_a_causal_model_looks_back_only():
    def causal(x):
        scores = x @ x.mT / 2
        future = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        return x + scores.masked_fill(future, -torch.inf).softmax(-1) @ x

    model = Model(causal, mode="sequence")
    later = named(pf.audit(model, DATA, sections=SYMMETRIES))["later tokens"]
    assert "exactly 0" in later.said and "causal" in later.meaning
    both = named(pf.audit(Model(Positions(), mode="sequence"), DATA, sections=SYMMETRIES))
    assert "causal" not in both["later tokens"].meaning


def test_sequences_are_given_in_their_order():
    """Contexts of a sequence model are tokens that follow each other in the data."""
    steps = torch.arange(60, dtype=torch.float64)[:, None].expand(60, 4)

    def model(x):
        if len(x) == 60:  # smaller contexts are for finding out how it is called
            seen.append(bool((x[1:, 0] - x[:-1, 0] == 1).all()))
        return x.cumsum(-2)

    seen: list[bool] = []
    pf.audit(Model(model, mode="sequence"), steps, sections=["relations"])
    assert seen and all(seen)


# Class tokens


def test_a_class_token_is_seen():
    """The first token is added to all: if it is held in its place, the others are a set."""
    model = lambda x: attend(x) + x[..., :1, :]
    report = pf.audit(model, DATA, sections=["symmetries", "size", "theorem"])
    assert report["theorem"].status == "untried" and report["size"].status == "measured"
    found = named(report)
    assert report.exit_code == 0 and found["special token"].notable
    assert found["special token"].effect > 0.1 and "class_token=0" in found["special token"].change
    assert found["permutation"].status == found["class token"].status == "open"
    last = pf.audit(lambda x: attend(x) + x[..., -1:, :], DATA, sections=SYMMETRIES)
    assert "class_token=-1" in named(last)["special token"].change


def test_a_class_token_is_named():
    """Small as its role is, it is no fault then; a mask reaches the others."""
    small = lambda x: attend(x) + 1e-3 * x[..., :1, :]
    assert pf.audit(small, DATA, sections=SYMMETRIES).exit_code == 1
    report = pf.audit(Model(small, class_token=0), DATA, sections=SYMMETRIES)
    assert report.exit_code == 0 and not any(f.notable for f in report.findings)
    masked = pf.audit(Model(encoder(), class_token=0), DATA, sections=SYMMETRIES)
    assert named(masked)["padding"].status == "open"
    leaks = lambda x, real: encoder()(x, src_key_padding_mask=~real) + 0.1 * x.mean(-2)
    padded = Model(lambda x: encoder()(x), class_token=0, padded=leaks)
    assert named(pf.audit(padded, DATA, sections=SYMMETRIES))["padding"].status == "refuted"
    with pytest.raises(ValueError, match="for a model of tokens"):
        pf.audit(Model(pf.Attention(4).double(), class_token=0), DATA)


def test_a_class_token_that_the_model_adds():
    """It is found by its output, which stays if the tokens are turned round."""
    report = pf.audit(Prepending(), DATA, sections=["symmetries", "depth", "relations"])
    assert "It adds a class token" in report.how and report.exit_code == 0
    found = named(report)
    assert found["permutation"].status == found["class token"].status == "open"
    assert "duplication" in {check.name for check in report.not_tried}
    assert report["depth"].numbers["tokens"] == 61  # and the class token is one of the rows
    placed = Prepending(Positions())
    unclear = pf.audit(placed, DATA, sections=SYMMETRIES)
    assert "class_token=0" in unclear.headline and unclear.exit_code == 3
    told = pf.audit(Model(placed, class_token=0, mode="set"), DATA, sections=SYMMETRIES)
    assert named(told)["class token"].status == named(told)["permutation"].status == "refuted"


# Notes


def test_a_tolerance_can_be_given():
    bent = lambda x: attend(x) + 1e-4 * x[:1]
    assert pf.audit(bent, DATA, sections=SYMMETRIES).exit_code == 1
    report = pf.audit(Model(bent, tolerance=0.01), DATA, sections=SYMMETRIES)
    permutation = named(report)["permutation"]
    assert report.exit_code == 0 and permutation.status == "open"
    assert "less than the tolerance of 1 % that was given" in permutation.said
    assert 1e-5 < permutation.effect < 1e-3


def test_outputs_that_are_all_the_same_are_noted():
    report = pf.audit(lambda x: torch.ones_like(x), DATA, sections=["symmetries", "sensitivity"])
    found = named(report)
    assert found["varied outputs"].notable and found["context"].notable and report.exit_code == 0
    mean = lambda x: x.mean(-2, keepdim=True).expand_as(x)
    for data in (DATA, DATA.float()):  # one output for all tokens, which is another for other sets
        report = pf.audit(mean, data, sections=["symmetries"])
        found = named(report)
        assert report.mode == "set" and set(found) == {
            "permutation",
            "duplication",
            "equal tokens",
        }


def test_some_heads_that_choose_nothing_are_noted():
    def two(x):
        even = torch.zeros(x.shape[-2], x.shape[-2], dtype=x.dtype)
        return even.softmax(-1) @ x + (x @ x.mT).softmax(-1) @ x

    found = named(pf.audit(two, DATA, sections=["relations"]))
    assert "1 of 2 heads gives all tokens the same weight" in found["uniform heads"].said
    assert found["uniform heads"].notable and not found["heads"].notable


# Comparisons


def audited(model):
    return pf.audit(Model(model, name="m", mode="set"), DATA, sections=SYMMETRIES)


def test_what_has_become_worse_is_said():
    """A finding that was not refuted, one that has grown, one that has gone."""
    fine, small, large = (audited(lambda x, a=a: attend(x) + a * x[:1]) for a in (0, 1e-3, 1e-2))
    record = json.loads(small.to_json())
    worse = large.compare(record)
    assert worse.exit_code == 1 and [f.name for f in worse.worse] == ["permutation"]
    assert "It has grown from" in str(worse) and not worse.new and not worse.gone
    better = fine.compare(record)
    assert better.exit_code == 0 and [new.name for _, new in better.changed] == ["permutation"]
    assert "Before: refuted." in str(better) and "nothing is worse" in better.headline
    again = small.compare(record)
    assert again.exit_code == 0 and again.headline == "Nothing has changed."
    assert again.same == len(small.findings)
    assert small.compare(json.loads(fine.to_json())).exit_code == 1


def test_a_model_that_reads_the_order_now_is_worse_unless_it_may():
    """A model that is seen to read positions is not tested for sets, so nothing is refuted."""
    old = pf.audit(torch.tanh, DATA, sections=SYMMETRIES).to_dict()
    steps = torch.arange(1024.0, dtype=DATA.dtype)[:, None]
    reads = lambda x: torch.tanh(x + steps[: x.shape[-2]])
    seen = pf.audit(Model(reads, name="m"), DATA, sections=SYMMETRIES)
    assert seen.exit_code == 0 and seen.mode == "sequence"
    worse = seen.compare(old)
    assert worse.exit_code == 1 and [f.name for f in worse.worse] == ["order"]
    said = pf.audit(Model(reads, name="m", mode="sequence"), DATA, sections=SYMMETRIES)
    assert said.compare(old).exit_code == 0


def test_what_was_run_once_only_is_not_compared():
    both = pf.audit(torch.tanh, DATA, sections=["symmetries", "sensitivity"])
    one = pf.audit(torch.tanh, DATA, sections=SYMMETRIES, seed=1)
    comparison = one.compare(both.to_dict())
    assert not comparison.gone and comparison.exit_code == 0
    assert "run only before: sensitivity" in str(comparison)
    assert "The seed is not the same: 1 now, 0 before." in str(comparison)
    other = replace(both, sections=both.sections[:1])
    assert not both.compare(other.to_dict()).new


AUDITED = audited(attend)
RECORD = AUDITED.to_dict()


@pytest.mark.parametrize(
    "old,words",
    [
        (3, "`old` must be an audit as a dictionary, got int"),
        ({}, "whose `schema` is 1, got none"),
        (RECORD | {"schema": 2}, "whose `schema` is 1, got 2"),
        (RECORD | {"schema": True}, "got True"),
        (RECORD | {"findings": {}}, "`findings` of `old` must be a list, got dict"),
        (RECORD | {"findings": [3]}, "Finding 0 of `old` must be a dictionary, got int"),
        (RECORD | {"findings": [{}] * 2000}, "at most 1000 findings, got 2000"),
        (
            RECORD | {"findings": [{"section": 1}]},
            "`section` of finding 0 of `old` must be a str, got int",
        ),
        (
            RECORD | {"findings": [RECORD["findings"][0] | {"status": "passed"}]},
            "`status` of finding 0 of `old` must be one of refuted",
        ),
        (
            RECORD | {"findings": [RECORD["findings"][0] | {"effect": float("nan")}]},
            "`effect` of finding 0 of `old` must be a number",
        ),
        (
            RECORD | {"findings": [RECORD["findings"][0] | {"effect": 10**400}]},
            "`effect` of finding 0 of `old` must be a number",
        ),
        (
            RECORD | {"findings": [RECORD["findings"][0] | {"said": "\x1b[2J"}]},
            "`said` of finding 0 of `old` must be readable text",
        ),
        (RECORD | {"model": "m" * 20_000}, "`model` of `old` must be readable text"),
        (RECORD | {"sections": [{"name": None}]}, "`name` of section 0 of `old` must be a str"),
        (RECORD | {"date": 3}, "`date` of `old` must be a str, got int"),
    ],
)
def test_an_old_audit_is_checked(old, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        AUDITED.compare(old)
