"""Checks that an argument is a measure."""

from .._tools.checks import check_kind, check_same
from ._measure import Measure


def check_pair(mu: Measure, nu: Measure) -> None:
    """Raise unless two arguments are measures that share their dtype and device."""
    check_measures(mu=mu, nu=nu)
    for what in ("dtype", "device"):
        check_same(what, ("mu", mu.atoms), ("nu", nu.atoms))


def check_measures(**measures: Measure) -> None:
    """Raise unless every argument is a measure."""
    for name, mu in measures.items():
        check_kind(name, mu, Measure, "Make one with `pf.Measure(points)`.")
