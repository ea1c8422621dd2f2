"""An adversary: measures that climb the error of a network while it learns."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from ..._tools.checks import (
    check_kind,
    check_listed_sizes,
    check_number,
    check_range,
    check_sizes,
)
from ...measures import Measure
from ..problems import LARGEST_LOG, Box, Example, Simulation, centred


@dataclass(frozen=True)
class Adversary:
    r"""Measures on the box $[-r,r]^d$ that climb the error while the network descends it.

    Corollary 1 is about all measures at once, and training on random ones leaves rare measures
    with large errors. At each step some of the measures join the batch. The backward pass
    that moves the network down also gives the direction in which their atoms and log-weights
    move up. Those with the smallest errors are replaced by new ones of the law `Box`.

    Args:
        count: measures of each size.
        sizes: numbers of atoms; each step takes measures of one of them.
        atoms: atoms that join a batch altogether.
        radius: $r$.
        fresh: share of the measures of a step that are replaced.
    """

    count: int = 1024
    sizes: tuple[int, ...] = (2, 8, 32)
    atoms: int = 1024
    radius: float = 2.5
    fresh: float = 0.1

    def __post_init__(self) -> None:
        check_sizes(count=self.count, atoms=self.atoms)
        check_listed_sizes("sizes", self.sizes)
        check_number("radius", self.radius)
        check_range("fresh", self.fresh, 0, 1)

    def begin(self, task: Simulation, generator: torch.Generator) -> Climbers:
        """The measures at the beginning.

        Args:
            task: what is learned.
            generator: draws them.
        """
        check_kind("task", task, Simulation, "`pf.fitting.Simulation(target, law)` makes one.")
        check_kind("generator", generator, torch.Generator, "Make one with `torch.Generator()`.")
        box = Box(task.law.dim, self.radius)
        drawn = {n: box.draw(self.count, n, generator) for n in self.sizes}
        tensors = {}
        for n, mu in drawn.items():
            tensors[f"atoms/{n}"], tensors[f"logs/{n}"] = mu.atoms, centred(mu.log_weights)
        return Climbers(self, task, tensors)


class Climbers:
    """The measures of an adversary in the course of training.

    Args:
        adversary: how they climb.
        task: what is learned.
        tensors: their atoms and log-weights, by the number of atoms.
    """

    def __init__(self, adversary: Adversary, task: Simulation, tensors: dict[str, Tensor]) -> None:
        self.adversary, self.task, self.tensors = adversary, task, tensors
        self.n, self.chosen = 0, torch.zeros(0)
        self.x, self.logs = torch.zeros(0), torch.zeros(0)

    def example(self, generator: torch.Generator, index: int) -> Example:
        """Some of the measures, whose gradients say where to climb, and their images."""
        x, logs = self.choose(generator, index)
        return self.posed(self.task, x.requires_grad_(), logs.requires_grad_())

    @staticmethod
    def posed(task: Simulation, x: Tensor, logs: Tensor) -> Example:
        """Measures of atoms and log-weights, and their images, with gradients through both."""
        mu = Measure.unchecked(x, logs.log_softmax(-1))
        return Example(mu, task.target.push(mu))  # type: ignore[union-attr]

    def choose(self, generator: torch.Generator, index: int) -> tuple[Tensor, Tensor]:
        """Choose the measures that climb in this step: their atoms and log-weights."""
        self.n = Random(index).choice(self.adversary.sizes)
        count = min(self.adversary.count, max(1, self.adversary.atoms // self.n))
        where = generator.device
        order = torch.randperm(self.adversary.count, generator=generator, device=where)
        self.chosen = order[:count]
        self.x = self.tensors[f"atoms/{self.n}"][self.chosen]
        self.logs = self.tensors[f"logs/{self.n}"][self.chosen]
        return self.x, self.logs

    @torch.no_grad()
    def climb(self, generator: torch.Generator, errors: Tensor) -> None:
        """Move the measures of the last example along their gradients, by random lengths.

        Args:
            generator: draws lengths and new measures.
            errors: how wrong the network was on each measure; the least are replaced.
        """
        r, count = self.adversary.radius, len(self.chosen)
        uniform = torch.rand(count, generator=generator, device=generator.device)
        length = 10 ** (-1 - 1.5 * uniform)
        new = Box(self.x.shape[-1], r).draw(count, self.n, generator)
        fresh = torch.zeros_like(uniform, dtype=torch.bool)
        fresh[errors.argsort()[: round(self.adversary.fresh * count)]] = True
        x = self.x + 0.4 * r * length[:, None, None] * _unit(self.x.grad)
        logs = self.logs + 3 * length[:, None] * _unit(self.logs.grad)
        x = torch.where(fresh[:, None, None], new.atoms, x.clamp(-r, r))
        logs = logs.clamp(-LARGEST_LOG, LARGEST_LOG)
        logs = torch.where(fresh[:, None], centred(new.log_weights), logs)
        self.tensors[f"atoms/{self.n}"][self.chosen] = x
        self.tensors[f"logs/{self.n}"][self.chosen] = logs


def _unit(gradient: Tensor | None) -> Tensor:
    """A gradient whose largest entry for each measure is 1."""
    if gradient is None:
        raise ValueError("The target does not depend on the measures of the adversary.")
    gradient = gradient.nan_to_num()
    size = gradient.abs().flatten(1).amax(-1).clamp_min(1e-30)
    return gradient / size.reshape(-1, *[1] * (gradient.ndim - 1))
