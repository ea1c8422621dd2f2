"""Transformers as maps between probability measures."""

from . import (
    affinities as affinities,
    approximation as approximation,
    auditing as auditing,
    distances as distances,
    fitting as fitting,
    flows as flows,
    maps as maps,
    measures as measures,
    ops as ops,
    pictures as pictures,
    relations as relations,
    representation as representation,
    sinkhorn as sinkhorn,
    statements as statements,
)
from .affinities import Affinity, Dot, Encoded, Matrix, Pairs, SquaredDistance
from .approximation import realise
from .auditing import audit
from .distances import (
    energy_distance,
    mmd,
    sinkhorn_divergence,
    sliced_wasserstein,
    wasserstein,
)
from .fitting import MeasureRegressor, fit
from .flows import RK4, Dopri5, Euler, Flow, Path, Sphere, Torus, fields, flow
from .maps import (
    MLP,
    Attention,
    Block,
    Causal,
    Compose,
    Dropout,
    InContextMap,
    Pointwise,
    Pool,
    PostNorm,
    PreNorm,
    Residual,
    Transformer,
    from_sequence_model,
)
from .measures import Measure, MeasureMap, collate
from .relations import Conditional, Coupling, Normaliser, Relation, Sinkhorn, Softmax, relate
from .representation import characterise, recover
from .sinkhorn import doubly_stochastic

__all__ = [
    "RK4", "Affinity", "Attention", "Block", "Causal", "Compose", "Conditional", "Coupling",
    "Dopri5", "Dot", "Dropout", "Encoded", "Euler", "Flow", "InContextMap", "MLP", "Matrix",
    "Measure", "MeasureMap", "MeasureRegressor", "Normaliser", "Pairs", "Path", "Pointwise",
    "Pool", "PostNorm",
    "PreNorm", "Relation", "Residual", "Sinkhorn", "Softmax", "Sphere", "SquaredDistance",
    "Torus", "Transformer", "audit", "characterise", "collate", "doubly_stochastic",
    "energy_distance", "fields", "fit", "flow", "from_sequence_model", "mmd", "realise", "recover",
    "relate", "sinkhorn_divergence", "sliced_wasserstein", "wasserstein",
]  # fmt: skip

_CHAPTERS = [
    "affinities", "approximation", "auditing", "distances", "fitting", "flows", "maps",
    "measures", "ops", "pictures", "relations", "representation", "sinkhorn", "statements",
]  # fmt: skip


def __dir__() -> list[str]:
    """The names a newcomer needs, and the chapters."""
    return sorted([*__all__, *_CHAPTERS])
