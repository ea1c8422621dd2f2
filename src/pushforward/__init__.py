"""Transformers as maps between probability measures."""

from . import ops as ops
from .affinities import Affinity as Affinity, Dot as Dot, SquaredDistance as SquaredDistance
from .attention import Attention as Attention, Causal as Causal
from .distances import (
    energy_distance as energy_distance,
    mmd as mmd,
    sinkhorn_divergence as sinkhorn_divergence,
    sliced_wasserstein as sliced_wasserstein,
    wasserstein as wasserstein,
)
from .maps import (
    MLP as MLP,
    Compose as Compose,
    InContextMap as InContextMap,
    Pointwise as Pointwise,
    Residual as Residual,
    from_sequence_model as from_sequence_model,
)
from .measures import Measure as Measure, MeasureMap as MeasureMap
from .normalisers import Normaliser as Normaliser, Sinkhorn as Sinkhorn, Softmax as Softmax
from .transformer import PostNorm as PostNorm, PreNorm as PreNorm, Transformer as Transformer
