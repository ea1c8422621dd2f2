"""Layers on Gauss-Hermite tokens follow the exact recursions for Gaussians.

For mu = N(a, S) each layer is affine, x -> x + h (B x + c), so nodes stay nodes and
a' = a + h (B a + c), S' = M S M^T with M = I + h B.
"""

import pytest
import torch
from implementations import HERE

import pushforward as pf

H, LAYERS = 0.1, 10


def root(S):
    values, vectors = torch.linalg.eigh(S)
    return vectors * values.sqrt() @ vectors.mT


def softmax(Q, K, V, a, S):
    """Gamma(x) = V (a + S A x), A = K^T Q."""
    B = V @ S @ K.mT @ Q
    return B, V @ a


def squared_distance(Q, K, V, a, S):
    """Gamma(x) = V (I + S K^T K)^-1 (a + S K^T Q x)."""
    inner = V @ torch.linalg.inv(torch.eye(len(a)) + S @ K.mT @ K)
    return inner @ S @ K.mT @ Q, inner @ a


def sinkhorn(Q, K, V, a, S):
    """Gamma(x) = V (a + C^T S^-1 (x - a)), C the covariance of the entropic plan."""
    half = root(S)
    U, s, W = torch.linalg.svd(half @ (K.mT @ Q).mT @ half)
    C = half @ U @ torch.diag(((1 + 4 * s**2).sqrt() - 1) / (2 * s)) @ W @ half
    B = V @ C.mT @ torch.linalg.inv(S)
    return B, V @ a - B @ a


CASES = {
    "softmax": (pf.Dot(1.0), pf.Softmax(), softmax, 0.5),
    "squared distance": (pf.SquaredDistance(2.0), pf.Softmax(), squared_distance, 1.0),
    "sinkhorn": (pf.Dot(1.0), pf.Sinkhorn(steps=50), sinkhorn, 1.0),
}


def strength(Q, K, S):
    """The size of the exponent on the support: what the nodes must resolve."""
    norm = max(torch.linalg.matrix_norm(K.mT @ P, 2) for P in (Q, K))
    return norm * torch.linalg.eigvalsh(S)[-1]


def path(recursion, Q, K, V, a, S):
    """Mean and covariance after each layer, the start included."""
    moments = [(a, S)]
    for _ in range(LAYERS):
        a, S = moments[-1]
        B, c = recursion(Q, K, V, a, S)
        M = torch.eye(len(a)) + H * B
        moments.append((a + H * (B @ a + c), M @ S @ M.mT))
    return moments


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tol"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("impl", HERE)
@pytest.mark.parametrize(("dim", "order"), [(1, 40), (2, 20)])
@pytest.mark.parametrize("name", CASES)
def test_ten_residual_layers(name, dim, order, impl, dtype, tol):
    affinity, normaliser, recursion, limit = CASES[name]
    Q, K, V = (torch.randn(dim, dim) for _ in range(3))
    V = V / torch.linalg.matrix_norm(V, 2)
    start = torch.randn(dim), 0.5 * torch.eye(dim) + 0.2 * torch.ones(dim, dim)
    while max(strength(Q, K, S) for _, S in path(recursion, Q, K, V, *start)) > limit:
        Q, K = 0.95 * Q, 0.95 * K
    gamma = pf.Attention(dim, affinity=affinity, normaliser=normaliser, impl=impl)
    for layer, weight in zip(
        (gamma.Q, gamma.K, gamma.V, gamma.W), (Q, K, V, torch.eye(dim)), strict=True
    ):
        layer.weight.copy_(weight)
    mu = pf.Measure.gaussian(*start, order=order).to(dtype)
    block = pf.Residual(gamma.to(dtype), step=H)
    for _ in range(LAYERS):
        mu = block.push(mu)
    mean, cov = path(recursion, Q, K, V, *start)[-1]
    assert (mu.mean() - mean).abs().max() < tol
    assert (mu.covariance() - cov).abs().max() < tol
    assert (cov - start[1]).abs().max() > 1e-2  # the layers did something
