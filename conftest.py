"""Names that the examples in docstrings use."""

import pytest
import torch

import pushforward


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace["pf"] = pushforward
    doctest_namespace["torch"] = torch
    torch.manual_seed(0)
