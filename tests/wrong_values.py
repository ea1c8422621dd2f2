"""Values of a wrong kind for an argument, and what is accepted in spite of its kind."""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pushforward as pf

HAS_DEVICE = Tensor | pf.Measure


def nothing(*arguments: Any) -> None:
    """A function that returns nothing."""


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor | pf.Measure) and value.dtype.is_floating_point


def wrong_values(call: Any, given: dict[str, Any], argument: str) -> Iterator[tuple[str, Any]]:
    """Values that are wrong for an argument of a valid call, by kind."""
    right = given[argument]
    shape = right.shape if isinstance(right, Tensor) else (3, 2)
    yield "a string", "wrong"
    yield "a list", [object()]
    yield "an array", np.ones(shape)
    if not (isinstance(right, Tensor) and not right.is_floating_point()):
        yield "integers", torch.ones(shape, dtype=torch.int64)
        yield "NaN tensor", torch.full(shape, math.nan, dtype=torch.float64)
    yield "an empty tensor", torch.empty(0, dtype=torch.float64)
    yield "a tensor without axes", torch.tensor(1.0, dtype=torch.float64)
    if is_floating(right) and sum(map(is_floating, given.values())) > 1:
        yield "another dtype", right.to(torch.float32)
    if isinstance(right, Tensor) and sum(isinstance(v, HAS_DEVICE) for v in given.values()) > 1:
        yield "another device", right.to("meta")
    parameter = inspect.signature(call.forward if isinstance(call, nn.Module) else call).parameters
    if parameter[argument].default is not None:
        yield "None", None
    if not isinstance(right, bool):
        yield "a bool", True
    yield "a negative number", -1
    yield "NaN", math.nan
    if isinstance(right, int):
        yield "a fraction", 2.5
    yield "a class", type(right) if not inspect.isfunction(right) else nn.Linear
    yield "a function", nothing


ACCEPTED: dict[str, dict[str, list[str]]] = {}
"""By callable and argument, the kinds that are accepted."""

KNOWN: dict[str, dict[str, list[str]]] = {}
"""By callable and argument, the kinds that are answered wrongly so far."""
