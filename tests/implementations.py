"""Which implementations of the reductions can run where the tests run."""

import torch

from pushforward import ops


def here():
    """Those that run on the default device in float64; kernels have tests of their own."""
    return ops.runnable(torch.get_default_device(), torch.float64)


HERE = here()
"""Those that run in a test with this name among its parameters, which is skipped elsewhere."""
