"""Transformers as maps between probability measures."""

from . import (
    fields as fields,
    flows as flows,
    observables as observables,
    ops as ops,
    pictures as pictures,
    studies as studies,
    zoo as zoo,
)
from .affinities import Affinity as Affinity, Dot as Dot, SquaredDistance as SquaredDistance
from .attention import Attention as Attention, Causal as Causal
from .audit import Audit as Audit, Section as Section, audit as audit
from .characterise import Characterisation as Characterisation, characterise as characterise
from .distances import (
    energy_distance as energy_distance,
    mmd as mmd,
    sinkhorn_divergence as sinkhorn_divergence,
    sliced_wasserstein as sliced_wasserstein,
    wasserstein as wasserstein,
)
from .flows import (
    Adjoint as Adjoint,
    Backprop as Backprop,
    Flow as Flow,
    Path as Path,
    flow as flow,
)
from .heads import Heads as Heads, birkhoff as birkhoff, realise_heads as realise_heads
from .layers import MLP as MLP, Pointwise as Pointwise, Residual as Residual
from .lipschitz import Lipschitz as Lipschitz
from .manifolds import (
    Euclidean as Euclidean,
    Manifold as Manifold,
    Sphere as Sphere,
    Torus as Torus,
)
from .maps import (
    Compose as Compose,
    Conditioned as Conditioned,
    InContextMap as InContextMap,
)
from .measures import Measure as Measure, MeasureMap as MeasureMap
from .normalisers import (
    DualSoftmax as DualSoftmax,
    Hard as Hard,
    Hardmax as Hardmax,
    Linear as Linear,
    Normaliser as Normaliser,
    Sigmoid as Sigmoid,
    Sinkhorn as Sinkhorn,
    Softmax as Softmax,
    Unnormalised as Unnormalised,
)
from .realise import Realisation as Realisation, realise as realise
from .recovery import (
    Automatic as Automatic,
    BlackBoxError as BlackBoxError,
    Decode as Decode,
    Derivative as Derivative,
    Excess as Excess,
    MassPreserving as MassPreserving,
    ProbabilityValued as ProbabilityValued,
    RecoveredMap as RecoveredMap,
    Weak as Weak,
    derivative as derivative,
    recover as recover,
    regular_derivative as regular_derivative,
)
from .relate import relate as relate
from .relations import (
    Affinities as Affinities,
    Conditional as Conditional,
    Coupling as Coupling,
    Relation as Relation,
    Signed as Signed,
)
from .rules import (
    EntropicCoupling as EntropicCoupling,
    GaussianConditional as GaussianConditional,
    QuantileCoupling as QuantileCoupling,
    SoftNearest as SoftNearest,
)
from .sequences import from_sequence_model as from_sequence_model
from .solvers import (
    RK4 as RK4,
    Dopri5 as Dopri5,
    Euler as Euler,
    FlowError as FlowError,
    LieSplit as LieSplit,
    Midpoint as Midpoint,
    Solver as Solver,
)
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
