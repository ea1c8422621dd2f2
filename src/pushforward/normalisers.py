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
    """Whether it needs a measure on the side of the queries too."""

    @abstractmethod
    def potential(
        self, scores: Scores | None, log_a: Tensor | None, log_b: Tensor
    ) -> Float[Tensor, "*b n"] | None:
        """Potential at the atoms of the context, None for zero.

        Args:
            scores: between the query measure and the context; None if not two-sided.
            log_a: log-weights of the query measure; None if not two-sided.
            log_b: log-weights of the context.
        """


@dataclass(frozen=True)
class Softmax(Normaliser):
    r"""Conditional distributions: $\pi(dy|x)=e^{A(x,y)}\mu(dy)/\int e^{A(x,z)}\mu(dz)$."""

    two_sided: ClassVar[bool] = False

    def potential(self, scores, log_a, log_b):
        """No constraint on the columns."""
        return None


@dataclass(frozen=True)
class Sinkhorn(Normaliser):
    r"""Towards a coupling of query measure and context, by alternating marginal constraints.

    One iteration is $f=-\log\int e^{A+g}d\nu$, $g=-\log\int e^{A+f}d\mu$. The average that follows
    is a half-step on the query side, so rows are exact. Zero steps is `Softmax`.

    Args:
        steps: number of iterations.
    """

    steps: int = 20
    two_sided: ClassVar[bool] = True

    def __post_init__(self):
        if self.steps < 0:
            raise ValueError(f"`steps` must not be negative, got {self.steps}.")

    def potential(self, scores, log_a, log_b):
        """The column potential after `steps` iterations from zero."""
        g = torch.zeros_like(log_b)
        return alternate(scores, log_a, log_b, g, self.steps)[1]


def alternate(
    scores: Scores, log_a: Tensor, log_b: Tensor, g: Tensor, steps: int
) -> tuple[Tensor | None, Tensor]:
    r"""Potentials $(f,g)$ after `steps` Sinkhorn iterations from $g$; $f$ is None after none."""
    f = None
    for _ in range(steps):
        f = -scores.over_keys(log_b + g)
        g = -scores.over_queries(log_a + f)
    return f, g
