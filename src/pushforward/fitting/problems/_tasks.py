"""Tasks: what a step of training draws, and how wrong a model is on it."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._tools.checks import (
    check_callable,
    check_device,
    check_kind,
    check_limits,
    check_optional_sizes,
    check_sizes,
    check_whole,
)
from ...maps import InContextMap
from ...measures import Measure, MeasureMap, check_measures, collate
from ._groups import in_groups
from ._laws import Law, as_law
from ._losses import Loss, Paired, PerMeasure, SinkhornDivergence


@dataclass(frozen=True)
class Batches:
    """How large the batches of a simulation are.

    Args:
        sizes: least and largest number of atoms of the measures; each batch has one number.
        atoms: atoms of a batch altogether: small measures come in larger numbers.
    """

    sizes: tuple[int, int] = (16, 128)
    atoms: int = 2048

    def __post_init__(self) -> None:
        check_limits("sizes", self.sizes)
        check_sizes(atoms=self.atoms, **{f"sizes[{k}]": n for k, n in enumerate(self.sizes)})

    def draw(self, law: Law, generator: torch.Generator, index: int) -> Measure:
        """Measures of one size, which depends on the index of the batch alone."""
        check_kind("law", law, Law, "For example `pf.fitting.Mixtures(dim)`.")
        check_step(generator, index)
        n = Random(index).randint(*self.sizes)
        return law.draw(max(1, self.atoms // n), n, generator)


class Task(ABC):
    """What is learned: batches that depend on a generator alone, and the loss on them.

    `pf.fit` makes one of a simulator or of pairs. An author of another task writes both methods.
    """

    @abstractmethod
    def batch(self, generator: torch.Generator, index: int) -> Any:
        """What one step learns from, on the device of the generator.

        It depends on the state of the generator and on the index of the batch alone, so that a
        run that goes on meets the same batches.
        """

    @abstractmethod
    def losses(self, model: nn.Module, batch: Any) -> PerMeasure:
        """The loss of each part of a batch."""

    def errors(self, model: nn.Module, batch: Any) -> PerMeasure:
        """What is reported of each part of a held-out batch; the loss by default."""
        return self.losses(model, batch)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The task as data that JSON can hold, by which a run knows it again."""


class Example(NamedTuple):
    """Measures and what becomes of them."""

    source: Measure
    target: Measure


class Simulation(Task):
    r"""A target that can be evaluated at any measure: every step draws new ones.

    Args:
        target: an in-context map such as a `pf.Flow`, or any function of a measure.
        law: where measures come from.
        loss: `Paired()` by default if the target is an in-context map, whose images of atoms are
            known, and else `SinkhornDivergence()`.
        batches: their sizes.
    """

    def __init__(
        self,
        target: InContextMap | MeasureMap,
        law: Law | Callable,
        loss: Loss | None = None,
        batches: Batches | None = None,
    ) -> None:
        if not isinstance(target, InContextMap):
            check_callable("target", target, "an in-context map, or a function of a measure")
        self.target, self.law = target, as_law(law)
        self.in_context = isinstance(target, InContextMap)
        usual = Paired() if self.in_context else SinkhornDivergence()
        self.loss = usual if loss is None else loss
        check_kind("loss", self.loss, Loss, "For example `pf.fitting.Paired()`.")
        if self.loss.paired and not self.in_context:
            raise ValueError(
                "`target` must be an in-context map for a loss that compares the images of atoms "
                f"one by one, got a function of measures and {self.loss}. A function does not say "
                "which image is which. Give another loss, such as "
                "`pf.fitting.SinkhornDivergence()`."
            )
        self.batches = Batches() if batches is None else batches
        check_kind("batches", self.batches, Batches, "For example `pf.fitting.Batches()`.")

    def batch(self, generator: torch.Generator, index: int) -> Example:
        """New measures, and their images under the target."""
        return self.solved(self.batches.draw(self.law, generator, index))

    def on(self, device: torch.device) -> Simulation:
        """The same with the target on a device: a copy of it, if it is elsewhere.

        Args:
            device: where measures are drawn.
        """
        check_device(device)
        target = self.target
        if isinstance(target, nn.Module):
            tensors = chain(target.parameters(), target.buffers())
            if any(t.device != torch.empty(0, device=device).device for t in tensors):
                target = copy.deepcopy(target).to(device)
        return Simulation(target, self.law, self.loss, self.batches)  # type: ignore[arg-type]

    def solved(self, mu: Measure) -> Example:
        """Measures with their images under the target."""
        check_measures(mu=mu)
        with torch.no_grad():
            if isinstance(self.target, InContextMap):
                return Example(mu, self.target.push(mu))
            images = [self.target(m) for m in mu]
            for image in images:
                check_measures(**{"the image under `target`": image})
            return Example(mu, Measure.stack(images))

    def losses(self, model: nn.Module, batch: Example) -> PerMeasure:
        """The loss of each measure."""
        check_example(batch)
        return self.loss.between(pushed(model, batch.source), batch.target)

    def describe(self) -> dict[str, Any]:
        """The words of target, law, loss and sizes."""
        return {
            "target": words(self.target), "law": words(self.law), "loss": repr(self.loss),
            "batches": repr(self.batches),
        }  # fmt: skip


