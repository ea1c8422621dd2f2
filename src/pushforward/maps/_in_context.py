r"""In-context maps $\Gamma(\mu,x)$: what an author writes, and what every map then can do."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from functools import partial, singledispatch, wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor, nn

from .._tools.checks import (
    check_call,
    check_context,
    check_kind,
    check_number,
    check_parameters,
    check_same,
    check_shape,
    holds,
)
from .._tools.types import Images, Queries, Times
from ..measures import Measure, Transport, check_measures
from ..relations import Relation
from ..sinkhorn import Starts
from ._lipschitz import Lipschitz, checked_bound
from ._stages import Answer, advance, for_each_context, layers, stages, walk

if TYPE_CHECKING:
    from ._composition import Compose


F = TypeVar("F", bound=Callable)
M = TypeVar("M", bound=nn.Module)


def _either(method: F) -> F:
    """Mark `evaluate` and `condition` abstract, each with a default in terms of the other.

    `abstractmethod` would tell a type checker that both must be written.
    """

    @wraps(method)
    def abstract(*args: object, **kwargs: object) -> object:
        return method(*args, **kwargs)

    abstract.__isabstractmethod__ = True  # type: ignore[attr-defined]
    return abstract  # type: ignore[return-value]


class InContextMap(nn.Module, ABC):
    r"""A map $\Gamma:(\mu,x)\mapsto\Gamma(\mu,x)$ of a context and a point [A, Def. 2].

    An author writes one of two methods: `evaluate(mu, x)`, the value at points, or
    `condition(mu, queries=None, starts=None)`, which does the work that depends on the context
    alone and returns a function of points and times. The class adds checked calls, push-forward
    and composition.

    Examples:
        >>> class Attract(pf.InContextMap):
        ...     def evaluate(self, mu, x):
        ...         return mu.mean()[..., None, :] - x
        >>> mu = pf.Measure(torch.tensor([[0.0], [2.0]]))
        >>> (Attract() @ Attract()).push(mu).atoms
        tensor([[-1.],
                [ 1.]])

        The same map, its barycentre computed once for all queries:

        >>> class Attract(pf.InContextMap):
        ...     def condition(self, mu, queries=None, starts=None):
        ...         centre = mu.mean()[..., None, :]
        ...         return lambda x, t: centre - x
        >>> Attract()(mu, torch.tensor([[5.0]]))
        tensor([[-4.]])
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
    """Whether images depend on the measure of all queries, as if both measures are coupled. Where
    queries are plain points, the context stands in for their measure."""
    paired: bool = False
    """Whether plain points are refused, since the context, in another space, cannot stand in."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Derive `condition` from `evaluate` or `evaluate` from `condition`."""
        super().__init_subclass__(**kwargs)
        own = [name for name in ("evaluate", "condition") if name in cls.__dict__]
        for name in own:
            arguments = "mu, x" if name == "evaluate" else "mu, queries, starts"
            method = partial(getattr(cls, name), None)
            check_call(f"{cls.__name__}.{name}", method, arguments)
        if own == ["evaluate"]:
            if cls.__dict__.get("causal"):
                raise TypeError(
                    f"{cls.__name__} is causal, but `evaluate(mu, x)` is not given times. Write "
                    "`condition(mu, queries=None, starts=None)` instead, which returns a function "
                    "of points and times."
                )
            cls.condition = InContextMap.condition.__wrapped__  # type: ignore
        elif own == ["condition"]:
            cls.evaluate = InContextMap.evaluate.__wrapped__  # type: ignore
        elif own or (ABC not in cls.__bases__ and hasattr(cls.evaluate, "__isabstractmethod__")):
            raise TypeError(
                f"{cls.__name__} must write exactly one of `evaluate(mu, x)` and "
                "`condition(mu, queries=None, starts=None)`, got "
                f"{'both' if own else 'neither'}. (An abstract class of maps lists `ABC` among "
                "its bases.)"
            )

    @_either
    def evaluate(self, mu: Measure, x: Queries) -> Images:
        r"""$\Gamma(\mu,x)$ at points `x`, `(..., m, d)`, whose shape, dtype and device fit."""
        return self.condition(mu)(x, None)

    @_either
    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        r"""Fix the context: the function $\Gamma(\mu,\cdot)$ of points and their times.

        Whatever needs the context only (keys, values, a Sinkhorn solve) is computed here, once;
        what is returned does the rest for any points. Nothing is checked: calling the map does.

        Args:
            mu: the context.
            queries: the measure that the points will be taken from, if the map is `two_sided`.
            starts: in a flow, where Sinkhorn solves start from; a map made of others hands
                `within(starts, name)` to each of its parts.
        """
        return lambda x, t: self.evaluate(mu, x)

    def forward(
        self, mu: Measure, x: Queries | Measure | None = None, t: Times | None = None
    ) -> Images:
        r"""$\Gamma(\mu,x)$ at any queries, atoms of `mu` or not.

        Args:
            mu: the context.
            x: the queries `(..., m, d)`; their batch axes broadcast with those of `mu`. A
                `Measure` brings its times, and is the first of the two measures for maps that
                relate two.
            t: times of the queries, for causal maps.
        """
        if x is None:
            raise TypeError(_alone(self, mu))
        queries = None
        if isinstance(x, Measure):
            queries = x
            x, t = queries.atoms, queries.times if t is None else t
        self._check(mu, x, t)
        if self.paired and queries is None:
            raise ValueError(
                "This map relates two measures, and queries without weights are not one. "
                "Pass the queries as a measure: `gamma(mu, pf.Measure(x))`."
            )
        # Layer by layer: the keys and values of only one layer are in memory at a time.
        return for_each_context(mu, walk(stages(layers(self), mu, queries), x, t), 2)

    def at(self, mu: Measure) -> At:
        r"""The map $\Gamma(\mu,\cdot)$, a function of points that can push measures."""
        check_measures(mu=mu)
        return At(self, mu)

    def push(self, mu: Measure) -> Measure:
        r"""The map between measures $\mu\mapsto\Gamma(\mu,\cdot)_\sharp\mu$."""
        self._check(mu)
        return advance(self, mu)

    def relations(self, mu: Measure) -> list[Relation]:
        """The relations of all attention layers inside, in order, each with its heads.

        Args:
            mu: the context; deeper layers see what the layers before made of it.

        Examples:
            >>> model = pf.Transformer(2, depth=3, heads=4)
            >>> model.relations(pf.Measure(torch.randn(9, 2)))[-1]
            Conditional(9 queries, 9 keys, batch (4,))
        """
        self._check(mu)
        return relations_inside(self, mu)

    def lipschitz(self, radius: float) -> Lipschitz:
        r"""A certain bound for contexts and queries in the ball of a radius, from the formula.

        $|\Gamma(\mu,x)-\Gamma(\nu,y)|\le L_x|x-y|+L_\mu W_1(\mu,\nu)$ for $\mu,\nu$ of equal mass.
        Maps whose formula gives none raise `NotImplementedError`; a map of your own gives one by
        `pf.maps.lipschitz_bound.register`. For fields on a sphere it holds on the sphere.

        Args:
            radius: of the ball around the origin.

        Examples:
            >>> bound = pf.Attention(2).lipschitz(radius=1.0)
            >>> bound.measure == bound.x + bound.mu
            True
        """
        check_number("radius", radius)
        return checked_bound(self, float(radius))

    def __matmul__(self, first: InContextMap) -> Compose:
        r"""Composition: `(gamma2 @ gamma1)` applies `gamma1` first."""
        from ._composition import Compose

        check_kind("first", first, InContextMap, "`gamma2 @ gamma1` applies `gamma1` first.")
        return Compose(first, self)

    def _check(self, mu: Measure, x: Tensor | None = None, t: Tensor | None = None) -> None:
        """Raise unless queries, the atoms by default, fit; reads values only of given times."""
        check_measures(mu=mu)
        x = mu.atoms if x is None else x
        check_context(mu, x, (self.dim, self.context_dim))
        check_parameters(self, mu.atoms)
        if t is None or t is mu.times:
            return
        check_shape("t", t, x.shape[:-1], "One time per query.")
        check_same("device", ("x", x), ("t", t))
        if mu.times is None:
            raise ValueError(
                "Queries have times but the context has none. Build it with "
                "`pf.Measure(atoms, times=...)`."
            )
        if self.causal and t.numel() and not holds((t.amin(-1) >= mu.times.amin(-1)).all()):
            raise ValueError(
                "A query earlier than every token of its context attends to nothing: the earliest "
                f"query is at time {t.min().item():g}, the context begins at "
                f"{mu.times.amin(-1).max().item():g}. Give the context a token at or before it."
            )


