"""How a model is trained: the optimiser, its schedule, how it is judged, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .._tools.checks import (
    check_flags,
    check_kind,
    check_listed_sizes,
    check_number,
    check_optional_sizes,
    check_range,
    check_seed,
    check_sizes,
    check_whole,
)
from ._muon import Muon
from .judging import Adversary, displaced, examples, held_out_seed
from .problems import Batches, FromPairs, Law, Loss, Simulation, Task, pushed

PRECISIONS = ("float32", "bfloat16")

MATRIX = 16
"""Rows and columns from which on Muon moves a matrix."""


@dataclass(frozen=True)
class Optimiser:
    r"""Muon and AdamW, a warm-up, a cosine schedule, clipped gradients, and averaged weights.

    Muon (Jordan et al., 2024) moves a matrix by its momentum, whose singular values are all
    replaced by about 1. It moves the matrices inside, those of at least 16 rows and columns.
    AdamW moves all other parameters: embedding, read-out, biases, norms.

    Args:
        lr: the largest learning rate of AdamW.
        matrix_lr: the largest learning rate of Muon, in the same units; None to move all
            parameters by AdamW.
        warmup: steps over which the learning rate rises from 0, at most a tenth of all.
        weight_decay: of matrices; vectors do not decay.
        clip: largest norm of the gradient; larger ones are scaled down.
        ema: the result has the exponential moving average of the weights, in which a step counts
            $1-$`ema`; 0 for the last weights.
    """

    lr: float = 2e-3
    matrix_lr: float | None = 1e-2
    warmup: int = 200
    weight_decay: float = 1e-4
    clip: float = 1.0
    ema: float = 0.998

    def __post_init__(self) -> None:
        check_number("lr", self.lr)
        if self.matrix_lr is not None:
            check_number("matrix_lr", self.matrix_lr)
        check_whole("warmup", self.warmup, 0)
        check_range("weight_decay", self.weight_decay, 0)
        check_number("clip", self.clip)
        check_range("ema", self.ema, 0, 1)

    def rate(self, step: int, steps: int) -> float:
        """The share of the largest learning rate that a step has."""
        check_whole("step", step, 0)
        check_sizes(steps=steps)
        rise = min(1.0, (step + 1) / (min(self.warmup, steps // 10) + 1))
        return rise * 0.5 * (1 + math.cos(math.pi * step / steps))

    def decay(self, step: int) -> float:
        """The share of the average that a step keeps; the first steps are forgotten sooner."""
        check_whole("step", step, 0)
        return min(self.ema, (step + 1) / (step + 10))


@dataclass(frozen=True)
class Evaluation:
    r"""How a model is judged during training, on measures that it does not learn from.

    Args:
        every: steps from one evaluation, line of the log and checkpoint to the next; a twentieth
            of all steps by default.
        sizes: numbers of atoms at which a simulator is drawn from; larger ones than in training
            show whether the error grows.
        measures: how many measures of each size.
        laws: further laws by their names, beside the one of training.
        pairs: held-out pairs of measures, for training on pairs.
        patience: how many evaluations may bring nothing new before training stops; None to take
            all steps.
    """

    every: int | None = None
    sizes: tuple[int, ...] = (16, 128, 512)
    measures: int = 16
    laws: Mapping[str, Law] = field(default_factory=dict)
    pairs: Sequence[Any] | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        check_optional_sizes(every=self.every, patience=self.patience)
        check_listed_sizes("sizes", self.sizes)
        check_sizes(measures=self.measures)
        check_kind("laws", self.laws, Mapping, 'Laws by name: `{"box": pf.fitting.Box(dim)}`.')
        for name, law in self.laws.items():
            check_kind(f"laws[{name!r}]", law, Law, "For example `pf.fitting.Box(dim)`.")
        if self.pairs is not None:
            FromPairs(self.pairs)  # raises unless they are pairs of measures


@dataclass(frozen=True)
class Training:
    r"""How `pf.fit` trains.

    Args:
        loss: what is made small; by default `Paired()` for an in-context map as the target and
            `SinkhornDivergence()` otherwise.
        batches: sizes of the measures of a simulator.
        optimiser: learning rates and schedule.
        adversary: an `Adversary`, whose measures climb the error while the network descends it.
        evaluation: when and on what the model is judged.
        precision: "float32", or "bfloat16" for products of matrices.
        seed: everything random follows from it and from the number of the step.
        cuda_graphs: whether the launches of a step are recorded once for each shape of batch and
            replayed, on an NVIDIA GPU. Small networks train several times faster. Model, target
            and loss must not look at values, as `.item()` and `if` do. Their Python code runs only
            while a shape is recorded: what it counts stands still afterwards, and later batches
            are not checked. Every number of atoms is a shape, so few `sizes` of batches, and long
            runs, gain most.
    """

    loss: Loss | None = None
    batches: Batches = field(default_factory=Batches)
    optimiser: Optimiser = field(default_factory=Optimiser)
    adversary: Adversary | None = None
    evaluation: Evaluation = field(default_factory=Evaluation)
    precision: str = "float32"
    seed: int = 0
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.loss is not None:
            check_kind("loss", self.loss, Loss, "For example `pf.fitting.Paired()`.")
        if self.adversary is not None:
            check_kind("adversary", self.adversary, Adversary, "Use `pf.fitting.Adversary()`.")
        check_kind("batches", self.batches, Batches, "For example `pf.fitting.Batches()`.")
        check_kind("optimiser", self.optimiser, Optimiser, "Use `pf.fitting.Optimiser()`.")
        check_kind("evaluation", self.evaluation, Evaluation, "Use `pf.fitting.Evaluation()`.")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            raise ValueError(f"`precision` must be one of {PRECISIONS}, got {self.precision!r}.")
        check_flags(cuda_graphs=self.cuda_graphs)
        check_seed(self.seed)


def optimisers_of(parameters: list[nn.Parameter], rule: Optimiser) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside and AdamW for the rest, whose vectors do not decay.

    Args:
        parameters: what is trained.
        rule: learning rates and decay.
    """
    inside = [p for p in parameters if p.ndim == 2 and min(p.shape) >= MATRIX]
    inside = [] if rule.matrix_lr is None else inside
    others = [p for p in parameters if not any(p is q for q in inside)]
    groups = [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": rule.weight_decay},
        {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0},
    ]
    made: list[torch.optim.Optimizer] = []
    if any(group["params"] for group in groups):
        made.append(torch.optim.AdamW([g for g in groups if g["params"]], lr=rule.lr))
    if inside and rule.matrix_lr is not None:
        made.append(Muon(inside, rule.matrix_lr))
    for group in (group for method in made for group in method.param_groups):
        group["initial_lr"] = group["lr"]
    return made


