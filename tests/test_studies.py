"""Rates in depth and in the number of tokens."""

import math
import re
import warnings

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


SPRING = pf.fields.Pairwise(lambda x, y: y - x)
LINE = lambda n, g: pf.Measure(torch.rand(n, 1, generator=g))
WRONG = {
    "no depths": (lambda: pf.flows.depth_study(SPRING, measure(4), []), "two different", "[]"),
    "one depth": (lambda: pf.flows.depth_study(SPRING, measure(4), [8]), "two different", "[8]"),
    "equal depths": (lambda: pf.flows.depth_study(SPRING, measure(4), [8, 8]), "two", "[8, 8]"),
    "a depth": (lambda: pf.flows.depth_study(SPRING, measure(4), 8), "must be a list", "got 8"),
    "half a depth": (lambda: pf.flows.depth_study(SPRING, measure(4), [8, 2.5]), "whole", "2.5"),
    "one size": (lambda: pf.flows.token_study(SPRING, LINE, [8]), "`sizes`", "[8]"),
    "no law": (lambda: pf.flows.token_study(SPRING, measure(4)), "law(n, generator)", "Measure"),
    "a law of one argument": (
        lambda: pf.flows.token_study(SPRING, lambda n: LINE(n, None)), "law(n, generator)", "many"
    ),
    "a law of points": (
        lambda: pf.flows.token_study(SPRING, lambda n, g: torch.rand(n, 1)), "Measure", "Tensor"
    ),
    "a law of seven": (
        lambda: pf.flows.token_study(SPRING, lambda n, g: LINE(7, g)), "n atoms", "7 for n = 8"
    ),
    "a seed that is none": (
        lambda: pf.flows.token_study(SPRING, LINE, seed=0.5), "`seed`", "got 0.5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_said(name):
    call, expected, got = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert expected in str(caught.value) and got in str(caught.value)


@pytest.mark.parametrize("kind", ["depth", "tokens"])
def test_a_study_warns_once_and_says_how_often(kind):
    """At the line of the caller; other warnings are passed on."""
    blurred = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-13, max_steps=2))

    def law(n, g):
        if n == 8:
            warnings.warn("of the law", UserWarning, stacklevel=1)
        return pf.Measure(torch.randn(n, 2, generator=g))

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if kind == "depth":
            pf.flows.depth_study(blurred, pf.Measure(3 * torch.randn(6, 2)), [2, 4])
        else:
            pf.flows.token_study(
                blurred, law, [4, 8], queries=torch.zeros(1, 2), solver=pf.Euler(2), repetitions=3
            )
    (ours,) = (w for w in seen if w.category is not UserWarning)
    others = len(seen) - 1
    assert re.search(r"\(\d+ such warnings in .*flows", str(ours.message))
    assert ours.filename == __file__ and others == (0 if kind == "depth" else 6)


def test_a_study_without_errors_has_no_rate():
    still = pf.flows.depth_study(pf.Pointwise(torch.zeros_like), measure(4), [2, 4])
    assert still.errors == (0.0, 0.0) and math.isnan(still.rate) and math.isnan(still.ratios[0])
    assert "rate nan" in str(still)
