"""Warnings point at the caller's line."""

import sys
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


def test_warnings_of_relate_and_of_masks_name_the_line_of_the_caller():
    """Not the line of the solver, nor that of the search for pairs without mass."""
    mu = pf.Measure(9 * torch.randn(20, 2))
    short, lower = pf.Sinkhorn(tol=1e-12, max_steps=1, anneal=False), torch.ones(20, 20).tril() > 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        here = sys._getframe().f_lineno
        pf.relate(mu, mu, normaliser=short)
        pf.relate(mu, mu, normaliser=pf.Sinkhorn(), mask=lower)
    first, second = seen
    assert (first.filename, first.lineno) == (__file__, here + 1)
    assert (second.filename, second.lineno) == (__file__, here + 2)
    assert "stopped after" in str(first.message) and "mask" in str(second.message)


def test_an_audit_warns_once_of_what_happens_in_every_call():
    """With the number of warnings, and in the line that called it."""
    gamma = pf.Attention(2, normaliser=pf.Sinkhorn(tol=1e-12, max_steps=1, anneal=False)).double()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pf.audit(gamma, 9 * torch.randn(20, 2), sections=["symmetries"], tokens=32)
    (warning,) = seen
    assert warning.filename == __file__ and "such warnings in the audit" in str(warning.message)
