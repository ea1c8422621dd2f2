"""The plain layers: maps of points alone, dropout, and the residual step."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from .._tools.checks import (
    check_callable,
    check_finite,
    check_flags,
    check_kind,
    check_optional_sizes,
    check_sizes,
)
from .._tools.types import Images, Queries
from ..measures import Measure
from ..sinkhorn import Starts
from ._in_context import Container, InContextMap
from ._stages import Answer, residual_step, within


class Pointwise(InContextMap):
    """A map of points alone, such as an MLP or a LayerNorm.

    Args:
        f: a module or function of points `(..., m, d)`.
        dim: dimension of the points, where `f` prescribes one.
        out_dim: dimension of the images, where `f` prescribes one.

    Examples:
        >>> pf.Pointwise(torch.tanh).push(pf.Measure(torch.zeros(3, 2))).mean()
        tensor([0., 0.])
    """

    def __init__(
        self, f: Callable[[Tensor], Tensor], *, dim: int | None = None, out_dim: int | None = None
    ) -> None:
        super().__init__()
        check_callable("f", f, "a module or a function of points")
        check_optional_sizes(dim=dim, out_dim=out_dim)
        self.f = f
        self.dim, self.context_dim, self.out_dim = dim, dim, out_dim

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        return self.f(x)


class MLP(InContextMap):
    r"""Two layers on each point, $F(x)=\varsigma x+A_2\,\sigma(A_1x+b_1)+b_2$ [A, eq. 55].

    Args:
        dim: dimension of the points.
        hidden: width of the hidden layer.
        out_dim: dimension of the images, `dim` by default.
        skip: whether $\varsigma=1$.
        activation: $\sigma$, GELU by default.

    Examples:
        >>> pf.MLP(2, 16).push(pf.Measure(torch.randn(5, 2))).dim
        2
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        out_dim: int | None = None,
        skip: bool = False,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, hidden=hidden)
        check_optional_sizes(out_dim=out_dim)
        check_flags(skip=skip)
        if activation is not None:
            check_callable("activation", activation, "a module or a function of numbers")
        out_dim = dim if out_dim is None else out_dim
        self.dim, self.context_dim, self.out_dim = dim, dim, out_dim
        if skip and out_dim != dim:
            raise ValueError(f"A skip needs out_dim = dim, got {out_dim} and {dim}.")
        self.A1, self.A2 = nn.Linear(dim, hidden), nn.Linear(hidden, out_dim)
        self.activation = nn.GELU() if activation is None else activation
        self.skip = skip

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        y = self.A2(self.activation(self.A1(x)))
        return x + y if self.skip else y


class Dropout(InContextMap):
    r"""Dropout of whole features, with one mask for all points of a set.

    $$\Gamma(\mu,x)=\frac{m\odot x}{1-p},\qquad m_k\in\{0,1\}\text{ independent},\
      \mathbb P(m_k=0)=p.$$

    A mask for each token, as in `torch.nn.Dropout`, would move the halves of a split atom apart,
    so the output would depend on how the measure is written. Here each measure of a batch draws
    one mask at every call, the same for its atoms and for queries. (A layer with Sinkhorn that is
    given its queries as a measure draws one for each of the two measures.) In `eval` mode it is
    the identity.

    Args:
        p: the probability that a feature is set to zero, $0\le p\le1$.

    Examples:
        >>> drop = pf.Dropout(0.5)
        >>> image = drop.push(pf.Measure(torch.ones(100, 8))).atoms
        >>> bool((image == image[0]).all()), image.unique()
        (True, tensor([0., 2.]))
        >>> drop.eval().push(pf.Measure(torch.ones(2, 1))).atoms.flatten()
        tensor([1., 1.])
    """

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        check_dropout("p", p)
        self.p = float(p)

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        if not self.training or self.p == 0:
            return lambda x, t: x
        mask = dropout(torch.ones_like(mu.atoms[..., :1, :]), self.p)
        return lambda x, t: x * mask

    def extra_repr(self) -> str:
        return f"p={self.p:g}"


def check_dropout(name: str, p: float) -> None:
    """Raise unless `p` is a probability."""
    if not isinstance(p, Real) or isinstance(p, bool) or not 0 <= p <= 1:
        raise ValueError(f"`{name}` must be a probability, between 0 and 1, got {p!r}.")


class Residual(Container):
    r"""The step $x+h\,\Gamma(\mu,x)$: a residual connection, or one step of Euler [A, eq. 20].

    Args:
        gamma: the map $\Gamma$, from a space into itself.
        step: $h$.

    Examples:
        >>> halve = pf.Residual(pf.Pointwise(lambda x: -x), step=0.5)
        >>> halve.push(pf.Measure(torch.ones(1, 1))).atoms
        tensor([[0.5000]])
    """

    residual: ClassVar[bool] = True

    def __init__(self, gamma: InContextMap, *, step: float = 1.0) -> None:
        super().__init__()
        fix = "Make one of a module with `pf.Pointwise(module)`."
        check_kind("gamma", gamma, InContextMap, fix)
        check_finite("step", step)
        if None not in (gamma.dim, gamma.out_dim) and gamma.dim != gamma.out_dim:
            raise ValueError(
                f"A residual step stays in its space, got a map from R^{gamma.dim} to "
                f"R^{gamma.out_dim}."
            )
        self.gamma, self.step = gamma, step
        self.dim, self.context_dim, self.out_dim = gamma.dim, gamma.context_dim, gamma.out_dim

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        inner = self.gamma.condition(mu, queries, within(starts, "gamma"))
        return lambda x, t: residual_step(x, self.step, inner(x, t))
