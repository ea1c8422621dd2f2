"""A fit as plain data: how it was trained, how wrong it is, and pictures of measures."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import torch

from ... import fitting
from ...distances import wasserstein
from ...measures import Measure
from ._build import Couple, Plan
from ._schema import Configuration

FORMAT = "pushforward fit, version 1"

PICTURED = 48
"""Atoms of the held-out measure in the picture, at most."""

SEED = (1 << 61) - 1
"""What the measure in the picture is drawn with; steps of training have smaller seeds."""


def asked(found: Configuration) -> dict[str, Any]:
    """What a report must say to be that of a configuration.

    Args:
        found: the configuration.
    """
    return {"format": FORMAT, "configuration": found.model_dump(mode="json")}


def trained(found: Configuration, plan: Plan, result: fitting.Fit) -> dict[str, Any]:
    """A fit before it is judged.

    Args:
        found: the configuration.
        plan: what it describes.
        result: the trained model, and how it was trained.
    """
    where = next(result.model.parameters()).device
    device = torch.cuda.get_device_name(where) if where.type == "cuda" else platform.machine()
    threads = "" if where.type == "cuda" else f", PyTorch threads: {torch.get_num_threads()}"
    broken = result.obstructions
    return {
        **asked(found),
        "versions": {
            "pushforward": version("pushforward"), "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": device + threads,
        "parameters": sum(p.numel() for p in plan.model.parameters()),
        "loss": repr(plan.training.loss or fitting.Paired()) if plan.pairs is None
        else repr(plan.pairs.loss),
        "steps": result.steps,
        "log": [{name: _finite(x) for name, x in row.items()} for row in result.log],
        "obstructions": None if broken is None or not broken.share else str(broken),
        "scores": None, "attack": None, "pairs": None, "pictures": {},
    }  # fmt: skip


@torch.no_grad()
def held_out(plan: Plan, model: Any) -> dict[str, Any] | None:
    r"""Errors on the pairs that were held out; None if there are none.

    The error of a pair is $W_1$ of image and target. If both spaces are equal, all errors are
    divided by the mean of $W_1$ of source and target.

    Args:
        plan: the fit.
        model: the trained model.
    """
    if not plan.held_out:
        return None
    where = next(model.parameters()).device
    errors, moved = [], []
    for source, target in plan.held_out:
        mu, nu = source.to(where).normalise(), target.to(where).normalise()
        errors.append(float(wasserstein(model.push(mu), nu)))
        if mu.dim == nu.dim:
            moved.append(float(wasserstein(mu, nu)))
    unit = sum(moved) / len(moved) if moved else 0.0
    scaled = [e / unit for e in errors] if unit else errors
    return {
        "pairs": len(scaled), "mean": _finite(sum(scaled) / len(scaled)),
        "worst": _finite(max(scaled)), "share": unit > 0, "displacement": unit,
    }  # fmt: skip


def one_measure(plan: Plan, model: Any) -> dict[str, Any] | None:
    """One held-out measure with its true and its predicted image, for a picture.

    Args:
        plan: the fit.
        model: the trained model.
    """
    if plan.target is None or plan.law is None:
        return pictured(plan, model, plan.held_out[0]) if plan.held_out else None
    generator = torch.Generator().manual_seed(SEED)
    n = min(PICTURED, plan.training.batches.sizes[1])
    return pictured(plan, model, plan.law.draw(1, n, generator)[0])


@torch.no_grad()
def pictured(plan: Plan, model: Any, example: Measure | Couple) -> dict[str, Any]:
    """A measure, what it should become and what the model makes of it, as data.

    Args:
        plan: the fit.
        model: the trained model.
        example: a measure, or a pair.
    """
    where = next(model.parameters())
    if isinstance(example, Measure):
        mu = example.to(where.device, where.dtype)
        flow: Any = plan.target
        nu, paired = flow.to(where.device).push(mu), True
    else:
        mu, nu = (m.to(where.device, where.dtype) for m in example)
        paired = plan.pairs is not None and plan.pairs.loss.paired
    clouds = {"before": mu, "true": nu, "predicted": model.push(mu)}
    return {
        "paired": paired, "atoms": mu.n, "weights": _numbers(mu.normalise().weights.tolist()),
        **{name: [_numbers(x) for x in m.atoms.tolist()] for name, m in clouds.items()},
    }  # fmt: skip


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_finite(x) for x in values]


def _finite(x: float) -> float | None:
    """A number, or None for one that JSON cannot hold."""
    return x if math.isfinite(x) else None
