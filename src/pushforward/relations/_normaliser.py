"""What a normaliser is, and what it finds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor

from ..affinities import Scores, Slopes

TOL = 1e-6
"""The marginal error `Sinkhorn()` goes for, and below which a relation counts as a coupling."""


@dataclass(frozen=True, eq=False)
class Found:
    """What a normaliser found out about two measures.

    Args:
        g: the potential on the keys, None for zero.
        steps: iterations it took.
        parts: connected parts of the pattern of allowed pairs, None for one.
        scores: those to use from now on, where they changed: other dtype, fewer pairs.
        log_b: the log-weights of the keys to use from now on, where rounding had to be mended.
    """

    g: Float[Tensor, "*#b n"] | None = None
    steps: int = 0
    parts: tuple[Int[Tensor, "*#b m"], Int[Tensor, "*#b n"]] | None = None
    scores: Scores | None = None
    log_b: Float[Tensor, "*#b n"] | None = None


class Normaliser(ABC):
    """A way to make a relation of scores."""

    two_sided: ClassVar[bool] = False
    """Whether it needs a measure on the side of the queries too."""
    pointwise: ClassVar[bool] = True
    """Whether it can be asked at queries that are no atoms."""
    to_tolerance: bool = False
    """Whether it solves to a tolerance, so that the result does not depend on the start."""
    keeps: Literal["rows", "both", "none", "sign"]
    """What its relations are: conditionals, couplings, other masses, or signed."""

    @property
    def goal(self) -> float:
        """The error below which its relations count as converged."""
        return TOL

    @abstractmethod
    def find(
        self, scores: Scores, log_a: Tensor, log_b: Tensor, start: Tensor | None = None
    ) -> Found:
        """What depends on both measures as wholes.

        Args:
            scores: between the query measure and the context.
            log_a: log-weights of the query measure, normalised.
            log_b: log-weights of the context, normalised.
            start: a potential on the keys to start from.
        """

    def density(self, scores: Scores, log_b: Tensor, found: Found) -> tuple[Scores, Tensor | None]:
        """At any queries: the scores $A'$, and $f$ unless rows are to be normalised."""
        return scores, None

    def gains(self, slopes: Slopes, radius: float) -> tuple[float, float, float]:
        r"""Bounds of $\int y\,\pi(dy|x)$ on a ball: Lipschitz in $x$, in $\nu$, and the size.

        Args:
            slopes: of the scores.
            radius: $R$.
        """
        raise NotImplementedError(f"No Lipschitz bound of {self} is known here.")

    def slack_of(self, scores: Scores) -> tuple[float, float] | None:
        """The slack of both marginals in units of score, None for what solves no equation."""
        return None
