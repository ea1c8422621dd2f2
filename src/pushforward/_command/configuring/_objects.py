"""Fields and solvers of a configuration, as objects of the library."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import flows, relations
from ...affinities import Dot, SquaredDistance
from ...flows import Dopri5, Manifold, Solver, Sphere, Torus, fields
from ...maps import InContextMap
from . import _fields as schema


def field_of(choice: Any, dim: int, dtype: torch.dtype) -> InContextMap:
    """The velocity.

    Args:
        choice: of the configuration.
        dim: dimension of the points.
        dtype: of its matrices.
    """
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
            strength = choice.strength
            if choice.exponent == 0:
                return fields.CuckerSmale(lambda r: torch.full_like(r, strength))
            return fields.CuckerSmale(fields.Decay(choice.exponent, strength))
    return fields.Sum(*(field_of(part, dim, dtype) for part in choice.fields))


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


def solver_of(choice: Any) -> Solver:
    """The solver.

    Args:
        choice: of the configuration.
    """
    if isinstance(choice, schema.Dopri5):
        return Dopri5(rtol=choice.rtol, atol=choice.atol, max_steps=choice.max_steps)
    return getattr(flows, choice.kind)(steps=choice.steps)
