"""Transformers: layers, contexts that converge, Corollary 1."""

from . import _layers, _universality

__all__ = ["_layers", "_universality"]
