"""Is there a continuous in-context map? The search for a point where there is none."""

from ._candidates import Candidates, ImageFinder, SearchBudget, WidestGap
from ._in_measure import InMeasure, Outcome, continuity_in_measure
from ._jumps import GROWS, PRECISION, Continuity, Precision, continuity
from ._region import Law, Region
from ._search import RATIO, Search
from ._steepest import Moves, Pair, Response, measured, steepest

__all__ = [
    "GROWS", "PRECISION", "RATIO", "Candidates", "Continuity", "ImageFinder", "InMeasure", "Law",
    "Moves", "Outcome", "Pair", "Precision", "Region", "Response", "Search", "SearchBudget",
    "WidestGap", "continuity", "continuity_in_measure", "measured", "steepest",
]  # fmt: skip
