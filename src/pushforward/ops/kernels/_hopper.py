"""When passes run in Gluon, on GPUs of compute capability 9.0, and their launches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, Literal

import torch
import triton
from torch import Tensor
from triton import knobs

from ..._tools.precision import HALF
from ._problem import Inputs, padded_width, strides
from ._split import processors
from ._tiles import (
    HOPPER_GRADIENTS,
    HOPPER_LOG_TILES,
    HOPPER_LOG_WIDTHS,
    HOPPER_TILE,
    HOPPER_WIDTHS,
    Tile,
)

ALIGNED = 8
"""Strides of points in half precision are multiples of this, as the copying unit needs them."""

Gradient = Literal["queries", "keys"]

REGISTERS = {"maxnreg": 168, "REGISTERS": 240}
"""Registers of a thread at the start, and then of those that multiply. Those that copy keep 24."""


@cache
def available(device: torch.device) -> bool:
    """Whether kernels in Gluon run on this device, with this version of Triton."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) == (9, 0)
        and triton.__version__.startswith("3.6.")
        and not knobs.runtime.interpret
    )


def takes(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> bool:
    """Whether averages of these points are faster in Gluon."""
    return _multiplied(q, k, v, bias) and _fills(q, q.shape[2], HOPPER_TILE.rows)


def takes_log(q: Tensor, k: Tensor, bias: Tensor) -> bool:
    """Whether log-integrals of these float32 points are faster in Gluon."""
    return (
        q.dtype == torch.float32
        and q.shape[-1] in HOPPER_LOG_WIDTHS
        and _fits(k, bias)
        and _fills(q, q.shape[2], _log_tile(q.shape[-1]).rows)
    )


def _log_tile(width: int) -> Tile:
    """The tile of log-integrals of points of this width."""
    return next(tile for widest, tile in HOPPER_LOG_TILES.items() if width <= widest)


def takes_gradient(which: Gradient, inputs: Inputs, g: Tensor) -> bool:
    """Whether a gradient of these points and those upstream is faster in Gluon."""
    tile = HOPPER_GRADIENTS[which]
    if which == "queries":
        length, size = inputs[0].shape[2], tile.rows
    else:
        length, size = inputs[1].shape[2], tile.columns
    return _multiplied(*inputs) and _copied(g) and _fills(g, length, size)


def _multiplied(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> bool:
    """Whether there are kernels for points that are multiplied as they lie in memory."""
    return (
        q.dtype in HALF
        and v.shape[-1] > 0
        and max(q.shape[-1], v.shape[-1]) in HOPPER_WIDTHS
        and _fits(k, bias)
        and all(map(_copied, (q, k, v)))
    )


def _fits(k: Tensor, bias: Tensor) -> bool:
    """Whether there are kernels for this device, and so many keys and such biases.

    Kernels count keys, and those of one more block, in 32 bits.
    """
    return 0 < k.shape[-2] < 1 << 30 and bias.stride(-1) in (0, 1) and available(k.device)


def _fills(x: Tensor, length: int, size: int) -> bool:
    """Whether blocks of this size, one for each program, keep all processors busy."""
    return prod(x.shape[:2]) * -(-length // size) >= processors(x.device)


def forward(
    points: tuple[Tensor, Tensor, Tensor], bias: Tensor, ends: Tensor | None, factor: float,
    result: Sequence[Tensor],
) -> None:  # fmt: skip
    """Launch `programs.hopper.forward`, which fills average, shift, sum and log-integral."""
    from .programs.hopper.forward import forward as program

    q, k, v = points
    (b, h, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    tile = HOPPER_TILE
    rows = tile.rows // 2  # of each group
    program[(-(-m // tile.rows) * b * h,)](
        _described(q, rows), _described(k, tile.columns), _described(v, tile.columns),
        bias, ends, *result, m, n, h, factor, strides(bias)[:2],
        STRIDE=bias.stride(-1), E=e, D_PAD=padded_width(d), E_PAD=padded_width(e),
        ROWS=rows, BN=tile.columns, STAGES=tile.stages,
        num_warps=tile.warps, **REGISTERS,
    )  # fmt: skip


def log_integral(
    high: tuple[Tensor, Tensor, Tensor], low: tuple[Tensor, Tensor, Tensor], bias: Tensor,
    found: Tensor, factor: float, result: Sequence[Tensor],
) -> None:  # fmt: skip
    """Launch `programs.hopper.log_integral`, which fills shift, sum and log-integral."""
    from .programs.hopper.log_integral import log_integral as program

    (b, h, m, width), n = high[0].shape, high[1].shape[-2]
    tile = _log_tile(width)
    rows = tile.rows // 2  # of each group
    queries = (_described(x, rows) for x in (high[0], low[0]))
    keys = (_described(x, tile.columns) for x in (high[1], low[1]))
    program[(-(-m // tile.rows) * b * h,)](
        *queries, *keys, bias, found, *result, m, n, h, factor, strides(bias)[:2],
        STRIDE=bias.stride(-1), D_PAD=width, ROWS=rows, BN=tile.columns, STAGES=tile.stages,
        num_warps=tile.warps, **REGISTERS,
    )  # fmt: skip


def queries(
    inputs: Inputs, g: Tensor, numbers: tuple[Tensor, Tensor], ends: Tensor | None,
    factor: float, dq: Tensor,
) -> None:  # fmt: skip
    """Launch `programs.hopper.backward.queries`; `numbers` are offsets and summands."""
    from .programs.hopper.backward import queries as program

    q, k, v, bias = inputs
    (b, h, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    tile = HOPPER_GRADIENTS["queries"]
    rows = tile.rows // 2  # of each group
    program[(-(-m // tile.rows) * b * h,)](
        _described(q, rows), _described(k, tile.columns), _described(v, tile.columns), bias, ends,
        numbers[0], _described(g, rows), numbers[1], dq, m, n, h, factor, strides(bias)[:2],
        STRIDE=bias.stride(-1), D=d, D_PAD=padded_width(d), E_PAD=padded_width(e),
        ROWS=rows, BN=tile.columns, STAGES=tile.stages, num_warps=tile.warps, **REGISTERS,
    )  # fmt: skip


def keys(
    inputs: Inputs, g: Tensor, numbers: tuple[Tensor, Tensor], ends: Tensor | None,
    factor: float, results: Sequence[Tensor], needed: Sequence[bool],
) -> None:  # fmt: skip
    """Launch `programs.hopper.backward.keys`; gradients of keys and values where `needed`."""
    from .programs.hopper.backward import keys as program

    q, k, v, bias = inputs
    (b, h, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    tile = HOPPER_GRADIENTS["keys"]
    rows = tile.columns // 2  # of each group
    program[(-(-n // tile.columns) * b * h,)](
        _described(q, tile.rows), _described(k, rows), _described(v, rows), bias, ends,
        numbers[0], _described(g, tile.rows), numbers[1], *results, m, n, h, factor,
        strides(bias), D=d, E=e, D_PAD=padded_width(d), E_PAD=padded_width(e),
        KEYS=rows, BM=tile.rows, STAGES=tile.stages, POINTS=needed[0], VALUES=needed[1],
        num_warps=tile.warps, **REGISTERS,
    )  # fmt: skip


def _strides_of_rows(x: Tensor) -> list[int]:
    """Strides of all axes but the last. The stride of an axis of length 1 does not matter."""
    return [s if size > 1 else ALIGNED for s, size in zip(x.stride(), x.shape[:-1], strict=False)]


def _copied(x: Tensor) -> bool:
    """Whether the memory layout fits the copying unit, so that no contiguous copy is needed."""
    return (
        x.stride(-1) == 1
        and x.data_ptr() % 16 == 0
        and all(s > 0 and s % ALIGNED == 0 for s in _strides_of_rows(x))
    )


def _described(x: Tensor, rows: int) -> Any:
    """The tensor descriptor of points, for copies of blocks of `rows` of them."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    block = [1, 1, rows, padded_width(x.shape[-1])]
    steps, layout = [*_strides_of_rows(x), 1], _layout(x.dtype, *block[2:])
    return TensorDescriptor(x, list(x.shape), steps, block, layout)


@cache
def _layout(dtype: torch.dtype, rows: int, width: int) -> Any:
    """How a block lies in shared memory."""
    from triton.experimental.gluon import language as gl

    element = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[dtype]
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], element)
