"""A push-forward whose atoms also get new masses, by a positive density."""

from __future__ import annotations

import torch
from torch import nn

from ..._tools.checks import check_flags, check_kind
from ...measures import Measure, check_measures
from .._in_context import InContextMap


class Reweighted(nn.Module):
    r"""A push-forward with a positive density beside the map, which gives atoms new masses.

    $$\sum_ia_i\,\delta_{x_i}\ \mapsto\ \sum_ia_i\,\rho(\mu,x_i)\,\delta_{\Gamma(\mu,x_i)},\qquad
      \rho=\frac{e^{h(\mu,x)}}{\int e^{h(\mu,y)}\,d\mu(y)/\mu(\mathbb R^d)}.$$

    Bayes' rule is of this form. Atoms are not split: see `NoiseSource`. The total mass is kept,
    unless `births=True`, where $\rho=e^{h(\mu,x)}$ and atoms may gain and lose mass.

    Args:
        gamma: the map $\Gamma$.
        density: the map $h$, with images in $\mathbb R^1$.
        births: whether the total mass may change. Losses compare normalised measures: train with
            `pf.fitting.WithMass(loss)` to compare total masses too.

    Examples:
        Bayes' rule for a uniform prior and a likelihood $e^x$:

        >>> stay = pf.Pointwise(lambda x: x)
        >>> bayes = pf.maps.Reweighted(stay, pf.Pointwise(lambda x: x))
        >>> prior = pf.Measure(torch.tensor([[0.0], [2.0]]).log1p())
        >>> bayes.push(prior).weights
        tensor([0.2500, 0.7500])
    """

    def __init__(
        self, gamma: InContextMap, density: InContextMap, *, births: bool = False
    ) -> None:
        super().__init__()
        fix = "Make one of a module with `pf.Pointwise(module)`."
        check_kind("gamma", gamma, InContextMap, fix)
        check_kind("density", density, InContextMap, fix)
        check_flags(births=births)
        if density.out_dim not in (None, 1):
            raise ValueError(
                "`density` must have images in R^1, the logarithms of the density, got "
                f"R^{density.out_dim}. For example `pf.Transformer(dim, depth=2, out_dim=1)`."
            )
        self.gamma, self.density, self.births = gamma, density, births

    def forward(self, mu: Measure) -> Measure:
        """As `push`.

        Args:
            mu: the measure.
        """
        return self.push(mu)

    def push(self, mu: Measure) -> Measure:
        """The measure with its atoms moved and their masses changed.

        Args:
            mu: the measure.
        """
        check_measures(mu=mu)
        image, heights = self.gamma.push(mu), self.density.push(mu).atoms
        if heights.shape[-1] != 1:
            raise ValueError(
                f"`density` must have images in R^1, got R^{heights.shape[-1]}. For example "
                "`pf.Transformer(dim, depth=2, out_dim=1)`."
            )
        logs = mu.log_weights
        h = heights[..., 0].to(logs.dtype).masked_fill(logs == -torch.inf, 0)
        new = logs + h
        if not self.births:
            new = new.log_softmax(-1) + logs.logsumexp(-1, keepdim=True)
        return Measure.unchecked(image.atoms, new, mu.times)

    def extra_repr(self) -> str:
        return f"births={self.births}"
