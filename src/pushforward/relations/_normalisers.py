"""Normalisers in closed form: one or two reductions, or none."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import logsigmoid

from ..affinities import MappedScores, Slopes, TopScores
from ._normaliser import Found, Normaliser


@dataclass(frozen=True)
class Softmax(Normaliser):
    r"""Conditional distributions: $\kappa(x,dy)=e^{A(x,y)}\nu(dy)/\int e^{A(x,z)}\nu(dz)$.

    The joint $\mu\otimes\kappa$ minimises
    $\int c\,d\pi+\varepsilon\,\mathrm{KL}(\pi|\mu\otimes\nu)$ with $c=-\varepsilon A$ among all
    plans whose first marginal is $\mu$.
    """

    keeps = "rows"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing: no constraint on the columns."""
        return Found()

    def gains(self, slopes, radius):
        r"""$bR^2$ by the covariance of a row; $e^{2gR}(1+2gR)$ with $g=\sup|\partial_ys|$."""
        swing = 2 * slopes.y * radius
        return slopes.mixed * radius**2, _exp(swing) * (1 + swing), radius


@dataclass(frozen=True)
class DualSoftmax(Normaliser):
    r"""The product of both conditionals, $e^{2A-r(x)-c(y)}$, as keypoint matchers use it.

    $r=\log\int e^Ad\nu$ and $c=\log\int e^Ad\mu$. Neither marginal is kept: masses are
    confidences.
    """

    two_sided: ClassVar[bool] = True
    keeps = "none"

    def find(self, scores, log_a, log_b, start=None):
        """Minus the columns' normalisation."""
        return Found(-scores.over_queries(log_a))

    def density(self, scores, log_b, found):
        """Twice the scores, minus the rows' normalisation."""
        return scores.scaled(2), -scores.over_keys(log_b)


@dataclass(frozen=True)
class Sigmoid(Normaliser):
    r"""Independent pairs: the density $\sigma(A+\beta)=1/(1+e^{-A-\beta})$.

    Args:
        bias: $\beta$.
    """

    bias: float = 0.0
    keeps = "none"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing."""
        return Found()

    def density(self, scores, log_b, found):
        r"""$\log\sigma(A+\beta)$ as scores."""
        mapped = MappedScores(scores, lambda tile: logsigmoid(tile + self.bias))
        return mapped, torch.zeros_like(scores.over_keys(log_b))

    def gains(self, slopes, radius):
        r"""A density of at most 1 and slope of at most $\frac14$."""
        return _density_gains(1.0, 0.25, slopes, radius)


@dataclass(frozen=True)
class Exponential(Normaliser):
    r"""The density $e^{A}$ itself, as in the gradient flow of the interaction energy.

    $\int e^{A(x,y)}\,v(y)\,\nu(dy)$: nothing is divided by, so it grows with the scores.
    """

    keeps = "none"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing."""
        return Found()

    def density(self, scores, log_b, found):
        """The scores as they are."""
        return scores, log_b.new_zeros(()).expand(scores.shape[:-1])

    def gains(self, slopes, radius):
        r"""A density of at most $e^{\sup|s|}$, its own slope."""
        top = _exp(slopes.size)
        return _density_gains(top, top, slopes, radius)


@dataclass(frozen=True)
class Bilinear(Normaliser):
    r"""The signed density $A$ itself: linear attention, $\int A(x,y)\,v(y)\,\nu(dy)$.

    For dot products and squared distances it takes time linear in the number of atoms.
    """

    keeps = "sign"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing."""
        return Found()

    def gains(self, slopes, radius):
        r"""A density of at most $\sup|s|$, of slope one."""
        return _density_gains(slopes.size, 1.0, slopes, radius)


@dataclass(frozen=True)
class Hardmax(Normaliser):
    r"""All mass on the keys of the highest score: $\nu$ restricted to
    $\operatorname{argmax}_{y\in\operatorname{supp}\nu}A(x,y)$.

    What `Softmax` tends to as scores grow. Scores that differ by rounding alone count as ties, and
    ties share by mass. The chosen keys do not move with the points, so gradients reach the values
    only.
    """  # noqa: D205

    keeps = "rows"

    def find(self, scores, log_a, log_b, start=None):
        """Nothing."""
        return Found()

    def density(self, scores, log_b, found):
        """0 at the keys of the highest score, minus infinity elsewhere."""
        return TopScores.among(scores, log_b > -torch.inf), None


def _exp(x: float) -> float:
    """Infinite rather than an error."""
    return math.exp(x) if x < 700 else math.inf


def _density_gains(
    top: float, steep: float, slopes: Slopes, radius: float
) -> tuple[float, float, float]:
    r"""Of $\int y\,\varphi(s(x,y))\,\nu(dy)$, with bounds of $|\varphi|$ and $|\varphi'|$."""
    return steep * slopes.x * radius, top + steep * slopes.y * radius, top * radius
