"""What an experiment may conclude, and the words in which it says so. Never "proved".

NaN is never a good result. Python's `max(0.1, nan)` is 0.1, so experiments take `max` and `min`
from here.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar, overload

T = TypeVar("T")

LOOSE = 0.05
"""A bound of which less than this share is reached would not notice much."""

ROUNDING = 1e-9
"""How far a ratio to a proved bound may exceed one by rounding."""


class Kind(Enum):
    """The kinds of statements."""

    IDENTITY = "="
    FOR_ALL = "<="
    RATE = "->"
    EXISTENCE = "E"
    COUNTEREXAMPLE = "x"
    QUOTED = "quoted"


@dataclass(frozen=True)
class Check:
    """What one measurement shows.

    Args:
        kind: the kind of statement that it tests.
        ok: whether it is as expected; for a counterexample, whether the failure was seen.
        said: the result in words.
        value: the number that was measured.
        limit: what it is compared with.
        trials: how many cases were tried.
        criterion: what would have been expected, in words; empty if nothing was tried.
    """

    kind: Kind
    ok: bool
    said: str
    value: float = math.nan
    limit: float = math.nan
    trials: int = 1
    criterion: str = ""


def holds(error: float, limit: float, what: str = "", trials: int = 1) -> Check:
    """An identity: both sides were computed, and they differ by an error.

    Args:
        error: the largest difference.
        limit: how large it may be by rounding, or by the truncation of a quotient.
        what: what was compared, if there are several.
        trials: in how many cases.
    """
    ok = _small(error, limit) and trials > 0
    said = f"{_prefix(what)}holds to {_short(error)}"
    if not ok:
        said = f"{_prefix(what)}is off by {_short(error)}, and {_short(limit)} is allowed"
        said += "" if trials else ": nothing was tried"
    criterion = f"Differences of at most {_short(limit)}." if limit else "No difference at all."
    return Check(Kind.IDENTITY, ok, said, float(error), limit, trials, criterion)


def bounded(ratio: float, trials: int, what: str = "", least: float = 0.0) -> Check:
    """A statement for all: a violation was searched for.

    Args:
        ratio: the largest ratio of the left side to the right side.
        trials: in how many cases.
        what: what is bounded, if there are several.
        least: the smallest ratio that the search must reach to mean something.
    """
    ok = bool(least <= ratio <= 1 + ROUNDING) and trials > 0
    said = f"{_prefix(what)}not refuted: {ratio:.3g} of the bound, {trials:,} trials"
    if ok and ratio < LOOSE:
        said += " (loose: it would not notice much)"
    if not ok:
        cases = f"in {trials:,} trials" if trials else "nothing was tried"
        said = f"{_prefix(what)}{ratio:.3g} of the bound, {cases}"
    criterion = "No ratio to the bound above 1."
    if least > 0:
        criterion = f"The largest ratio to the bound is between {least:g} and 1."
    return Check(Kind.FOR_ALL, ok, said, float(ratio), 1.0, trials, criterion)


def rate(value: float, theory: float, within: float, what: str = "") -> Check:
    """A limit or a rate, by a fitted exponent or a ratio.

    Args:
        value: what was fitted.
        theory: what it should be.
        within: how far it may be from that.
        what: what was fitted, if there are several.
    """
    said = f"{_prefix(what)}{value:.3f}, theory {theory:g}"
    ok = _small(abs(value - theory), within)
    criterion = f"Within {within:g} of {theory:g}."
    return Check(Kind.RATE, ok, said, float(value), theory, criterion=criterion)


def built(error: float, limit: float, what: str = "") -> Check:
    """An existence: the object was built, and its error measured.

    Args:
        error: the error.
        limit: how large it may be.
        what: what was built, if there are several.
    """
    ok = _small(error, limit)
    said = f"{_prefix(what)}built, error {_short(error)}"
    if not ok:
        said += f", and {_short(limit)} is allowed"
    criterion = f"An error of at most {_short(limit)}."
    return Check(Kind.EXISTENCE, ok, said, float(error), limit, criterion=criterion)


def refuted(seen: bool, said: str, value: float = math.nan) -> Check:
    """A counterexample: the failure must be seen.

    Args:
        seen: whether it was.
        said: what was seen, such as "a jump of 0.16 at distance 7e-7".
        value: its size.
    """
    words = f"refuted as it must be: {said}" if seen else f"should be refuted, but: {said}"
    criterion = "The failure must be seen."
    return Check(Kind.COUNTEREXAMPLE, bool(seen), words, float(value), criterion=criterion)


def quoted(said: str) -> Check:
    """What is only quoted from elsewhere, and not tested here."""
    return Check(Kind.QUOTED, True, f"quoted: {said}", trials=0)


@overload
def max(
    first: Iterable[T], /, *, key: Callable[[T], Any] | None = None, default: T | None = None
) -> T: ...
@overload
def max(first: T, /, *others: T) -> T: ...
def max(first: Any, /, *others: Any, **options: Any) -> Any:
    """Python's `max`, but a NaN among the values is the result."""
    return _extreme(builtins.max, first, others, options)


@overload
def min(
    first: Iterable[T], /, *, key: Callable[[T], Any] | None = None, default: T | None = None
) -> T: ...
@overload
def min(first: T, /, *others: T) -> T: ...
def min(first: Any, /, *others: Any, **options: Any) -> Any:
    """Python's `min`, but a NaN among the values is the result."""
    return _extreme(builtins.min, first, others, options)


def _extreme(pick: Callable[..., Any], first: Any, others: tuple[Any, ...], options: Any) -> Any:
    values = [first, *others] if others else list(first)
    key = options.get("key") or (lambda value: value)
    for value in values:
        mark = key(value)
        if mark != mark:  # true of NaN alone
            return value
    return pick(values, **options)


def _small(error: float, limit: float) -> bool:
    """Whether an error is within a limit. NaN is not, and no limit is none."""
    return bool(0 <= error <= limit < math.inf)


def _prefix(what: str) -> str:
    return f"{what} " if what else ""


def _short(x: float) -> str:
    """A small number with one digit, rounded up: errors are never made smaller."""
    if not 0 < x < math.inf:
        return f"{x:g}"
    exponent = math.floor(math.log10(x))
    digit = math.ceil(x / 10.0**exponent - 1e-9)
    if digit == 10:
        digit, exponent = 1, exponent + 1
    return f"{digit}e{exponent}" if not -2 <= exponent <= 2 else f"{digit * 10.0**exponent:g}"
