"""Transformers: compositions of residual attention and MLPs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import nn

from .. import ops
from .._tools.checks import (
    check_finite,
    check_kind,
    check_number,
    check_optional_sizes,
    check_sizes,
)
from ..affinities import Dot, PointAffinity
from ..relations import Normaliser, Softmax
from ._attention import Attention, Causal, check_attention
from ._composition import Compose, Composition
from ._in_context import InContextMap
from ._layers import MLP, Dropout, Pointwise, Residual, check_dropout


class Norm(ABC):
    """A way to make a layer residual, with a LayerNorm."""

    @abstractmethod
    def wrap(self, gamma: InContextMap, dim: int, step: float) -> InContextMap:
        r"""The residual layer of $\Gamma$ on $\mathbb R^d$, with its LayerNorm."""


@dataclass(frozen=True)
class PreNorm(Norm):
    r"""$x+h\,\Gamma(\nu_\sharp\mu,\nu(x))$ with $\nu$ a LayerNorm.

    Args:
        eps: added to the variance inside the square root of the LayerNorm.
    """

    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_number("eps", self.eps)

    def wrap(self, gamma: InContextMap, dim: int, step: float) -> InContextMap:
        return Residual(Compose(_normal(dim, self.eps), gamma), step=step)


@dataclass(frozen=True)
class PostNorm(Norm):
    r"""$\nu(x+h\,\Gamma(\mu,x))$ with $\nu$ a LayerNorm.

    Args:
        eps: added to the variance inside the square root of the LayerNorm.
    """

    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_number("eps", self.eps)

    def wrap(self, gamma: InContextMap, dim: int, step: float) -> InContextMap:
        return Compose(Residual(gamma, step=step), _normal(dim, self.eps))


def _normal(dim: int, eps: float) -> Pointwise:
    """A LayerNorm as a map of points."""
    if dim == 1:
        raise ValueError(
            "A LayerNorm of one coordinate is always 0 and would forget the point. Give the "
            "tokens more dimensions with `width=`."
        )
    return Pointwise(nn.LayerNorm(dim, eps), dim=dim, out_dim=dim)


@dataclass(frozen=True)
class Block:
    """What every block of a transformer shares.

    Args:
        norm: `PreNorm()`, `PostNorm()` or None. **For models that are trained on data, use
            `PreNorm()`**: they train better with it. None is the default because the theory of
            transformers on measures has no LayerNorm, and because a LayerNorm keeps little of a
            token of few coordinates: use it with `width=` of the transformer.
        head_dim: as in `Attention`, the token dimension over the number of heads by default.
        affinity: as in `Attention`.
        normaliser: as in `Attention`.
        mask: as in `Attention`.
        impl: as in `Attention`.
        dropout: the `p` of a `Dropout` on the output of attention and of the MLP, before it is
            added to the point.

    Examples:
        >>> block = pf.Block(norm=pf.PreNorm(), normaliser=pf.Sinkhorn(steps=5))
        >>> model = pf.Transformer(2, depth=3, heads=2, width=16, block=block)
        >>> model.push(pf.Measure(torch.randn(9, 2)))
        Measure(9 atoms in R^2, float32, cpu)
    """

    norm: Norm | None = None
    head_dim: int | None = None
    affinity: PointAffinity | None = None
    normaliser: Normaliser | None = None
    mask: Causal | None = None
    impl: ops.Impl | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_optional_sizes(head_dim=self.head_dim)
        affinity = Dot() if self.affinity is None else self.affinity
        normaliser = Softmax() if self.normaliser is None else self.normaliser
        check_attention(affinity, normaliser, self.mask, self.impl)
        check_dropout("dropout", self.dropout)
        if self.norm is not None:
            check_kind("norm", self.norm, Norm, "Use `pf.PreNorm()` or `pf.PostNorm()`.")

    def layers(self, dim: int, heads: int, hidden: int, step: float) -> list[InContextMap]:
        r"""Residual attention and a residual MLP on tokens in $\mathbb R^d$."""
        attention = Attention(
            dim,
            heads=heads,
            head_dim=self.head_dim,
            affinity=self.affinity,
            normaliser=self.normaliser,
            mask=self.mask,
            impl=self.impl,
        )
        both: list[InContextMap] = [attention, MLP(dim, hidden)]
        if self.dropout:
            both = [Compose(gamma, Dropout(self.dropout)) for gamma in both]
        if self.norm is None:
            return [Residual(gamma, step=step) for gamma in both]
        return [self.norm.wrap(gamma, dim, step) for gamma in both]


class Transformer(Composition):
    r"""The transformer on measures, a composition of attention and MLPs [A, eq. 58].

    $$F_{\xi_L}\diamond\Gamma_{\theta_L}\diamond\dots\diamond F_{\xi_1}\diamond\Gamma_{\theta_1}.$$

    Each block is residual attention, then a residual MLP. With `step=1/depth` each sub-layer moves
    by $1/L$; if parameters are shared or vary continuously with depth, the network tends as
    $L\to\infty$ to the flow of the field $\mathcal A+H$, attention plus MLP (Lie splitting).

    Args:
        dim: dimension of the points.
        depth: number of blocks $L$.
        heads: attention heads per block.
        hidden: width of the MLPs, four times the token dimension by default.
        width: dimension of the tokens inside, `dim` by default; if given, a linear embedding comes
            first and a linear read-out last.
        out_dim: dimension of the images, `dim` by default; if given, a linear read-out comes last.
        step: factor of every residual branch.
        block: what every block shares: LayerNorm, affinity, normaliser, mask, dropout; `Block()`
            by default, which has no LayerNorm. To train on data, give
            `pf.Block(norm=pf.PreNorm())`.

    Examples:
        >>> model = pf.Transformer(2, depth=4, heads=4, hidden=64)
        >>> model.push(pf.Measure(torch.randn(100, 2)))
        Measure(100 atoms in R^2, float32, cpu)
        >>> block = pf.Block(norm=pf.PreNorm(), dropout=0.1)
        >>> model = pf.Transformer(2, depth=4, heads=8, width=64, block=block)
    """

    def __init__(
        self,
        dim: int,
        *,
        depth: int,
        heads: int = 1,
        hidden: int | None = None,
        width: int | None = None,
        out_dim: int | None = None,
        step: float = 1.0,
        block: Block | None = None,
    ) -> None:
        check_sizes(dim=dim, depth=depth, heads=heads)
        check_optional_sizes(hidden=hidden, width=width, out_dim=out_dim)
        block = Block() if block is None else block
        check_finite("step", step)
        check_kind("block", block, Block, "For example `pf.Block(norm=pf.PreNorm())`.")
        inner = dim if width is None else width
        hidden = 4 * inner if hidden is None else hidden
        layers: list[InContextMap] = []
        if width is not None:
            layers.append(Pointwise(nn.Linear(dim, inner), dim=dim, out_dim=inner))
        for _ in range(depth):
            layers += block.layers(inner, heads, hidden, step)
        if width is not None or out_dim is not None:
            last = dim if out_dim is None else out_dim
            layers.append(Pointwise(nn.Linear(inner, last), dim=inner, out_dim=last))
        super().__init__(*layers)

    @classmethod
    def universal(
        cls, dim: int, out_dim: int, *, depth: int, hidden: int | None = None
    ) -> Transformer:
        r"""The architecture of the universality theorem.

        Tokens of dimension $d+3d'$ and $d'$ heads of dimension 1 suffice to approximate any
        continuous $\Gamma:\mathcal P(\Omega)\times\Omega\to\mathbb R^{d'}$ on a compact set,
        whatever the accuracy and the number of tokens; only depth and MLP width grow
        (Furuya, de Hoop, Peyre: Transformers are universal in-context learners, Theorem 1).

        Args:
            dim: $d$, dimension of the points.
            out_dim: $d'$, dimension of the images.
            depth: number of blocks.
            hidden: width of the MLPs, four times the token dimension by default.

        Examples:
            >>> model = pf.Transformer.universal(2, 1, depth=3)
            >>> model.push(pf.Measure(torch.randn(7, 2))).dim
            1
        """
        check_sizes(dim=dim, out_dim=out_dim)
        return cls(
            dim,
            depth=depth,
            heads=out_dim,
            hidden=hidden,
            width=dim + 3 * out_dim,
            out_dim=out_dim,
            block=Block(head_dim=1),
        )
