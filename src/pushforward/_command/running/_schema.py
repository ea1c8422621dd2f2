"""The configuration of a run: which keys there are, and what they may be."""

from __future__ import annotations

from abc import ABC
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from ._yaml import Document, read_document

OBSERVABLES = (
    "energy", "dissipation", "radius", "diameter", "velocity_diameter", "order", "clusters",
    "attention_entropy", "mean", "variance",
)  # fmt: skip
"""What can be computed at every saved time."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Dimension = Annotated[int, Field(ge=1, le=4096)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]
Numbers = Finite | list[Finite]


def _matrix(given: Any) -> Any:
    """A number (times the identity), a list (a diagonal), or a list of rows."""
    number = lambda x: isinstance(x, int | float) and not isinstance(x, bool)
    row = lambda x: isinstance(x, list) and len(x) > 0 and all(map(number, x))
    rows = isinstance(given, list) and len(given) > 0 and all(map(row, given))
    if rows and len({len(x) for x in given}) > 1:
        raise PydanticCustomError("matrix", "must have rows of equal length")
    if not (number(given) or row(given) or rows):
        raise PydanticCustomError(
            "matrix", "must be a number, a list (the diagonal) or a list of rows"
        )
    return given


Matrix = Annotated[Any, BeforeValidator(_matrix)]


class Part(BaseModel, ABC):
    """A part of a configuration; a key that is not known is refused, with the one that is near."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def known(cls, data: Any) -> Any:
        """Raise unless every key is known."""
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                words = "is not known here." + suggestion(key, cls.model_fields)
                raise PydanticCustomError("unknown", "{words}", {"words": words, "key": key})
        return data


def suggestion(word: object, known: Any) -> str:
    """Which word was meant, and which there are."""
    near = get_close_matches(str(word), list(known), 1)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    return f"{meant} Known: {', '.join(known)}."


def _of_kind(name: str) -> tuple[Any, Any]:
    """A word is short for the choice of that name, and the name decides which keys there are."""
    whole = BeforeValidator(lambda x: {name: x} if isinstance(x, str) else x)
    return whole, Discriminator(name)


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


_whole, _by = _of_kind("law")
Initial = Annotated[Gaussian | Cube | OnSphere | OnTorus | Grid | FromFile, _by, _whole]


# The field


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


_whole, _by = _of_kind("kind")
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


# The solver, and the whole


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


Sum.model_rebuild()
Configuration.model_rebuild()


def read_configuration(file: Path) -> tuple[Configuration, Document]:
    """The configuration in a YAML file, or an error that names the key and its line.

    Args:
        file: the file.
    """
    document = read_document(file)
    try:
        found = Configuration.model_validate(document.data)
    except ValidationError as error:
        wrong = sorted((_said(document, e) for e in error.errors()), key=lambda said: said[0])
        more = len({line for line, _ in wrong}) - 1
        others = f" ({more} more after that)" if more else ""
        line, words = wrong[0]
        raise ValueError(f"{file}, line {line}: {words}{others}") from None
    except RecursionError:
        raise ValueError(f"{file} is nested too deeply.") from None
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


def _said(document: Document, error: ErrorDetails) -> tuple[int, str]:
    """The line of an error, and what is wrong, in one sentence."""
    path, context = list(error["loc"]), error.get("ctx", {})
    if error["type"] == "unknown":
        path.append(context["key"])
    name, line = document.place(path)
    match error["type"]:
        case "unknown":
            return line, f"`{name}` {context['words']}"
        case "missing":
            parent = f"`{name}`" if name else "the file"
            return line, f"{parent} needs `{path[-1]}`."
        case "union_tag_not_found":
            word = str(context["discriminator"]).strip("'")
            return line, f"`{name}` needs `{word}`, which says which one it is."
        case "union_tag_invalid":
            word = str(context["discriminator"]).strip("'")
            known = [t.strip(" '") for t in str(context["expected_tags"]).split(",")]
            tag = context["tag"]
            _, line = document.place([*path, word])
            return line, f"`{name}` has no {word} `{tag}`.{suggestion(tag, known)}"
    words = error["msg"].removeprefix("Input ").removeprefix("Value error, ").rstrip(".")
    return line, f"`{name or path[-1]}` {words}, got {_short(error['input'])}."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
