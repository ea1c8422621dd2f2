"""What an audit must not pass over: max pooling, masks, ignored contexts, missing checks."""

import json

import numpy as np
import pytest
import torch
from audited import DATA, attend, encoder
from torch import nn

import pushforward as pf
from pushforward.representation import Verdict, zoo

pytestmark = pytest.mark.unhooked


def deep_sets(pool):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16)).double()
        outer = nn.Linear(16, 3).double()
    return lambda x: outer(pool(inner(x)))


@pytest.mark.parametrize("seed", [0, 1])
def test_max_pooling_of_lists_is_refuted_and_attention_is_not(seed):
    """One token of n moves the maximum as far for every n; that of attention falls."""
    run = lambda model: pf.audit(model, DATA, sections=["sensitivity"], seed=seed)
    maximum = run(deep_sets(lambda x: x.amax(-2)))
    assert maximum.exit_code == 1 and "does not fall as sets grow to 256" in maximum.verdict
    assert "jump" not in maximum.verdict and "log 256" in maximum.verdict
    assert run(lambda x: x + x.amax(-2, keepdim=True)).exit_code == 1
    for scale in (1.0, 5.0):
        found = run(lambda x, scale=scale: attend(x, scale))
        assert found.exit_code == 0 and found["sensitivity"].numbers["one_token"]["share"] < 0.6


def test_the_effect_of_one_token_in_a_mean_falls_as_one_over_n():
    found = pf.audit(deep_sets(lambda x: x.mean(-2)), DATA, sections=["sensitivity"])
    effect = found["sensitivity"].numbers["one_token"]
    assert found.exit_code == 0 and effect["share"] == 0
    assert abs(effect["exponent"] + 1) < 0.3


def test_max_pooling_with_weights_jumps():
    """Of a map between measures, and of a function of a measure with one output."""
    found = pf.audit(zoo.max_pooling, DATA, sections=["theorem"])
    assert found["theorem"].numbers["verdict"] == str(Verdict.JUMPS) and found.exit_code == 1
    whole = lambda mu: mu.atoms.amax(-2) if isinstance(mu, pf.Measure) else mu.fail()
    found = pf.audit(whole, DATA, sections=["theorem", "symmetries"])
    assert "one output for the whole set" in found.how and found.exit_code == 1
    assert found["theorem"].numbers["verdict"] == str(Verdict.JUMPS)
    mean = lambda mu: mu.mean() if isinstance(mu, pf.Measure) else mu.fail()
    found = pf.audit(mean, DATA)
    assert found.exit_code == 0
    assert found["theorem"].numbers["verdict"] == str(Verdict.IN_CONTEXT)


class Masked(nn.Module):
    """Attention whose argument `mask` is True for real tokens, heeded or not."""

    def __init__(self, heeds=True):
        super().__init__()
        self.heeds = heeds

    def forward(self, x, mask=None):
        scores = x @ x.mT / 2
        if mask is not None and self.heeds:
            scores = scores.masked_fill(~mask, -torch.inf)
        return x + scores.softmax(-1) @ x


def test_masks_are_recognised_by_what_they_do():
    found = pf.audit(Masked(), DATA, sections=["symmetries"], require=["padding"])
    assert "`mask`, True for real tokens" in found.how and found.exit_code == 0
    assert found["symmetries"].numbers["padding"]["holds"]
    assert "padding" not in {check.name for check in found.not_tried}
    leaks = pf.audit(Masked(heeds=False), DATA, sections=["symmetries"])
    assert not leaks["symmetries"].numbers["padding"]["holds"] and leaks.exit_code == 1
    found = pf.audit(encoder(), DATA, sections=["symmetries"])
    assert "`src_key_padding_mask`, True for padding" in found.how
    assert found["symmetries"].numbers["padding"]["holds"]


def test_what_was_not_tried_stands_beside_the_verdict_and_can_be_required():
    found = pf.audit(attend, DATA, sections=["symmetries"])
    assert found.exit_code == 0 and "Not tried: padding" in found.verdict
    (padding,) = [check for check in found.not_tried if check.name == "padding"]
    assert "no argument" in padding.why and "padded=" in padding.how
    required = pf.audit(attend, DATA, sections=["symmetries"], require=["padding", "permutation"])
    assert required.exit_code == 1 and "Required but not tried: padding" in required.headline
    told = json.loads(required.to_json())["not_tried"]
    assert told == [check.to_dict() for check in found.not_tried]
    absent = pf.audit(attend, DATA, sections=["symmetries"], require=["depth"])
    assert absent.missing == ["depth"] and absent.exit_code == 1
    narrow = pf.audit(zoo.sign_of_mean, DATA.float(), sections=["theorem"])
    assert "Not tried: continuity in the measure" in narrow.verdict


def test_models_that_ignore_their_context_are_noted():
    """Heads of random weights attend to all tokens alike; outputs are the tokens themselves."""
    hardly = lambda x: x + 1e-3 * (1e-3 * x @ x.mT).softmax(-1) @ x
    found = pf.audit(hardly, DATA, sections=["sensitivity", "relations"])
    assert {f.name for f in found.findings if f.notable} == {"context", "uniform heads"}
    assert found.exit_code == 0
    alone = pf.audit(torch.tanh, DATA, sections=["sensitivity"])
    assert "None of the variance of the outputs comes from the other tokens" in alone.headline


def test_arrays_go_in_and_come_out():
    """NumPy data in float64 for a model in float32, and a function that returns an array."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
    found = pf.audit(model.float(), DATA.numpy(), sections=["symmetries"])
    assert found.exit_code == 0
    found = pf.audit(lambda x: attend(x).numpy(), DATA, sections=["symmetries", "sensitivity"])
    assert found.exit_code == 0
    soft = lambda c, q: (q @ c.mT).softmax(-1) @ c
    assert pf.audit(soft, DATA.numpy(), queries=np.asarray(DATA[:5])).exit_code == 0


def test_failed_audits_say_how_the_model_was_called():
    def fail(x):
        raise ValueError("no such tokens")

    found = pf.audit(fail, DATA)
    assert "called with (n, d) or (1, n, d) or a Measure it raised ValueError" in found.headline
    nan = pf.audit(lambda x: x / 0, DATA)
    assert "NaN" in nan.headline
    assert nan.how == "Called with tokens (n, d), with one output for each token."


def test_too_few_tokens_do_not_speak_of_split_atoms():
    """Two tokens are too few to recover images; that is all that is said."""
    for data in (DATA[:2], DATA[:2].float()):
        found = pf.audit(attend, data, sections=["theorem"])["theorem"]
        assert not any(f.notable for f in found.findings) and "splits" not in str(found)
