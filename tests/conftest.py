import pytest
import torch


@pytest.fixture(autouse=True)
def _float64():
    """Every test is in float64 unless it asks otherwise."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def device(request):
    return request.config.getoption("--device")
