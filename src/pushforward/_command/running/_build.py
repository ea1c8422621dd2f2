"""What a configuration describes, as objects of the library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...flows import Flow, Path, Sphere, fields
from ...measures import Measure
from ..configuring import Document, field_of, solver_of
from ..reading import read_masses, read_rows
from . import _schema as schema

LARGEST = 10**8
"""Coordinates that an initial measure may have."""


@dataclass(frozen=True)
class Run:
    """A run that can begin.

    Args:
        flow: the flow.
        mu: where it begins.
        save: how many measures to save, or their times.
        observables: what to compute at every saved time.
        tol: the longest step within a cluster.
    """

    flow: Flow
    mu: Measure
    save: int | list[float]
    observables: tuple[str, ...]
    tol: float

    def observed(self, path: Path, index: int) -> dict[str, float]:
        """The observables at a saved time, each number with its name.

        Args:
            path: the path.
            index: which saved time.
        """
        now = Path(path.times[index : index + 1], [path[index]], self.flow.field)
        found: dict[str, float] = {}
        for name in self.observables:
            found |= {key: float(x) for key, x in _numbers(now, name, self.tol)}
        return found


def _numbers(now: Path, name: str, tol: float) -> Iterator[tuple[str, Tensor]]:
    """The numbers of an observable at the one time of a path."""
    match name:
        case "clusters":
            values = now.cluster_count(tol)[0]
        case "mean":
            values = now.moments()[0][0]
        case "variance":
            values = now.moments()[1][0].diagonal()
        case _:
            values = getattr(now, name)()[0]
    if values.ndim == 0:
        yield name, values
    else:
        yield from ((f"{name}_{k}", x) for k, x in enumerate(values.reshape(-1), 1))


def build(found: schema.Configuration, document: Document) -> Run:
    """The run that a configuration describes; errors name the key and its line.

    Args:
        found: the configuration.
        document: where it was read.
    """
    dtype = torch.float64 if found.precision == "double" else torch.float32
    with document.blamed("initial"):
        mu = _initial(found.initial, document, dtype)
    with document.blamed("field"):
        field = field_of(found.field, mu.dim, dtype)
    with document.blamed("initial"):
        manifold = fields.manifold_of(field)
        if found.initial.project:
            mu = mu.push(manifold.retract)
        try:
            manifold.check("initial", mu.atoms)
        except ValueError:
            raise ValueError(
                f"points must lie on the manifold of the field, {manifold}. Bring them there with "
                "`project: true`."
            ) from None
    if found.t0 == found.t1:
        raise document.error(["t1"], f"`t1` must differ from `t0`, got {found.t1:g} for both.")
    with document.blamed("solver"):
        solver = solver_of(found.solver)
        flow = Flow(field, t0=found.t0, t1=found.t1, solver=solver)
    with document.blamed("save"):
        solver.grid(found.t0, found.t1, found.save)
    extent = float((mu.atoms.amax(0) - mu.atoms.amin(0)).max())
    tol = found.cluster_tolerance or (extent or 1.0) / 100
    run = Run(flow, mu, found.save, tuple(found.observables), tol)
    start = Path(torch.tensor([found.t0], dtype=torch.float64), [mu], field)
    for k, name in enumerate(run.observables):
        with document.blamed("observables", k), torch.no_grad():
            list(_numbers(start, name, tol))
    with document.blamed("field"), torch.no_grad():
        fields.at_time(field, found.t0)(mu, mu.atoms[:1])
    return run


# The initial measure


def _initial(law: Any, document: Document, dtype: torch.dtype) -> Measure:
    """The initial measure."""
    if isinstance(law, schema.FromFile):
        beside = document.file.parent
        points = torch.from_numpy(read_rows(beside / law.points)).to(dtype)
        if law.masses is None:
            return Measure(points)
        return Measure(points, torch.from_numpy(read_masses(beside / law.masses, len(points))))
    if isinstance(law, schema.Grid):
        if law.size**law.dim > LARGEST // law.dim:
            raise ValueError(f"{law.size}^{law.dim} cells are too many, at most 10^8 coordinates.")
        low, high = (_corner(x, law.dim, torch.float64) for x in (law.low, law.high))
        return Measure.grid(low, high, size=law.size).to(dtype)
    if law.points * law.dim > LARGEST:
        raise ValueError(
            f"{law.points:,} points in R^{law.dim} are too many, at most 10^8 numbers."
        )
    generator = torch.Generator().manual_seed(law.seed)
    points = _drawn(law, generator)
    if law.masses == "equal":
        return Measure(points.to(dtype))
    masses = -torch.rand(len(points), generator=generator, dtype=torch.float64).log()
    return Measure(points.to(dtype), (masses / masses.sum()).to(torch.float64))


def _drawn(law: Any, generator: torch.Generator) -> Tensor:
    """Independent points of a law, in float64 whatever the precision of the run."""
    shape, kind = (law.points, law.dim), torch.float64
    match law:
        case schema.Gaussian():
            mean, std = (_corner(x, law.dim, kind) for x in (law.mean, law.std))
            return mean + std * torch.randn(shape, generator=generator, dtype=kind)
        case schema.Cube():
            low, high = (_corner(x, law.dim, kind) for x in (law.low, law.high))
            if not (high > low).all():
                raise ValueError("`high` must be larger than `low` in every coordinate.")
            return low + (high - low) * torch.rand(shape, generator=generator, dtype=kind)
        case schema.OnSphere():
            return Sphere(law.radius).retract(torch.randn(shape, generator=generator, dtype=kind))
    return law.period * torch.rand(shape, generator=generator, dtype=kind)


def _corner(given: float | list[float], dim: int, dtype: torch.dtype) -> Tensor:
    """A number for all coordinates, or a list of one each."""
    if isinstance(given, list) and len(given) != dim:
        raise ValueError(f"a list must have a number for each of {dim} coordinates, got {given}.")
    return torch.as_tensor(given, dtype=dtype).expand(dim)
