"""Batches of measures that the tests of formats and of files share."""

import torch
from cases import measure

import pushforward as pf

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def ragged(timed=True, dtype=torch.float64):
    """A ragged batch of three measures, one of which has an atom of zero mass."""
    parts = [measure(3), measure(5), measure(1)]
    parts[1] = parts[1].restrict(torch.arange(5) != 2)
    if not timed:
        parts = [pf.Measure(m.atoms, log_weights=m.log_weights) for m in parts]
    return pf.Measure.stack(parts).to(dtype)


def same_bits(mu, nu):
    assert mu.atoms.dtype == nu.atoms.dtype and torch.equal(mu.atoms, nu.atoms)
    assert mu.log_weights.dtype == nu.log_weights.dtype
    assert torch.equal(mu.log_weights, nu.log_weights)
    assert (mu.times is None) == (nu.times is None)
    if mu.times is not None:
        assert mu.times.dtype == nu.times.dtype and torch.equal(mu.times, nu.times)
