"""How good a learned map is: on average, at worst, and what no push-forward can do."""

from ._evaluate import Score, Scores, device_of, displaced, evaluate, examples, held_out_seed
from ._pool import Climbers, Pool

__all__ = [
    "Climbers", "Pool", "Score", "Scores", "device_of", "displaced", "evaluate", "examples",
    "held_out_seed",
]  # fmt: skip
