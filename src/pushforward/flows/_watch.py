"""Solves that are watched: a flow that leaves the finite numbers is an error, not a NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from .._tools.checks import holds
from ._dynamics import Characteristics
from ._gradients import Gradients
from ._solvers import FixedStep, FlowError, Grid, Solver, State, located

LOOK = {"cpu": 1, "cuda": 16}
"""Steps between two looks at the state; a look waits for the device."""


@dataclass(frozen=True)
class Watched:
    """A solve piece by piece.

    Args:
        solver: the solver.
        gradients: how gradients pass through.
        dynamics: what moves.
        grid: the times.
    """

    solver: Solver
    gradients: Gradients
    dynamics: Characteristics
    grid: Grid

    def march(
        self, state: State, first: int, last: int, tick: Callable[[int], None] | None = None
    ) -> State:
        """From one time of the grid to a later one, telling `tick` how far it is."""
        look = last - first
        if isinstance(self.solver, FixedStep) and not torch.is_grad_enabled():
            look = LOOK["cpu" if state[0].device.type == "cpu" else "cuda"]
        for begin in range(first, last, look):
            end = min(begin + look, last)
            state = self._looked_at(state, begin, end)
            if tick is not None:
                tick(end)
        return state

    def trace(self, state: State) -> Iterator[State]:
        """States at all times of the grid, in one solve."""
        return self.solver.trace(self.dynamics, state, self.grid)

    def _looked_at(self, state: State, first: int, last: int) -> State:
        """Some steps, and a look at what came out."""
        end = self.gradients.march(self.solver, self.dynamics, state, self.grid, first, last)
        if not holds(_finite(end)):
            raise self._failure(state, first, last)
        return end

    def _failure(self, state: State, first: int, last: int) -> FlowError:
        """Take the steps again, one by one, to see where it went wrong."""
        times, k = self.grid.times, first
        with torch.no_grad():
            for k in range(first, last):
                after = self.solver.march(self.dynamics, state, self.grid, k, k + 1)
                if not _finite(after):
                    break
                state = after
        wrong = ~torch.stack([x.isfinite().all() for x in after])
        place = 0 if bool(wrong[0]) else int(wrong.int().argmax())
        size = state[place].norm(dim=-1).masked_fill(after[place].isfinite().all(-1), -1)
        who = "" if place == 0 else " (of the queries)"
        return located(
            f"The flow left the finite numbers between t = {times[k]:.6g} and "
            f"{times[k + 1]:.6g}, step {k + 1} of {len(times) - 1}{who}.",
            times[k], state[place], size,
            "The field blows up there, or the steps are too long for it: end before, take more "
            "steps, or use `Dopri5`.",
        )  # fmt: skip


class Apart(Watched):
    """A solve whose steps look at all points, with another of the atoms alone.

    Queries then do not change a bit of the atoms.
    """

    @cached_property
    def alone(self) -> Watched:
        """The atoms, with potentials of their own."""
        whole = self.dynamics
        own = Characteristics(whole.field, whole.mu, memory=whole.memory, place="alone.")
        return Watched(self.solver, self.gradients, own, self.grid)

    def march(self, state, first, last, tick=None):
        """Atoms alone, queries with all."""
        own = self.alone.march(state[:1], first, last)
        return (*own, *super().march(state, first, last, tick)[1:])

    def trace(self, state):
        """Atoms alone, queries with all."""
        for own, whole in zip(self.alone.trace(state[:1]), super().trace(state), strict=True):
            yield (*own, *whole[1:])


def _finite(state: State) -> torch.Tensor:
    return torch.stack([x.isfinite().all() for x in state]).all()
