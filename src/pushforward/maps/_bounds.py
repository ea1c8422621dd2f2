r"""The Lipschitz bounds of layers, attention and compositions, from their formulas.

The bound of attention has two ingredients, each open to further kinds: `score_bounds` of the
affinity, and `average_bound` of the normaliser.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor, nn

from .._tools.checks import check_kind
from .._tools.precision import exp_or_inf
from ..affinities import Dot, PointAffinity, SquaredDistance
from ..relations import Bilinear, Exponential, Normaliser, Sigmoid, Softmax
from ._attention import Attention, AttentionMap
from ._composition import Composition
from ._layers import MLP, Dropout, Pointwise, Residual
from ._lipschitz import ROUNDING, Lipschitz, checked_bound, lipschitz_bound, norm, unknown_bound

ACTIVATIONS: dict[object, float] = {
    nn.Identity: 1.0, nn.ReLU: 1.0, torch.relu: 1.0, nn.functional.relu: 1.0,
    nn.Tanh: 1.0, torch.tanh: 1.0, nn.Sigmoid: 0.25, torch.sigmoid: 0.25,
    nn.GELU: 1.13, nn.functional.gelu: 1.13, nn.SiLU: 1.1, nn.functional.silu: 1.1,
    torch.sin: 1.0, torch.cos: 1.0,
}  # fmt: skip
"""Lipschitz constants of activations; that of GELU is 1.129, of SiLU 1.0999, rounded up."""


@lipschitz_bound.register(Composition)
def composition_bound(gamma: Composition, radius: float) -> Lipschitz:
    """Bound after bound, each in the ball that the images before lie in."""
    first, *others = gamma
    bound = checked_bound(first, radius)
    for other in others:
        bound = bound.then(checked_bound(other, bound.reach))
    return bound


@lipschitz_bound.register(Residual)
def residual_bound(gamma: Residual, radius: float) -> Lipschitz:
    """1 for the point itself, and `step` times the bound of the map inside."""
    inner = checked_bound(gamma.gamma, radius)
    return Lipschitz(1.0, 0.0, radius, radius) + inner.scaled(gamma.step)


@lipschitz_bound.register(Pointwise)
def pointwise_bound(gamma: Pointwise, radius: float) -> Lipschitz:
    """Known where the function is a layer whose Lipschitz constant is known."""
    f = gamma.f
    tensors = list(f.parameters()) if isinstance(f, nn.Module) else []
    dim = f.in_features if isinstance(f, nn.Linear) else gamma.dim
    if dim is None:
        raise NotImplementedError("A bound needs the dimension: `Pointwise(f, dim=...)`.")
    zero = tensors[0].new_zeros(1, dim) if tensors else torch.zeros(1, dim)
    return _pointwise(f, _function_lipschitz(f), radius, zero)


@lipschitz_bound.register(Dropout)
def dropout_bound(gamma: Dropout, radius: float) -> Lipschitz:
    r"""1 in `eval` mode, $1/(1-p)$ for any mask in training."""
    factor = 1 / (1 - gamma.p) if gamma.training and gamma.p < 1 else 1.0
    return Lipschitz(1.0, 0.0, radius, radius).scaled(factor)


@lipschitz_bound.register(MLP)
def mlp_bound(gamma: MLP, radius: float) -> Lipschitz:
    r"""$\|A_2\|\,\mathrm{Lip}(\sigma)\,\|A_1\|$, and 1 for the skip."""
    layers = (gamma.A1, gamma.activation, gamma.A2)
    constant = math.prod(map(_function_lipschitz, layers)) + gamma.skip
    zero = gamma.A1.weight.new_zeros(1, gamma.A1.in_features)
    inner = lambda x: gamma.A2(gamma.activation(gamma.A1(x)))  # the skip is zero at the origin
    return _pointwise(inner, constant, radius, zero)


def _function_lipschitz(f: Callable[[Tensor], Tensor]) -> float:
    """A Lipschitz constant of a function of points: a layer, an activation or a sequence."""
    if isinstance(f, nn.Linear):
        return norm(f.weight)
    if isinstance(f, nn.Sequential):
        return math.prod(map(_function_lipschitz, f), start=1.0)
    if isinstance(f, nn.LayerNorm) and f.eps > 0:
        scale = 1.0 if f.weight is None else float(f.weight.detach().abs().max())
        return ROUNDING * scale / f.eps**0.5
    if isinstance(f, nn.LeakyReLU):
        return max(1.0, abs(f.negative_slope))
    if isinstance(f, nn.ELU):
        return max(1.0, abs(f.alpha))
    known = ACTIVATIONS.get(type(f)) if isinstance(f, nn.Module) else ACTIVATIONS.get(f)
    if known is None:
        raise NotImplementedError(
            f"No Lipschitz constant of {f} is known here. Linear layers, LayerNorm, the usual "
            "activations and sequences of them have one."
        )
    return known


def _pointwise(
    f: Callable[[Tensor], Tensor], constant: float, radius: float, zero: Tensor
) -> Lipschitz:
    r"""The bound of a map $F$ of points alone, of a Lipschitz constant: $|F(x)|\le|F(0)|+LR$."""
    with torch.no_grad():
        start = ROUNDING * float(f(zero).norm())
    return Lipschitz(constant, 0.0, radius, start + constant * radius)


@lipschitz_bound.register(Attention)
def _(gamma: Attention, radius: float) -> Lipschitz:
    return attention_bound(gamma, gamma.matrices(), radius)


def attention_bound(
    gamma: AttentionMap, matrices: tuple[Tensor, Tensor, Tensor], radius: float
) -> Lipschitz:
    r"""The bound of attention with linear queries, keys and values.

    Heads add up, each the bound of its normaliser times $\|W^hV^h\|$.

    Args:
        gamma: the attention.
        matrices: $Q^h$, $K^h$ and $W^hV^h$, heads first.
        radius: of the ball that contexts and queries lie in.
    """
    if gamma.causal:
        raise NotImplementedError("No Lipschitz bound of causal attention is known here.")
    total = Lipschitz(0.0, 0.0, radius, 0.0)
    for Q, K, V in zip(*matrices, strict=True):
        scores = score_bounds(gamma.affinity, Q, K, radius)
        name = f"score_bounds of {type(gamma.affinity).__name__}"
        check_kind(name, scores, ScoreBounds, "Return `pf.maps.ScoreBounds(...)`.", returned=True)
        bound = average_bound(gamma.normaliser, scores, radius)
        name = f"average_bound of {type(gamma.normaliser).__name__}"
        check_kind(name, bound, Lipschitz, "Return `pf.maps.Lipschitz(...)`.", returned=True)
        total = total + bound.scaled(norm(V))
    return total


@dataclass(frozen=True)
class ScoreBounds:
    r"""Bounds of the scores $s(x,y)=A(Qx,Ky)$ of a head, for points in a ball.

    Args:
        mixed: $\sup|\partial_x\partial_ys|$.
        x: $\sup|\partial_xs|$.
        y: $\sup|\partial_ys|$.
        size: $\sup|s|$.
    """

    mixed: float
    x: float
    y: float
    size: float


@singledispatch
def score_bounds(affinity: object, Q: Tensor, K: Tensor, radius: float) -> ScoreBounds:
    r"""Bounds of the scores $A(Qx,Ky)$ for points in the ball of a radius.

    Args:
        affinity: $A$; a kind of affinity gets its formula by `score_bounds.register`.
        Q: `(k, d)`.
        K: `(k, d)`.
        radius: of the ball.
    """
    check_kind("affinity", affinity, PointAffinity, "For example `pf.Dot()`.")
    raise unknown_bound(affinity, "score_bounds")


@score_bounds.register(Dot)
def _(affinity: Dot, Q: Tensor, K: Tensor, radius: float) -> ScoreBounds:
    # s(x, y) = <x, By> with B = scale Q^T K.
    b = abs(affinity.factor(len(Q))) * norm(Q.double().mT @ K.double())
    return ScoreBounds(b, b * radius, b * radius, b * radius**2)


@score_bounds.register(SquaredDistance)
def _(affinity: SquaredDistance, Q: Tensor, K: Tensor, radius: float) -> ScoreBounds:
    # d/dy |Qx - Ky|^2 = 2 K^T (Ky - Qx), likewise in x, and |Qx - Ky| <= (|Q| + |K|) R.
    q, k, cross = norm(Q), norm(K), norm(Q.double().mT @ K.double())
    far, c = (q + k) * radius, 2 / affinity.eps
    return ScoreBounds(c * cross, c * q * far, c * k * far, far**2 / affinity.eps)


@singledispatch
def average_bound(normaliser: object, scores: ScoreBounds, radius: float) -> Lipschitz:
    r"""The bound of $(\nu,x)\mapsto\int y\,\pi(dy|x)$ for points in the ball of a radius.

    Args:
        normaliser: makes $\pi$ of the scores; a kind of normaliser gets its formula by
            `average_bound.register`.
        scores: bounds of the scores.
        radius: of the ball.
    """
    check_kind("normaliser", normaliser, Normaliser, "For example `pf.Softmax()`.")
    raise unknown_bound(normaliser, "average_bound")


@average_bound.register(Softmax)
def _(normaliser: Softmax, scores: ScoreBounds, radius: float) -> Lipschitz:
    # The derivative in x is the covariance of pi(.|x) times the mixed derivative of s. In nu, the
    # weights e^s vary by a factor of e^(2 sup|d_y s| R) at most on the ball.
    swing = 2 * scores.y * radius
    return Lipschitz(scores.mixed * radius**2, exp_or_inf(swing) * (1 + swing), radius, radius)


@average_bound.register(Sigmoid)
def _(normaliser: Sigmoid, scores: ScoreBounds, radius: float) -> Lipschitz:
    return _density_bound(1.0, 0.25, scores, radius)


@average_bound.register(Exponential)
def _(normaliser: Exponential, scores: ScoreBounds, radius: float) -> Lipschitz:
    top = exp_or_inf(scores.size)
    return _density_bound(top, top, scores, radius)


@average_bound.register(Bilinear)
def _(normaliser: Bilinear, scores: ScoreBounds, radius: float) -> Lipschitz:
    return _density_bound(scores.size, 1.0, scores, radius)


def _density_bound(top: float, steep: float, scores: ScoreBounds, radius: float) -> Lipschitz:
    r"""Of $\int y\,\varphi(s(x,y))\,\nu(dy)$, where $|\varphi|\le$ `top`, $|\varphi'|\le$ `steep`.

    The integrand is bounded by `top` $R$, and $y\mapsto y\,\varphi(s(x,y))$ has the Lipschitz
    constant `top` $+R\,$`steep`$\,\sup|\partial_ys|$, which bounds the change of the integral
    by that times $W_1$.
    """
    x, mu = steep * scores.x * radius, top + steep * scores.y * radius
    return Lipschitz(x, mu, radius, top * radius)