def judged(
    model: nn.Module, task: Task, evaluation: Evaluation, device: torch.device
) -> dict[str, float]:
    """Errors of a model on measures that it did not learn from, each with its name.

    Args:
        model: the model.
        task: what it learns.
        evaluation: which measures.
        device: where they are drawn.
    """
    found: dict[str, float] = {}
    if isinstance(task, Simulation):
        laws = {"": task.law, **evaluation.laws}
        for k, (name, law) in enumerate(laws.items()):
            own = Simulation(task.target, law, task.loss)
            for n in evaluation.sizes:
                generator = torch.Generator(device).manual_seed(held_out_seed(k, n))
                parts = [
                    displaced(e, pushed(model, e.source)) if task.in_context
                    else own.errors(model, e)
                    for e in examples(own, n, evaluation.measures, generator)
                ]  # fmt: skip
                found[f"error {name}{', ' if name else ''}n = {n}"] = (
                    torch.cat(parts).mean().item()
                )
    elif evaluation.pairs is not None and isinstance(task, FromPairs):
        held_out = FromPairs(evaluation.pairs, task.loss, task.batch_size)
        rounds = max(1, len(evaluation.pairs) // held_out.batch_size)
        generator = torch.Generator(device)
        losses = [held_out.losses(model, held_out.batch(generator, k)) for k in range(rounds)]
        found["error, held out"] = torch.cat(losses).mean().item()
    elif not isinstance(task, FromPairs):
        generator = torch.Generator(device).manual_seed(held_out_seed(0, 0))
        found["error, held out"] = task.errors(model, task.batch(generator, 0)).mean().item()
    return found


def overall(row: dict[str, float]) -> float:
    """One number for how good a model is: the mean of its errors, or the loss."""
    errors = [value for name, value in row.items() if name.startswith("error")]
    return sum(errors) / len(errors) if errors else row["loss"]
