"""Paper A: support-preserving maps, in-context maps, Theorem 1, transformers and flows."""

from . import _in_context, _mean_field, flows, transformers

__all__ = ["_in_context", "_mean_field", "flows", "transformers"]
