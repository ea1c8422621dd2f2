"""Least-squares lines and exponents."""

import math
from collections.abc import Sequence


def line_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The slope of the least-squares line through points, and its standard error."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    a, b = [u - mean_x for u in x], [v - mean_y for v in y]
    variation = math.fsum(u * u for u in a)
    slope = math.fsum(u * v for u, v in zip(a, b, strict=True)) / variation
    residual = math.fsum((v - slope * u) ** 2 for u, v in zip(a, b, strict=True))
    return slope, math.sqrt(residual / max(1, n - 2) / variation)


def power(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    r"""The exponent $p$ of the fit $v\approx c\,u^p$ to positive pairs $(u,v)$, and its error.

    NaN if there are fewer than three different $u$.
    """
    if len({u for u, _ in pairs}) < 3:
        return math.nan, math.nan
    return line_slope([math.log(u) for u, _ in pairs], [math.log(v) for _, v in pairs])
