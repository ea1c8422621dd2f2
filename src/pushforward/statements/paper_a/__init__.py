"""Paper A: support-preserving maps, in-context maps, Theorem 1, transformers and flows."""

from . import (
    _causal,
    _counterexample,
    _derivative,
    _in_context,
    _mean_field,
    _representation,
    flows,
    supports,
    transformers,
)

__all__ = [
    "_causal", "_counterexample", "_derivative", "_in_context", "_mean_field",
    "_representation", "flows", "supports", "transformers",
]  # fmt: skip
