r"""In-context maps $\Gamma(\mu,x)$: one interface, currying, composition."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from .._tools.checks import (
    check_context,
    check_kind,
    check_number,
    check_parameters,
    check_shape,
    holds,
)
from .._tools.types import Images, Queries, Times
from ..measures import Measure, Transport
from ..relations import Relation
from ._lipschitz import Lipschitz
from ._manifolds import Euclidean, Manifold

Answer = Callable[[Tensor, Tensor | None], Tensor]
r"""The map $\Gamma(\mu,\cdot)$ of points and their times, with the context's work done."""


_TOKENS = "Tokens become one with `pf.Measure(tokens)`."


class InContextMap(nn.Module, ABC):
    r"""A map $\Gamma:(\mu,x)\mapsto\Gamma(\mu,x)$ of a context and a point.

    An author writes `evaluate` and gets calls with checks, currying, push-forward and composition:

    Examples:
        >>> class Attract(pf.InContextMap):
        ...     def evaluate(self, mu, x):
        ...         return mu.mean()[..., None, :] - x
        >>> mu = pf.Measure(torch.tensor([[0.0], [2.0]]))
        >>> (Attract() @ Attract()).push(mu).atoms
        tensor([[-1.],
                [ 1.]])
    """

    dim: int | None = None
    """Dimension of the queries, where the map prescribes one."""
    context_dim: int | None = None
    """Dimension of the context, where the map prescribes one."""
    out_dim: int | None = None
    """Dimension of the images, where the map prescribes one."""
    causal: bool = False
    """Whether the map reads times: a query at time $t$ sees the atoms at times $s\\le t$."""
    two_sided: bool = False
    """Whether the map relates two measures: that of the queries, if given, and the context."""
    paired: bool = False
    """Whether it must be given a measure of queries."""
    manifold: Manifold = Euclidean()
    """Where the points live, for maps that are velocities."""

    def __init_subclass__(cls, **kwargs):
        """Refuse a map that says it is causal and never gets to see a time."""
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("causal") and cls.condition is InContextMap.condition:
            raise TypeError(
                f"{cls.__name__} is causal, but `evaluate(mu, x)` is not given times. Subclass "
                "`pf.maps.Conditioned` and write `condition(mu, queries=None)`, which returns a "
                "function of points and times."
            )

    @abstractmethod
    def evaluate(self, mu: Measure, x: Queries) -> Images:
        r"""$\Gamma(\mu,x)$ at points `x`, `(..., m, d)`, whose shape, dtype and device fit."""

    def condition(self, mu: Measure, queries: Measure | None = None) -> Answer:
        r"""$\Gamma(\mu,\cdot)$, the context's share of the work done once.

        `queries` is the measure of the queries, for maps that relate two measures. Times reach
        maps that read them; here they are dropped.
        """
        return lambda x, t: self.evaluate(mu, x)

    def answer(
        self, mu: Measure, x: Tensor, t: Tensor | None, queries: Measure | None = None
    ) -> Tensor:
        """Condition on the context and ask once."""
        return self.condition(mu, queries)(x, t)

    def advance(self, mu: Measure) -> Measure:
        """The push-forward, unchecked."""
        return mu.moved(self.condition(mu)(mu.atoms, mu.times))

    def forward(
        self, mu: Measure, x: Queries | Measure | None = None, t: Times | None = None
    ) -> Images:
        r"""$\Gamma(\mu,x)$ at any queries, atoms of `mu` or not.

        Args:
            mu: the context.
            x: the queries `(..., m, d)`; their batch axes broadcast with those of `mu`. A
                `Measure` brings its times, and is the other side of maps that relate two measures.
            t: times of the queries, for causal maps.
        """
        queries = None
        if x is None:
            raise TypeError(
                "An in-context map takes a context and queries: `gamma(mu, x)`. To move the "
                "context itself: `gamma.push(mu)`, with `mu = pf.Measure(tokens)`."
            )
        if isinstance(x, Measure):
            queries = x
            x, t = queries.atoms, queries.times if t is None else t
        self._check(mu, x, t)
        if self.paired and queries is None:
            raise ValueError(
                "This map relates two measures, and queries without weights are not one. "
                "Pass the queries as a measure: `gamma(mu, pf.Measure(x))`."
            )
        return _for_each_context(mu, self.answer(mu, x, t, queries))

    def at(self, mu: Measure) -> At:
        r"""The map $\Gamma(\mu,\cdot)$, ready for `push` or for many calls with one context."""
        check_kind("mu", mu, Measure, _TOKENS)
        return At(self, mu)

    def push(self, mu: Measure) -> Measure:
        r"""The map between measures $\mu\mapsto\Gamma(\mu,\cdot)_\sharp\mu$."""
        check_kind("mu", mu, Measure, _TOKENS)
        self._check(mu, mu.atoms, mu.times)
        return self.advance(mu)

    def at_time(self, t: float) -> InContextMap:
        """The map at a time of a flow: itself, unless it is a field that depends on time."""
        return self

    def relations(self, mu: Measure) -> list[Relation]:
        """The relations of all attention layers inside, in order, each with its heads.

        Args:
            mu: the context; deeper layers see what the layers before made of it.

        Examples:
            >>> model = pf.Transformer(2, depth=3, heads=4)
            >>> model.relations(pf.Measure(torch.randn(9, 2)))[-1]
            Conditional(9 queries, 9 keys, batch (4,))
        """
        return []

    def lipschitz(self, radius: float) -> Lipschitz:
        r"""A certain bound for contexts and queries in the ball of a radius, from the formula.

        $|\Gamma(\mu,x)-\Gamma(\nu,y)|\le L_x|x-y|+L_\mu W_1(\mu,\nu)$. Maps whose formula gives
        none raise `NotImplementedError`. For fields on a sphere it holds on the sphere.

        Args:
            radius: of the ball around the origin.

        Examples:
            >>> bound = pf.Attention(2).lipschitz(radius=1.0)
            >>> bound.measure == bound.x + bound.mu
            True
        """
        check_number("radius", radius)
        return self.bound(float(radius))

    def bound(self, radius: float) -> Lipschitz:
        """`lipschitz` for a radius known to be good."""
        raise NotImplementedError(
            f"No Lipschitz bound of {type(self).__name__} is known here. A map of yours gives one "
            "by its method `bound(radius)`."
        )

    def __matmul__(self, first: InContextMap) -> Compose:
        r"""Composition: `(gamma2 @ gamma1)` applies `gamma1` first."""
        return Compose(first, self)

    def _check(self, mu: Measure, x: Tensor, t: Tensor | None) -> None:
        """Shapes, dtypes, devices; values only of times that a user gave."""
        check_kind("mu", mu, Measure, _TOKENS)
        check_context(mu, x, (self.dim, self.context_dim))
        check_parameters(self, mu.atoms)
        if t is not None and t is not mu.times:
            self._check_times(mu, x, t)

    def _check_times(self, mu: Measure, x: Tensor, t: Tensor) -> None:
        check_shape("t", t, x.shape[:-1], "One time per query.")
        if mu.times is None:
            raise ValueError(
                "Queries have times but the context has none. Build it with "
                "`pf.Measure(atoms, times=...)`."
            )
        reads = any(m.causal for m in self.modules() if isinstance(m, InContextMap))
        if reads and t.numel() and not holds((t.amin(-1) >= mu.times.amin(-1)).all()):
            raise ValueError(
                "A query earlier than every token of its context attends to nothing: the earliest "
                f"query is at time {t.min().item():g}, the context begins at "
                f"{mu.times.amin(-1).max().item():g}. Give the context a token at or before it."
            )


