"""What a map that is only called can do wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class BlackBoxError(RuntimeError):
    """A map did not behave like a map between measures."""


class CallRejected(BlackBoxError):
    """A map raised an exception, or does not accept what it was called with."""


class NotRecovered(BlackBoxError):
    """The values of a map do not show where it sends a point."""


def call_model(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The result of a call; an exception inside it becomes a `CallRejected`.

    Args:
        call: the map or model.
        given: its arguments.
        options: its keyword arguments.
    """
    try:
        return call(*given, **options)
    except BlackBoxError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise CallRejected(f"it raised {type(error).__name__}: {first}") from error
