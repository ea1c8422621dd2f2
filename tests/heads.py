"""Single heads written out, to compare with."""

import torch


def softmax_head(q, k, log_b):
    """Logarithms of the conditional of a softmax head, in a context of log-weights `log_b`."""
    scores = q @ k.mT + log_b
    return scores - scores.logsumexp(-1, keepdim=True)


def sinkhorn_head(q, k, log_a, log_b, steps=4000, tol=1e-15):
    """Logarithms of the coupling of a Sinkhorn head; rows are exact, columns to `tol`."""
    scores, g = q @ k.mT, torch.zeros_like(log_b)
    for _ in range(steps):
        f = -(scores + g + log_b).logsumexp(-1, keepdim=True)
        before, g = g, -(scores + f + log_a[:, None]).logsumexp(-2, keepdim=True)
        if tol and (g - before).abs().max() < tol:
            break
    f = -(scores + g + log_b).logsumexp(-1, keepdim=True)
    return scores + f + g + log_a[:, None] + log_b


def weights(n):
    return (torch.rand(n) + 0.05).log().log_softmax(-1)