class FromPairs(Task):
    """Given pairs of measures, in a list or a data set of PyTorch.

    Args:
        pairs: pairs `(source, target)` by their index, such as a list or a `Dataset`.
        loss: `SinkhornDivergence()` by default.
        batch_size: pairs in a step.
        atoms: the most atoms of a measure in a step; larger ones are thinned out anew each time.
            By default all atoms are used.
        name: what the pairs are called in errors.
    """

    def __init__(
        self,
        pairs: Sequence[Any],
        loss: Loss | None = None,
        batch_size: int = 16,
        atoms: int | None = None,
        *,
        name: str = "pairs",
    ) -> None:
        check_kind("name", name, str, "It is what the pairs are called in errors.")
        check_sizes(batch_size=batch_size)
        check_optional_sizes(atoms=atoms)
        self.atoms, self.name = atoms, name
        self.pairs, self.loss = pairs, SinkhornDivergence() if loss is None else loss
        check_kind("loss", self.loss, Loss, "For example `pf.fitting.SinkhornDivergence()`.")
        self.batch_size = min(batch_size, _length(name, pairs))
        self.spaces: tuple[int, int] | None = None
        # A data set may read files, and is checked as it is read.
        self.listed = isinstance(pairs, list | tuple)
        for k in range(len(pairs) if self.listed else 1):
            check_usable(**{f"{what} {k}": mu for what, mu in self.example(k)._asdict().items()})

    def example(self, index: int) -> Example:
        """A pair; an error if it is none, or does not fit the loss."""
        check_whole("index", index, 0)
        if index >= len(self.pairs):
            raise IndexError(f"`index` must be below {len(self.pairs)}, got {index}.")
        pair = self.pairs[index]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            got = f"{len(pair)} things" if isinstance(pair, tuple | list) else type(pair).__name__
            raise TypeError(f"Pair {index} of `{self.name}` must be (source, target), got {got}.")
        for name, mu in zip(("source", "target"), pair, strict=True):
            check_kind(f"{name} {index}", mu, Measure, "Make one with `pf.Measure(points)`.")
            if mu.batch_shape:
                raise ValueError(
                    f"`{name} {index}` must be one measure, got a batch of shape {mu.batch_shape}."
                )
        source, target = pair
        self.spaces = spaces = self.spaces or (source.dim, target.dim)
        if (source.dim, target.dim) != spaces:
            raise ValueError(
                f"Pair {index} of `{self.name}` must be in R^{spaces[0]} and R^{spaces[1]} like "
                f"the first, got measures in R^{source.dim} and R^{target.dim}."
            )
        if self.loss.paired and source.n != target.n:
            raise ValueError(
                f"{self.loss} compares atoms one by one, but pair {index} has {source.n} atoms "
                f"and {target.n} images. Use `pf.fitting.SinkhornDivergence()` for targets whose "
                "atoms do not belong to those of the source."
            )
        return Example(source, target)

    def batch(self, generator: torch.Generator, index: int) -> Example:
        """The next pairs of a random order, which is another one in every round."""
        check_step(generator, index)
        per_round = max(1, len(self.pairs) // self.batch_size)
        order = torch.Generator().manual_seed(index // per_round)
        start = index % per_round * self.batch_size
        chosen = torch.randperm(len(self.pairs), generator=order)[start : start + self.batch_size]
        examples = [self._thinned(self._usable(int(k)), generator) for k in chosen]
        source, target = collate([tuple(example) for example in examples])
        return Example(source.to(generator.device), target.to(generator.device))

    def _usable(self, index: int) -> Example:
        """A pair; an error if its measures have no mass, or are not finite."""
        found = self.example(index)
        if not self.listed:
            check_usable(**{f"{name} {index}": mu for name, mu in found._asdict().items()})
        return found

    def _thinned(self, example: Example, generator: torch.Generator) -> Example:
        """The pair with at most `atoms` atoms each; paired atoms stay together."""
        if self.atoms is None:
            return example
        source, target = example
        kept = some(source, self.atoms, generator)
        other = kept if self.loss.paired else some(target, self.atoms, generator)
        return Example(taken(source, kept), taken(target, other))

    def losses(self, model: nn.Module, batch: Example) -> PerMeasure:
        """The loss of each pair; on a CPU, measures of like sizes are computed together."""
        check_example(batch)
        groups, place = in_groups(*batch)
        each = [self.loss.between(pushed(model, mu), nu) for mu, nu in groups]
        return torch.cat(each)[place]

    def describe(self) -> dict[str, Any]:
        """How many pairs there are, their space, and the loss."""
        source, target = self.example(0)
        return {
            "pairs": len(self.pairs), "from": source.dim, "to": target.dim,
            "loss": repr(self.loss), "batch_size": self.batch_size, "atoms": self.atoms,
        }  # fmt: skip


def some(mu: Measure, most: int, generator: torch.Generator) -> Tensor | None:
    r"""Indices of `most` random atoms that stand for a measure, or None if it has no more.

    Systematic sampling: the atoms are put into a random order, and $m$ equidistant levels with a
    random offset are sent through the inverse of their cumulative weights. Atom $i$ of weight
    $a_i$ is taken $ma_i$ times on average, and never more or less than this number rounded.
    """
    if mu.n <= most:
        return None
    where = generator.device
    order = torch.randperm(mu.n, generator=generator, device=where).to(mu.device)
    offset = torch.rand((), generator=generator, device=where, dtype=torch.float64)
    levels = (torch.arange(most, device=mu.device) + offset.to(mu.device)) / most
    share = mu.log_weights.double().softmax(-1)[order].cumsum(-1)
    below_one = levels.clamp(max=1 - 2**-53)  # a level of 1 lies above all atoms
    return order[torch.searchsorted(share / share[-1], below_one, right=True)]


def taken(mu: Measure, kept: Tensor | None) -> Measure:
    """The atoms of `kept` with equal weights and the mass of all, or the measure itself."""
    if kept is None:
        return mu
    logs = (mu.log_weights.logsumexp(-1) - math.log(len(kept))).expand(len(kept))
    times = None if mu.times is None else mu.times[kept]
    return Measure.unchecked(mu.atoms[kept], logs, times)


def pushed(model: nn.Module, mu: Measure) -> Measure:
    """The image of a measure under a model with a method `push`, or one that is called on it."""
    pushes = hasattr(model, "push") and not isinstance(model, type)
    if not pushes:
        check_callable("model", model, "a map with `push`, or a module called on a measure")
    image = model.push(mu) if pushes else model(mu)  # type: ignore[operator]
    check_measures(**{"the image under `model`": image})
    return image


@torch.no_grad()
def check_images(model: nn.Module, task: Task, generator: torch.Generator) -> None:
    """Raise unless a model maps a first batch to measures that compare with the right ones.

    Args:
        model: the model.
        task: what it learns; only simulations and pairs are checked.
        generator: draws the batch.
    """
    if not isinstance(task, Simulation | FromPairs):
        return
    source, target = task.batch(generator, 0)
    check_usable(**{"a source of the first batch": source, "a target of the first batch": target})
    try:
        image = pushed(model, source)
    except Exception as error:
        error.add_note("`model` is an in-context map, or a module that is called on a measure.")
        raise
    if image.dim != target.dim:
        raise ValueError(
            f"`model` must have images in R^{target.dim} like the targets, got R^{image.dim}. "
            f"Give it `out_dim={target.dim}`."
        )


def check_usable(**measures: Measure) -> None:
    """Raise unless measures have finite atoms and weights, and some mass.

    Args:
        **measures: the measures by their names.
    """
    for name, mu in measures.items():
        logs = mu.log_weights
        live = logs != -torch.inf
        if 0 in mu.atoms.shape or not live.any(-1).all():
            raise ValueError(f"`{name}` must have atoms with mass, got none. Leave it out.")
        if not (mu.atoms.isfinite().all(-1) | ~live).all() or not (logs < torch.inf).all():
            raise ValueError(f"`{name}` must have finite atoms and weights, got NaN or inf.")


def check_step(generator: torch.Generator, index: int) -> None:
    """Raise unless the batch of a step can be drawn."""
    check_kind("generator", generator, torch.Generator, "Make one with `torch.Generator()`.")
    check_whole("index", index, 0)


def check_example(batch: Example) -> None:
    """Raise unless a batch holds measures and their images."""
    check_kind("batch", batch, Example, "Draw one with `task.batch(generator, 0)`.")


def _length(name: str, pairs: Sequence[Any]) -> int:
    """The number of pairs, at least one."""
    indexed = hasattr(pairs, "__len__") and hasattr(pairs, "__getitem__")
    if not indexed or isinstance(pairs, type | str | Tensor):
        raise TypeError(
            f"`{name}` must be pairs (source, target) with a length and an index, such as a list "
            f"or a map-style `torch.utils.data.Dataset`, got {type(pairs).__name__}. Read an "
            f"iterable of pairs into a list, `list({name})`."
        )
    if not len(pairs):
        raise ValueError(f"`{name}` must hold at least one pair, got none.")
    return len(pairs)


def words(thing: object) -> str:
    """How an object shows itself, without the address of a function."""
    text = repr(thing)
    return text if " at 0x" not in text else type(thing).__name__
