"""What is learned: laws of measures, targets, pairs, relations, losses, and what cannot be."""

from ._laws import LARGEST_LOG, Box, Law, Mixtures, OneOf, Resampled, as_law, centred
from ._losses import (
    MMD,
    EnergyDistance,
    Loss,
    Paired,
    SinkhornDivergence,
    Wasserstein,
    WithMass,
)
from ._obstructions import Obstruction, Obstructions, inspect, obstructions
from ._relating import Meeting, Relating, Rule, drawn, related, relation_error
from ._scale import Scale, Units
from ._tasks import (
    Batches,
    Example,
    FromPairs,
    Simulation,
    Task,
    check_images,
    check_usable,
    pushed,
)

__all__ = [
    "Batches", "Box", "EnergyDistance", "Example", "FromPairs", "LARGEST_LOG", "Law", "Loss",
    "MMD", "Meeting", "Mixtures", "Obstruction", "Obstructions", "OneOf", "Paired", "Relating",
    "Resampled", "Rule", "Scale", "Simulation", "SinkhornDivergence", "Task", "Units",
    "Wasserstein", "WithMass", "as_law", "centred", "check_images", "check_usable", "drawn",
    "inspect", "obstructions", "pushed", "related", "relation_error",
]  # fmt: skip
