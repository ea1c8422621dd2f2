"""Paper B: contextual relations and which of them attention approximates."""

from . import _relations, _stability

__all__ = ["_relations", "_stability"]
