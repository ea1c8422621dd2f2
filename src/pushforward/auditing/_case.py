"""What every section of an audit is given: a model, contexts, and how much rounding changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..distances import wasserstein
from ..measures import Measure
from ..representation import BlackBox, BlackBoxError, Population
from ..representation.boxes import outputs_at
from ._model import Mode, Padded, WithClassToken

QUERIES = 4
"""The number of queries where a few will do."""

CLOUD = 256
"""How many draws represent the data where a region around them is needed."""

COARSEST_ROUNDING = 2.0**-7
"""The rounding unit of bfloat16, the coarsest format in which models compute."""

ROUNDING_FACTOR = 50
"""A change up to this many times the response to a one-unit rounding error counts as none.
Encoders of 24 layers reach 1.3."""


INCONCLUSIVE = 0.05
"""If rounding may exceed this share of the size of the outputs, a test is inconclusive."""


@dataclass(frozen=True)
class Reading:
    """How a model reads its tokens.

    Args:
        mode: as a set or as a sequence.
        seen: whether that was seen from its outputs, and not said by the user.
        special: 0 or -1 if the first or the last token has a role of its own, None if none has.
        effect: how far outputs move if tokens are shuffled, as a share of their size.
    """

    mode: Mode
    seen: bool = False
    special: int | None = None
    effect: float = 0.0


@dataclass(frozen=True, eq=False)
class Case:
    """A model, the contexts to call it with, and how large they may be.

    Args:
        box: the model.
        population: where contexts come from.
        queries: queries `(m, q)`, for a model of a context and queries.
        tokens: the most tokens of a context.
        padded: the model on tokens some of which are padding, None if there is none.
        generator: the source of all random draws.
        tick: reports progress.
        reading: how the model reads its tokens.
        tolerated: a change up to this share of the size of the outputs counts as none.
    """

    box: BlackBox
    population: Population
    queries: Tensor | None
    tokens: int
    padded: Padded | None
    generator: torch.Generator
    tick: Callable[[], None]
    reading: Reading = field(default_factory=lambda: Reading("set"))
    tolerated: float = 0.0

    @property
    def sequence(self) -> bool:
        """Whether it is audited as a model of sequences."""
        return self.reading.mode == "sequence"

    @property
    def class_token(self) -> bool:
        """Whether a class token stands beside the tokens, with a share of its own."""
        return isinstance(self.box.model, WithClassToken)

    @property
    def between_measures(self) -> bool:
        """Whether the model is called as a map between measures: with weights, without queries."""
        return self.box.weighted and self.queries is None

    def of_one_law(self) -> Case:
        """The same with contexts of the largest set alone, whatever their size."""
        return replace(self, population=self.population.largest_set())

    def context(self, n: int | None = None) -> Measure:
        """A context of `n` different tokens, by default of a typical number of them."""
        typical = min(self.population.typical_size, self.tokens // 4)
        return self.population.context(typical if n is None else n, self.generator)

    def points(self, m: int) -> Tensor:
        """The first `m` queries, or as many points of the population."""
        if self.queries is None:
            return self.population.points(m, self.generator)
        return self.queries[:m]

    def baseline(self, mu: Measure) -> Baseline:
        """The outputs in a context, at a few random queries if there are queries."""
        x = self.queries
        if x is not None:
            order = torch.randperm(len(x), generator=self.generator)
            x = x[order[:QUERIES].to(x.device)]
        return replace(Baseline.measure(self.box, mu, x, self.generator), given=self.tolerated)


@dataclass(frozen=True, eq=False)
class Baseline:
    """The outputs of a model in one context, and how much rounding alone changes them.

    Args:
        box: the model.
        queries: the queries, None for the tokens of the context.
        out: the outputs.
        rounding: how far outputs move when every coordinate changes by one rounding unit.
        spread: the size of the outputs: the largest deviation of an entry from the mean output,
            or the largest entry if there is one output, or the same one for all tokens.
        given: a change up to this share of the spread counts as none.
    """

    box: BlackBox
    queries: Tensor | None
    out: Tensor | Measure
    rounding: float
    spread: float
    given: float = 0.0

    @property
    def by_rounding(self) -> float:
        """The largest change of outputs that rounding may explain."""
        return ROUNDING_FACTOR * self.rounding

    @property
    def tolerance(self) -> float:
        """The largest change of outputs that counts as none."""
        return max(self.by_rounding, self.given * self.spread)

    @property
    def inconclusive(self) -> bool:
        """Whether rounding may hide what is looked for."""
        return self.spread > 0 and self.by_rounding > INCONCLUSIVE * self.spread

    def share(self, change: float) -> float:
        """A change of outputs as a share of their size."""
        if change == 0:
            return 0.0
        return change / self.spread if self.spread > 0 else math.inf

    @classmethod
    def measure(
        cls, box: BlackBox, mu: Measure, queries: Tensor | None, generator: torch.Generator
    ) -> Baseline:
        """Call the model, and again with every coordinate changed by one rounding unit.

        Args:
            box: the model.
            mu: the context.
            queries: the queries, None for the tokens of the context.
            generator: the source of the random signs of the changes.
        """
        out = outputs_at(box, mu, queries)
        points = out.atoms if isinstance(out, Measure) else out
        unit = max(torch.finfo(mu.dtype).eps, torch.finfo(points.dtype).eps)
        varies = mu.atoms.amax(0) > mu.atoms.amin(0)  # a model may require a constant coordinate
        exact, jitter, step = cls(box, queries, out, 0.0, 0.0), 0.0, unit
        # A model that computes in a coarser precision than its data may not respond to a change of
        # one unit at all: the change grows until it does.
        while step <= COARSEST_ROUNDING:
            for _ in range(3):
                signs = torch.randint(2, mu.atoms.shape, generator=generator) * 2 - 1
                nudged = mu.moved(mu.atoms * (1 + step * (varies * signs.to(mu.atoms))))
                jitter = max(jitter, exact.change(nudged, torch.arange(mu.n)))
            if jitter > 0:
                unit = step
                break
            step *= 8
        centred = points - points.mean(0) if len(points) > 1 else points
        rounding = jitter + unit * float(points.abs().max())
        spread = float(centred.abs().max())
        if spread <= rounding:
            spread = float(points.abs().max())
        return cls(box, queries, out, rounding, spread)

    def change(self, changed: Measure, index: Tensor, base: Measure | None = None) -> float:
        """How far outputs move when the context is replaced by another.

        Args:
            changed: the other context.
            index: for its first tokens, which tokens of the old context they are.
            base: compare with the outputs in this context instead.
        """
        old = self.out if base is None else outputs_at(self.box, base, self.queries)
        new = outputs_at(self.box, changed, self.queries)
        if isinstance(old, Measure) and isinstance(new, Measure):
            return float(wasserstein(old, new))
        before, after = ordered(old), ordered(new)
        if self.box.pooled or self.queries is not None:
            return largest_change(after, before)
        return largest_change(after[: len(index)], before[index.to(before.device)])


def ordered(out: Tensor | Measure) -> Tensor:
    """Outputs in the order of their tokens; an error if they have none."""
    if isinstance(out, Measure):
        raise BlackBoxError(
            "its outputs are an unordered set: which output belongs to which token is not known"
        )
    return out


def selected(mu: Measure, index: Tensor) -> Measure:
    """The tokens with some indices, all of equal weight: in another order, or repeated."""
    index = index.to(mu.device)
    return Measure(mu.atoms[index], times=None if mu.times is None else mu.times[index])


def largest_change(a: Tensor, b: Tensor) -> float:
    """The largest difference of an entry."""
    return float((a - b).abs().max())
