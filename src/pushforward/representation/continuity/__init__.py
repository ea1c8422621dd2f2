"""Is there a continuous in-context map? The search for a point where there is none."""

from ._candidates import Candidates, ImageFinder, SearchBudget, WidestGap
from ._jumps import GROWS, PRECISION, Continuity, Precision, continuity
from ._region import Law, Region
from ._search import RATIO, Search
from ._steepest import Moves, Pair, Response, measured, steepest

__all__ = [
    "GROWS", "PRECISION", "RATIO", "Candidates", "Continuity", "ImageFinder", "Law", "Moves",
    "Pair", "Precision", "Region", "Response", "Search", "SearchBudget", "WidestGap",
    "continuity", "measured", "steepest",
]  # fmt: skip
