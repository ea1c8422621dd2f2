"""Lines through points."""

import math
from collections.abc import Sequence


def line_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The slope of the least-squares line through points, and its standard error."""
    n = len(x)
    mid_x, mid_y = sum(x) / n, sum(y) / n
    a, b = [u - mid_x for u in x], [v - mid_y for v in y]
    spread = math.fsum(u * u for u in a)
    slope = math.fsum(u * v for u, v in zip(a, b, strict=True)) / spread
    rest = math.fsum((v - slope * u) ** 2 for u, v in zip(a, b, strict=True))
    return slope, math.sqrt(rest / max(1, n - 2) / spread)


def power(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The exponent with which the second of positive pairs goes with the first, and its error.

    NaN where there are fewer than three different ones.
    """
    if len({u for u, _ in pairs}) < 3:
        return math.nan, math.nan
    return line_slope([math.log(u) for u, _ in pairs], [math.log(v) for _, v in pairs])
