"""Measures: weighted clouds of points, alone or in ragged batches."""

from ._measure import Measure as Measure, MeasureMap as MeasureMap, Transport as Transport
