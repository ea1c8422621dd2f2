"""What every section of an audit is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..measures import Measure
from ._look import Look
from ._population import Population
from ._subjects import Subject

QUERIES = 4
"""Queries that are asked where a few will do."""

Padded = Callable[..., Tensor]
"""The model on tokens of which some are padding: `padded(tokens, real)`, `(n, d)` and `(n,)`; with
queries `padded(context, real, queries)`."""


@dataclass(frozen=True, eq=False)
class Case:
    """A model, what its tokens are like, and how far to go.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        tokens: of the largest context.
        padded: the model on tokens of which some are padding.
        generator: of all that is random.
        tick: told now and then.
    """

    subject: Subject
    population: Population
    queries: Tensor | None
    tokens: int
    padded: Padded | None
    generator: torch.Generator
    tick: Callable[[], None]

    def context(self, n: int | None = None) -> Measure:
        """Different tokens of one set, of a typical number."""
        most = min(self.population.typical, self.tokens // 4)
        return self.population.context(self.generator, most if n is None else n)

    def points(self, m: int) -> Tensor:
        """Some points to ask for."""
        if self.queries is None:
            return self.population.points(m, self.generator)
        return self.queries[:m]

    def look(self, mu: Measure) -> Look:
        """What becomes of a context, or of a few queries in it."""
        some = self.queries
        if some is not None:
            order = torch.randperm(len(some), generator=self.generator)
            some = some[order[:QUERIES].to(some.device)]
        return Look.at(self.subject, mu, some, self.generator)
