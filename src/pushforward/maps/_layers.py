"""The plain layers: maps of points alone, and the residual step."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .._tools.checks import check_kind, check_sizes
from .._tools.types import Images, Queries
from ..measures import Measure
from ..relations import Relation
from ._in_context import Answer, Conditioned, InContextMap
from ._lipschitz import Lipschitz, of_points, slope


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
        self,
        f: Callable[[Tensor], Tensor],
        *,
        dim: int | None = None,
        out_dim: int | None = None,
    ):
        super().__init__()
        self.f = f
        self.dim, self.context_dim, self.out_dim = dim, dim, out_dim

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Ignore the context."""
        return self.f(x)

    def bound(self, radius: float) -> Lipschitz:
        """Where the function is a layer whose slope is known."""
        tensors = list(self.f.parameters()) if isinstance(self.f, nn.Module) else []
        dim = self.f.in_features if isinstance(self.f, nn.Linear) else self.dim
        if dim is None:
            raise NotImplementedError("A bound needs the dimension: `Pointwise(f, dim=...)`.")
        zero = tensors[0].new_zeros(1, dim) if tensors else torch.zeros(1, dim)
        return of_points(self.f, slope(self.f), radius, zero)


class MLP(InContextMap):
    r"""Two layers on each point, $F(x)=\varsigma x+A_2\,\sigma(A_1x+b_1)+b_2$, eq. (55).

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
    ):
        super().__init__()
        check_sizes(dim=dim, hidden=hidden, out_dim=out_dim)
        out_dim = dim if out_dim is None else out_dim
        self.dim, self.context_dim, self.out_dim = dim, dim, out_dim
        if skip and out_dim != dim:
            raise ValueError(f"A skip needs out_dim = dim, got {out_dim} and {dim}.")
        self.A1, self.A2 = nn.Linear(dim, hidden), nn.Linear(hidden, out_dim)
        self.activation = nn.GELU() if activation is None else activation
        self.skip = skip

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Ignore the context."""
        y = self.A2(self.activation(self.A1(x)))
        return x + y if self.skip else y

    def bound(self, radius: float) -> Lipschitz:
        r"""$\|A_2\|\,\mathrm{Lip}(\sigma)\,\|A_1\|$, and 1 for the skip."""
        steep = slope(self.A1) * slope(self.activation) * slope(self.A2) + self.skip
        zero = self.A1.weight.new_zeros(1, self.A1.in_features)
        return of_points(lambda x: self.A2(self.activation(self.A1(x))), steep, radius, zero)


class Residual(Conditioned):
    r"""The step $x+h\,\Gamma(\mu,x)$, eq. (20): a residual connection, or one step of Euler.

    Args:
        gamma: the map $\Gamma$, from a space into itself.
        step: $h$.

    Examples:
        >>> halve = pf.Residual(pf.Pointwise(lambda x: -x), step=0.5)
        >>> halve.push(pf.Measure(torch.ones(1, 1))).atoms
        tensor([[0.5000]])
    """

    def __init__(self, gamma: InContextMap, *, step: float = 1.0):
        super().__init__()
        check_kind(
            "gamma", gamma, InContextMap, "A module becomes one with `pf.Pointwise(module)`."
        )
        if None not in (gamma.dim, gamma.out_dim) and gamma.dim != gamma.out_dim:
            raise ValueError(
                f"A residual step stays in its space, got a map from R^{gamma.dim} to "
                f"R^{gamma.out_dim}."
            )
        self.gamma, self.step = gamma, step
        self.dim, self.context_dim, self.out_dim = gamma.dim, gamma.context_dim, gamma.out_dim
        self.causal, self.two_sided, self.paired = gamma.causal, gamma.two_sided, gamma.paired

    def at_time(self, t: float) -> InContextMap:
        """The step of the inner map at that time."""
        now = self.gamma.at_time(t)
        return self if now is self.gamma else Residual(now, step=self.step)

    def condition(self, mu: Measure, queries: Measure | None = None) -> Answer:
        """The inner map does the context's work."""
        inner = self.gamma.condition(mu, queries)

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            y = inner(x, t)
            if y.shape[-2:] != x.shape[-2:]:
                raise ValueError(
                    f"A residual step stays in its space, got points of shape {tuple(x.shape)} "
                    f"and images of shape {tuple(y.shape)}."
                )
            return x + self.step * y

        return answer

    def bound(self, radius: float) -> Lipschitz:
        """One for the point itself, and the inner map's."""
        return Lipschitz(1.0, 0.0, radius, radius) + self.gamma.bound(radius).scaled(self.step)

    def relations(self, mu: Measure) -> list[Relation]:
        """Those of the inner map."""
        return self.gamma.relations(mu)
