"""`pushforward relate`: which points of two clouds belong together, and how much."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor

from .._tools.output import atomic_file
from ..affinities import Affinity, Dot, SquaredDistance
from ..measures import Measure
from ..relations import (
    Conditional,
    Coupling,
    Exact,
    Normaliser,
    Relation,
    Sinkhorn,
    Softmax,
    relate as run,
)
from ._options import command
from ._shared import Screen, check_output, current_screen
from .reading import read_masses, read_rows

LARGEST_MATRIX = 1 << 30
"""Bytes that a plan may have."""


class NormaliserName(StrEnum):
    """Normalisers by the names they have on the command line."""

    sinkhorn = "sinkhorn"
    softmax = "softmax"
    exact = "exact"


class AffinityName(StrEnum):
    """Affinities by the names they have on the command line."""

    squared = "squared"
    dot = "dot"


class Precision(StrEnum):
    """Floating-point types by their names."""

    float64 = "float64"
    float32 = "float32"


@dataclass(frozen=True)
class RelateOptions:
    """What `pushforward relate` is told.

    Every field is an option, and its help says what it is.
    """

    a: Annotated[
        Path, typer.Argument(help="Points, one a row: .npy, .csv or .parquet.", show_default=False)
    ]
    b: Annotated[Path, typer.Argument(help="Other points.", show_default=False)]
    out: Annotated[Path, typer.Option(help="Where the plan goes, a .npz file.", metavar="FILE")]
    eps: Annotated[float, typer.Option(help="The temperature.", show_default=False)]
    mass: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Two files of weights, for the points of A and of B; equal by default.",
                     metavar="FILE FILE"),
    ] = None  # fmt: skip
    normaliser: Annotated[NormaliserName, typer.Option(help="What is made of the scores.")] = (
        NormaliserName.sinkhorn
    )
    affinity: Annotated[AffinityName, typer.Option(help="Scores: -|x-y|^2/eps, or <x,y>/eps.")] = (
        AffinityName.squared
    )
    tol: Annotated[float, typer.Option(help="The marginal error of Sinkhorn.")] = 1e-6
    max_steps: Annotated[int, typer.Option(help="The most steps of Sinkhorn.")] = 10_000
    dtype: Annotated[Precision, typer.Option(help="The precision of the computation.")] = (
        Precision.float64
    )
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Add the plan itself, at most 1 GiB.")
    ] = False


@command(RelateOptions, "nothing was written. A larger --tol or --eps takes fewer steps.")
def relate(options: RelateOptions) -> int:
    """Relate two clouds of points, by entropic transport, softmax attention or exact transport.

    The plan file holds the potentials, the marginal error, the value and the barycentric images:
    for each point of A the mean of the points of B that it is related to. The exit code is 1 if
    Sinkhorn did not reach its tolerance.

    Examples:
    - pushforward relate a.npy b.npy --eps 0.05 --out plan.npz
    - pushforward relate a.csv b.csv --mass a_w.csv b_w.csv --eps 0.1 --out plan.npz --matrix
    - pushforward relate a.npy b.npy --normaliser softmax --affinity dot --eps 1 --out plan.npz
    """
    screen = current_screen()
    check_output(options.out, ".npz")
    mu, nu = _measures(options)
    normaliser = _normaliser(options)
    _check_size(options, mu.n, nu.n)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        with screen.live.status(f"relating {mu.n:,} and {nu.n:,} points"):
            relation = run(mu, nu, affinity=_affinity(options), normaliser=normaliser)
            found = _found(relation, mu, nu, options)
    _print(screen, found)
    for warning in caught if found["converged"] else ():  # else it is said below
        screen.live.print(
            f"Warning: {warning.message}", style="yellow", soft_wrap=True, markup=False
        )
    with atomic_file(options.out) as draft:
        np.savez(draft, **found)
    screen.conclude(f"Written: {options.out}")
    if not found["converged"]:
        screen.live.print(
            f"Not converged: a marginal error of {found['marginal_error']:.1e} is left after "
            f"{found['steps']} steps, above --tol {options.tol:g}. Raise --max-steps, --tol or "
            "--eps.",
            style="bold red", soft_wrap=True,
        )  # fmt: skip
        return 1
    return 0


def _measures(options: RelateOptions) -> tuple[Measure, Measure]:
    """The two clouds."""
    dtype = getattr(torch, options.dtype.value)
    points = [read_rows(file) for file in (options.a, options.b)]
    if points[0].shape[1] != points[1].shape[1]:
        raise ValueError(
            f"Points must have equally many coordinates, got {points[0].shape[1]} in "
            f"{str(options.a)!r} and {points[1].shape[1]} in {str(options.b)!r}."
        )
    files = (None, None) if options.mass is None else options.mass
    weights = [
        None if file is None else torch.as_tensor(read_masses(file, len(x)))
        for file, x in zip(files, points, strict=True)
    ]
    mu, nu = (
        Measure(torch.as_tensor(x), w).to(dtype) for x, w in zip(points, weights, strict=True)
    )
    return mu.normalise(), nu.normalise()


def _affinity(options: RelateOptions) -> Affinity:
    if not 0 < options.eps < math.inf:
        raise ValueError(f"--eps must be positive and finite, got {options.eps}.")
    if options.affinity is AffinityName.squared:
        return SquaredDistance(options.eps)
    return Dot(1 / options.eps)


def _normaliser(options: RelateOptions) -> Normaliser:
    _affinity(options)  # refuses a wrong --eps before the work
    match options.normaliser:
        case NormaliserName.softmax:
            return Softmax()
        case NormaliserName.exact:
            return Exact()
    return Sinkhorn(tol=options.tol, max_steps=options.max_steps)


def _check_size(options: RelateOptions, m: int, n: int) -> None:
    """Raise for a plan that would be too large, and say how large."""
    size = m * n * (8 if options.dtype is Precision.float64 else 4)
    if size <= LARGEST_MATRIX:
        return
    large = f"{m:,} x {n:,} numbers, {size / 2**30:,.3g} GiB, and the limit is 1 GiB"
    if options.matrix:
        raise ValueError(
            f"--matrix would write {large}. Leave it out: the potentials in the file determine "
            "every entry of the plan."
        )
    if options.normaliser is NormaliserName.exact:
        raise ValueError(f"An exact plan holds {large}. Use --normaliser sinkhorn.")


def _found(relation: Relation, mu: Measure, nu: Measure, options: RelateOptions) -> dict[str, Any]:
    """Everything that the plan file holds."""
    pi = relation.joint(mu) if isinstance(relation, Conditional) else relation
    if not isinstance(pi, Coupling):
        raise TypeError(f"A plan is a Coupling, got {type(pi).__name__}.")
    rows, columns = pi.marginals()
    a, b = mu.weights, nu.weights
    error = torch.maximum((rows - a).abs().sum(), (columns - b).abs().sum())
    unit = options.eps if options.affinity is AffinityName.dot else 1.0
    cost = unit * pi.cost()
    # The entropy is relative to the product of the given measures, whatever the second marginal.
    information = pi.mutual_information() + torch.xlogy(columns, columns / b).nan_to_num().sum()
    to_tolerance = options.normaliser is NormaliserName.sinkhorn
    found: dict[str, Any] = {
        "a": _array(a), "b": _array(b), "images": _array(relation.apply(nu.atoms)),
        "marginal_error": float(error), "cost": float(cost),
        "mutual_information": float(information),
        "value": float(cost + options.eps * information),
        "steps": pi.steps, "converged": bool(pi.converged) if to_tolerance else True,
        "eps": options.eps, "tol": options.tol,
        "normaliser": options.normaliser.value, "affinity": options.affinity.value,
    }  # fmt: skip
    if isinstance(relation, Coupling) and to_tolerance:
        f, g = relation.potentials
        found |= {"f": _array(f), "g": _array(g)}
    elif isinstance(relation, Conditional):
        f = -relation.scores.over_keys(relation.log_b)
        found |= {"f": _array(f), "g": np.zeros(nu.n)}
    if options.matrix:
        found["matrix"] = _array(pi.matrix())
    return found


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _print(screen: Screen, found: dict[str, Any]) -> None:
    """What was found, a line each."""
    table = Table("", "", box=None, pad_edge=False, show_header=False)
    m, n = len(found["a"]), len(found["b"])
    lines = {
        "points": f"{m:,} and {n:,} in R^{found['images'].shape[1]}",
        "relation": f"{found['normaliser']}, {found['affinity']}, eps {found['eps']:g}",
        "steps": f"{found['steps']}",
        "marginal error": f"{found['marginal_error']:.2e}",
        "cost": f"{found['cost']:.6g}",
        "mutual information": f"{found['mutual_information']:.4g} nats",
        "value": f"{found['value']:.6g} (cost + eps * mutual information)",
    }
    for name, text in lines.items():
        table.add_row(f"[bold]{name}[/bold]", text)
    screen.say(table)
