"""What moves in a flow: the atoms of a measure, and queries that move with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .._tools.checks import check_kind
from ..maps import InContextMap, for_each_context, queries_for_each
from ..measures import Measure
from ..sinkhorn import PotentialHistory
from .fields import at_time, manifold_of, summands

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
    r"""The characteristics $\dot x=V_t[\mu_t](x)$ of atoms and queries [A, eq. 9].

    The atoms of `mu` carry $\mu_t$, and never see the queries; weights and token times stay. A
    state is `(atoms,)`, then the atoms of `queries` if given, for fields that relate two measures,
    then further points if there are any, whose token times are `times`. Sinkhorn potentials are
    extrapolated from the `history` and added to it, under the `name` of these dynamics.
    """

    def __init__(
        self,
        field: InContextMap,
        mu: Measure,
        queries: Measure | None = None,
        times: Tensor | None = None,
        history: PotentialHistory | None = None,
        name: str = "",
    ) -> None:
        self.field, self.mu, self.times, self.name = field, mu, times, name
        self.queries = queries if queries is None else queries_for_each(mu, queries)
        self.history = PotentialHistory() if history is None else history

    def start(self, points: Tensor | None = None) -> State:
        """The state at the beginning, with further points if given."""
        state = [self.mu.atoms]
        if self.queries is not None:
            state.append(self.queries.atoms)
        if points is not None:
            state.append(for_each_context(self.mu, points, 2))
        for name, cloud in zip(("mu", "queries", "queries"), state, strict=False):
            manifold_of(self.field).check(name, cloud)
        return tuple(state)

    def alone(self) -> Characteristics:
        """The atoms without queries, with Sinkhorn potentials of their own."""
        return Characteristics(self.field, self.mu, history=self.history, name="alone.")

    def __call__(self, t: float, state: State, stage: int) -> State:
        atoms, *others = state
        mu = self.mu.moved(atoms)
        field, starts = at_time(self.field, t), self.history.at(t)
        # Stages of a step differ as functions of time, so each has potentials of its own.
        starts = starts.within(f"{self.name}{stage}")
        velocity = field.condition(mu, None, starts.within("atoms"))
        slopes = [velocity(atoms, mu.times)]
        if self.queries is not None:
            queries = self.queries.moved(others.pop(0))
            velocity = field.condition(mu, queries, starts.within("queries"))
            slopes.append(velocity(queries.atoms, queries.times))
        slopes += [velocity(x, self.times) for x in others]
        for slope, points in zip(slopes, state, strict=True):
            check_kind(type(field).__name__, slope, Tensor, "It is a velocity.", returned=True)
            if slope.shape[-2:] != points.shape[-2:]:
                raise ValueError(
                    "A field is a velocity, of the shape of its points: expected "
                    f"{tuple(points.shape)}, got {tuple(slope.shape)}."
                )
        return tuple(s.expand(x.shape) for s, x in zip(slopes, state, strict=True))

    def retract(self, state: State) -> State:
        manifold = manifold_of(self.field)
        return tuple(manifold.retract(x) for x in state)

    def parts(self) -> Sequence[Characteristics]:
        shared = (self.mu, self.queries, self.times, self.history)
        return [
            Characteristics(part, *shared, name=f"{self.name}part{k}.")
            for k, part in enumerate(summands(self.field))
        ]

    def tensors(self) -> Sequence[Tensor]:
        weights = [m.log_weights for m in (self.mu, self.queries) if m is not None]
        return [*self.field.parameters(), *self.field.buffers(), *weights]


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
