"""Learning maps between measures from pairs or from a simulator [A, Cor. 1]."""

from ._fit import Fit, TrainingError, fit
from ._regressor import MeasureRegressor, NotFittedError
from ._training import Evaluation, Optimiser, Training
from .judging import (
    Attack,
    Pool,
    Report,
    RuleScore,
    Score,
    Scores,
    Supremum,
    WorstCase,
    attack,
    evaluate,
    evaluate_rule,
    report,
)
from .problems import (
    MMD,
    Batches,
    Box,
    EnergyDistance,
    Law,
    Loss,
    Mixtures,
    Obstruction,
    Obstructions,
    OneOf,
    Paired,
    Pairs,
    Relating,
    Resampled,
    Simulation,
    SinkhornDivergence,
    Task,
    Wasserstein,
    WithMass,
    obstructions,
)

__all__ = [
    "Attack", "Batches", "Box", "EnergyDistance", "Evaluation", "Fit", "Law", "Loss", "MMD",
    "MeasureRegressor", "Mixtures", "NotFittedError", "Obstruction", "Obstructions", "OneOf",
    "Optimiser", "Paired", "Pairs", "Pool", "Relating", "Report", "Resampled", "RuleScore",
    "Score", "Scores", "Simulation", "SinkhornDivergence", "Supremum", "Task", "Training",
    "TrainingError", "Wasserstein", "WithMass", "WorstCase", "attack", "evaluate", "evaluate_rule",
    "fit", "obstructions", "report",
]  # fmt: skip