def _alone(gamma: InContextMap, mu: object) -> str:
    """What to say about a map that was called without queries."""
    name = type(gamma).__name__
    if isinstance(mu, Measure):
        return (
            f"{name} was called with a measure and no queries. It takes a context and queries: "
            "`gamma(mu, x)`. To move the measure itself: `gamma.push(mu)`. `nn.Sequential` gives "
            "its modules one argument: use `pf.Compose(*maps)` instead, or `pf.Pool(gamma)` in it "
            "for one vector per measure."
        )
    return (
        f"{name} was called with {type(mu).__name__} alone. An in-context map takes a context and "
        "queries: `gamma(mu, x)`. To move the context itself: `gamma.push(mu)`, with "
        "`mu = pf.Measure(tokens)`."
    )


class At(Transport):
    r"""The map $\Gamma(\mu,\cdot)$: a function of points that can push measures.

    Every call does the context's work anew, with a graph of its own, and sees parameters as they
    are then. To do it once for many calls, take `answer = gamma.condition(mu)` and call
    `answer(x, None)`, unchecked.
    """

    def __init__(self, gamma: InContextMap, mu: Measure) -> None:
        self.gamma, self.mu = gamma, mu

    def __call__(self, x: Queries | Measure, t: Times | None = None) -> Images:
        """As `gamma(mu, x, t)`."""
        if x is None:
            raise TypeError("`x` must be points or a Measure, got None.")
        return self.gamma(self.mu, x, t)

    def transport(self, mu: Measure) -> Measure:
        """Move a measure; the context itself goes through each layer once."""
        if mu is self.mu:
            return self.gamma.push(mu)
        return mu.moved(self(mu) if self.gamma.paired else self(mu.atoms, mu.times))


