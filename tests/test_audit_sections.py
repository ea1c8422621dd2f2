"""What the sections of an audit measure: exact cases."""

import math

import pytest
import torch
from audited import DATA, attend, encoder
from torch import nn

import pushforward as pf
from pushforward.auditing._inside import AttentionRecorder
from pushforward.auditing.sections._depth import cloud_numbers
from pushforward.auditing.sections._relations import head_numbers
from pushforward.representation import Population
from pushforward.representation.boxes import repetitions

pytestmark = pytest.mark.unhooked


def test_contexts_are_draws_of_the_data():
    few = DATA[:3].detach().repeat(20, 1)
    assert Population(few).typical_size == 4
    mu = Population(DATA).context(30, torch.Generator().manual_seed(0))
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
        with AttentionRecorder([(7, 7)]) as seen:
            watched = run()
    assert torch.allclose(plain, watched, rtol=1e-12, atol=1e-14)  # another kernel
    assert len(seen.matrices) == 1 and torch.allclose(seen.matrices[0], expected)


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
        with AttentionRecorder([(5, 5)]) as seen:
            out = sdpa(q, q, q, **options)
        assert torch.allclose(seen.matrices[0] @ q, out)


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
        assert found["relations"].status == "untried"


def test_oversmoothing_is_noted():
    """Attention that averages gathers tokens; a rotation does not."""
    mix = pf.Compose(*[pf.fields.SelfAttention(*[torch.eye(4).double() * s for s in (0, 1, 0.9)])])
    gather = pf.Compose(*[pf.Residual(mix) for _ in range(6)])
    found = pf.audit(gather, DATA + 1, sections=["depth"])
    assert found["depth"].findings[0].notable and found.exit_code == 0
    assert found["depth"].numbers["cosine"][-1] > 0.9
    turn = torch.linalg.qr(torch.randn(4, 4).double())[0]
    still = pf.Compose(*[pf.Pointwise(lambda x: x @ turn) for _ in range(3)])
    kept = pf.audit(still, DATA, sections=["depth"])["depth"].numbers
    assert kept["cosine"][0] == pytest.approx(kept["cosine"][-1])
    assert kept["rank"][0] == pytest.approx(kept["rank"][-1])


def test_the_axis_of_ranks_reaches_the_widest_layer():
    """Tokens of two numbers that are embedded in sixteen, and read out again."""
    torch.manual_seed(0)
    wide = pf.Transformer(2, depth=2, width=16).to(DATA.dtype)
    section = pf.audit(wide, DATA[:, :2], sections=["depth"])["depth"]
    (figure,) = (f for f in section.plots if f.title == "Effective rank")
    assert max(section.numbers["rank"]) > 2 and figure.y_range == (0.0, 16.0)


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
    assert "do not depend" in alone["size"].said
