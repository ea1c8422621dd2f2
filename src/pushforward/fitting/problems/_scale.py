"""Units in which a network learns: every coordinate with mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ...measures import Measure

CONSTANT = 1e-9
"""A coordinate whose standard deviation is below this share of its mean does not vary."""


@dataclass(frozen=True, eq=False)
class Scale:
    r"""The affine map $x\mapsto(x-m)/s$ of each coordinate, in float64.

    Args:
        mean: $m$.
        size: $s$, and 1 for a coordinate that does not vary.
    """

    mean: Tensor
    size: Tensor

    @classmethod
    def of(cls, measures: Sequence[Measure]) -> Scale:
        """That of the mixture of measures, each with mass one.

        Args:
            measures: the measures.
        """
        clouds = [mu.strip().normalise().double().cpu() for mu in measures]
        mean = torch.stack([mu.mean() for mu in clouds]).mean(0)
        spread = torch.stack([mu.integrate((mu.atoms - mean).square()) for mu in clouds]).mean(0)
        return cls._varying(mean, spread.sqrt())

    @classmethod
    def of_rows(cls, rows: Tensor) -> Scale:
        """That of vectors, the rows of a matrix.

        Args:
            rows: the matrix.
        """
        return cls._varying(rows.mean(0), rows.std(0, correction=0))

    @classmethod
    def _varying(cls, mean: Tensor, size: Tensor) -> Scale:
        return cls(mean, torch.where(size > CONSTANT * mean.abs(), size, 1.0))

    def into(self, x: Tensor) -> Tensor:
        """Points in these units."""
        return (x.double() - self.mean.to(x.device)) / self.size.to(x.device)

    def back(self, x: Tensor) -> Tensor:
        """Points in the units that they came in."""
        return x.double() * self.size.to(x.device) + self.mean.to(x.device)

    def standardised(self, mu: Measure) -> Measure:
        """A measure in these units, in float64, without times; what has no mass is at the mean."""
        live = (mu.log_weights > -torch.inf)[..., None]
        atoms = torch.where(live, self.into(mu.atoms), 0.0)
        return Measure.unchecked(atoms, mu.log_weights.double())


class Units(NamedTuple):
    """The units of sources, targets and conditions.

    Args:
        start: of sources.
        end: of targets.
        conditions: of conditions, or None without them.
    """

    start: Scale
    end: Scale
    conditions: Scale | None

    @classmethod
    def of(cls, mus: list[Measure], nus: list[Measure], values: Tensor | None) -> Units:
        """Those of training data; measures of equal dimension share one scale.

        Args:
            mus: the sources.
            nus: the targets.
            values: a row of numbers for each pair, or None.
        """
        given = None if values is None else Scale.of_rows(values)
        if mus[0].dim != nus[0].dim:
            return cls(Scale.of(mus), Scale.of(nus), given)
        both = Scale.of([*mus, *nus])
        return cls(both, both, given)

    def input(self, mu: Measure, values: Tensor | None, k: int) -> Measure:
        """A source as the network sees it: each atom is followed by the condition."""
        mu = self.start.standardised(mu)
        if values is None or self.conditions is None:
            return mu
        given = self.conditions.into(values[k]).to(mu.device)
        return mu.push(lambda x: torch.cat([x, given.expand(mu.n, -1)], -1))
