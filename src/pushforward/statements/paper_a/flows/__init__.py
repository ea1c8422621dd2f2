"""Flows: the depth limit, Vlasov equations, Proposition 2, second-order systems."""

from . import _depth, _solutions, _systems

__all__ = ["_depth", "_solutions", "_systems"]
