"""Maps between measures whose kind is known, each with its theorem."""

from ._counterexamples import (
    alice_elise,
    bayes,
    counterexample,
    length_temperature,
    masked_pooling,
    smooth_counterexample,
    splitting,
    top_k,
)
from ._in_context import attention, mlp, root, stack, steep, vlasov
from ._specimens import Specimen, specimens

__all__ = [
    "Specimen", "alice_elise", "attention", "bayes", "counterexample", "length_temperature",
    "masked_pooling", "mlp", "root", "smooth_counterexample", "specimens", "splitting", "stack",
    "steep", "top_k", "vlasov",
]  # fmt: skip
