"""Measures: weighted clouds of points, alone or in ragged batches."""

from ._checks import check_measures, check_pair
from ._collate import collate
from ._conversions import Flat, Nested
from ._formats import Arrays, listed
from ._measure import Measure, MeasureMap, Transport

__all__ = [
    "Arrays", "Flat", "Measure", "MeasureMap", "Nested", "Transport", "check_measures",
    "check_pair", "collate",
    "listed",
]  # fmt: skip
