"""What is learned: laws of measures, targets, pairs, and losses."""

from ._laws import Box, Law, Mixtures, OneOf, Resampled, as_law
from ._losses import MMD, EnergyDistance, Loss, Paired, SinkhornDivergence, Wasserstein
from ._scale import Scale, Units
from ._tasks import Batches, Example, Pairs, Simulation, Task, pushed

__all__ = [
    "MMD", "Batches", "Box", "EnergyDistance", "Example", "Law", "Loss", "Mixtures", "OneOf",
    "Paired", "Pairs", "Resampled", "Scale", "Simulation", "SinkhornDivergence", "Task",
    "Units", "Wasserstein", "as_law", "pushed",
]  # fmt: skip
