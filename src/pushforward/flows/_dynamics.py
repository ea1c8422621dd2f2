"""What moves in a flow: the atoms of a measure, and queries that move with them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..maps import AttentionMap, InContextMap
from ..measures import Measure
from ..relations import Memory, Predicted, Sinkhorn
from .fields import copied, summands

State = tuple[Tensor, ...]
"""Clouds that move together: the atoms of the context, and queries."""


class Dynamics(ABC):
    """A velocity of states, and the manifold that their points lie on."""

    @abstractmethod
    def __call__(self, t: float, state: State, stage: int) -> State:
        """The velocities at a time; `stage` counts the evaluations within one step."""

    @abstractmethod
    def retract(self, state: State) -> State:
        """The nearest points of the manifold."""

    @abstractmethod
    def parts(self) -> Sequence[Dynamics]:
        """Dynamics whose velocities sum to these, for solvers that split."""

    @abstractmethod
    def tensors(self) -> Sequence[Tensor]:
        """The tensors, beside the state, that velocities depend on."""


class Characteristics(Dynamics):
    r"""The characteristics $\dot x=V_t[\mu_t](x)$ of atoms and queries; atoms carry $\mu_t$.

    Atoms never see the queries. A state is `(atoms,)`, then the atoms of `queries` if given, then
    further points if there are any.

    Args:
        field: the velocity.
        mu: the context; its weights and token times stay.
        queries: the measure of the queries, for fields that relate two measures.
        times: token times of further points, for causal fields.
        memory: Sinkhorn potentials to extrapolate from, and to add to.
        place: its name in the memory.
    """

    def __init__(
        self,
        field: InContextMap,
        mu: Measure,
        queries: Measure | None = None,
        times: Tensor | None = None,
        memory: Memory | None = None,
        place: str = "",
    ):
        self.field, self.mu, self.times, self.place = field, mu, times, place
        self.queries = None if queries is None else _measure_for_each(mu, queries)
        self.memory = Memory() if memory is None else memory
        self._follows = any(map(_to_a_tolerance, field.modules()))
        self._copies: dict[str, InContextMap] = {}
        self._parts: list[Characteristics] | None = None

    def start(self, points: Tensor | None = None) -> State:
        """The state at the beginning, with further points if given."""
        state = [self.mu.atoms]
        if self.queries is not None:
            state.append(self.queries.atoms)
        if points is not None:
            state.append(_for_each(self.mu, points, 2))
        for name, cloud in zip(("mu", "queries", "queries"), state, strict=False):
            self.field.manifold.check(name, cloud)
        return tuple(state)

    def alone(self) -> Characteristics:
        """The atoms without queries, with Sinkhorn potentials of their own."""
        return Characteristics(self.field, self.mu, memory=self.memory, place="alone.")

    def __call__(self, t: float, state: State, stage: int) -> State:
        atoms, *others = state
        mu = self.mu.moved(atoms)
        velocity = self._field(t, f"{stage}.own").condition(mu)
        slopes = [velocity(atoms, mu.times)]
        if self.queries is not None:
            queries = self.queries.moved(others.pop(0))
            velocity = self._field(t, f"{stage}.asked").condition(mu, queries)
            slopes.append(velocity(queries.atoms, queries.times))
        slopes += [velocity(x, self.times) for x in others]
        for slope, points in zip(slopes, state, strict=True):
            if slope.shape[-2:] != points.shape[-2:]:
                raise ValueError(
                    "A field is a velocity, of the shape of its points: expected "
                    f"{tuple(points.shape)}, got {tuple(slope.shape)}."
                )
        return tuple(s.expand(x.shape) for s, x in zip(slopes, state, strict=True))

    def retract(self, state: State) -> State:
        return tuple(self.field.manifold.retract(x) for x in state)

    def parts(self) -> Sequence[Characteristics]:
        if self._parts is None:
            make = lambda k, part: Characteristics(
                part, self.mu, self.queries, self.times, self.memory, f"part{k}."
            )
            self._parts = [make(k, part) for k, part in enumerate(summands(self.field))]
        return self._parts

    def tensors(self) -> Sequence[Tensor]:
        weights = [m.log_weights for m in (self.mu, self.queries) if m is not None]
        return [*self.field.parameters(), *self.field.buffers(), *weights]

    def _field(self, t: float, place: str) -> InContextMap:
        """The field at a time; where there are potentials, a copy that predicts them."""
        if not self._follows:
            return self.field.at_time(t)
        if place not in self._copies:
            self._copies[place] = _predicting(self.field, self.memory, f"{self.place}{place}.")
        field = self._copies[place]
        for module in field.modules():
            if isinstance(module, AttentionMap) and isinstance(module.normaliser, Predicted):
                module.normaliser.time = t
        return field.at_time(t)


def _for_each(mu: Measure, x: Tensor, axes: int) -> Tensor:
    """A copy for every context of a batch; `axes` counts the axes that are no batch."""
    batch = torch.broadcast_shapes(mu.batch_shape, x.shape[:-axes])
    return x.expand(*batch, *x.shape[-axes:])


def _measure_for_each(mu: Measure, queries: Measure) -> Measure:
    """The measure of the queries for every context of a batch."""
    times = None if queries.times is None else _for_each(mu, queries.times, 1)
    atoms, logs = _for_each(mu, queries.atoms, 2), _for_each(mu, queries.log_weights, 1)
    return Measure.unchecked(atoms, logs, times)


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


class FlowError(ArithmeticError):
    """A flow whose values became infinite or NaN, or that could not be continued.

    Args:
        message: what happened, and what to do.
        time: the last time at which all values were finite.
        atom: the index of the atom that went wrong, batch axes first.
        atoms: all atoms at that time.
    """

    def __init__(self, message: str, time: float, atom: tuple[int, ...], atoms: Tensor) -> None:
        super().__init__(message)
        self.time, self.atom, self.atoms = time, atom, atoms


def worst_atom(what: str, time: float, atoms: Tensor, badness: Tensor, fix: str) -> FlowError:
    """An error that names the atom of largest `badness`."""
    atoms = atoms.detach()
    atom = tuple(int(i) for i in torch.unravel_index(badness.argmax(), badness.shape))
    coordinates = ", ".join(f"{c:.4g}" for c in atoms[atom].tolist()[:4])
    more = ", ..." if atoms.shape[-1] > 4 else ""
    index = atom[0] if len(atom) == 1 else atom
    message = f"{what} Worst is atom {index}, at ({coordinates}{more}) at t = {time:.6g}. {fix}"
    return FlowError(message, time, atom, atoms)
