"""Measures: weighted clouds of points, alone or in ragged batches."""

from ._collate import collate
from ._conversions import Flat, Nested
from ._formats import Arrays
from ._measure import Measure, MeasureMap, Transport

__all__ = ["Arrays", "Flat", "Measure", "MeasureMap", "Nested", "Transport", "collate"]
