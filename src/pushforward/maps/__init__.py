r"""In-context maps $\Gamma(\mu,x)$: layers, attention, transformers, Lipschitz bounds."""

from ._attention import Attention, AttentionMap, Causal
from ._bounds import ScoreBounds, attention_bound, average_bound, score_bounds
from ._composition import Compose, Composition
from ._in_context import At, Container, InContextMap, relations_inside, with_children
from ._layers import MLP, Dropout, Pointwise, Residual
from ._lipschitz import Lipschitz, checked_bound, lipschitz_bound, norm
from ._pooling import AttentionPool, Pool
from ._sequences import from_sequence_model
from ._stages import Answer, advance, for_each_context, queries_for_each, within
from ._transformer import Block, PostNorm, PreNorm, Transformer
from .models import LearnedRule, NoiseSource, Reweighted
from .saving import load, save, storable, trained_flock

__all__ = [
    "Answer", "At", "Attention", "AttentionMap", "AttentionPool", "Block", "Causal", "Compose",
    "Composition", "Container", "Dropout", "InContextMap", "LearnedRule", "Lipschitz", "MLP",
    "NoiseSource", "Pointwise", "Pool", "PostNorm", "PreNorm", "Residual", "Reweighted",
    "ScoreBounds", "Transformer", "advance", "attention_bound", "average_bound", "checked_bound",
    "for_each_context", "from_sequence_model", "lipschitz_bound", "load", "norm",
    "queries_for_each", "relations_inside", "save", "score_bounds", "storable", "trained_flock",
    "with_children", "within",
]  # fmt: skip
