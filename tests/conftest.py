import os
import signal

import pytest
import torch
from browser import browse, chromium  # noqa: F401  (fixtures of all tests)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports kernels


@pytest.fixture(autouse=True)
def _float64():
    """Every test is in float64 unless it asks otherwise."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def device(request):
    return request.config.getoption("--device")


def pytest_configure(config):
    """Commands are interrupted as from a terminal, also where tests run in the background.

    There a shell switches interruptions off for everything it starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
