"""Maps between measures whose kind is known, each with its theorem."""

from ._counterexamples import (
    alice_elise as alice_elise,
    bayes as bayes,
    counterexample as counterexample,
    length_temperature as length_temperature,
    masked_pooling as masked_pooling,
    smooth_counterexample as smooth_counterexample,
    splitting as splitting,
    top_k as top_k,
)
from ._in_context import (
    attention as attention,
    mlp as mlp,
    root as root,
    stack as stack,
    steep as steep,
    vlasov as vlasov,
)
from ._specimens import Specimen as Specimen, specimens as specimens
