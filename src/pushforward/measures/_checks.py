"""Checks that an argument is a measure."""

from .._tools.checks import check_kind
from ._measure import Measure


def check_measures(**measures: Measure) -> None:
    """Raise unless every argument is a measure."""
    for name, mu in measures.items():
        check_kind(name, mu, Measure, "Make one with `pf.Measure(points)`.")
