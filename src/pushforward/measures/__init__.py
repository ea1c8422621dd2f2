"""Measures: weighted clouds of points, alone or in ragged batches."""

from ._measure import Measure, MeasureMap, Transport

__all__ = ["Measure", "MeasureMap", "Transport"]
