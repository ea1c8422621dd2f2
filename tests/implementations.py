"""Which implementations of the reductions can run where the tests run."""

import torch

from pushforward import ops
from pushforward.ops.compiled import available


def here():
    """Those that run on the default device: the fused one needs a CPU and llvmlite."""
    fused = available() and torch.get_default_device().type == "cpu"
    return tuple(impl for impl in ops.IMPLS if impl != "fused" or fused)


HERE = here()
"""Those that run in a test with this name among its parameters, which is skipped elsewhere."""
