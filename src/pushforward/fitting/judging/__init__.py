"""How good a learned map is: on average, at worst, and what no push-forward can do."""

from ._adversary import Adversary, Climbers
from ._attack import Attack, Supremum, WorstCase, attack
from ._evaluate import (
    Score,
    ScoreTable,
    device_of,
    displaced,
    evaluate,
    examples,
    held_out_seed,
)
from ._report import Report, report
from ._rules import RuleScore, evaluate_rule

__all__ = [
    "Adversary", "Attack", "Climbers", "Report", "RuleScore", "Score", "ScoreTable", "Supremum",
    "WorstCase", "attack", "device_of", "displaced", "evaluate", "evaluate_rule", "examples",
    "held_out_seed", "report",
]  # fmt: skip
