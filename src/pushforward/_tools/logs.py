"""Logarithms of masses that may be zero: minus infinity, without NaN in gradients."""

import torch
from torch import Tensor


def safe_log(x: Tensor) -> Tensor:
    r"""The logarithm with $\log0=-\infty$ and gradient 0 there, not NaN."""
    zero = x == 0
    return x.masked_fill(zero, 1).log().masked_fill(zero, -torch.inf)


def safe_logsumexp(scores: Tensor) -> Tensor:
    """Log-sum-exp over the last axis; minus infinity, without gradient, if all scores are."""
    empty = (scores == -torch.inf).all(-1)
    return scores.masked_fill(empty[..., None], 0).logsumexp(-1).masked_fill(empty, -torch.inf)


def safe_softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis; zero, without gradient, if all scores are minus infinity."""
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
