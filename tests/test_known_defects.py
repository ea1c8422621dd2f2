"""Wrong answers that are known and not yet mended, each beside the right one.

Every test here fails today and is marked so, strictly: whoever mends a defect takes its mark away.
"""

import math

import pytest
import torch

import pushforward as pf

known_defect = pytest.mark.xfail(strict=True, raises=AssertionError)


@known_defect
def test_the_streamed_average_of_a_nan_query_is_nan():
    q, k, v, b = torch.full((1, 2), math.nan), torch.randn(6, 2), torch.ones(6, 1), torch.zeros(6)
    assert pf.ops.average(q, k, v, b, impl="streamed").isnan().all()


@known_defect
def test_attention_with_a_nan_parameter_gives_nan_whatever_the_batch():
    gamma = pf.Attention(2).float()
    gamma.Q.weight.data[0, 0] = math.nan
    many = pf.Measure(torch.randn(40_000, 6, 2, dtype=torch.float32))
    assert gamma.push(many).atoms[0].isnan().any()


@known_defect
def test_unsigned_times_give_the_masses_that_signed_ones_do():
    causal = pf.Attention(2, mask=pf.Causal())
    mu = pf.Measure(torch.randn(4, 2), times=torch.arange(4).to(torch.uint8))
    relation = causal.relation(mu)[0]
    columns = relation.joint(mu).marginals()[1]
    assert torch.allclose(columns, relation.matrix().mean(0), atol=1e-12)


@known_defect
def test_the_streamed_average_of_keys_of_width_zero_counts_the_bias():
    q, k = torch.zeros(1, 0), torch.zeros(3, 0)
    v, bias = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.0, 1.0, 2.0])
    got = pf.ops.average(q, k, v, bias, impl="streamed")
    assert torch.allclose(got, bias.softmax(0) @ v)


@known_defect
@pytest.mark.parametrize("scale", [1e30, 1e31])
def test_an_atom_without_mass_never_beats_one_of_a_very_low_score(scale):
    q, k = torch.ones(1, 1), torch.tensor([[-1.0], [0.0]])
    v, bias = torch.tensor([[3.0], [5.0]]), torch.tensor([0.0, -math.inf])
    assert pf.ops.average(q, k, v, bias, scale=scale, impl="streamed").item() == 3.0


@pytest.mark.xfail(strict=True, raises=ValueError)
def test_birkhoff_takes_what_doubly_stochastic_certifies():
    for seed in range(40):
        torch.manual_seed(seed)
        result = pf.doubly_stochastic(torch.randn(6, 6))
        assert result.converged
        pf.approximation.birkhoff(result.scaled)


@pytest.mark.xfail(strict=True, raises=ValueError)
def test_a_float32_softmax_looked_at_in_float64_is_a_conditional():
    attention = torch.randn(8, 100, 100, dtype=torch.float32).softmax(-1)
    pf.Conditional.from_matrix(attention.double())


@known_defect
def test_the_uniform_bound_is_not_below_a_bound_it_bounds():
    mu = pf.Measure(torch.rand(5, 1))
    hats = pf.approximation.Hats(torch.zeros(1), torch.ones(1), cells=3)
    near = pf.approximation.SinkhornApproximation(
        pf.approximation.QuantileCoupling(), hats, tau=0.0, delta=0.1
    )
    bound = near.bound(mu, mu).item()
    torch.set_default_dtype(torch.float32)  # what users have
    assert bound <= near.uniform_bound


@pytest.mark.xfail(strict=True, raises=pytest.fail.Exception)
def test_softmax_refuses_scores_beyond_the_dtype():
    mu = pf.Measure(torch.randn(5, 2, dtype=torch.float32))
    far = 1e20 * mu.atoms
    with pytest.raises(ValueError, match="finite"):
        pf.relate(mu, mu, affinity=pf.Encoded(far, far))
