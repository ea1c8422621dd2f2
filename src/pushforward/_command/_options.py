"""Commands of many options: a dataclass holds them, one field an option."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar, get_type_hints

Options = TypeVar("Options")


def command(options: type[Options]) -> Callable[[Callable[[Options], int]], Callable[..., int]]:
    """Make a function of a dataclass of options a function of its fields, which typer reads.

    Args:
        options: the dataclass; its fields are annotated for typer.
    """

    def make(run: Callable[[Options], int]) -> Callable[..., int]:
        def called(**given: Any) -> int:
            return run(options(**given))

        called.__name__, called.__doc__ = run.__name__, run.__doc__
        hints = get_type_hints(options, include_extras=True)
        plain = signature(options)
        fields = [p.replace(annotation=hints[p.name]) for p in plain.parameters.values()]
        called.__annotations__ = hints | {"return": int}
        called.__signature__ = plain.replace(  # type: ignore[attr-defined]
            parameters=fields, return_annotation=int
        )
        return called

    return make
