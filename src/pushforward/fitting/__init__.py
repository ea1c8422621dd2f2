"""Learning maps between measures from pairs or from a simulator [A, Cor. 1]."""

from ._fit import Fit, TrainingError, fit
from ._regressor import MeasureRegressor, NotFittedError
from ._training import Evaluation, Optimiser, Training
from .judging import (
    Adversary,
    Attack,
    Report,
    RuleScore,
    Score,
    ScoreTable,
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
    FromPairs,
    Law,
    Loss,
    Mixtures,
    Obstruction,
    Obstructions,
    OneOf,
    Paired,
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
    "Adversary", "Attack", "Batches", "Box", "EnergyDistance", "Evaluation", "Fit", "FromPairs",
    "Law", "Loss", "MMD", "MeasureRegressor", "Mixtures", "NotFittedError", "Obstruction",
    "Obstructions", "OneOf", "Optimiser", "Paired", "Relating", "Report", "Resampled", "RuleScore",
    "Score", "ScoreTable", "Simulation", "SinkhornDivergence", "Supremum", "Task", "Training",
    "TrainingError", "Wasserstein", "WithMass", "WorstCase", "attack", "evaluate", "evaluate_rule",
    "fit", "obstructions", "report",
]  # fmt: skip
