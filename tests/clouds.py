"""Random measures for the tests of approximation and stability."""

import torch
from hypothesis import strategies as st

import pushforward as pf

SEEDS = st.integers(0, 10**6)


def cloud(n, d=1, floor=0.02):
    """Unequal weights, and points of the unit box that crowd in a corner."""
    return pf.Measure(torch.rand(n, d) ** (0.5 + 2 * torch.rand(1)), torch.rand(n) ** 2 + floor)


def weights(mu):
    return mu.normalise().weights
