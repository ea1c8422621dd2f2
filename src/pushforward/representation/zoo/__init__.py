"""Maps between measures whose kind is known, each with its theorem."""

from ._counterexamples import (
    alice_elise,
    bayes,
    counterexample,
    length_temperature,
    smooth_counterexample,
    splitting,
    top_k,
    unweighted_mean,
)
from ._in_context import attention, mlp, root, stack, steep, vlasov
from ._jumping import (
    half_space_mass,
    heaviest_atom,
    masked_pooling,
    max_pooling,
    median_centring,
    min_max_scaling,
    sign_of_mean,
)
from ._specimens import Specimen, specimens

__all__ = [
    "Specimen", "alice_elise", "attention", "bayes", "counterexample", "half_space_mass",
    "heaviest_atom", "length_temperature", "masked_pooling", "max_pooling", "median_centring",
    "min_max_scaling", "mlp", "root", "sign_of_mean", "smooth_counterexample", "specimens",
    "splitting", "stack", "steep", "top_k", "unweighted_mean", "vlasov",
]  # fmt: skip
