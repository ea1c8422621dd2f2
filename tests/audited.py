"""Data and models that the tests of audits share."""

import torch
from torch import nn

DATA = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
FIRST_THREE = ["symmetries", "size", "theorem"]


def encoder(depth=2, dtype=torch.float64, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
        return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).to(dtype).eval()


def attend(x, scale=1.0):
    return x + (scale * x @ x.mT / 2).softmax(-1) @ x
