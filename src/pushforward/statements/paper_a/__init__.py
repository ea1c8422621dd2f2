"""Paper A: support-preserving maps, in-context maps, Theorem 1, transformers and flows."""

from . import _derivative, _in_context, _mean_field, flows, supports, transformers

__all__ = ["_derivative", "_in_context", "_mean_field", "flows", "supports", "transformers"]
