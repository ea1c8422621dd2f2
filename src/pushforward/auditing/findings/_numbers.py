"""Numbers as a reader likes them: 2.5 %, 10 000, 9 × 10⁻¹⁶."""

from __future__ import annotations

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
"""Digits of an exponent."""

SMALLEST_SHARE = 1e-5
"""Shares below this are written as powers of ten."""


def number(x: float, digits: int = 2, up: bool = False) -> str:
    """A number with few digits, never as 1.8e+00.

    Args:
        x: the number.
        digits: how many digits count.
        up: round away from zero, as for errors and tolerances.
    """
    if math.isnan(x):
        return "unknown"
    if math.isinf(x):
        return "infinite" if x > 0 else "−infinite"
    x = _rounded(float(x), digits, up)
    sign, x = ("−" if x < 0 else ""), abs(x)
    if x == 0:
        return "0"
    exponent = math.floor(math.log10(x) + 1e-12)
    if not -3 <= exponent <= 5:
        front = f"{x / 10.0**exponent:.{digits - 1}f}".rstrip("0").rstrip(".")
        times = "" if front == "1" else f"{front} × "
        return f"{sign}{times}10{str(exponent).translate(RAISED)}"
    text = f"{x:.{max(0, digits - 1 - exponent)}f}"
    whole, point, rest = text.partition(".")
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", " ")
    return f"{sign}{whole}{point}{rest}"


def share(x: float, up: bool = False) -> str:
    """A share in per cent, such as "2.5 %"; tiny ones as a power of ten.

    Args:
        x: the share.
        up: round away from zero, as for errors and tolerances.
    """
    if math.isfinite(x) and (x == 0 or abs(x) >= SMALLEST_SHARE):
        return f"{number(100 * x, 2, up)} %"
    return number(x, 1, up)


def _rounded(x: float, digits: int, up: bool) -> float:
    """The nearest number of so many digits, or the next one away from zero."""
    if x == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(x)) + 1e-12) - digits + 1)
    steps = abs(x) / unit
    steps = math.ceil(steps - 1e-6) if up else round(steps)
    return math.copysign(steps * unit, x)
