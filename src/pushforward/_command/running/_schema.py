"""The configuration of a run: which keys there are, and what they may be."""

from __future__ import annotations

from abc import ABC
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..configuring import (
    RK4,
    Count,
    Dimension,
    Document,
    FieldChoice,
    Finite,
    Numbers,
    Part,
    Positive,
    Seed,
    SolverChoice,
    checked,
    of_kind,
    read_document,
    suggestion,
)

OBSERVABLES = (
    "energy", "dissipation", "radius", "diameter", "velocity_diameter", "order", "clusters",
    "attention_entropy", "mean", "variance",
)  # fmt: skip
"""What can be computed at every saved time."""


# The initial measure


class Law(Part, ABC):
    """What all initial measures have."""

    project: bool = False
    """Whether points are brought to the manifold of the field."""


class Random(Law, ABC):
    """Points that are drawn at random."""

    points: Count
    seed: Seed = 0
    masses: Literal["equal", "exponential"] = "equal"


class Gaussian(Random):
    """Independent normal coordinates."""

    law: Literal["gaussian"]
    dim: Dimension
    mean: Numbers = 0.0
    std: Numbers = 1.0


class Cube(Random):
    """Uniform on a box."""

    law: Literal["cube"]
    dim: Dimension
    low: Numbers = 0.0
    high: Numbers = 1.0


class OnSphere(Random):
    """Uniform on a sphere."""

    law: Literal["sphere"]
    dim: Annotated[int, Field(ge=2, le=4096)] = 3
    radius: Positive = 1.0


class OnTorus(Random):
    """Uniform angles."""

    law: Literal["torus"]
    dim: Dimension = 1
    period: Positive = 6.283185307179586


class Grid(Law):
    """The centres of equal cells of a box."""

    law: Literal["grid"]
    dim: Annotated[int, Field(ge=1, le=8)]
    size: Count
    low: Numbers = 0.0
    high: Numbers = 1.0


class FromFile(Law):
    """Points from a file, and perhaps their masses from another."""

    law: Literal["file"]
    points: str
    masses: str | None = None


_whole, _by = of_kind("law")
Initial = Annotated[Gaussian | Cube | OnSphere | OnTorus | Grid | FromFile, _by, _whole]


# The whole


class Page(Part):
    """What the page shows."""

    title: Annotated[str, Field(max_length=200)] | None = None
    curves: list[str] | None = None


class Configuration(Part):
    """All keys of a configuration file."""

    initial: Initial
    field: FieldChoice
    solver: SolverChoice = RK4(kind="RK4", steps=100)
    t0: Finite = 0.0
    t1: Finite
    save: Annotated[int, Field(ge=1, le=99_999)] | list[Finite] = 50
    precision: Literal["single", "double"] = "double"
    observables: list[str] = []
    cluster_tolerance: Positive | None = None
    page: Page = Page()


def read_configuration(file: Path) -> tuple[Configuration, Document]:
    """The configuration in a YAML file, or an error that names the key and its line.

    Args:
        file: the file.
    """
    document = read_document(file)
    found = checked(Configuration, document)
    for k, name in enumerate(found.observables):
        if name not in OBSERVABLES:
            known = suggestion(name, OBSERVABLES)
            raise document.error(["observables", k], f"`{name}` is no observable.{known}")
    for k, name in enumerate(found.page.curves or ()):
        if name not in found.observables:
            known = suggestion(name, found.observables) if found.observables else ""
            at: list[str | int] = ["page", "curves", k]
            raise document.error(at, f"`{name}` is not among the `observables`.{known}")
    return found, document
