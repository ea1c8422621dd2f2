"""Support-preserving maps, distances of measures, convergence of contexts."""

from . import _convergence, _maps

__all__ = ["_convergence", "_maps"]
