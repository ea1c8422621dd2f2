r"""Normalisers: how an affinity becomes a relation.

A normaliser chooses a potential $g$ on the context; the relation is
$\pi(dy|x)\propto e^{A(x,y)+g(y)}\mu(dy)$. Softmax takes $g=0$, Sinkhorn the column potential.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from .affinities import Scores


class Normaliser(ABC):
    """Chooses the potential on the context."""

    two_sided: ClassVar[bool]
    """Whether it needs a measure on the side of the queries too; else the potential is zero."""

    @abstractmethod
    def potential(self, scores: Scores, log_a: Tensor, log_b: Tensor) -> Float[Tensor, "*b n"]:
        """Potential at the atoms of the context.

        Args:
            scores: between the query measure and the context.
            log_a: log-weights of the query measure.
            log_b: log-weights of the context.
        """


@dataclass(frozen=True)
class Softmax(Normaliser):
    r"""Conditional distributions: $\pi(dy|x)=e^{A(x,y)}\mu(dy)/\int e^{A(x,z)}\mu(dz)$."""

    two_sided: ClassVar[bool] = False

    def potential(self, scores, log_a, log_b):
        """No constraint on the columns."""
        return torch.zeros_like(log_b)


@dataclass(frozen=True)
class Sinkhorn(Normaliser):
    r"""Towards a coupling of query measure $\eta$ and context $\mu$, both normalised.

    One iteration is $f=-\log\int e^{A+g}d\mu$, $g=-\log\int e^{A+f}d\eta$. The average that
    follows is a half-step on the query side, so rows are exact. Zero steps is `Softmax`.

    Args:
        steps: number of iterations.
    """

    steps: int = 20
    two_sided: ClassVar[bool] = True

    def __post_init__(self):
        if not (isinstance(self.steps, int) and self.steps >= 0):
            raise ValueError(f"`steps` must be a whole number, not negative, got {self.steps}.")

    def potential(self, scores, log_a, log_b):
        """The column potential after `steps` iterations from zero."""
        # Of unequal masses the potentials would drift apart by a constant in every step.
        log_a, log_b = log_a.log_softmax(-1), log_b.log_softmax(-1)
        return alternate(scores, log_a, log_b, torch.zeros_like(log_b), self.steps)[1]


def alternate(
    scores: Scores, log_a: Tensor, log_b: Tensor, g: Tensor, steps: int
) -> tuple[Tensor | None, Tensor]:
    r"""Potentials $(f,g)$ after `steps` Sinkhorn iterations from $g$; $f$ is None after none."""
    f = None
    for _ in range(steps):
        f = -scores.over_keys(log_b + g)
        g = -scores.over_queries(log_a + f)
    return f, g
