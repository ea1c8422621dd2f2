r"""Attention: integrals $\int V y\,\pi(dy|x)$ against a relation of queries and keys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .. import ops
from .._tools.checks import (
    check_floating,
    check_kind,
    check_optional_sizes,
    check_same,
    check_shape,
    check_sizes,
    check_values_finite,
)
from .._tools.types import Images, Points, Queries
from ..affinities import Dot, PointAffinity, PointScores
from ..measures import Measure, check_measures
from ..relations import Joint, Normaliser, Relation, Softmax, check_start
from ..sinkhorn import Starts
from ._in_context import InContextMap, relations_inside
from ._stages import Answer


@dataclass(frozen=True)
class Causal:
    r"""Causal masking: a query at time $t$ sees the atoms at times $s\le t$, ties included."""


class AttentionMap(InContextMap, ABC):
    r"""Attention of any parametrisation, the class to extend for attention of your own.

    An author writes what the query, key and value vectors of points are, `queries(x)`, `keys(y)`
    and `values(y)`, with an axis for the heads before that of the points, and how the integrals of
    all heads become one image, `combine_heads(out, x)`.

    Args:
        affinity: compares query vectors with key vectors.
        normaliser: makes a relation of the scores.
        mask: `Causal()` or None.
        impl: implementation of the reductions, None to choose by size.

    Examples:
        Attention without matrices, which moves a point to the mean of its neighbours:

        >>> class Smooth(pf.maps.AttentionMap):
        ...     heads = 1
        ...     def queries(self, x):
        ...         return x[..., None, :, :]
        ...     def keys(self, y):
        ...         return y[..., None, :, :]
        ...     def values(self, y):
        ...         return y[..., None, :, :]
        ...     def combine_heads(self, out, x):
        ...         return out[..., 0, :, :]
        >>> gamma = Smooth(pf.SquaredDistance(0.1), pf.Softmax(), mask=None, impl=None)
        >>> mu = pf.Measure(torch.tensor([[0.0], [0.2], [5.0]]))
        >>> gamma(mu, torch.tensor([[0.1], [5.0]]))
        tensor([[0.1000],
                [5.0000]])
    """

    heads: int
    """Number of heads."""

    def __init__(
        self,
        affinity: PointAffinity,
        normaliser: Normaliser,
        mask: Causal | None,
        impl: ops.Impl | None,
    ) -> None:
        super().__init__()
        check_attention(affinity, normaliser, mask, impl)
        self.affinity, self.normaliser = affinity, normaliser
        self.causal, self.impl = mask is not None, impl
        self.two_sided = normaliser.needs_query_measure

    @abstractmethod
    def queries(self, x: Queries) -> Float[Tensor, "*b h m k"]:
        """Query vectors of points, `(..., heads, m, k)`."""

    @abstractmethod
    def keys(self, y: Points) -> Float[Tensor, "*b h n k"]:
        """Key vectors of atoms, `(..., heads, n, k)`."""

    @abstractmethod
    def values(self, y: Points) -> Float[Tensor, "*b h n c"]:
        """Value vectors of atoms, `(..., heads, n, e)`."""

    @abstractmethod
    def combine_heads(self, out: Float[Tensor, "*b h m c"], x: Queries) -> Images:
        """The images of points `x`, from the integrals of all heads."""

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        relation, v = self._relating(mu, queries, starts=starts), self.values(mu.atoms)
        return lambda x, t: self.combine_heads(relation(x, t, None).integrate(v), x)

    def relation(
        self, mu: Measure, queries: Measure | None = None, *, start: Tensor | None = None
    ) -> Relation:
        r"""The relation of every head, with the heads on its last batch axis.

        Args:
            mu: the context.
            queries: the measure of the queries, the context itself by default.
            start: a potential on the keys, `(..., heads, n)`, from which Sinkhorn starts: the `g`
                of an earlier relation.

        Examples:
            >>> mu = pf.Measure(torch.randn(9, 2))
            >>> pf.Attention(2, heads=4).relation(mu)
            Conditional(9 queries, 9 keys, batch (4,))
        """
        queries = mu if queries is None else queries
        check_measures(mu=mu, queries=queries)
        for what in ("dtype", "device"):
            check_same(what, ("mu", mu.atoms), ("queries", queries.atoms))
        self._check(mu, queries.atoms, queries.times)
        if start is not None:
            check_start(start, self.normaliser)
            check_floating("start", start, "(..., heads, n)", 2)
            shape = (*start.shape[:-2], self.heads, mu.n)
            check_shape("start", start, shape, "One potential per head, on the keys.")
            check_same("dtype", ("mu", mu.log_weights), ("start", start))
            check_same("device", ("mu", mu.atoms), ("start", start))
            check_values_finite(start=start)
        log_a = queries.log_weights[..., None, :].log_softmax(-1)
        relation = self._relating(mu.normalise(), queries, start)
        return relation(queries.atoms, queries.times, log_a)

    def _relating(
        self,
        mu: Measure,
        queries: Measure | None,
        start: Tensor | None = None,
        starts: Starts | None = None,
    ) -> Callable[[Tensor, Tensor | None, Tensor | None], Relation]:
        """The relation as a function of query points, their times and their log-weights.

        Whatever depends on the context alone is computed once.
        """
        k, log_weights = self.keys(mu.atoms), mu.log_weights[..., None, :]
        log_b = log_weights.log_softmax(-1)
        origin = self.affinity.origin(k, log_weights)
        keys = self.affinity.features(k, origin)

        def scores(x: Tensor, t: Tensor | None) -> PointScores:
            times = _times(mu, t) if self.causal else None
            q = self.affinity.features(self.queries(x), origin)
            return self.affinity.between(q, keys, self.impl, times)

        if not self.normaliser.needs_query_measure:
            return lambda x, t, log_a: self.normaliser(scores(x, t), log_a, log_b)
        eta = mu if queries is None else queries
        log_a = eta.log_weights[..., None, :].log_softmax(-1)
        between = scores(eta.atoms, eta.times)
        # A solve for a fixed number of steps depends on its start: it is left alone.
        starts = starts if self.normaliser.to_tolerance else None
        if starts is not None:
            start = starts.recall((*between.shape[:-2], between.shape[-1]))
        base = self.normaliser(between, log_a, log_b, start=start)
        if starts is not None and isinstance(base, Joint) and base.g is not None:
            starts.keep(base.g, base.steps)
        return lambda x, t, log_a: base.at(scores(x, t), log_a)

    def extra_repr(self) -> str:
        causal = ", causal" if self.causal else ""
        return f"heads={self.heads}, {self.affinity}, {self.normaliser}{causal}"


def check_attention(
    affinity: PointAffinity, normaliser: Normaliser, mask: Causal | None, impl: ops.Impl | None
) -> None:
    """Raise unless attention can be made of these choices."""
    check_kind("affinity", affinity, PointAffinity, "For example `pf.Dot()`.")
    check_kind("normaliser", normaliser, Normaliser, "For example `pf.Softmax()`.")
    if mask is not None:
        check_kind("mask", mask, Causal, "Use `pf.Causal()`, or None for no mask.")
    if impl is not None:
        ops.implementation(impl)
    if not normaliser.any_query:
        raise ValueError(
            f"A layer is evaluated at any query, and {normaliser} is defined on atoms only. "
            "Use it in `pf.relate`, or `Sinkhorn` with a small temperature here."
        )
    if mask is not None and normaliser.needs_query_measure:
        raise ValueError(
            f"{type(normaliser).__name__} does not go with a causal mask: with equal "
            "marginals the only coupling is the identity. Use `Softmax()`, or no mask."
        )


@relations_inside.register(AttentionMap)
def _(gamma: AttentionMap, mu: Measure) -> list[Relation]:
    return [gamma.relation(mu)]


class Attention(AttentionMap):
    r"""Multi-head attention, without the skip connection [A, eq. 20].

    $$\Gamma(\mu,x)=\sum_hW^h\int V^hy\ \pi_h(dy|x),\qquad
      \pi_h(dy|x)\propto e^{A(Q^hx,\,K^hy)+g_h(y)}\,\mu(dy),$$

    where the affinity is $A$ and the normaliser chooses $g$ (or another relation altogether). The
    mass of a token counts: weights enter as $\log a_j$ in the scores, so doubling a weight is
    repeating a token. Matrices start as random as those of `torch.nn.MultiheadAttention`.

    Args:
        dim: dimension of queries and images.
        heads: number of heads.
        head_dim: dimension $k$ of each head, by default `dim / heads` rounded up: all heads
            together are as large as one, as in PyTorch. `head_dim=dim` gives heads of full size,
            as many as `heads` times the parameters. Heads need not divide anything.
        context_dim: dimension of the context for cross-attention; by default the context is where
            the queries are.
        affinity: `Dot()` or `SquaredDistance(eps)`.
        normaliser: `Softmax()`, `Sinkhorn(tol=...)`, `Sinkhorn(steps=...)`, `DualSoftmax()`,
            `Sigmoid()`, `Exponential()`, `Bilinear()` or `Hardmax()`.
        mask: `Causal()` or None.
        impl: implementation of the reductions, None to choose by size.

    Examples:
        >>> gamma = pf.Attention(2, heads=2)
        >>> mu = pf.Measure(torch.randn(256, 2))
        >>> gamma(mu, torch.zeros(5, 2)).shape, gamma.push(mu).n
        (torch.Size([5, 2]), 256)
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 1,
        head_dim: int | None = None,
        context_dim: int | None = None,
        affinity: PointAffinity | None = None,
        normaliser: Normaliser | None = None,
        mask: Causal | None = None,
        impl: ops.Impl | None = None,
    ) -> None:
        check_sizes(dim=dim, heads=heads)
        check_optional_sizes(head_dim=head_dim, context_dim=context_dim)
        affinity = Dot() if affinity is None else affinity
        normaliser = Softmax() if normaliser is None else normaliser
        super().__init__(affinity, normaliser, mask, impl)
        self.dim, self.out_dim = dim, dim
        self.context_dim = dim if context_dim is None else context_dim
        self.head_dim = -(-dim // heads) if head_dim is None else head_dim  # rounded up
        self.heads = heads
        self.paired = self.two_sided and context_dim is not None
        width = heads * self.head_dim
        self.Q = _projection(dim, width)
        self.K = _projection(self.context_dim, width)
        self.V = _projection(self.context_dim, width)
        self.W = nn.Linear(width, dim, bias=False)

    def queries(self, x: Queries) -> Float[Tensor, "*b h m k"]:
        return self._split(self.Q(x))

    def keys(self, y: Points) -> Float[Tensor, "*b h n k"]:
        return self._split(self.K(y))

    def values(self, y: Points) -> Float[Tensor, "*b h n c"]:
        return self._split(self.V(y))

    def combine_heads(self, out: Float[Tensor, "*b h m c"], x: Queries) -> Images:
        return self.W(out.transpose(-2, -3).flatten(-2))

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""$Q^h$ and $K^h$, `(heads, k, d)`, and $W^hV^h$, `(heads, d, d)`, detached."""
        cut = lambda weight: weight.detach().unflatten(0, (self.heads, self.head_dim))
        W = self.W.weight.detach().unflatten(1, (self.heads, self.head_dim)).movedim(1, 0)
        return cut(self.Q.weight), cut(self.K.weight), W.double() @ cut(self.V.weight).double()

    def _split(self, x: Tensor) -> Tensor:
        """`(..., n, heads * k)` to `(..., heads, n, k)`."""
        return x.reshape(*x.shape[:-1], self.heads, self.head_dim).transpose(-2, -3)


def _projection(dim: int, width: int) -> nn.Linear:
    """A matrix of queries, keys or values, drawn as `nn.MultiheadAttention` draws it.

    That is Xavier's uniform law for the three matrices as one. The law of `nn.Linear` has two
    thirds of its variance, and networks with it train more slowly.
    """
    where = torch.empty(0).device  # PyTorch 2.9 cannot name the default after it was taken back
    linear = nn.utils.skip_init(nn.Linear, dim, width, bias=False, device=where)
    bound = math.sqrt(6 / (dim + 3 * width))
    nn.init.uniform_(linear.weight, -bound, bound)
    return linear


def _times(mu: Measure, t: Tensor | None) -> tuple[Tensor, Tensor]:
    """Times of queries and atoms, with an axis for the heads."""
    if mu.times is None or t is None:
        who = "The context" if mu.times is None else "The queries"
        how = "pf.Measure(atoms, times=...)" if mu.times is None else "gamma(mu, x, t)"
        raise ValueError(f"Causal attention needs times. {who} came without: use `{how}`.")
    return t[..., None, :], mu.times[..., None, :]
