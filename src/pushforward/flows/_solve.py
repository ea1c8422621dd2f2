"""One solve of a flow: its steps, gradients, checks, progress and saved states.

Everything that integrates a flow goes through `Solve`: the end of a `Flow`, a path in memory, a
path on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .._tools.checks import holds
from ._dynamics import Characteristics, Dynamics, FlowError, State, worst_atom
from ._gradients import Gradients, Piece
from ._solvers import Grid, Solver

CHECK_EVERY = {"cpu": 1, "cuda": 16}
"""Steps between two checks that values are finite; a check waits for the device."""


@dataclass(frozen=True)
class Solve:
    """A solve of a flow over the times of a grid."""

    solver: Solver
    gradients: Gradients
    grid: Grid
    dynamics: Characteristics
    restart: bool = False
    """Whether an adaptive solver starts afresh at each saved time, as a run that can be resumed
    must; else it makes one solve and interpolates."""
    tick: Callable[[int], None] = lambda done: None
    """Called with the index of the time that was reached."""

    def end(self, state: State) -> State:
        """The state at the last time."""
        return self._checked(self.dynamics, state, 0, self.grid.last)

    def states(self, state: State, begin: int = 0) -> Iterator[State]:
        """The states at the saved times, from number `begin`, whose state is given."""
        yield state
        if not (self.solver.fixed_grid or self.restart or self.gradients.adjoint):
            yield from self._dense(state)
            return
        for first, last in pairwise(self.grid.saved[begin:]):
            state = self._advance(state, first, last)
            yield state

    def _dense(self, state: State) -> Iterator[State]:
        """The states at the saved times after the first, in one solve; atoms as in `_advance`."""
        whole = (self.grid, 0, self.grid.last)
        states = self.solver.solve(self.dynamics, state, *whole)
        if len(state) > 1:
            atoms = self.solver.solve(self.dynamics.alone(), state[:1], *whole)
            states = ((*own, *joint[1:]) for own, joint in zip(atoms, states, strict=True))
        for k, now in enumerate(states, 1):
            yield now
            self.tick(k)

    def _advance(self, state: State, first: int, last: int) -> State:
        """From one time of the grid to a later one.

        If steps depend on all points, the atoms are taken from a solve of their own, so that
        queries cannot change them.
        """
        after = self._checked(self.dynamics, state, first, last)
        if self.solver.fixed_grid or len(state) == 1:
            return after
        return (*self._checked(self.dynamics.alone(), state[:1], first, last), *after[1:])

    def _checked(self, dynamics: Dynamics, state: State, first: int, last: int) -> State:
        """Take steps; a `FlowError` if values become infinite or NaN."""
        size = last - first
        if self.solver.fixed_grid and not torch.is_grad_enabled():
            size = CHECK_EVERY["cpu" if state[0].device.type == "cpu" else "cuda"]
        for piece in Piece(self.solver, dynamics, self.grid, first, last).split(size):
            after = self.gradients.through(piece, state)
            if not holds(_finite(after)):
                raise _failure(piece, state)
            state = after
            self.tick(piece.last)
        return state


def _finite(state: State) -> Tensor:
    return torch.stack([x.isfinite().all() for x in state]).all()


@torch.no_grad()
def _failure(piece: Piece, state: State) -> FlowError:
    """Take the steps of a piece again, one by one, to find the one that went wrong."""
    times = piece.grid.times
    for step in piece.split(1):
        after = step(*state)
        if not _finite(after):
            break
        state = after
    wrong = ~torch.stack([x.isfinite().all() for x in after])
    cloud = int(wrong.int().argmax())  # the first: if atoms went wrong, queries followed
    size = state[cloud].norm(dim=-1).masked_fill(after[cloud].isfinite().all(-1), -1)
    queries = "" if cloud == 0 else " (of the queries)"
    return worst_atom(
        f"Values became infinite or NaN between t = {times[step.first]:.6g} and "
        f"{times[step.last]:.6g}, step {step.last} of {piece.grid.last}{queries}.",
        times[step.first], state[cloud], size,
        "The field blows up there, or the steps are too long for it. Choose an earlier `t1`, "
        "take more steps, or use `Dopri5`.",
    )  # fmt: skip
