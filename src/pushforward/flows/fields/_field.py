"""Fields made of others: sums, tangent parts, layers that follow each other in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from ..._tools.checks import check_kind, check_number
from ...maps import (
    Answer,
    Composition,
    Container,
    Euclidean,
    InContextMap,
    Lipschitz,
    Manifold,
    Residual,
    Starts,
    lipschitz_bound,
    relations_inside,
    within,
)
from ...measures import Measure
from ...relations import Relation
from ._hold import copied

_FIX = "A module becomes one with `pf.Pointwise(module)`."


def adopt(self: InContextMap, fields: Sequence[InContextMap]) -> None:
    """Check fields that act on one space, and take over what they say about it."""
    if not fields:
        raise ValueError("Expected at least one field, got none.")
    for field in fields:
        check_kind("fields", field, InContextMap, _FIX)
    for name in ("dim", "context_dim", "out_dim"):
        sizes = {getattr(f, name) for f in fields} - {None}
        if len(sizes) > 1:
            raise ValueError(f"Fields must share their space, got dimensions {sorted(sizes)}.")
        setattr(self, name, sizes.pop() if sizes else None)
    manifolds = {manifold_of(f) for f in fields}
    if len(manifolds) > 1:
        raise ValueError(f"Fields must share their manifold, got {sorted(map(str, manifolds))}.")
    setattr(self, "manifold", manifolds.pop())  # noqa: B010


class Sum(Container):
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

    def __init__(self, *fields: InContextMap):
        super().__init__()
        adopt(self, fields)
        self.fields = nn.ModuleList(fields)

    def __iter__(self) -> Iterator[InContextMap]:
        """The parts."""
        return cast(Iterator[InContextMap], iter(self.fields))

    def parts(self) -> Sequence[InContextMap]:
        return tuple(self)

    def with_parts(self, parts: Sequence[InContextMap]) -> Sum:
        return Sum(*parts)

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        answers = [
            part.condition(mu, queries, within(starts, f"{k}")) for k, part in enumerate(self)
        ]

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            first, *others = answers
            total = first(x, t)
            for other in others:
                total = total + other(x, t)
            return total

        return answer


class Projected(Container):
    """The tangent part of a field on a manifold.

    Args:
        field: any in-context map into its own space.
        manifold: where points live.

    Examples:
        >>> field = pf.fields.Projected(pf.Attention(3), pf.Sphere())
        >>> mu = pf.Measure(torch.randn(9, 3)).push(pf.Sphere().retract)
        >>> (field(mu, mu.atoms) * mu.atoms).sum(-1).abs().max() < 1e-6
        tensor(True)
    """

    def __init__(self, field: InContextMap, manifold: Manifold):
        super().__init__()
        adopt(self, [field])
        check_kind("manifold", manifold, Manifold, "Use `pf.Sphere()`, say.")
        self.field, self.manifold = field, manifold

    def parts(self) -> Sequence[InContextMap]:
        return (self.field,)

    def with_parts(self, parts: Sequence[InContextMap]) -> Projected:
        (field,) = parts
        return Projected(field, self.manifold)

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        inner = self.field.condition(mu, queries, within(starts, "field"))
        return lambda x, t: self.manifold.tangent(x, inner(x, t))

    def extra_repr(self) -> str:
        """Where points live."""
        return str(self.manifold)


class Layers(Container):
    r"""Layers of one kind that follow each other in time, their tensors interpolated.

    Layer $\ell$ of $L$ is the field at time $\ell T/L$; between, their tensors are interpolated
    linearly, and after the last they stay. So `Euler(steps=L)` on $[0,T]$ is the residual network
    of these layers with step $T/L$, and finer solvers are its depth limit.

    Args:
        layers: the layers, with parameters of the same names and shapes.
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

    def __init__(self, layers: Sequence[InContextMap], *, t1: float = 1.0):
        super().__init__()
        adopt(self, list(layers))
        check_number("t1", t1)
        shapes = [
            {name: p.shape for name, p in m.state_dict(keep_vars=True).items()} for m in layers
        ]
        kinds = [[type(m) for m in layer.modules()] for layer in layers]
        if any(s != shapes[0] for s in shapes) or any(k != kinds[0] for k in kinds):
            raise ValueError(
                "Layers must be of one kind, with tensors of the same names and shapes, to be "
                "interpolated."
            )
        self.layers, self.t1 = nn.ModuleList(layers), t1

    def at_time(self, t: float) -> InContextMap:
        """The layer at that time, or what lies between two."""
        place = min(max(t / self.t1 * len(self.layers), 0.0), len(self.layers) - 1.0)
        near = round(place)
        if abs(place - near) < 1e-9:  # times on the grid are exact only up to rounding
            return cast(InContextMap, self.layers[near])
        low = int(place)
        before, after = (cast(InContextMap, self.layers[k]) for k in (low, low + 1))
        return _between(before, after, place - low)

    def extra_repr(self) -> str:
        """When they end."""
        return f"t1={self.t1:g}"

    def parts(self) -> Sequence[InContextMap]:
        return tuple(cast(Iterator[InContextMap], iter(self.layers)))

    def with_parts(self, parts: Sequence[InContextMap]) -> Layers:
        return Layers(parts, t1=self.t1)

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        """The first layer."""
        return self.at_time(0.0).condition(mu, queries, starts)


@relations_inside.register(Layers)
def _(field: Layers, mu: Measure) -> list[Relation]:
    return relations_inside(field.at_time(0.0), mu)


@lipschitz_bound.register(Sum)
def _(field: Sum, radius: float) -> Lipschitz:
    first, *others = (lipschitz_bound(part, radius) for part in field)
    return sum(others, first)


@lipschitz_bound.register(Projected)
def _(field: Projected, radius: float) -> Lipschitz:
    return turned(lipschitz_bound(field.field, radius), field.manifold)


def turned(bound: Lipschitz, manifold: Manifold) -> Lipschitz:
    """The bound of the tangent part."""
    return replace(bound, x=bound.x + manifold.turn(bound.reach))


def manifold_of(field: InContextMap) -> Manifold:
    """Where the points of a field live: Euclidean space, unless it says otherwise."""
    return getattr(field, "manifold", Euclidean())


def at_time(field: InContextMap, t: float) -> InContextMap:
    """A field at a time of a flow: itself, unless it or a part of it depends on time."""
    own = getattr(field, "at_time", None)
    if own is not None:
        return own(t)
    if not isinstance(field, Container):
        return field
    parts = field.parts()
    now = [at_time(part, t) for part in parts]
    same = all(a is b for a, b in zip(now, parts, strict=True))
    return field if same else field.with_parts(now)


def _between(a: InContextMap, b: InContextMap, share: float) -> InContextMap:
    """A copy of `a` whose tensors are interpolated, differentiable in both."""
    new = copied(a)
    for here, there in zip(new.modules(), b.modules(), strict=True):
        for held, others in (
            (here._parameters, there._parameters),
            (here._buffers, there._buffers),
        ):
            for name, p in held.items():
                if p is not None and p.is_floating_point():
                    held[name] = torch.lerp(p, others[name], share)  # type: ignore
    return new


def of_transformer(model: Composition) -> Sum:
    r"""The depth limit of a transformer: the field $\mathcal A_t+H_t$, interpolated in depth.

    With `LieSplit(steps=L)` on $[0,Lh]$ its flow is the transformer of $L$ blocks with step $h$
    itself; finer solvers are what it would be with more blocks between.

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
