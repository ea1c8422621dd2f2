"""The configuration of a fit: which keys there are, and what they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field

from ..configuring import (
    RK4,
    Count,
    Dimension,
    Document,
    FieldChoice,
    Part,
    Positive,
    Seed,
    SolverChoice,
    checked,
    of_kind,
    read_document,
)

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Depth = Annotated[int, Field(ge=1, le=1000)]
Hidden = Annotated[int, Field(ge=1, le=65_536)]
Sizes = Annotated[list[Count], Field(min_length=1, max_length=32)]
Files = str | Annotated[list[str], Field(min_length=1, max_length=100_000)]


# What is learned


class Target(Part):
    """The solution map of a flow from time 0 to a later one."""

    field: FieldChoice
    t1: Positive
    solver: SolverChoice = RK4(kind="RK4", steps=8)


class Given(Part):
    """Pairs of measures from files."""

    sources: Files
    targets: Files
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    batch_size: Count = 16
    atoms: Count | None = None


class Mixtures(Part):
    """Samples of random mixtures of Gaussians."""

    kind: Literal["Mixtures"]
    dim: Dimension
    components: Count = 3
    spread: Positive = 1.2
    scales: Annotated[list[Positive], Field(min_length=2, max_length=2)] = [0.15, 0.65]
    radius: Positive = 2.5
    unequal: Share = 0.5


class Box(Part):
    """Measures of every kind on a box."""

    kind: Literal["Box"]
    dim: Dimension
    radius: Positive = 2.5


class OneOf(Part):
    """One of several laws, anew for each batch."""

    kind: Literal["OneOf"]
    laws: Annotated[list[LawChoice], Field(min_length=1, max_length=16)]
    shares: list[NotNegative] | None = None


_whole, _by = of_kind("kind")
LawChoice = Annotated[Mixtures | Box | OneOf, _by, _whole]


# The model


class Transformer(Part):
    """A transformer with LayerNorm, as the displacement of points."""

    architecture: Literal["transformer"]
    depth: Depth = 4
    heads: Dimension = 4
    width: Dimension = 64
    hidden: Hidden | None = None
    norm: Literal["PreNorm", "PostNorm", "none"] = "PreNorm"


class Universal(Part):
    """The architecture of the universality theorem, as the displacement of points."""

    architecture: Literal["universal"]
    depth: Depth = 4
    hidden: Hidden | None = None


def _usual(given: Any) -> Any:
    """The usual architecture, if none is named."""
    named = isinstance(given, dict) and "architecture" in given
    return (
        {"architecture": "transformer", **given}
        if isinstance(given, dict) and not named
        else given
    )


ModelChoice = Annotated[
    Transformer | Universal, Discriminator("architecture"), BeforeValidator(_usual)
]


# Training


class Paired(Part):
    """Mean squares, atom by atom."""

    kind: Literal["Paired"]


class Wasserstein(Part):
    """Exact transport."""

    kind: Literal["Wasserstein"]
    p: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0


class SinkhornDivergence(Part):
    """Entropic transport."""

    kind: Literal["SinkhornDivergence"]
    eps: Positive = 0.05
    tol: Positive = 1e-3


class EnergyDistance(Part):
    """Its square."""

    kind: Literal["EnergyDistance"]


class MMD(Part):
    """Its square, with a Gaussian kernel."""

    kind: Literal["MMD"]
    bandwidth: Positive = 1.0


LossChoice = Annotated[
    Paired | Wasserstein | SinkhornDivergence | EnergyDistance | MMD, _by, _whole
]  # fmt: skip


class Batches(Part):
    """How large the batches of a simulator are."""

    sizes: Annotated[list[Count], Field(min_length=2, max_length=2)] = [16, 128]
    atoms: Count = 2048


class Optimiser(Part):
    """Learning rates and schedule."""

    lr: Positive = 2e-3
    matrix_lr: Positive | None = 1e-2
    warmup: Annotated[int, Field(ge=0, le=10_000_000)] = 200
    weight_decay: NotNegative = 1e-4
    clip: Positive = 1.0
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.998


class Adversary(Part):
    """Measures that climb the error; the radius is that of the law by default."""

    count: Count = 1024
    sizes: Sizes = [2, 8, 32]
    atoms: Count = 1024
    radius: Positive | None = None
    fresh: Share = 0.1


class Evaluation(Part):
    """When and on what the model is judged during training."""

    every: Count | None = None
    sizes: Sizes = [16, 128, 512]
    measures: Count = 16
    patience: Count | None = None


class Training(Part):
    """How the model is trained."""

    steps: Count = 4000
    loss: LossChoice | None = None
    batches: Batches = Batches()
    optimiser: Optimiser = Optimiser()
    adversary: Adversary | None = None
    evaluation: Evaluation = Evaluation()
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: Seed = 0
    cuda_graphs: bool = False


# What is reported


class Effort(Part):
    """How hard the attack searches; the radius is that of the law by default."""

    sizes: Sizes = [2, 8, 32]
    starts: Annotated[int, Field(ge=2, le=1_000_000)] = 128
    steps: Count = 300
    seeds: Count = 3
    radius: Positive | None = None
    doubled: bool = False


class Report(Part):
    """On what the trained model is judged."""

    sizes: Sizes = [16, 64, 256, 1024, 4096]
    measures: Count = 32
    exact: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    attack: Effort | None = Effort()
    seed: Seed = 0


class Page(Part):
    """What the page says."""

    title: Annotated[str, Field(max_length=200)] | None = None


class Configuration(Part):
    """All keys of a configuration file."""

    target: Target | None = None
    law: LawChoice | None = None
    pairs: Given | None = None
    model: ModelChoice = Transformer(architecture="transformer")
    training: Training = Training()
    report: Report = Report()
    page: Page = Page()


OneOf.model_rebuild()
Configuration.model_rebuild()

SIMULATED = (
    ("target",), ("law",), ("training", "batches"), ("training", "adversary"),
    ("training", "evaluation", "sizes"), ("training", "evaluation", "measures"), ("report",),
)  # fmt: skip
"""Keys that mean something for a flow only."""


def read_configuration(file: Path) -> tuple[Configuration, Document]:
    """The configuration in a YAML file, or an error that names the key and its line.

    Args:
        file: the file.
    """
    document = read_document(file)
    found = checked(Configuration, document)
    if found.pairs is None:
        for name in ("target", "law"):
            if getattr(found, name) is None:
                raise ValueError(
                    f"{file}, line 1: the file needs `{name}`. Give a flow as the `target` with a "
                    "`law` of measures, or files of `pairs`."
                )
    else:
        for path in SIMULATED:
            if _given(document.data, path):
                raise document.error(
                    path, f"`{'.'.join(path)}` belongs to a flow as the target, not to `pairs`. "
                    "Leave one of them out.",
                )  # fmt: skip
    return found, document


def _given(data: Any, path: tuple[str, ...]) -> bool:
    """Whether a key is in the file."""
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True
