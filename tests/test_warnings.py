"""Warnings point at the caller's line."""

import warnings

import pytest
import torch

import pushforward as pf

pytestmark = pytest.mark.unhooked


@pytest.mark.parametrize("call", ["relation", "relations", "push"])
def test_a_warning_names_the_file_of_the_caller(call):
    """Through a layer, through single dispatch, and through PyTorch's own call of a module."""
    gamma = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-12, max_steps=1, anneal=False))
    mu = pf.Measure(9 * torch.randn(20, 2))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        getattr(gamma, call)(mu)
    assert seen and {w.filename for w in seen} == {__file__}


def test_an_audit_warns_once_of_what_happens_in_every_call():
    """With the number of warnings, and in the line that called it."""
    gamma = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-12, max_steps=1, anneal=False)).double()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pf.audit(gamma, 9 * torch.randn(20, 2), sections=["symmetries"], tokens=32)
    (warning,) = seen
    assert warning.filename == __file__ and "such warnings in the audit" in str(warning.message)
