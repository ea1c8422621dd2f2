"""A context, what a model makes of it, and how much of a change is rounding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..distances import wasserstein
from ..measures import Measure
from ..representation import BlackBoxError
from ._subjects import Subject

COARSEST = 2.0**-7
"""The rounding unit of bfloat16, the coarsest that computes."""

ALLOWED = 50
"""How often what rounding does a change may be and count as none: encoders of 24 layers reach 1.3
times the response to one rounding unit."""


@dataclass(frozen=True, eq=False)
class Look:
    """A model's outputs in a context.

    Args:
        subject: the model.
        queries: where it is asked, if that is apart from the context.
        out: the outputs.
        rounding: how much they respond to a change of one rounding unit in every coordinate.
        spread: their size, less what they have in common.
    """

    subject: Subject
    queries: Tensor | None
    out: Tensor | Measure
    rounding: float
    spread: float

    @property
    def allowed(self) -> float:
        """The largest change that counts as none."""
        return ALLOWED * self.rounding

    @property
    def bluntness(self) -> float:
        """What counts as no change, as a share of the spread of outputs."""
        return self.allowed / self.spread if self.spread > 0 else 0.0

    @classmethod
    def at(
        cls, subject: Subject, mu: Measure, queries: Tensor | None, generator: torch.Generator
    ) -> Look:
        """Ask, and ask again with every coordinate changed by a rounding unit.

        A model that computes in a coarser precision than its data does not feel that: the change
        is made larger until it does.

        Args:
            subject: the model.
            mu: the context.
            queries: where to ask, if that is apart from it.
            generator: of the changes.
        """
        out = outputs(subject, mu, queries)
        points = out.atoms if isinstance(out, Measure) else out
        unit = max(torch.finfo(mu.dtype).eps, torch.finfo(points.dtype).eps)
        varies = mu.atoms.amax(0) > mu.atoms.amin(0)  # a model may insist on a constant
        look, jitter, step = cls(subject, queries, out, 0.0, 0.0), 0.0, unit
        while step <= COARSEST:
            for _ in range(3):
                signs = torch.randint(2, mu.atoms.shape, generator=generator) * 2 - 1
                nudged = mu.moved(mu.atoms * (1 + step * (varies * signs.to(mu.atoms))))
                jitter = max(jitter, look.deviation(nudged, torch.arange(mu.n)))
            if jitter > 0:
                unit = step
                break
            step *= 8
        away = points - points.mean(0) if len(points) > 1 else points
        rounding = jitter + unit * float(points.abs().max())
        return cls(subject, queries, out, rounding, float(away.abs().max()))

    def deviation(self, changed: Measure, index: Tensor, base: Measure | None = None) -> float:
        """How far outputs are from what they were.

        Args:
            changed: the context, written in another way.
            index: for its first tokens, which of the old ones they are.
            base: another context to compare with.
        """
        old = self.out if base is None else outputs(self.subject, base, self.queries)
        new = outputs(self.subject, changed, self.queries)
        if isinstance(old, Measure) and isinstance(new, Measure):
            return float(wasserstein(old, new))
        before, after = as_rows(old), as_rows(new)
        if self.subject.pooled or self.queries is not None:
            return float((after - before).abs().max())
        return float((after[: len(index)] - before[index.to(before.device)]).abs().max())


def outputs(subject: Subject, mu: Measure, queries: Tensor | None) -> Tensor | Measure:
    """Those of queries, or of the tokens of the context."""
    return subject.outputs(mu) if queries is None else subject.answer(mu, queries)


def as_rows(out: Tensor | Measure) -> Tensor:
    """Outputs whose owners are known."""
    if isinstance(out, Measure):
        raise BlackBoxError("its images come in no order, and nobody can say which is whose")
    return out


def chosen(mu: Measure, index: Tensor) -> Measure:
    """Tokens in another order, some perhaps twice, all of equal weight."""
    index = index.to(mu.device)
    return Measure(mu.atoms[index], times=None if mu.times is None else mu.times[index])
