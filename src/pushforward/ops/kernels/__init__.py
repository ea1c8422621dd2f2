"""The reductions, and decaying sums, as Triton kernels for NVIDIA GPUs, forward and backward.

Narrow points (at most four coordinates) run on the ordinary arithmetic units, wide ones on tensor
cores. Inputs in float32 are accurate to float32: numbers are split into halves where tensor cores
need them. Inputs in bfloat16 and float16 are multiplied as they are and added in float32.

Without a GPU the kernels run in Triton's interpreter, if `TRITON_INTERPRET=1` is set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..._tools.once import check_no_tangent
from ..._tools.precision import HALF, align
from .._operators import Inputs, MaybeTimes, Times, named_errors
from . import _decay as decay, _launch as launch
from ._operators import WHAT, check_device, clock_of, log_integral_of, reduce
from ._problem import LOG2
from ._steps import take_steps
from ._tiles import NARROW, RADIAL_WIDTH

WIDEST = 256
"""The largest width of points and of values."""

IN_BASE = 1 / LOG2
"""What natural logarithms are multiplied by to be like those of `swept`: here they have base 2."""

logarithm = torch.log2
"""The second summand of a log-integral, of what `swept` keeps of it."""

Pair = tuple[Tensor, Tensor]
"""A tensor of the queries and one of the keys."""


def log_integral(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """Log-sum-exp, by powers of 2, in one pass over the keys."""
    dtype = torch.promote_types(bias.dtype, torch.float32)
    *_, log_z = _reduced(q, k, k[..., :0], bias, scale, times, guard)
    return log_z.to(dtype)


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> Tensor:
    """Averages and the sums that divide them, in one pass over the keys."""
    out, _ = _reduced(q, k, v, bias, scale, times, guard)
    return out


def ready(points: Pair, scale: float, times: Times) -> launch.Ready:
    """What `swept` and `pulled` need of points, found once."""
    nothing = points[1][..., :0]
    *inputs, _ = _typed(*points, nothing, points[1].new_zeros(1, dtype=torch.float32))
    _, (q, k, _), _, _ = _aligned(tuple(inputs), (), times)
    check_device("`impl='triton'`", q, ", or use `impl='streamed'`")
    return launch.ready(q, k, float(scale), timed=times is not None)


def swept(
    points: Pair, bias: Tensor, scale: float, times: Times, found: launch.Ready
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-integral, a shift of the scores in base 2, and the sum of weights relative to it."""
    *inputs, bias = _typed(*points, points[1][..., :0], bias)
    batch, (q, k, v), (bias,), clock = _aligned(tuple(inputs), (bias,), times)
    _, peak, total = launch.forward(q, k, v, bias, float(scale), clock_of(*clock), found)
    results = (log_integral_of(peak, total), peak, total)
    return tuple(x.reshape(*batch, x.shape[-1]) for x in results)  # type: ignore[return-value]


def pulled(
    inputs: Inputs, record: Pair, upstream: Pair, scale: float, times: Times, wanted: list[bool],
    found: launch.Ready,
) -> Inputs:  # fmt: skip
    """What scores hand on, see `_operators.pulled`."""
    q, k, v, bias = _typed(*inputs)
    matrices, vectors = (q, k, v, upstream[0].to(v.dtype)), (bias, *record, upstream[1])
    batch, (q, k, v, x), (bias, *rows), clock = _aligned(matrices, vectors, times)
    peak, total, c = (row.contiguous() for row in rows)
    result = launch.Reduced(torch.zeros_like(x), peak, total)
    if q.dtype != inputs[0].dtype:  # values in float32 beside points in half precision
        found = launch.Ready(None, None)
    grads = launch.backward(
        (q, k, v, bias), float(scale), clock_of(*clock), result, (x, c), wanted, found
    )
    return tuple(t.reshape(*batch, *t.shape[2:]) for t in grads)  # type: ignore[return-value]


def decaying_sum(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    r"""The sums $\sum_jv_j(1+|x_i-y_j|^2)^{-p}$ in float32."""
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2], v.shape[:-2])
    out = decay.decaying_sum(*(_folded(t, batch) for t in (x, y, v)), float(power))
    return out.reshape(*batch, *out.shape[-2:])


def has_radial(x: Tensor, v: Tensor) -> bool:
    """Whether kernels for decaying sums take points and values of these widths and dtypes."""
    fits = x.shape[-1] <= NARROW and v.shape[-1] <= RADIAL_WIDTH
    return fits and x.dtype == v.dtype == torch.float32


