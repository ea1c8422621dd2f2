"""Paper A: support-preserving maps, in-context maps, Theorem 1, transformers and flows."""

from . import _causal, _counterexample, _in_context, _representation

__all__ = ["_causal", "_counterexample", "_in_context", "_representation"]
