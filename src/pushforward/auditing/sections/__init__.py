"""The parts of an audit: each asks one question of a model."""

from ._depth import depth
from ._relations import relations
from ._sensitivity import sensitivity
from ._size import size
from ._symmetries import SAID, symmetries
from ._theorem import CONTINUITY, theorem

CHECKS = (*SAID, CONTINUITY)
"""Checks inside a section that can be required by name."""

__all__ = ["CHECKS", "depth", "relations", "sensitivity", "size", "symmetries", "theorem"]
