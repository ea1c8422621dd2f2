"""A noise source: the push-forward of a fixed reference measure, which may split atoms."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..._tools.checks import check_kind, check_parameters, check_seed, check_sizes
from ...measures import Measure, check_measures
from .._in_context import InContextMap


class NoiseSource(nn.Module):
    r"""The map $\mu\mapsto\Gamma(\mu,\cdot)_\sharp\eta$ of a fixed reference measure $\eta$.

    A push-forward $\Gamma(\mu,\cdot)_\sharp\mu$ carries the mass of every atom as a whole, so it
    cannot split atoms or change their masses. Here the points that move are those of $\eta$, a
    sample of the standard normal law. They are queries: $\mu$ is only their context, as in
    cross-attention. The image has the atoms of $\eta$, however many $\mu$ has, and the total mass
    of $\mu$. It approximates any image to an accuracy that grows with the number of atoms.

    Args:
        gamma: the map $\Gamma$ of a context and a query, such as a `pf.Transformer`, or a
            `pf.Attention(dim, context_dim=...)` if noise and context have other dimensions; not a
            causal one.
        points: number of atoms of $\eta$.
        seed: what they are drawn with.

    Examples:
        >>> model = pf.maps.NoiseSource(pf.Transformer(2, depth=2, width=16), points=100)
        >>> image = model.push(pf.Measure(torch.zeros(1, 2), [3.0]))
        >>> image.n, round(image.mass.item(), 4)
        (100, 3.0)
    """

    eta: Tensor

    def __init__(self, gamma: InContextMap, *, points: int = 128, seed: int = 0) -> None:
        super().__init__()
        check_kind("gamma", gamma, InContextMap, "For example `pf.Transformer(dim, depth=2)`.")
        check_sizes(points=points)
        check_seed(seed)
        if gamma.dim is None:
            raise ValueError(
                f"Noise needs a dimension, and {type(gamma).__name__} has none. Use a map with "
                "`dim`, such as `pf.Transformer(dim, depth=2)`."
            )
        if gamma.causal:
            raise ValueError("Noise has no times, got a causal map. Use one without a mask.")
        self.gamma, self.points, self.seed = gamma, points, seed
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(points, gamma.dim, generator=generator, device="cpu")
        self.register_buffer("eta", noise)

    def forward(self, mu: Measure) -> Measure:
        """As `push`.

        Args:
            mu: the context.
        """
        return self.push(mu)

    def push(self, mu: Measure) -> Measure:
        r"""The image $\Gamma(\mu,\cdot)_\sharp\eta$, of the mass of $\mu$.

        Args:
            mu: the context.
        """
        check_measures(mu=mu)
        check_parameters(self, mu.atoms)
        share = mu.log_weights.logsumexp(-1, keepdim=True) - torch.tensor(self.points).log()
        equal = share.expand(*mu.batch_shape, self.points)
        noise = self.eta.expand(*mu.batch_shape, *self.eta.shape)
        return Measure.unchecked(self.gamma(mu, Measure.unchecked(noise, equal)), equal)

    def extra_repr(self) -> str:
        return f"points={self.points}, seed={self.seed}"
