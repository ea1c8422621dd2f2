"""How a loop is split among programs, and room for what each of them finds."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ._problem import SIZE, maybe_strides, strides
from .programs.survey import columns as copy_columns


def room(parts: int, shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for a gradient, or for that of each part in float32."""
    if parts == 1:
        return torch.empty(*shape, dtype=dtype, device=device)
    return torch.empty(parts, *shape, dtype=torch.float32, device=device)


def summed(made: Tensor, parts: int, dtype: torch.dtype) -> Tensor:
    """The sum of what all parts found."""
    return made.to(dtype) if parts == 1 else made.sum(0).to(dtype)


def split(q: Tensor, programs: int, length: int, step: int) -> int:
    """In how many parts a loop is split, so that few programs still fill the device."""
    if q.device.type == "cuda":
        wanted = 2 * processors(q.device)
    else:
        wanted = 4  # in the interpreter, so that parts are tested
    return max(1, min(wanted // max(1, programs), -(-length // (2 * step))))


@cache
def processors(device: torch.device) -> int:
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def columns(pairs: int, x: Tensor, y: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Points stored coordinate by coordinate, so that neighbours are read together.

    They stay as they are where they lie so already, and for few pairs, where a copy does not pay.
    With a bias they are always copied, with zeros where it is minus infinity.
    """
    there = pairs < 1 << 22 or all(t.stride(-2) == 1 or t.shape[-1] == 0 for t in (x, y))
    if there and bias is None:
        return x, y
    (*batch, n, d), e = x.shape, y.shape[-1]
    length = -(-n // 16) * 16
    made = [x.new_empty(*batch, width, length) for width in (d, e)]
    copy_columns[(-(-n // SIZE) * prod(batch),)](
        x, y, bias, *made, n, batch[1], length, strides(x), strides(y),
        maybe_strides(bias), D=d, E=e, SIZE=SIZE,
    )  # fmt: skip
    return made[0][..., :n].mT, made[1][..., :n].mT
