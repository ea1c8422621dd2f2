"""Common ground of tests and docstring examples: a seed, a device, and the usual names."""

import pytest
import torch

import pushforward


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device to run the tests on, e.g. cuda")


@pytest.fixture(autouse=True)
def _ground(request, doctest_namespace):
    doctest_namespace["pf"] = pushforward
    doctest_namespace["torch"] = torch
    torch.manual_seed(0)
    torch.set_default_device(request.config.getoption("--device"))
    yield
    torch.set_default_device(None)
