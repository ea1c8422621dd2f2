"""Paper A: support-preserving maps, in-context maps, Theorem 1, transformers and flows."""

from . import _convergence, _derivative, _in_context, _supports

__all__ = ["_convergence", "_derivative", "_in_context", "_supports"]
