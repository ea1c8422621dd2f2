"""Common ground of tests and docstring examples: a seed, a device, and the usual names."""

import os

import pytest
import torch

import pushforward

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores already


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device to run the tests on, e.g. cuda")


def pytest_configure(config):
    """A warning of this library that no test expects is an error.

    Such warnings point at the caller's line, so they are recognised by their category. It is named
    here and not in `pyproject.toml`, because pytest would import the package before run-time shape
    checks are installed.
    """
    config.addinivalue_line("filterwarnings", "error::pushforward._tools.warn.PushforwardWarning")


def pytest_collection_modifyitems(config, items):
    """Tests that need the library as users import it are skipped while its shapes are checked.

    Those that take many minutes are skipped unless asked for by name.
    """
    if "exhaustive" not in config.getoption("-m"):
        skip = pytest.mark.skip(reason="takes many minutes: run with -m exhaustive")
        for item in items:
            if item.get_closest_marker("exhaustive"):
                item.add_marker(skip)
    if config.getoption("--jaxtyping-packages", default=None):
        reason = 'run with -m unhooked -o addopts="-q --strict-markers", as `make test` does'
        for item in items:
            if item.get_closest_marker("unhooked"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _ground(request, doctest_namespace):
    doctest_namespace["pf"] = pushforward
    doctest_namespace["torch"] = torch
    torch.manual_seed(0)
    torch.set_default_device(request.config.getoption("--device"))
    yield
    torch.set_default_device(None)