def sinkhorn_steps(
    points: Pair, logs: Pair, constants: Pair | None, start: Tensor,
    scale: float, damping: tuple[float, float], steps: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    r"""The potential of the keys after some Sinkhorn steps, in one launch and without gradients.

    For the plan $e^{s\langle q_i,k_j\rangle+F_i+G_j}\mu\otimes\nu$ a step is
    $F=c_a-\tau_a\log\int e^{s\langle q,k\rangle+G}d\nu$, then
    $G=c_b-\tau_b\log\int e^{s\langle q,k\rangle+F}d\mu$.

    Args:
        points: queries and keys of at most four coordinates, in one dtype.
        logs: log-weights of both, in float32. Atoms without mass have finite points.
        constants: $c_a,c_b$; None for zeros.
        start: $G$ before.
        scale: $s$.
        damping: $\tau_a,\tau_b$.
        steps: how many, at least one.
        symmetric: whether queries are the keys, and a step is $G\leftarrow(G+F)/2$.
    """
    numbers = [*logs, start, *(constants or ())]
    batch = torch.broadcast_shapes(
        *(t.shape[:-2] for t in points), *(t.shape[:-1] for t in numbers)
    )
    lengths = [points[0].shape[-2], points[1].shape[-2]]
    sizes = [*lengths, lengths[1], *lengths]
    folded = [
        _folded(t.expand(*t.shape[:-1], size)[..., None], batch)[..., 0]
        for t, size in zip(numbers, sizes, strict=False)
    ]
    both = [_folded(x, batch) for x in points]
    out = take_steps(
        both, folded[:2], folded[3:], folded[2], float(scale), list(damping), steps, symmetric
    )
    return out.reshape(*batch, lengths[1])


def _reduced(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool
) -> tuple[Tensor, Tensor]:
    """Average and log-integral, with any leading axes."""
    check_no_tangent(WHAT, q, k, v, bias)
    q, k, v, bias = _typed(q, k, v, bias)
    if guard:
        dead = (bias == -torch.inf)[..., None]
        k, v = k.masked_fill(dead, 0), v.masked_fill(dead, 0)
    batch, (q, k, v), (bias,), clock = _aligned((q, k, v), (bias,), times)
    arguments = (q, k, v, bias, float(scale), *clock)
    if torch.compiler.is_compiling():
        out, log_z, *_ = reduce(*arguments)
    else:
        with named_errors(WHAT):
            out, log_z, *_ = reduce(*arguments)
    return out.reshape(*batch, *out.shape[-2:]), log_z.reshape(*batch, log_z.shape[-1])


def _aligned(
    matrices: tuple[Tensor, ...], vectors: tuple[Tensor, ...], times: Times
) -> tuple[torch.Size, list[Tensor], list[Tensor], MaybeTimes]:
    """Points and numbers with exactly two leading axes, which they share."""
    parts = (*matrices, *(t[..., None] for t in (*vectors, *(times or ()))))
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in parts))
    folded = [_folded(t, batch) for t in parts]
    numbers = [t[..., 0] for t in folded[len(matrices) :]]
    clock = (None, None) if times is None else (numbers[-2], numbers[-1])
    return batch, folded[: len(matrices)], numbers[: len(vectors)], clock


def _typed(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Points in one dtype that the kernels have, and the bias in float32."""
    if q.dtype not in HALF or not q.dtype == k.dtype == v.dtype or bias.dtype != torch.float32:
        q, k, v, bias = align(q, k, v, bias)
    if q.dtype == torch.float64:
        raise ValueError(
            "`impl='triton'` computes in float32, bfloat16 or float16, got float64. Convert the "
            "inputs with `.float()`, or use `impl='streamed'`."
        )
    widest = max(q.shape[-1], v.shape[-1])
    if widest > WIDEST:
        raise ValueError(
            f"`impl='triton'` takes queries, keys and values of width at most {WIDEST}, got "
            f"{widest}. Use `impl='streamed'`."
        )
    return q, k, v, bias


def _folded(x: Tensor, batch: torch.Size) -> Tensor:
    """The tensor with exactly two leading axes, as a view wherever there is one."""
    x = x.expand(*batch, *x.shape[-2:])
    match len(batch):
        case 0:
            return x[None, None]
        case 1:
            return x[None]
        case 2:
            return x
    return x.flatten(0, -4)
