"""Rates in depth and in the number of tokens."""

import math

import pytest
import torch
from cases import measure
from flow_cases import same_everywhere, softmax_field

import pushforward as pf

pytestmark = pytest.mark.unhooked  # thousands of steps; conformance tests run them hooked


def test_euler_halves_its_error():
    """Experiment E8: ratio 2.0 within 0.1 from 32 to 64 and from 64 to 128 layers."""
    field, mu = same_everywhere(lambda: softmax_field(scale=0.8)), measure(20)
    study = pf.flows.depth_study(field, mu, depths=[8, 16, 32, 64, 128])
    assert all(abs(r - 2) < 0.1 for r in study.ratios[2:]), study
    assert all(1.8 < r < 2.35 for r in study.ratios[:2]), study
    assert abs(study.rate + 1) < 0.05 and "rate -" in str(study)


@pytest.mark.slow
def test_token_rate_of_a_flow():
    """E9 for whole flows: RMSE sqrt(N) constant within 20 %, 100 repetitions."""
    field = same_everywhere(lambda: softmax_field(2, 0.9))
    law = lambda n, g: pf.Measure(2 * torch.rand(n, 2, generator=g) - 1)
    study = pf.flows.token_study(
        field, law, [100, 400, 1600], solver=pf.flows.Midpoint(3), queries=2 * torch.eye(2)
    )
    scaled = [e * math.sqrt(n) for n, e in zip(study.sizes, study.errors, strict=True)]
    assert max(scaled) / min(scaled) < 1.2, study
