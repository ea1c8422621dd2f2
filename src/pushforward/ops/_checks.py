"""Whether the arguments of a reduction fit together."""

from __future__ import annotations

from torch import Tensor

from .._tools.checks import (
    check_broadcast,
    check_floating,
    check_same,
    check_tensor,
    check_widths,
)
from .._tools.precision import HALF


def check_reduction(
    q: Tensor, k: Tensor, v: Tensor | None, bias: Tensor, times: tuple[Tensor, Tensor] | None
) -> None:
    """Raise unless the arguments of a reduction fit together."""
    named = {"q": (q, 2), "k": (k, 2), "bias": (bias, 1)}
    if v is not None:
        named["v"] = (v, 2)
    for name, (tensor, least) in named.items():
        check_floating(name, tensor, "(..., n)" if least == 1 else "(..., n, k)", least)
        check_same("device", ("q", q), (name, tensor))
    batch = q.shape[:-2]
    for name, (tensor, least) in named.items():
        if tensor.shape[:-least] != batch:
            check_broadcast(f"`q` and `{name}`", batch, tensor.shape[:-least])
    check_widths(q, k)
    n = k.shape[-2]
    if bias.shape[-1] != n or (v is not None and v.shape[-2] != n):
        raise ValueError(
            f"`k`, `bias` and `v` must have a row per atom, the same number of them, got {n} and "
            f"{bias.shape[-1]}" + ("." if v is None else f" and {v.shape[-2]}.")
        )
    if bias.dtype in HALF:
        raise ValueError(
            f"`bias` must be float32 or float64, got {bias.dtype}: log-weights in half precision "
            "change the measure. Keep it wide; q, k and v may be half."
        )
    if times is not None:
        _check_clock(times, q.shape[-2], n)


def _check_clock(times: tuple[Tensor, Tensor], m: int, n: int) -> None:
    if not (isinstance(times, tuple) and len(times) == 2):
        raise TypeError(
            f"`times` must be a pair (of queries, of atoms), got {type(times).__name__}."
        )
    for name, t in zip(("times of queries", "times of atoms"), times, strict=True):
        check_tensor(name, t)
    if (times[0].shape[-1:], times[1].shape[-1:]) != ((m,), (n,)):
        raise ValueError(
            f"`times` must be one per query ({m}) and one per atom ({n}), got shapes "
            f"{tuple(times[0].shape)} and {tuple(times[1].shape)}."
        )
