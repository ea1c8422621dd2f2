r"""In-context maps $\Gamma(\mu,x)$: layers, attention, transformers, Lipschitz bounds."""

from ._attention import Attention as Attention, AttentionMap as AttentionMap, Causal as Causal
from ._bounds import (
    ScoreBounds as ScoreBounds,
    attention_bound as attention_bound,
    average_bound as average_bound,
    score_bounds as score_bounds,
)
from ._composition import Compose as Compose, Composition as Composition
from ._in_context import (
    Answer as Answer,
    At as At,
    Container as Container,
    InContextMap as InContextMap,
    advance as advance,
    for_each_context as for_each_context,
    relations_inside as relations_inside,
    with_children as with_children,
    within as within,
)
from ._layers import MLP as MLP, Pointwise as Pointwise, Residual as Residual
from ._lipschitz import Lipschitz as Lipschitz, lipschitz_bound as lipschitz_bound, norm as norm
from ._sequences import from_sequence_model as from_sequence_model
from ._transformer import (
    Block as Block,
    PostNorm as PostNorm,
    PreNorm as PreNorm,
    Transformer as Transformer,
)
