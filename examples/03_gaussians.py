"""A Gaussian goes through ten layers of attention, as weighted tokens and by an exact recursion.

Softmax attention on N(a, S) is affine, Gamma(x) = V (a + S A x) with A = K^T Q. So a residual
layer of step h maps a to M a + h V a and S to M S M^T, with M = I + h V S A.
"""

import torch

import pushforward as pf

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
a, S = torch.tensor([0.5, -0.2]), torch.tensor([[0.4, 0.1], [0.1, 0.3]])
K, Q, V = (0.45 * torch.randn(2, 2) for _ in range(3))
h = 0.1

gamma = pf.Attention(2, affinity=pf.Dot(1.0))
with torch.no_grad():
    for part, weight in ((gamma.Q, Q), (gamma.K, K), (gamma.V, V), (gamma.W, torch.eye(2))):
        part.weight.copy_(weight)
    layer = pf.Residual(gamma, step=h)
    mu = pf.Measure.gaussian(a, S, order=20)  # 400 weighted tokens
    print("layer  error of the mean  error of the covariance")
    for number in range(1, 11):
        M = torch.eye(2) + h * V @ S @ K.mT @ Q
        a, S = M @ a + h * V @ a, M @ S @ M.mT
        mu = layer.push(mu)
        mean, cov = (mu.mean() - a).abs().max(), (mu.covariance() - S).abs().max()
        print(f"{number:5d}  {mean:17.1e}  {cov:23.1e}")
