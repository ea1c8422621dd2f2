"""The Lipschitz bounds of layers, attention and compositions, from their formulas."""

import torch
from torch import nn

from ._attention import AttentionMap
from ._composition import Compose
from ._layers import MLP, Pointwise, Residual
from ._lipschitz import Lipschitz, lipschitz_bound, norm, of_points, slope


@lipschitz_bound.register(Compose)
def _(gamma: Compose, radius: float) -> Lipschitz:
    """Bound after bound, each in the ball that the images before lie in."""
    first, *others = gamma
    bound = lipschitz_bound(first, radius)
    for other in others:
        bound = bound.then(lipschitz_bound(other, bound.reach))
    return bound


@lipschitz_bound.register(Residual)
def _(gamma: Residual, radius: float) -> Lipschitz:
    """1 for the point itself, and the bound of the map inside."""
    inner = lipschitz_bound(gamma.gamma, radius)
    return Lipschitz(1.0, 0.0, radius, radius) + inner.scaled(gamma.step)


@lipschitz_bound.register(Pointwise)
def _(gamma: Pointwise, radius: float) -> Lipschitz:
    """Known where the function is a layer whose Lipschitz constant is."""
    f = gamma.f
    tensors = list(f.parameters()) if isinstance(f, nn.Module) else []
    dim = f.in_features if isinstance(f, nn.Linear) else gamma.dim
    if dim is None:
        raise NotImplementedError("A bound needs the dimension: `Pointwise(f, dim=...)`.")
    zero = tensors[0].new_zeros(1, dim) if tensors else torch.zeros(1, dim)
    return of_points(f, slope(f), radius, zero)


@lipschitz_bound.register(MLP)
def _(gamma: MLP, radius: float) -> Lipschitz:
    r"""$\|A_2\|\,\mathrm{Lip}(\sigma)\,\|A_1\|$, and 1 for the skip."""
    steep = slope(gamma.A1) * slope(gamma.activation) * slope(gamma.A2) + gamma.skip
    zero = gamma.A1.weight.new_zeros(1, gamma.A1.in_features)
    return of_points(lambda x: gamma.A2(gamma.activation(gamma.A1(x))), steep, radius, zero)


@lipschitz_bound.register(AttentionMap)
def attention_bound(gamma: AttentionMap, radius: float) -> Lipschitz:
    r"""Heads add up, each the bound of its normaliser times $\|W_hV_h\|$."""
    if gamma.causal:
        raise NotImplementedError("No Lipschitz bound of causal attention is known here.")
    total = Lipschitz(0.0, 0.0, radius, 0.0)
    for Q, K, V in zip(*gamma.matrices(), strict=True):
        cross = norm(Q.double().mT @ K.double())
        slopes = gamma.affinity.slopes(norm(Q), norm(K), cross, len(Q), radius)
        x, mu, reach = gamma.normaliser.gains(slopes, radius)
        total = total + Lipschitz(x, mu, radius, reach).scaled(norm(V))
    return total
