r"""Distances between measures.

All compare the normalised measures and require equal masses, except $W_1$, which extends to
unequal ones: $W_1(c_1\mu_1,c_2\mu_2)=|c_1-c_2|+W_1(\mu_1,\mu_2)$ for probabilities $\mu_i$ and
$c_i>0$. They compute in float64 and return the dtype of the measures. Batch axes broadcast. All
are differentiable in atoms and weights. The gradients of exact transport in more than one
dimension and of the Sinkhorn divergence hold the optimal plan fixed, so these two can be
differentiated only once.
"""

from ._barycentre import barycentre
from ._entropic import sinkhorn_divergence
from ._exact import sliced_wasserstein, wasserstein
from ._kernels import energy_distance, mmd

__all__ = [
    "barycentre", "energy_distance", "mmd", "sinkhorn_divergence", "sliced_wasserstein",
    "wasserstein",
]  # fmt: skip
