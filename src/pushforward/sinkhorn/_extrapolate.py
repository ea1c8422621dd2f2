"""Sinkhorn along a flow: each solve starts from an extrapolation in time of earlier ones.

Potentials change smoothly along a flow. Started from a good guess, a solve takes about a fifth of
the steps; up to its tolerance, the result does not depend on the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

Past = list[tuple[float, Tensor]]
"""Times and the potentials found then, newest last."""


@dataclass
class PotentialHistory:
    """The potentials of all solves along a flow, by the name of what solved.

    Args:
        length: most potentials to extrapolate from; 1 starts from the last one, 0 from nothing.
        past: times and potentials, newest last, by name.
        steps: steps of all solves together.
    """

    length: int = 4
    past: dict[str, Past] = field(default_factory=dict)
    steps: int = 0

    def at(self, time: float) -> Starts:
        """The starts of solves at a time."""
        return Starts(self, time)

    def predict(self, name: str, time: float, shape: tuple[int, ...]) -> Tensor | None:
        """The potential to expect at a time; None if there is none of that shape yet.

        It is extrapolated by a polynomial of degree below `length`. The degree is the one that
        would have predicted the latest potential best: high where potentials are precise, low
        where the tolerance of the solves leaves noise.
        """
        past = [(t, g) for t, g in self.past.get(name, []) if t != time and g.shape == shape]
        most = min(self.length, len(past))
        if most < 3:
            return _extrapolated(past[len(past) - most :], time) if most else None
        (last_time, last), before = past[-1], past[:-1]
        counts = range(1, min(self.length, len(before)) + 1)
        guesses = [_extrapolated(before[-count:], last_time) for count in counts]
        errors = torch.stack([(guess - last).square().sum() for guess in guesses])
        return _extrapolated(past[-counts[int(errors.argmin())] :], time)

    def add(self, name: str, time: float, potential: Tensor, steps: int) -> None:
        """Add the potential of a solve, and the steps it took."""
        self.steps += steps
        others = [(t, g) for t, g in self.past.get(name, []) if t != time]
        # One more than is extrapolated from: the newest is used to choose the degree.
        self.past[name] = [*others, (time, potential.detach())][-(self.length + 1) :]


@dataclass(frozen=True)
class Starts:
    """Where the Sinkhorn solves inside a map start from, at one time of a flow.

    Each solve has a name, by which it finds what it solved at earlier times: a map made of others
    gives each part `starts.within(name)`. The solve calls `recall` before and `keep` after.

    Args:
        history: the potentials of earlier solves.
        time: the time of the flow.
        name: the name of the map, the names of the maps around it first.
    """

    history: PotentialHistory
    time: float
    name: str = ""

    def within(self, name: str) -> Starts:
        """For a part of the map: the same time, under that part's name."""
        return replace(self, name=f"{self.name}.{name}" if self.name else name)

    def recall(self, shape: tuple[int, ...]) -> Tensor | None:
        """A guess of the potential on the keys, from the solves of this name at earlier times.

        None if there were none of that shape: the solve then starts from zero.
        """
        return self.history.predict(self.name, self.time, shape)

    def keep(self, potential: Tensor, steps: int) -> None:
        """Record the potential that the solve of this name ended with, for guesses to come."""
        self.history.add(self.name, self.time, potential, steps)


def _extrapolated(past: Past, time: float) -> Tensor:
    """The value at a time of the polynomial through all potentials (Lagrange's formula)."""
    weights = [math.prod((time - s) / (t - s) for s, _ in past if s != t) for t, _ in past]
    return sum(weight * g for weight, (_, g) in zip(weights, past, strict=True))  # type: ignore