class Container(InContextMap, ABC):
    """An in-context map made of others, its parts.

    The parts are the in-context maps among its attributes, also those in an `nn.ModuleList`. An
    author writes `evaluate` or `condition`; what the map reads and which relations it has inside
    follow from its parts.
    """

    sequential: ClassVar[bool] = False
    """Whether each part is applied to what the parts before made of context and queries; if not,
    every part sees the context of the whole."""
    residual: ClassVar[bool] = False
    """Whether it moves points by `step` times their images under its only part, `gamma`."""

    def parts(self) -> Sequence[InContextMap]:
        """The maps directly inside, in the order in which they were registered."""
        return list(_maps_inside(self))

    def with_parts(self, parts: Sequence[InContextMap]) -> InContextMap:
        """A copy with other parts between the same spaces; all else is shared."""
        count = len(self.parts())
        if not isinstance(parts, Sequence) or len(parts) != count:
            got = len(parts) if isinstance(parts, Sequence) else type(parts).__name__
            raise ValueError(f"`parts` must be a list of {count} maps, got {got}.")
        for part in parts:
            check_kind("parts", part, InContextMap, "They replace those of `parts()`.")
        others = iter(parts)

        def change(module: nn.Module) -> nn.Module:
            if isinstance(module, InContextMap):
                return next(others)
            return with_children(module, change)

        return with_children(self, change)

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """Whether some part is."""
        return any(part.causal for part in self.parts())

    @property
    def two_sided(self) -> bool:  # type: ignore[override]
        """Whether some part is."""
        return any(part.two_sided for part in self.parts())

    @property
    def paired(self) -> bool:  # type: ignore[override]
        """Whether some part is."""
        return any(part.paired for part in self.parts())


def _maps_inside(module: nn.Module) -> Iterator[InContextMap]:
    for child in module._modules.values():  # `children()` leaves out a module that comes again
        if isinstance(child, InContextMap):
            yield child
        elif child is not None:
            yield from _maps_inside(child)


def with_children(module: M, change: Callable[[Any], Any]) -> M:
    """A copy of a module whose children are changed; tensors and other attributes are shared."""
    new = copy.copy(module)
    for kind in ("_parameters", "_buffers"):
        new.__dict__[kind] = dict(getattr(module, kind))
    children = {name: m if m is None else change(m) for name, m in module._modules.items()}
    new.__dict__["_modules"] = children
    return new


@singledispatch
def relations_inside(gamma: InContextMap, mu: Measure) -> list[Relation]:
    """The relations of all attention inside a map, unchecked.

    There are none by default; a kind of map that has some is registered.
    """
    return []


@relations_inside.register(Container)
def _(gamma: Container, mu: Measure) -> list[Relation]:
    found: list[Relation] = []
    for part in gamma.parts():
        found += relations_inside(part, mu)
        if gamma.sequential:
            mu = advance(part, mu)
    return found
