"""The error of a learned map at any number of atoms, on measures it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._tools.checks import (
    check_flags,
    check_kind,
    check_listed_sizes,
    check_seed,
    check_sizes,
    check_whole,
)
from ..._tools.output import bar
from ...distances import wasserstein
from ...maps import InContextMap
from ...measures import Measure, MeasureMap
from ..problems import Example, Law, Simulation, as_law, pushed

ATOMS = 1 << 16
"""Atoms of the measures that are evaluated at once."""

EXACT = 4096
"""Atoms up to which exact transport is computed."""


@dataclass(frozen=True)
class Score:
    r"""The error at one number of atoms, as a share of the displacement.

    Args:
        n: number of atoms of each measure.
        measures: how many measures.
        mean: the mean error, $\int|\Gamma(\mu,x)-G(\mu,x)|\,d\mu\,/\int|G(\mu,x)-x|\,d\mu$; for a
            target that is no in-context map, $W_1$ of the images over $W_1$ of source and target.
        standard_error: of the mean.
        worst: the largest error.
        transport: the mean of exact $W_1$ over the displacement, where it was computed.
    """

    n: int
    measures: int
    mean: float
    standard_error: float
    worst: float
    transport: float | None = None


@dataclass(frozen=True)
class ScoreTable:
    """Errors at several numbers of atoms.

    Args:
        rows: one for each number of atoms.
        seed: what the measures were drawn with.
    """

    rows: tuple[Score, ...]
    seed: int = 0

    @property
    def growth(self) -> float:
        """The mean error at the largest number of atoms over that at the one nearest to 64."""
        near = min(self.rows, key=lambda row: abs(row.n - 64))
        return max(self.rows, key=lambda row: row.n).mean / near.mean

    def to_dict(self) -> dict[str, Any]:
        """Everything as data that JSON can hold; numbers that are not finite become strings."""
        return plain({"rows": [vars(row) for row in self.rows], "seed": self.seed})

    def __str__(self) -> str:
        """A table."""
        lines = [
            f"{'atoms':>9} {'mean error':>11} {'+-':>8} {'worst draw':>10} {'W1':>8}  measures"
        ]
        for row in self.rows:
            exact = "" if row.transport is None else f"{row.transport:.2%}"
            lines.append(
                f"{row.n:9,} {row.mean:11.2%} {row.standard_error:8.2%} {row.worst:10.2%} "
                f"{exact:>8}  {row.measures}"
            )
        return "\n".join(lines)


def evaluate(
    model: nn.Module,
    target: InContextMap | MeasureMap,
    law: Law | Callable,
    *,
    sizes: Sequence[int] = (16, 64, 256, 1024, 4096),
    measures: int = 32,
    exact: int = 0,
    seed: int = 0,
    progress: bool | None = None,
) -> ScoreTable:
    r"""The error of a model at several numbers of atoms, with its standard error.

    Corollary 1 says that it need not grow with the number of atoms [A, Cor. 1].

    Args:
        model: the learned map.
        target: the map that was to be learned.
        law: where measures come from.
        sizes: numbers of atoms.
        measures: how many measures of each size.
        exact: for how many of them exact $W_1$ is computed as well, up to 4,096 atoms; targets
            that are no in-context maps always need it.
        seed: what measures are drawn with; those of training have other ones.
        progress: whether to show a progress bar; by default at a terminal.

    Examples:
        >>> shift = pf.Pointwise(lambda x: x + 1)
        >>> nearly = pf.Pointwise(lambda x: x + 0.99)
        >>> law = pf.fitting.Mixtures(2)
        >>> print(pf.fitting.evaluate(nearly, shift, law, sizes=[16, 256], measures=4))
            atoms  mean error       +- worst draw       W1  measures
               16       1.00%    0.00%      1.00%           4
              256       1.00%    0.00%      1.00%           4
    """
    check_kind("model", model, nn.Module, "For example a `pf.Transformer`.")
    check_listed_sizes("sizes", sizes)
    check_sizes(measures=measures)
    check_whole("exact", exact, 0)
    check_seed(seed)
    check_flags(progress=progress)
    where = device_of(model)
    task = Simulation(target, as_law(law)).on(where)
    rows = []
    with bar("evaluate", measures * len(sizes), progress) as tick, torch.no_grad():
        for k, n in enumerate(sizes):
            generator = torch.Generator(where).manual_seed(held_out_seed(seed, k))
            exactly = exact if n <= EXACT else 0
            parts, exacts, done = [], [], 0
            for example in examples(task, n, measures, generator):
                image = pushed(model, example.source)
                if task.in_context:
                    parts.append(displaced(example, image))
                else:
                    parts.append(transported(example, image))
                for i in range(max(0, min(exactly - done, len(image)))):
                    exacts.append(_transport_share(example, image, i))
                done += len(image)
                tick(k * measures + done)
            errors = torch.cat(parts).double()
            spread = errors.std().item() / measures**0.5 if measures > 1 else float("nan")
            share = sum(exacts) / len(exacts) if exacts else None
            rows.append(
                Score(n, measures, errors.mean().item(), spread, errors.max().item(), share)
            )
    return ScoreTable(tuple(rows), seed)


def examples(
    task: Simulation, n: int, measures: int, generator: torch.Generator
) -> Iterator[Example]:
    """So many measures of `n` atoms with their images, as many at once as memory is made for."""
    left = measures
    while left:
        count = min(left, max(1, ATOMS // n))
        yield task.solved(task.law.draw(count, n, generator))
        left -= count


def displaced(example: Example, image: Measure) -> Tensor:
    """The mean distance of images from the right ones, over the mean displacement."""
    mu = example.source.normalise()
    gap = lambda x, y: mu.integrate((x - y).norm(dim=-1).to(mu.log_weights.dtype))
    moved = gap(example.target.atoms, mu.atoms)
    return gap(image.atoms, example.target.atoms) / moved


def transported(example: Example, image: Measure) -> Tensor:
    """$W_1$ of image and target over $W_1$ of source and target."""
    source, target, image = (m.normalise() for m in (*example, image))
    return wasserstein(image, target) / wasserstein(source, target)


def _transport_share(example: Example, image: Measure, i: int) -> float:
    """The same with the displacement below, for one measure of a batch."""
    source, target = example.source.normalise()[i], example.target.normalise()[i]
    moved = source.integrate((target.atoms - source.atoms).norm(dim=-1).to(source.weights))
    return float(wasserstein(image.normalise()[i], target) / moved)


def held_out_seed(seed: int, k: int) -> int:
    """A seed that no step of training has: those are smaller."""
    return (1 << 61) + 1_000_003 * seed % (1 << 40) + k


def device_of(model: Any) -> torch.device:
    """Where the parameters of a model are."""
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    return next((p.device for p in parameters), torch.device("cpu"))


def plain(x: Any) -> Any:
    """Data that JSON can hold; numbers that are not finite become the strings "inf" and "nan"."""
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [plain(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x
