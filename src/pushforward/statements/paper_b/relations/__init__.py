"""Conditionals and couplings: what they are, and how stable they are."""

from . import _definitions, _stability

__all__ = ["_definitions", "_stability"]
