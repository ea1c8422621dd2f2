"""Paper B: contextual relations and which of them attention approximates."""

from . import _approximation, rank, relations

__all__ = ["_approximation", "rank", "relations"]
