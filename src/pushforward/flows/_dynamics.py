"""The characteristics of a field: the atoms of a measure, and queries that ride along."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ..maps import AttentionMap, InContextMap
from ..measures import Measure
from ..relations import Memory, Predicted, Sinkhorn
from ._solvers import Dynamics, State
from .fields import Sum, at_time, copied, manifold_of


class Characteristics(Dynamics):
    r"""$\dot x=V_t[\mu_t](x)$ for the atoms of $\mu$ and for queries; the atoms carry $\mu_t$.

    Atoms never see the queries.
    States are `(atoms,)`, then the atoms of `queries` if given, then points that only ride along.

    Args:
        field: the velocity.
        mu: the context; its weights and times stay.
        t: times of the queries, for causal fields.
        queries: the measure of the queries, for fields that relate two measures.
        memory: Sinkhorn potentials to extrapolate from, and to add to.
        place: its name in the memory.
    """

    def __init__(
        self,
        field: InContextMap,
        mu: Measure,
        t: Tensor | None = None,
        queries: Measure | None = None,
        memory: Memory | None = None,
        place: str = "",
    ):
        self.field, self.mu, self.t, self.place = field, mu, t, place
        self.queries = _spread(queries, mu) if field.two_sided and queries is not None else None
        self.memory = Memory() if memory is None else memory
        self._follows = any(map(_to_a_tolerance, field.modules()))
        self._copies: dict[str, InContextMap] = {}
        self._parts: list[Characteristics] | None = None

    def start(self, *points: Tensor) -> State:
        """The state that belongs to the measures and further points."""
        others = () if self.queries is None else (self.queries.atoms,)
        return (self.mu.atoms, *others, *points)

    def __call__(self, t: float, state: State, stage: int) -> State:
        """The field of the moved context, at all points."""
        atoms, *others = state
        mu = self.mu.moved(atoms)
        own = asked = self._field(t, f"{stage}.own").condition(mu)
        slopes = [own(atoms, mu.times)]
        if self.queries is not None:
            queries = self.queries.moved(others.pop(0))
            asked = self._field(t, f"{stage}.asked").condition(mu, queries)
            slopes.append(asked(queries.atoms, queries.times))
        slopes += [asked(x, self.t) for x in others]
        for slope, points in zip(slopes, state, strict=True):
            if slope.shape[-2:] != points.shape[-2:]:
                raise ValueError(
                    "A field is a velocity, of the shape of its points: expected "
                    f"{tuple(points.shape)}, got {tuple(slope.shape)}."
                )
        return tuple(s.expand(x.shape) for s, x in zip(slopes, state, strict=True))

    def retract(self, state):
        """Every cloud on the manifold of the field."""
        return tuple(manifold_of(self.field).retract(x) for x in state)

    def parts(self) -> Sequence[Characteristics]:
        """Of the parts of a sum."""
        if self._parts is None:
            if not isinstance(self.field, Sum):
                raise TypeError(
                    "Splitting needs a field with parts, `pf.fields.Sum(...)`, got "
                    f"{type(self.field).__name__}. Use `Euler`."
                )
            make = lambda k, part: Characteristics(
                part, self.mu, self.t, self.queries, self.memory, f"part{k}."
            )
            self._parts = [make(k, part) for k, part in enumerate(self.field)]
        return self._parts

    def _field(self, t: float, place: str) -> InContextMap:
        """The field at a time; where there are potentials, a copy that predicts them."""
        if not self._follows:
            return at_time(self.field, t)
        if place not in self._copies:
            self._copies[place] = _predicting(self.field, self.memory, f"{self.place}{place}.")
        field = self._copies[place]
        for module in field.modules():
            if isinstance(module, AttentionMap) and isinstance(module.normaliser, Predicted):
                module.normaliser.time = t
        return at_time(field, t)


def _spread(queries: Measure, mu: Measure) -> Measure:
    """The measure of the queries for every context of a batch."""
    batch = torch.broadcast_shapes(mu.batch_shape, queries.batch_shape)
    grow = lambda x, axes: x.expand(*batch, *x.shape[-axes:])
    times = None if queries.times is None else grow(queries.times, 1)
    return Measure.unchecked(grow(queries.atoms, 2), grow(queries.log_weights, 1), times)


def _to_a_tolerance(module: object) -> bool:
    """Whether a module solves for potentials."""
    if not isinstance(module, AttentionMap):
        return False
    return isinstance(module.normaliser, Sinkhorn) and module.normaliser.steps is None


def _predicting(field: InContextMap, memory: Memory, place: str) -> InContextMap:
    """A copy that shares all tensors, with Sinkhorns that remember."""
    field = copied(field)
    for name, module in field.named_modules():
        if _to_a_tolerance(module):
            # Layers that follow each other in time go on from each other's potentials.
            name = re.sub(r"\blayers\.\d+\b", "layers", name)
            module.normaliser = Predicted(module.normaliser, memory, place + name)
    return field
