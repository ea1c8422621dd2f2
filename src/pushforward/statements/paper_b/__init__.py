"""Paper B: contextual relations and which of them attention approximates."""

from . import _approximation, _heads, _rank, _relations, _stability

__all__ = ["_approximation", "_heads", "_rank", "_relations", "_stability"]
