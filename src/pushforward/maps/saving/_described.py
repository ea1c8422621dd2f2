"""Models as plain data: the class and the arguments that make each part, nested.

A description is what JSON can hold:

    {"class": "Transformer", "dim": 2, "depth": 4, "block": {"class": "Block", "dropout": 0.1}}

Only classes in the table of `storable` are made from one, so a file never chooses what runs.
Arguments with their default value are left out. A tensor among the arguments stands as its shape,
because its values are in the state of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, getattr_static, signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..._tools.checks import check_callable, check_kind
from ...affinities import Dot, SquaredDistance
from ...relations import (
    Bilinear,
    DualSoftmax,
    Exponential,
    Hardmax,
    Sigmoid,
    Sinkhorn,
    Softmax,
)
from .._attention import Attention, Causal
from .._composition import Compose
from .._layers import MLP, Dropout, Pointwise, Residual
from .._pooling import AttentionPool, Pool
from .._transformer import Block, PostNorm, PreNorm, Transformer
from ..models import LearnedRule, NoiseSource, Reweighted

C = TypeVar("C", bound=type)

Arguments = Callable[[Any], Mapping[str, Any]]
"""The arguments of an object that are not attributes of the same name."""

LARGEST = 2**31
"""The largest whole number in a description: no size of a model comes near it."""

DEEPEST = 100
"""How many parts may stand inside each other."""


@dataclass(frozen=True)
class _Kind:
    """A class that descriptions may name, and arguments that it keeps under other names."""

    cls: type
    arguments: Arguments


KINDS: dict[str, _Kind] = {}


def storable(cls: C, *, arguments: Arguments | None = None) -> C:
    """Let `save` and `load` handle a class of yours, in models of which it is a part.

    Files then may name this class and choose its arguments. Each argument of its constructor is
    read from the attribute of the same name, and must be a number, a string, a tensor that is a
    parameter or buffer, an object of a class that is storable itself, or a list of these.

    Args:
        cls: the class; it can be used as a decorator.
        arguments: those arguments of an object that are no attributes of the same name.

    Examples:
        >>> @pf.maps.storable
        ... class Shift(pf.InContextMap):
        ...     def __init__(self, by: float):
        ...         super().__init__()
        ...         self.by = by
        ...     def evaluate(self, mu, x):
        ...         return x + self.by
        >>> pf.maps.saving.describe(pf.Compose(Shift(2.0), Shift(3.0)))["maps"]
        [{'class': 'Shift', 'by': 2.0}, {'class': 'Shift', 'by': 3.0}]
    """
    if not isinstance(cls, type) or issubclass(cls, type):
        raise TypeError(f"`cls` must be a class of parts of models, got {type(cls).__name__}.")
    if arguments is not None:
        check_callable("arguments", arguments, "a function of an object of the class")
    known = KINDS.get(_name(cls))
    if known is not None and known.cls.__module__ != cls.__module__:
        raise ValueError(f"There is a storable class {_name(cls)!r} already. Rename yours.")
    KINDS[_name(cls)] = _Kind(cls, arguments or (lambda thing: {}))
    return cls


def _name(cls: type) -> str:
    """What a class is called in a description: `nn.Linear`, `Transformer`."""
    return f"nn.{cls.__name__}" if cls.__module__.startswith("torch.nn.") else cls.__name__


def describe(thing: Any, where: str = "the model") -> Any:
    """An object as data that JSON can hold.

    Args:
        thing: a model, a part of one, or an argument.
        where: what it is, in messages.
    """
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else {"float": str(thing)}
    if isinstance(thing, Tensor):
        named = {"tensor": list(thing.shape), "dtype": str(thing.dtype).removeprefix("torch.")}
        return named | ({"parameter": True} if isinstance(thing, nn.Parameter) else {})
    if isinstance(thing, tuple | list | nn.ModuleList):
        return [describe(part, f"{where}, part {k}") for k, part in enumerate(thing)]
    name = _name(type(thing))
    if name not in KINDS or KINDS[name].cls is not type(thing):
        what = "a function" if callable(thing) and hasattr(thing, "__name__") else f"a {name}"
        raise TypeError(
            f"{where} is {what}, which cannot be saved without code. Use layers of this library "
            "and of torch.nn, or register your class with `pf.maps.storable`."
        )
    kind, out = KINDS[name], {"class": name}
    other = kind.arguments(thing)
    for p in _parameters(kind.cls):
        value = other[p.name] if p.name in other else getattr(thing, p.name)
        plain = isinstance(value, bool | int | float | str) or value is None
        if plain and type(value) is type(p.default) and value == p.default:
            continue
        out[p.name] = describe(value, f"`{p.name}` of {name}")
    return out


def build(data: Any, where: str = "the model", depth: int = 0) -> Any:
    """What a description describes; an error names what it does not allow.

    Args:
        data: the description, read from JSON.
        where: what it is, in messages.
        depth: how many parts it stands inside of.
    """
    if depth > DEEPEST:
        raise ValueError(f"{where} stands inside more than {DEEPEST} other parts.")
    if isinstance(data, list):
        return tuple(build(part, f"{where}, part {k}", depth + 1) for k, part in enumerate(data))
    if isinstance(data, int) and not isinstance(data, bool) and abs(data) > LARGEST:
        raise ValueError(f"{where} must be at most {LARGEST} in size, got {data:.3g}.")
    if not isinstance(data, dict):
        return data
    if "float" in data or "tensor" in data:
        return _special(data, where)
    return _object(data, where, depth)


def _object(data: dict[str, Any], where: str, depth: int) -> Any:
    """An object of a known class, made of the arguments in a description."""
    name = data.get("class")
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(
            f"{where} must name one of the classes {', '.join(sorted(KINDS))}, got {name!r}."
        )
    cls = KINDS[name].cls
    given = {key: value for key, value in data.items() if key != "class"}
    parameters = {p.name: p for p in _parameters(cls)}
    for key in given:
        if key not in parameters:
            raise ValueError(
                f"{name} has no argument {key!r}. It has: {', '.join(parameters) or 'none'}."
            )
    made = {k: build(v, f"`{k}` of {name}", depth + 1) for k, v in given.items()}
    several = next((k for k, p in parameters.items() if p.kind is p.VAR_POSITIONAL), "")
    parts = made.pop(several, ())
    if not isinstance(parts, tuple):
        raise ValueError(f"`{several}` of {name} must be a list.")
    try:
        return cls(*parts, **made)
    except (ValueError, TypeError, RuntimeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{name} cannot be made of these arguments: {error}") from None


def _special(data: dict[str, Any], where: str) -> Any:
    """A number that JSON has no word for, or a tensor whose values come later."""
    if set(data) == {"float"} and data["float"] in ("inf", "-inf", "nan"):
        return float(data["float"])
    shape, dtype = data.get("tensor"), getattr(torch, str(data.get("dtype", "float32")), None)
    whole = isinstance(shape, list) and all(type(n) is int and 0 <= n <= LARGEST for n in shape)
    if not whole or not isinstance(dtype, torch.dtype) or math.prod(shape or []) > LARGEST:
        raise ValueError(f"{where} is no tensor: expected a shape and a dtype, got {data}.")
    zeros = torch.zeros(shape or [], dtype=dtype)
    return nn.Parameter(zeros) if data.get("parameter") is True else zeros


def _parameters(cls: type) -> list[Parameter]:
    """The arguments of a class that a description holds."""
    if getattr_static(cls, "__init__") is getattr_static(nn.Module, "__init__"):  # as nn.Tanh
        return []
    ignored = ("device", "dtype")  # of torch's own layers: tensors come with theirs
    every = signature(cls).parameters.values()
    return [p for p in every if p.kind is not Parameter.VAR_KEYWORD and p.name not in ignored]


def check_model(model: object) -> None:
    """Raise unless `model` is a module."""
    check_kind("model", model, nn.Module, "For example a `pf.Transformer`.")


for _cls in (
    Attention, Block, Causal, Compose, Dropout, PostNorm, PreNorm, Residual, Pointwise, Pool,
    Dot, SquaredDistance, Softmax, Sinkhorn, Sigmoid, DualSoftmax, Exponential, Bilinear, Hardmax,
    LearnedRule, NoiseSource, Reweighted,
    nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.LeakyReLU,
):  # fmt: skip
    storable(_cls)

storable(Attention, arguments=lambda gamma: {"mask": Causal() if gamma.causal else None})
storable(Transformer, arguments=lambda model: model.arguments)
storable(AttentionPool, arguments=lambda pool: {"queries": len(pool.queries)})
storable(MLP, arguments=lambda gamma: {"hidden": gamma.A1.out_features})
storable(nn.Identity, arguments=lambda layer: {"args": []})
storable(nn.Linear, arguments=lambda layer: {"bias": layer.bias is not None})
storable(
    nn.LayerNorm,
    arguments=lambda layer: {"bias": layer.elementwise_affine and layer.bias is not None},
)
storable(nn.Sequential, arguments=lambda layers: {"args": list(layers)})
