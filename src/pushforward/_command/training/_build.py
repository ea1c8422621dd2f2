"""What a configuration of a fit describes, as objects of the library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ... import fitting
from ...flows import Euclidean, Flow, Torus, fields
from ...maps import Block, Compose, InContextMap, PostNorm, PreNorm, Residual, Transformer
from ...measures import Measure
from ..configuring import Document, field_of, solver_of
from ..reading import read_rows
from . import _schema as schema

NORMS = {"PreNorm": PreNorm(), "PostNorm": PostNorm(), "none": None}

Couple = tuple[Measure, Measure]
"""A source and its target."""


@dataclass(frozen=True)
class Plan:
    """A fit that can begin.

    Args:
        model: the network, with its first weights.
        training: how it is trained.
        steps: steps of the optimiser.
        target: the map to learn, None for pairs.
        law: where measures come from, None for pairs.
        pairs: the pairs to learn from, None for a target.
        held_out: pairs to judge by.
        effort: how hard the attack searches, None for no attack.
    """

    model: nn.Module
    training: fitting.Training
    steps: int
    target: Flow | None = None
    law: fitting.Law | None = None
    pairs: fitting.FromPairs | None = None
    held_out: list[Couple] = field(default_factory=list)
    effort: fitting.Attack | None = None

    def fit(self, **kept: Path) -> fitting.Fit:
        """Train; the arguments say where the run is kept.

        Args:
            **kept: `out=` or `resume=` of `pf.fit`.
        """
        return fitting.fit(
            self.model, self.pairs, target=self.target, law=self.law, steps=self.steps,
            training=self.training, **kept,
        )  # fmt: skip


def build(found: schema.Configuration, document: Document) -> Plan:
    """The fit that a configuration describes; errors name the key and its line.

    Args:
        found: the configuration.
        document: where it was read.
    """
    plan = _simulated if found.pairs is None else _paired
    return plan(found, document)


def _simulated(found: schema.Configuration, document: Document) -> Plan:
    """A fit to a flow."""
    with document.blamed("law"):
        law, radius = _law(found.law)
    with document.blamed("target", "field"):
        target = _flow(found.target, law.dim)
    with document.blamed("training", "adversary"):
        adversary = _adversary(found.training.adversary, radius)
    with document.blamed("report", "attack"):
        effort = _effort(found.report.attack, radius)
    model = _model(found, document, law.dim, law.dim)
    judged = found.training.evaluation
    with document.blamed("training"):
        evaluation = fitting.Evaluation(
            judged.every, tuple(judged.sizes), judged.measures, patience=judged.patience
        )
    with document.blamed("training", "batches"):
        low, high = found.training.batches.sizes
        batches = fitting.Batches((low, high), found.training.batches.atoms)
    training = _training(found, batches, adversary, evaluation)
    generator = torch.Generator().manual_seed(0)
    with document.blamed("target", "field"):
        example = fitting.Simulation(target, law, training.loss).solved(law.draw(2, 3, generator))
    with document.blamed("training", "loss"):
        loss = training.loss or fitting.Paired()
        loss.between(example.source, example.target)
    with document.blamed("law"):  # the unit of errors must not be zero
        least = fitting.Attack(sizes=(2,), starts=2, steps=1, seeds=1, radius=radius)
        fitting.attack(model, target, law, least, progress=False)
    return Plan(model, training, found.training.steps, target, law, effort=effort)


def _paired(found: schema.Configuration, document: Document) -> Plan:
    """A fit to pairs in files."""
    given: Any = found.pairs
    sources, targets = (
        _measures(getattr(given, name), name, document) for name in ("sources", "targets")
    )
    if len(sources) != len(targets):
        raise document.error(
            ["pairs"], f"`pairs` needs as many targets as sources, got {len(sources)} sources and "
            f"{len(targets)} targets.",
        )  # fmt: skip
    order = torch.Generator().manual_seed(found.training.seed)
    mixed = torch.randperm(len(sources), generator=order).tolist()
    kept = min(len(mixed) - 1, max(1, round(given.held_out * len(mixed))))
    kept = kept if given.held_out else 0
    couples = [(sources[k], targets[k]) for k in mixed]
    held_out, learned = couples[:kept], couples[kept:]
    judged = found.training.evaluation
    evaluation = fitting.Evaluation(judged.every, pairs=held_out or None, patience=judged.patience)
    training = _training(found, fitting.Batches(), None, evaluation)
    with document.blamed("pairs"):
        pairs = fitting.FromPairs(learned, training.loss, given.batch_size, given.atoms)
        for task in (pairs, *([fitting.FromPairs(held_out, training.loss)] if held_out else ())):
            for k in range(len(task.pairs)):
                task.example(k)
    model = _model(found, document, sources[0].dim, targets[0].dim)
    return Plan(model, training, found.training.steps, pairs=pairs, held_out=held_out)


# What is learned


def _law(choice: Any) -> tuple[fitting.Law, float]:
    """A law, and the radius of the box that its points lie in."""
    match choice:
        case schema.Mixtures():
            low, high = choice.scales
            law: fitting.Law = fitting.Mixtures(
                choice.dim, choice.components, choice.spread, (low, high), choice.radius,
                choice.unequal,
            )  # fmt: skip
            return law, choice.radius
        case schema.Box():
            return fitting.Box(choice.dim, choice.radius), choice.radius
    laws, radii = zip(*map(_law, choice.laws), strict=True)
    return fitting.OneOf(*laws, shares=choice.shares), max(radii)


def _flow(target: Any, dim: int) -> Flow:
    """The solution map of a flow of points of all of space."""
    velocity = field_of(target.field, dim, torch.get_default_dtype())
    manifold = fields.manifold_of(velocity)
    if isinstance(manifold, Torus):
        # As a map of space: points that were brought back to one period would jump.
        velocity = Compose(velocity)
    elif manifold != Euclidean():
        raise ValueError(
            f"a law draws points of all of R^{dim}, and this field moves points of {manifold}. "
            "Leave out `manifold`."
        )
    return Flow(velocity, t1=target.t1, solver=solver_of(target.solver))


def _measures(files: str | list[str], name: str, document: Document) -> list[Measure]:
    """The measures in files, in the default precision."""
    names, found = [files] if isinstance(files, str) else files, []
    for k, file in enumerate(names):
        at = ("pairs", name) if isinstance(files, str) else ("pairs", name, k)
        with document.blamed(*at):
            found += _read(document.file.parent / file)
            for what, mu in (("measures", found[0]), ("these", found[-1])):
                if mu.dim != found[0].dim:
                    raise ValueError(
                        f"all {what} must lie in R^{found[0].dim} like the first, got R^{mu.dim}."
                    )
    return found


def _read(file: Path) -> list[Measure]:
    """The measures in a file."""
    if file.suffix != ".safetensors":
        rows = torch.from_numpy(read_rows(file, sets=True)).to(torch.get_default_dtype())
        return [Measure(points) for points in (rows if rows.ndim == 3 else rows[None])]
    if not file.is_file():
        raise ValueError(f"There is no file {str(file)!r}.")
    mu = Measure.load(file)
    if not (mu.atoms.isfinite().all() and mu.mass.isfinite().all() and (mu.mass > 0).all()):
        raise ValueError(f"{file} must hold finite points and positive masses.")
    if len(mu.batch_shape) > 1:
        raise ValueError(f"{file} must hold a measure or a list of them, got {mu}.")
    each = mu if mu.batch_shape else [mu]
    return [m.strip().to(torch.get_default_dtype()) for m in each]


# The model and its training


def _model(found: schema.Configuration, document: Document, dim: int, out: int) -> nn.Module:
    """The network, with weights that follow from the seed; between equal spaces a displacement."""
    choice: Any = found.model
    with document.blamed("model"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(found.training.seed)
        if isinstance(choice, schema.Universal):
            network: InContextMap = Transformer.universal(
                dim, out, depth=choice.depth, hidden=choice.hidden
            )
        else:
            network = Transformer(
                dim, depth=choice.depth, heads=choice.heads, width=choice.width,
                hidden=choice.hidden, out_dim=out, block=Block(norm=NORMS[choice.norm]),
            )  # fmt: skip
        model = Residual(network) if out == dim else network
        with torch.no_grad():
            model.push(Measure(torch.zeros(1, 2, dim)))
    return model


def _training(
    found: schema.Configuration, batches: fitting.Batches, adversary: fitting.Adversary | None,
    evaluation: fitting.Evaluation,
) -> fitting.Training:  # fmt: skip
    given = found.training
    optimiser = fitting.Optimiser(**given.optimiser.model_dump())
    return fitting.Training(
        _loss(given.loss),
        batches,
        optimiser,
        adversary,
        evaluation,
        given.precision,
        given.seed,
        given.cuda_graphs,
    )


def _loss(choice: Any) -> fitting.Loss | None:
    if choice is None:
        return None
    return getattr(fitting, choice.kind)(**choice.model_dump(exclude={"kind"}))


def _adversary(choice: Any, radius: float) -> fitting.Adversary | None:
    if choice is None:
        return None
    return fitting.Adversary(
        choice.count, tuple(choice.sizes), choice.atoms, choice.radius or radius, choice.fresh
    )


def _effort(choice: Any, radius: float) -> fitting.Attack | None:
    if choice is None:
        return None
    reach = choice.radius or radius
    if reach < radius:
        raise ValueError(
            f"its `radius` must be at least that of the law, {radius:g}, from which it starts, "
            f"got {reach:g}."
        )
    return fitting.Attack(
        tuple(choice.sizes), choice.starts, choice.steps, choice.seeds, reach, choice.doubled
    )
