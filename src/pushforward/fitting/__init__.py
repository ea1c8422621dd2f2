"""Learning maps between measures from pairs or from a simulator [A, Cor. 1]."""

from ._fit import Fit, TrainingError, fit
from ._regressor import MeasureRegressor, NotFittedError
from ._training import Evaluation, Optimiser, Training
from .judging import Pool, Score, Scores, evaluate
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
    "MMD", "Batches", "Box", "EnergyDistance", "Evaluation", "Fit", "Law", "Loss",
    "MeasureRegressor", "Mixtures", "NotFittedError", "OneOf", "Optimiser", "Paired", "Pairs",
    "Pool", "Resampled", "Score", "Scores", "Simulation",
    "SinkhornDivergence", "Task", "Training", "TrainingError", "Wasserstein", "evaluate", "fit",
]  # fmt: skip
