"""What a configuration describes, as objects of the library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import flows, relations
from ...affinities import Dot, SquaredDistance
from ...flows import Dopri5, Flow, Manifold, Path, Solver, Sphere, Torus, fields
from ...maps import InContextMap
from ...measures import Measure
from ..reading import read_masses, read_rows
from . import _schema as schema
from ._yaml import Document

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
        field = _field(found.field, mu.dim, dtype)
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
        solver = _solver(found.solver)
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


# The field


def _field(choice: Any, dim: int, dtype: torch.dtype) -> InContextMap:
    """The velocity."""
    matrix = partial(_matrix, dim=dim, dtype=dtype)
    match choice:
        case schema.SelfAttention():
            return fields.SelfAttention(
                matrix("Q", choice.Q), matrix("K", choice.K), matrix("V", choice.V),
                affinity=_affinity(choice.affinity), normaliser=_normaliser(choice.normaliser),
                manifold=_manifold(choice.manifold),
            )  # fmt: skip
        case schema.Linear():
            linear = fields.Linear(matrix("A", choice.A), matrix("B", choice.B))
            manifold = _manifold(choice.manifold)
            flat = manifold == flows.Euclidean()
            return linear if flat else fields.Tangent(linear, manifold)
        case schema.Kuramoto():
            if choice.frequencies and dim % 2:
                raise ValueError(
                    "tokens are angles with their frequencies, of even dimension, got "
                    f"points in R^{dim}."
                )
            angles = dim // 2 if choice.frequencies else dim
            return fields.Kuramoto(choice.coupling, dim=angles, frequencies=choice.frequencies)
        case schema.CuckerSmale():
            if dim % 2:
                raise ValueError(f"tokens are (x, v), of even dimension, got points in R^{dim}.")
            strength, exponent = choice.strength, choice.exponent
            return fields.CuckerSmale(lambda r: strength * (1 + r.square()) ** -exponent)
    return fields.Sum(*(_field(part, dim, dtype) for part in choice.fields))


def _matrix(name: str, given: Any, dim: int, dtype: torch.dtype) -> Tensor:
    """A multiple of the identity, a diagonal matrix, or a matrix by its rows."""
    found = torch.as_tensor(given, dtype=dtype)
    if found.ndim == 0:
        return found * torch.eye(dim, dtype=dtype)
    found = torch.diag(found) if found.ndim == 1 else found
    if found.shape[-1] != dim:
        raise ValueError(
            f"{name} must have {dim} columns, as points lie in R^{dim}, got "
            f"{' x '.join(map(str, found.shape))}."
        )
    return found


def _normaliser(choice: Any) -> relations.Normaliser:
    match choice:
        case schema.Sinkhorn():
            if choice.steps is not None:
                return relations.Sinkhorn(steps=choice.steps)
            tol = 1e-6 if choice.tol is None else choice.tol
            return relations.Sinkhorn(tol=tol, max_steps=choice.max_steps)
    return getattr(relations, choice.kind)()


def _affinity(choice: Any) -> Dot | SquaredDistance:
    return Dot(choice.scale) if choice.kind == "Dot" else SquaredDistance(choice.eps)


def _manifold(choice: Any) -> Manifold:
    match choice:
        case schema.Sphere():
            return Sphere(choice.radius)
        case schema.Torus():
            return Torus(choice.period)
    return flows.Euclidean()


def _solver(choice: Any) -> Solver:
    if isinstance(choice, schema.Dopri5):
        return Dopri5(rtol=choice.rtol, atol=choice.atol, max_steps=choice.max_steps)
    return getattr(flows, choice.kind)(steps=choice.steps)
