"""Tensors of a field: constants, unless they are parameters; and copies that share them."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def hold(field: nn.Module, **tensors: Tensor) -> None:
    """Keep tensors as they are: an `nn.Parameter` is trained, others move with the field."""
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            field.register_parameter(name, tensor)
        else:
            field.register_buffer(name, tensor)


def copied(module: M) -> M:
    """A copy of the modules alone: tensors, choices and functions are shared."""
    new = copy.copy(module)
    for kind in ("_parameters", "_buffers"):
        new.__dict__[kind] = dict(getattr(module, kind))
    children = {name: m and copied(m) for name, m in module._modules.items()}
    new.__dict__["_modules"] = children
    return new
