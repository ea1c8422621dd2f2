"""Parts of a configuration file: which values there are, and how errors are said."""

from __future__ import annotations

from abc import ABC
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from ._yaml import Document

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Dimension = Annotated[int, Field(ge=1, le=4096)]
Seed = Annotated[int, Field(ge=0, lt=2**62)]
Numbers = Finite | list[Finite]


def _matrix(given: Any) -> Any:
    """A number (times the identity), a list (a diagonal), or a list of rows."""
    number = lambda x: isinstance(x, int | float) and not isinstance(x, bool)
    row = lambda x: isinstance(x, list) and len(x) > 0 and all(map(number, x))
    rows = isinstance(given, list) and len(given) > 0 and all(map(row, given))
    if rows and len({len(x) for x in given}) > 1:
        raise PydanticCustomError("matrix", "must have rows of equal length")
    if not (number(given) or row(given) or rows):
        raise PydanticCustomError(
            "matrix", "must be a number, a list (the diagonal) or a list of rows"
        )
    return given


Matrix = Annotated[Any, BeforeValidator(_matrix)]


class Part(BaseModel, ABC):
    """A part of a configuration; a key that is not known is refused, with the one that is near."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def known(cls, data: Any) -> Any:
        """Raise unless every key is known."""
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                words = "is not known here." + suggestion(key, cls.model_fields)
                raise PydanticCustomError("unknown", "{words}", {"words": words, "key": key})
        return data


def suggestion(word: object, known: Any) -> str:
    """Which word was meant, and which there are."""
    near = get_close_matches(str(word), list(known), 1)
    meant = f" Did you mean `{near[0]}`?" if near else ""
    return f"{meant} Known: {', '.join(known)}."


def of_kind(name: str) -> tuple[Any, Any]:
    """A word is short for the choice of that name, and the name decides which keys there are."""
    whole = BeforeValidator(lambda x: {name: x} if isinstance(x, str) else x)
    return whole, Discriminator(name)


Whole = TypeVar("Whole", bound=Part)
"""All keys of a configuration file."""


def checked(kind: type[Whole], document: Document) -> Whole:
    """What a document says, or an error that names the key and its line.

    Args:
        kind: which keys there are.
        document: where they are.
    """
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        wrong = sorted((_said(document, e) for e in error.errors()), key=lambda said: said[0])
        more = len({line for line, _ in wrong}) - 1
        others = f" ({more} more after that)" if more else ""
        line, words = wrong[0]
        raise ValueError(f"{document.file}, line {line}: {words}{others}") from None
    except RecursionError:
        raise ValueError(f"{document.file} is nested too deeply.") from None


def _said(document: Document, error: ErrorDetails) -> tuple[int, str]:
    """The line of an error, and what is wrong, in one sentence."""
    path, context = list(error["loc"]), error.get("ctx", {})
    if error["type"] == "unknown":
        path.append(context["key"])
    name, line = document.place(path)
    match error["type"]:
        case "unknown":
            return line, f"`{name}` {context['words']}"
        case "missing":
            parent = f"`{name}`" if name else "the file"
            return line, f"{parent} needs `{path[-1]}`."
        case "union_tag_not_found":
            word = str(context["discriminator"]).strip("'")
            return line, f"`{name}` needs `{word}`, which says which one it is."
        case "union_tag_invalid":
            word = str(context["discriminator"]).strip("'")
            known = [t.strip(" '") for t in str(context["expected_tags"]).split(",")]
            tag = context["tag"]
            _, line = document.place([*path, word])
            return line, f"`{name}` has no {word} `{tag}`.{suggestion(tag, known)}"
    words = error["msg"].removeprefix("Input ").removeprefix("Value error, ").rstrip(".")
    return line, f"`{name or path[-1]}` {words}, got {_short(error['input'])}."


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
