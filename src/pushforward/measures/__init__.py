"""Measures: weighted clouds of points, alone or in ragged batches."""

from ._checks import check_measures
from ._measure import Measure, MeasureMap, Transport

__all__ = ["Measure", "MeasureMap", "Transport", "check_measures"]
