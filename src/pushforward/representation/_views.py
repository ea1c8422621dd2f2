"""A map as it is looked at: in a precision that resolves, with images where near is near."""

from __future__ import annotations

import copy

import torch

from ..flows import Euclidean, Manifold, fields
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._black_box import as_measure_map


def manifold_of(f: object) -> Manifold:
    """Where the points of an in-context map live, that of a field inside it included."""
    parts = f.modules() if isinstance(f, InContextMap) else ()
    manifolds = [fields.manifold_of(m) for m in parts if isinstance(m, InContextMap)]
    return next((m for m in manifolds if m != Euclidean()), Euclidean())


def widened(
    f: MeasureMap | InContextMap, mu: Measure
) -> tuple[MeasureMap | InContextMap, torch.dtype]:
    """An in-context map as the same formula in float64, and the dtype in which it is looked at.

    A black box, and a map that cannot be widened, is looked at in the dtype of its measures.

    Args:
        f: the map.
        mu: a measure that it takes, or one of float64 that it was looked at with.
    """
    own = torch.float64
    if isinstance(f, InContextMap):
        tensors = [*f.parameters(), *f.buffers()]
        own = next((t.dtype for t in tensors if t.is_floating_point()), mu.dtype)
    if own == torch.float64:
        return f, mu.dtype
    try:
        wide = copy.deepcopy(f).double()  # type: ignore[union-attr]
        with torch.no_grad():
            wide.push(mu.to(torch.float64))
    except Exception:  # it is not made for that: it is looked at as it is
        return f, mu.dtype
    return wide, torch.float64


def embedded(f: MeasureMap | InContextMap) -> MeasureMap:
    """The map with images where near and far are what they are on a manifold: no angle jumps."""
    call, manifold = as_measure_map(f), manifold_of(f)
    if manifold == Euclidean():
        return call

    def images(mu: Measure) -> Measure:
        out = call(mu)
        return out.moved(manifold.embed(out.atoms))

    return images
