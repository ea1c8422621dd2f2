"""Maps between measures whose kind is known, each with its theorem."""

from ._maps import (
    DISCONTINUOUS as DISCONTINUOUS,
    IN_CONTEXT as IN_CONTEXT,
    NO_MEASURE_MAP as NO_MEASURE_MAP,
    SPLITS as SPLITS,
    Specimen as Specimen,
    alice_elise as alice_elise,
    attention as attention,
    bayes as bayes,
    counterexample as counterexample,
    length_temperature as length_temperature,
    masked_pooling as masked_pooling,
    mlp as mlp,
    root as root,
    smooth_counterexample as smooth_counterexample,
    specimens as specimens,
    splitting as splitting,
    stack as stack,
    steep as steep,
    top_k as top_k,
    vlasov as vlasov,
)
