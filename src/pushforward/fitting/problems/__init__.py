"""What is learned: laws of measures, targets, pairs, and losses."""

from ._laws import LARGEST_LOG, Box, Law, Mixtures, OneOf, Resampled, as_law, centred
from ._losses import MMD, EnergyDistance, Loss, Paired, SinkhornDivergence, Wasserstein
from ._scale import Scale, Units
from ._tasks import Batches, Example, Pairs, Simulation, Task, pushed

__all__ = [
    "Batches", "Box", "EnergyDistance", "Example", "LARGEST_LOG", "Law", "Loss", "MMD", "Mixtures",
    "OneOf", "Paired", "Pairs", "Resampled", "Scale", "Simulation", "SinkhornDivergence", "Task",
    "Units", "Wasserstein", "as_law", "centred", "pushed",
]  # fmt: skip