class Conditioned(InContextMap, ABC):
    """An in-context map whose author writes `condition` instead of `evaluate`."""

    @abstractmethod
    def condition(self, mu: Measure, queries: Measure | None = None) -> Answer:
        """Do the context's work, return the map of points and times."""

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Condition on the context and ask once, without times."""
        return self.answer(mu, x, None)


class At(Transport):
    r"""The map $\Gamma(\mu,\cdot)$, ready for `push` or for many calls.

    Without gradients the context's work is done at the first call and kept, until a parameter or
    buffer changes. With gradients every call does it anew, so that each has a graph of its own.
    """

    def __init__(self, gamma: InContextMap, mu: Measure):
        self.gamma, self.mu = gamma, mu
        self._kept: tuple[list, Answer] | None = None

    def __call__(self, x: Queries | Measure, t: Times | None = None) -> Images:
        """As `gamma(mu, x, t)`."""
        fleeting = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if fleeting or isinstance(x, Measure) or self.gamma.paired:
            return self.gamma(self.mu, x, t)
        self.gamma._check(self.mu, x, t)
        state = self._state()
        if self._kept is None or not _same_state(self._kept[0], state):
            self._kept = state, self.gamma.condition(self.mu)
        return _for_each_context(self.mu, self._kept[1](x, t))

    def _state(self) -> list:
        """All that the context's work depends on, to be compared by identity."""
        kind = self.mu.atoms.device.type
        tensors = [*self.gamma.parameters(), *self.gamma.buffers()]
        versions = [None if t.is_inference() else t._version for t in tensors]
        cast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        return [cast, versions, *tensors]

    def transport(self, mu: Measure) -> Measure:
        """Move a measure; the context itself goes through each layer once."""
        if mu is self.mu:
            return self.gamma.push(mu)
        return mu.moved(self(mu) if self.gamma.paired else self(mu.atoms, mu.times))


def _same_state(a: list, b: list) -> bool:
    return a[:2] == b[:2] and len(a) == len(b) and all(map(operator.is_, a[2:], b[2:]))


