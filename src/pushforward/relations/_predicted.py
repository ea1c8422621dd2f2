"""Sinkhorn along a flow: each solve starts from what the solves before extrapolate to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..affinities import Scores
from ._masses import Masses
from ._normalisers import Normaliser
from ._probabilities import Coupling
from ._sinkhorn import Sinkhorn


@dataclass
class Memory:
    """Potentials that solves along a flow found.

    They are extrapolated by the polynomial, of a degree up to `history - 1`, that would have
    foretold the last of them best: a high one where they are precise, a low one where the
    tolerance leaves noise.

    Args:
        history: the most solves to extrapolate from; 1 is a plain warm start, 0 a cold one.
        past: times and potentials, newest last, by the name of the place.
        steps: steps of all solves together.
    """

    history: int = 4
    past: dict[str, list[tuple[float, Tensor]]] = field(default_factory=dict)
    steps: int = 0

    def recall(self, place: str, time: float, shape: tuple[int, ...]) -> Tensor | None:
        """What the potential of a place will be at a time."""
        past = [(t, g) for t, g in self.past.get(place, []) if t != time and g.shape == shape]
        most = min(self.history, len(past))
        if most < 3:
            return _extrapolated(past[len(past) - most :], time) if most else None
        last, before = past[-1], past[:-1]

        counts = range(1, min(self.history, len(before)) + 1)
        guesses = [_extrapolated(before[-count:], last[0]) for count in counts]
        errors = torch.stack([(guess - last[1]).square().sum() for guess in guesses])
        return _extrapolated(past[-counts[int(errors.argmin())] :], time)

    def keep(self, place: str, time: float, relation: Coupling | Masses) -> None:
        """Add the potential that a solve ended with."""
        self.steps += relation.steps
        if relation.g is None:
            return
        kept = [(t, g) for t, g in self.past.get(place, []) if t != time]
        self.past[place] = [*kept, (time, relation.g.detach())][-(self.history + 1) :]


def _extrapolated(past: list[tuple[float, Tensor]], time: float) -> Tensor:
    """The polynomial through all, at a time."""
    shares = [math.prod((time - s) / (t - s) for s, _ in past if s != t) for t, _ in past]
    return sum(share * g for share, (_, g) in zip(shares, past, strict=True))  # type: ignore


class Predicted(Normaliser):
    """A Sinkhorn that starts from the extrapolation in time of what it found before.

    Where it ends does not depend on where it starts, up to the tolerance.

    Args:
        inner: the Sinkhorn, to a tolerance.
        memory: what it found before.
        place: its name there.
    """

    needs_query_measure = True
    takes_start = True

    def __init__(self, inner: Sinkhorn, memory: Memory, place: str):
        self.inner, self.memory, self.place = inner, memory, place
        self.time = 0.0
        """When the next solve is."""

    def relate(
        self, scores: Scores, log_a: Tensor | None, log_b: Tensor, *, start: Tensor | None = None
    ) -> Coupling | Masses:
        if start is None:
            shape = (*scores.shape[:-2], scores.shape[-1])
            start = self.memory.recall(self.place, self.time, shape)
        relation = self.inner.relate(scores, log_a, log_b, start=start)
        self.memory.keep(self.place, self.time, relation)
        return relation

    def __repr__(self) -> str:
        return repr(self.inner)
