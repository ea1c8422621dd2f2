"""Fields and solvers in a configuration file."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, Literal

from pydantic import Field

from ._parts import Count, Finite, Matrix, Part, Positive, of_kind


class Softmax(Part):
    """Rows that are probabilities."""

    kind: Literal["Softmax"]


class Exponential(Part):
    """Exponentials of scores, not normalised."""

    kind: Literal["Exponential"]


class Bilinear(Part):
    """The scores themselves."""

    kind: Literal["Bilinear"]


class Hardmax(Part):
    """The mean over the keys of highest score."""

    kind: Literal["Hardmax"]


class Sinkhorn(Part):
    """A coupling of the measure with itself."""

    kind: Literal["Sinkhorn"]
    tol: Positive | None = None
    steps: Annotated[int, Field(ge=0, le=100_000)] | None = None
    max_steps: Count = 10_000


class Dot(Part):
    """Scores that are scalar products."""

    kind: Literal["Dot"]
    scale: Finite = 1.0


class SquaredDistance(Part):
    """Scores that are negative squared distances."""

    kind: Literal["SquaredDistance"]
    eps: Positive = 1.0


class Euclidean(Part):
    """All of space."""

    kind: Literal["Euclidean"]


class Sphere(Part):
    """A sphere around the origin."""

    kind: Literal["Sphere"]
    radius: Positive = 1.0


class Torus(Part):
    """Coordinates that are angles."""

    kind: Literal["Torus"]
    period: Positive = 6.283185307179586


_whole, _by = of_kind("kind")
NormaliserChoice = Annotated[
    Softmax | Exponential | Bilinear | Hardmax | Sinkhorn, _by, _whole
]  # fmt: skip
AffinityChoice = Annotated[Dot | SquaredDistance, _by, _whole]
ManifoldChoice = Annotated[Euclidean | Sphere | Torus, _by, _whole]


class SelfAttention(Part):
    """Attention as a velocity."""

    kind: Literal["SelfAttention"]
    Q: Matrix = 1.0
    K: Matrix = 1.0
    V: Matrix = 1.0
    affinity: AffinityChoice = Dot(kind="Dot")
    normaliser: NormaliserChoice = Softmax(kind="Softmax")
    manifold: ManifoldChoice = Euclidean(kind="Euclidean")


class Linear(Part):
    """A linear velocity."""

    kind: Literal["Linear"]
    A: Matrix
    B: Matrix = 0.0
    manifold: ManifoldChoice = Euclidean(kind="Euclidean")


class Kuramoto(Part):
    """Coupled oscillators."""

    kind: Literal["Kuramoto"]
    coupling: Finite = 1.0
    frequencies: bool = False


class CuckerSmale(Part):
    """Flocks."""

    kind: Literal["CuckerSmale"]
    strength: Finite = 1.0
    exponent: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5


class Sum(Part):
    """A sum of fields."""

    kind: Literal["Sum"]
    fields: Annotated[list[FieldChoice], Field(min_length=1, max_length=16)]


FieldChoice = Annotated[SelfAttention | Linear | Kuramoto | CuckerSmale | Sum, _by, _whole]


class Steps(Part, ABC):
    """A solver that takes equal steps."""

    steps: Count


class Euler(Steps):
    """Of order 1."""

    kind: Literal["Euler"]


class Midpoint(Steps):
    """Of order 2."""

    kind: Literal["Midpoint"]


class RK4(Steps):
    """Of order 4."""

    kind: Literal["RK4"]


class LieSplit(Steps):
    """Part by part of a sum."""

    kind: Literal["LieSplit"]


class Dopri5(Part):
    """Adaptive steps."""

    kind: Literal["Dopri5"]
    rtol: Positive = 1e-6
    atol: Positive | None = None
    max_steps: Count = 10_000


SolverChoice = Annotated[Euler | Midpoint | RK4 | LieSplit | Dopri5, _by, _whole]


Sum.model_rebuild()
