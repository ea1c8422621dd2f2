"""What is learned: laws of measures, targets, pairs, and losses."""

from ._laws import LARGEST_LOG, Box, Law, Mixtures, OneOf, Resampled, as_law, centred
from ._losses import MMD, EnergyDistance, Loss, Paired, SinkhornDivergence, Wasserstein
from ._tasks import Batches, Example, Pairs, Simulation, Task, pushed

__all__ = [
    "LARGEST_LOG", "MMD", "Batches", "Box", "EnergyDistance", "Example", "Law", "Loss",
    "Mixtures", "OneOf", "Paired", "Pairs", "Resampled", "Simulation", "SinkhornDivergence",
    "Task", "Wasserstein", "as_law", "centred", "pushed",
]  # fmt: skip