def _for_each_context(mu: Measure, y: Tensor) -> Tensor:
    """One answer for each context of a batch, also from a map that did not look at them."""
    if not mu.batch_shape or y.shape[:-2] == mu.batch_shape:
        return y
    return y.expand(*torch.broadcast_shapes(mu.batch_shape, y.shape[:-2]), *y.shape[-2:])


class Compose(Conditioned):
    r"""The composition $\Gamma_L\diamond\dots\diamond\Gamma_1$ of eq. (8), first map first.

    $$(\Gamma_2\diamond\Gamma_1)(\mu,x)=\Gamma_2\bigl(\Gamma_1(\mu,\cdot)_\sharp\mu,\
      \Gamma_1(\mu,x)\bigr).$$

    Its push-forward is the iterated push-forward, each layer evaluated once. Queries that ride
    along share each layer's context work, and the atoms come out bit for bit the same with or
    without them.

    Examples:
        >>> double = pf.Pointwise(lambda x: 2 * x)
        >>> pf.Compose(double, pf.Residual(double)).push(pf.Measure(torch.ones(1, 1))).atoms
        tensor([[6.]])
    """

    def __init__(self, *maps: InContextMap):
        super().__init__()
        if not maps:
            raise ValueError("A composition needs at least one map, got none.")
        for gamma in maps:
            fix = "Wrap a module in `pf.Pointwise(module)`; a list of maps is `Compose(*maps)`."
            check_kind("maps", gamma, InContextMap, fix)
        for before, after in zip(maps, maps[1:], strict=False):
            if before.dim != before.context_dim:
                raise ValueError(
                    f"Only the last map of a composition may be cross-attention, got "
                    f"{type(before).__name__} from R^{before.context_dim} to R^{before.dim}: the "
                    "maps after it need to know what became of its context."
                )
            if None not in (before.out_dim, after.dim) and before.out_dim != after.dim:
                raise ValueError(
                    f"Maps do not fit: {type(before).__name__} ends in R^{before.out_dim}, "
                    f"{type(after).__name__} begins in R^{after.dim}."
                )
        self.maps = nn.ModuleList(maps)
        self.dim, self.context_dim = maps[0].dim, maps[0].context_dim
        self.out_dim = maps[-1].out_dim
        for trait in ("causal", "two_sided", "paired"):
            setattr(self, trait, any(getattr(gamma, trait) for gamma in maps))

    def at_time(self, t: float) -> InContextMap:
        """Every map at that time."""
        now = [gamma.at_time(t) for gamma in self]
        same = all(map(operator.is_, now, self))
        return self if same else Compose(*now)

    def condition(self, mu: Measure, queries: Measure | None = None) -> Answer:
        """Push the context through, and keep each layer's work for the queries to come."""
        stages = list(self._stages(mu, queries))
        return lambda x, t: _walk(stages, x, t)

    def answer(
        self, mu: Measure, x: Tensor, t: Tensor | None, queries: Measure | None = None
    ) -> Tensor:
        """Move queries and context together; only one layer's work is kept at a time."""
        return _walk(self._stages(mu, queries), x, t)

    def advance(self, mu: Measure) -> Measure:
        """Push through each layer once."""
        for gamma in self:
            mu = gamma.advance(mu)
        return mu

    def relations(self, mu: Measure) -> list[Relation]:
        """Those of every map, on what the maps before made of the context."""
        check_kind("mu", mu, Measure, _TOKENS)
        self._check(mu, mu.atoms, mu.times)
        found = []
        for gamma in self:
            found += gamma.relations(mu)
            mu = gamma.advance(mu)
        return found

    def bound(self, radius: float) -> Lipschitz:
        """Bound after bound, each in the ball that the images before lie in."""
        first, *others = self
        found = first.bound(radius)
        for gamma in others:
            found = found.then(gamma.bound(found.reach))
        return found

    def __iter__(self) -> Iterator[InContextMap]:
        """The maps, first map first."""
        return cast(Iterator[InContextMap], iter(self.maps))

    def __len__(self) -> int:
        """Number of maps."""
        return len(self.maps)

    def _stages(self, mu: Measure, queries: Measure | None) -> Iterator[Answer]:
        """Each layer's map of points, its context being what the layers before made of `mu`."""
        *inner, last = self
        queries = queries if self.two_sided else None
        for gamma in inner:
            own = gamma.condition(mu)
            asked = own if queries is None or not gamma.two_sided else gamma.condition(mu, queries)
            yield asked
            mu = mu.moved(own(mu.atoms, mu.times))
            if queries is not None:
                queries = queries.moved(asked(queries.atoms, queries.times))
        yield last.condition(mu, queries)


def _walk(stages: Iterable[Answer], x: Tensor, t: Tensor | None) -> Tensor:
    for stage in stages:
        x = stage(x, t)
    return x
