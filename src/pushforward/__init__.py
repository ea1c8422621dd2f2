"""Transformers as maps between probability measures."""

from . import ops as ops, pictures as pictures
from .affinities import Affinity as Affinity, Dot as Dot, SquaredDistance as SquaredDistance
from .attention import Attention as Attention, Causal as Causal
from .distances import (
    energy_distance as energy_distance,
    mmd as mmd,
    sinkhorn_divergence as sinkhorn_divergence,
    sliced_wasserstein as sliced_wasserstein,
    wasserstein as wasserstein,
)
from .heads import Heads as Heads, birkhoff as birkhoff, realise_heads as realise_heads
from .layers import MLP as MLP, Pointwise as Pointwise, Residual as Residual
from .maps import (
    Compose as Compose,
    Conditioned as Conditioned,
    InContextMap as InContextMap,
)
from .measures import Measure as Measure, MeasureMap as MeasureMap
from .normalisers import (
    DualSoftmax as DualSoftmax,
    Hard as Hard,
    Normaliser as Normaliser,
    Sigmoid as Sigmoid,
    Sinkhorn as Sinkhorn,
    Softmax as Softmax,
)
from .realise import Realisation as Realisation, realise as realise
from .relate import relate as relate
from .relations import (
    Affinities as Affinities,
    Conditional as Conditional,
    Coupling as Coupling,
    Relation as Relation,
)
from .rules import (
    EntropicCoupling as EntropicCoupling,
    GaussianConditional as GaussianConditional,
    QuantileCoupling as QuantileCoupling,
    SoftNearest as SoftNearest,
)
from .sequences import from_sequence_model as from_sequence_model
from .stochastic import (
    DoublyStochastic as DoublyStochastic,
    doubly_stochastic as doubly_stochastic,
)
from .transformer import PostNorm as PostNorm, PreNorm as PreNorm, Transformer as Transformer
from .universal import (
    Hats as Hats,
    SinkhornApproximation as SinkhornApproximation,
    SoftmaxApproximation as SoftmaxApproximation,
    relation_distance as relation_distance,
    sup_error as sup_error,
)
