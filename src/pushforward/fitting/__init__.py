"""Learning maps between measures from pairs or from a simulator [A, Cor. 1]."""

from ._fit import Fit, TrainingError, fit
from ._regressor import MeasureRegressor, NotFittedError
from ._training import Evaluation, Optimiser, Training
from .judging import (
    Attack,
    Pool,
    Report,
    Score,
    Scores,
    Supremum,
    WorstCase,
    attack,
    evaluate,
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
    OneOf,
    Paired,
    Pairs,
    Resampled,
    Simulation,
    SinkhornDivergence,
    Task,
    Wasserstein,
)

__all__ = [
    "Attack", "Batches", "Box", "EnergyDistance", "Evaluation", "Fit", "Law", "Loss", "MMD",
    "MeasureRegressor", "Mixtures", "NotFittedError", "OneOf", "Optimiser", "Paired", "Pairs",
    "Pool", "Report", "Resampled", "Score", "Scores", "Simulation", "SinkhornDivergence",
    "Supremum", "Task", "Training", "TrainingError", "Wasserstein", "WorstCase", "attack",
    "evaluate", "fit", "report",
]  # fmt: skip
