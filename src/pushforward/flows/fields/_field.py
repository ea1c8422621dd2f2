"""Velocity fields: what they add to in-context maps, and fields made of other fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from operator import is_
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ..._tools.checks import check_finite, check_kind, check_number
from ...maps import (
    Answer,
    Composition,
    Container,
    InContextMap,
    Lipschitz,
    Residual,
    checked_bound,
    lipschitz_bound,
    relations_inside,
    with_children,
    within,
)
from ...measures import Measure
from ...relations import Relation
from ...sinkhorn import Starts
from ._manifolds import Euclidean, Manifold, projection_lipschitz

M = TypeVar("M", bound=nn.Module)


class Field(InContextMap, ABC):
    r"""A velocity $V[\mu](x)$ that says where points live and what their coordinates are.

    Any in-context map from a space into itself is a velocity in Euclidean space. Subclass `Field`
    for one on a manifold or of second order, and write `evaluate` or `condition` as for every
    in-context map.

    Examples:
        >>> class Rotation(pf.fields.Field):
        ...     manifold = pf.Sphere()
        ...     def evaluate(self, mu, x):
        ...         return torch.stack([-x[..., 1], x[..., 0]], -1)
        >>> start = pf.Measure(torch.tensor([[1.0, 0.0]]))
        >>> pf.flow(Rotation(), start, t1=torch.pi / 2)[-1].atoms.round(decimals=4).abs()
        tensor([[0., 1.]])
    """

    manifold: Manifold = Euclidean()
    """The manifold that points lie on and velocities are tangent to."""
    second_order: ClassVar[bool] = False
    """Whether tokens are pairs $(x,v)$ of positions and velocities."""


class TimeDependent(Field, ABC):
    r"""A velocity $V_t[\mu](x)$ that depends on time; an author writes `at_time`.

    It can be evaluated only at a time: in a flow, or as `field.at_time(t)`.

    Examples:
        >>> class Growing(pf.fields.TimeDependent):
        ...     def at_time(self, t):
        ...         return pf.Pointwise(lambda x: t * x)
        >>> pf.flow(Growing(), pf.Measure(torch.ones(1, 1)), t1=1.0)[-1].atoms  # exp(1/2)
        tensor([[1.6487]])
    """

    @abstractmethod
    def at_time(self, t: float) -> InContextMap:
        """The velocity at a time."""

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        raise ValueError(_needs_time(self))


def _needs_time(field: TimeDependent) -> str:
    return (
        f"{type(field).__name__} depends on time, and has no value outside a flow. Use it in "
        "`pf.Flow(field, t1=...)`, or choose a time: `pf.fields.at_time(field, t)`."
    )


@relations_inside.register(TimeDependent)
def _(gamma: TimeDependent, mu: Measure) -> list[Relation]:
    raise ValueError(_needs_time(gamma))


@singledispatch
def at_time(gamma: InContextMap, t: float) -> InContextMap:
    """Any in-context map at a time: itself, unless something inside depends on time.

    Args:
        gamma: the map.
        t: the time.
    """
    check_kind("gamma", gamma, InContextMap, "For example `pf.Attention(2)`.")
    check_finite("t", t)
    return gamma


@at_time.register(TimeDependent)
def _(gamma: TimeDependent, t: float) -> InContextMap:
    return gamma.at_time(t)


@at_time.register(Container)
def _(gamma: Container, t: float) -> InContextMap:
    parts = gamma.parts()
    now = [at_time(part, t) for part in parts]
    return gamma if all(map(is_, now, parts)) else gamma.with_parts(now)


def manifold_of(gamma: InContextMap) -> Manifold:
    """The manifold of any in-context map: Euclidean space, unless it is a `Field` on another."""
    return gamma.manifold if isinstance(gamma, Field) else Euclidean()


def is_second_order(gamma: InContextMap) -> bool:
    """Whether the tokens of any in-context map are pairs of positions and velocities."""
    if isinstance(gamma, Field) and gamma.second_order:
        return True
    return isinstance(gamma, Container) and any(map(is_second_order, gamma.parts()))


def summands(field: InContextMap) -> list[InContextMap]:
    """The parts of a `Sum`; none for any other field."""
    return list(field) if isinstance(field, Sum) else []


def _share_space(whole: Field, fields: Sequence[InContextMap], name: str = "fields") -> None:
    """Give a field the dimensions and the manifold of its parts; raise if these differ."""
    if not fields:
        raise ValueError("Expected at least one field, got none.")
    for field in fields:
        fix = "Make one of a module with `pf.Pointwise(module)`."
        check_kind(name, field, InContextMap, fix)
    for dim in ("dim", "context_dim", "out_dim"):
        sizes = {getattr(f, dim) for f in fields} - {None}
        if len(sizes) > 1:
            raise ValueError(f"Fields must share their space, got dimensions {sorted(sizes)}.")
        setattr(whole, dim, sizes.pop() if sizes else None)
    manifolds = {manifold_of(f) for f in fields}
    if len(manifolds) > 1:
        raise ValueError(f"Fields must share their manifold, got {sorted(map(str, manifolds))}.")
    whole.manifold = manifolds.pop()


class Sum(Container, Field):
    r"""The field $\sum_kV_k[\mu](x)$, such as attention plus MLP.

    `Euler` adds the parts and then moves; `LieSplit` moves by each in turn, as the layers of a
    transformer do.

    Args:
        fields: the parts.

    Examples:
        >>> field = pf.fields.Sum(pf.Attention(2), pf.MLP(2, 8))
        >>> len(list(field))
        2
    """

    def __init__(self, *fields: InContextMap) -> None:
        super().__init__()
        _share_space(self, fields)
        self.fields = nn.ModuleList(fields)

    def __iter__(self) -> Iterator[InContextMap]:
        """The parts."""
        return iter(self.parts())

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        first, *others = (
            part.condition(mu, queries, within(starts, f"{k}")) for k, part in enumerate(self)
        )

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            total = first(x, t)
            for other in others:
                total = total + other(x, t)
            return total

        return answer


@lipschitz_bound.register(Sum)
def _(gamma: Sum, radius: float) -> Lipschitz:
    """The sum of the bounds."""
    first, *others = (checked_bound(part, radius) for part in gamma)
    return sum(others, first)


class Tangent(Container, Field):
    """The tangent part of a field on a manifold.

    Args:
        field: any in-context map into its own space.
        manifold: the manifold that points lie on.

    Examples:
        >>> field = pf.fields.Tangent(pf.Attention(3), pf.Sphere())
        >>> mu = pf.Measure(torch.randn(9, 3)).push(pf.Sphere().retract)
        >>> (field(mu, mu.atoms) * mu.atoms).sum(-1).abs().max() < 1e-6
        tensor(True)
    """

    def __init__(self, field: InContextMap, manifold: Manifold) -> None:
        super().__init__()
        _share_space(self, [field], "field")
        check_kind("manifold", manifold, Manifold, "For example `pf.Sphere()`.")
        self.field, self.manifold = field, manifold

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        velocity = self.field.condition(mu, queries, within(starts, "field"))
        return lambda x, t: self.manifold.tangent(x, velocity(x, t))

    def extra_repr(self) -> str:
        return str(self.manifold)


@lipschitz_bound.register(Tangent)
def _(gamma: Tangent, radius: float) -> Lipschitz:
    """The bound of the field, and that of the projection of a vector as long as it."""
    bound = checked_bound(gamma.field, radius)
    return replace(bound, x=bound.x + projection_lipschitz(gamma.manifold, bound.reach))


class Layers(TimeDependent, Container):
    r"""Layers of one kind that follow each other in time, their tensors interpolated.

    Layer $\ell$ of $L$ is the field at time $\ell T/L$. Between two layers their tensors are
    interpolated linearly, and after the last they stay. So `Euler(steps=L)` on $[0,T]$ is the
    residual network of these layers with step $T/L$, and finer solvers are its depth limit.

    Args:
        layers: the layers, with tensors of the same names and shapes.
        t1: $T$.

    Examples:
        >>> layers = [pf.Attention(2, heads=2) for _ in range(6)]
        >>> field = pf.fields.Layers(layers)
        >>> mu = pf.Measure(torch.randn(9, 2))
        >>> flow = pf.Flow(field, t1=1.0, solver=pf.Euler(steps=6))
        >>> net = pf.Compose(*[pf.Residual(layer, step=1 / 6) for layer in layers])
        >>> torch.equal(flow.push(mu).atoms, net.push(mu).atoms)
        True
    """

    def __init__(self, layers: Sequence[InContextMap], *, t1: float = 1.0) -> None:
        super().__init__()
        if not isinstance(layers, Iterable) or isinstance(layers, str | Tensor):
            raise TypeError(f"`layers` must be a list of layers, got {type(layers).__name__}.")
        layers = list(layers)
        _share_space(self, layers, "layers")
        check_number("t1", t1)
        # Layers with other numbers of heads may have tensors of the same shapes.
        kinds = [[(type(m), m.extra_repr()) for m in layer.modules()] for layer in layers]
        tensors = [layer.state_dict(keep_vars=True) for layer in layers]
        shapes = [{name: p.shape for name, p in named.items()} for named in tensors]
        if any(s != shapes[0] for s in shapes) or any(k != kinds[0] for k in kinds):
            raise ValueError(
                "Layers must be of one kind, with the same heads and with tensors of the same "
                "names and shapes, to be interpolated."
            )
        self.layers, self.t1 = nn.ModuleList(layers), t1

    def at_time(self, t: float) -> InContextMap:
        layers = self.parts()
        position = min(max(t / self.t1 * len(layers), 0.0), len(layers) - 1.0)
        nearest = round(position)
        if abs(position - nearest) < 1e-9:  # times of a grid are exact only up to rounding
            return layers[nearest]
        before = int(position)
        return _interpolated(layers[before], layers[before + 1], position - before)

    def extra_repr(self) -> str:
        return f"t1={self.t1:g}"


def _interpolated(a: InContextMap, b: InContextMap, weight: float) -> InContextMap:
    """A copy of `a` with tensors interpolated towards those of `b`, differentiable in both."""
    new = _copied(a)
    for here, there in zip(new.modules(), b.modules(), strict=True):
        for kind in ("_parameters", "_buffers"):
            own, others = getattr(here, kind), getattr(there, kind)
            for name, p in own.items():
                if p is not None and p.is_floating_point():
                    own[name] = torch.lerp(p, others[name], weight)
    return new


def _copied(module: M) -> M:
    """A copy of a module and the modules inside, which share their tensors."""
    return with_children(module, _copied)


def of_transformer(model: Composition) -> Sum:
    r"""The depth limit of a transformer: the field $\mathcal A_t+H_t$, interpolated in depth.

    With `LieSplit(steps=L)` on $[0,Lh]$ its flow is the transformer of $L$ blocks with step $h$
    itself; finer solvers show what it would be with more blocks in between.

    Args:
        model: `pf.Transformer(dim, depth=L, step=h)` without LayerNorm or with `PreNorm`.

    Examples:
        >>> model = pf.Transformer(2, depth=4, step=0.25)
        >>> field = pf.fields.of_transformer(model)
        >>> mu = pf.Measure(torch.randn(9, 2))
        >>> flow = pf.Flow(field, t1=1.0, solver=pf.flows.LieSplit(steps=4))
        >>> torch.equal(flow.push(mu).atoms, model.push(mu).atoms)
        True
    """
    check_kind("model", model, Composition, "Use a `pf.Transformer`.")
    blocks = [m for m in model if isinstance(m, Residual)]
    steps = {m.step for m in blocks}
    if len(blocks) != len(model) or len(blocks) % 2 or len(steps) != 1:
        raise ValueError(
            "A depth limit needs residual attention and MLPs in turn, all of one step, and "
            "nothing else: no `width`, `out_dim` or `PostNorm`."
        )
    t1 = len(blocks) / 2 * steps.pop()
    inner = [m.gamma for m in blocks]
    return Sum(Layers(inner[::2], t1=t1), Layers(inner[1::2], t1=t1))


def register_tensors(module: nn.Module, **tensors: Tensor) -> None:
    """Register an `nn.Parameter` as a parameter, any other tensor as a buffer."""
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
