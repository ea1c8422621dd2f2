"""The reductions, Sinkhorn steps, decaying sums and small matrices on NVIDIA GPUs.

Kernels are in Triton, some for compute capability 9.0 in Gluon. Narrow points (at most four
coordinates) run on the ordinary arithmetic units, wide ones on tensor cores. Results for float32
are accurate to float32, unless rounding is asked for: numbers are split into float16 halves where
tensor cores need them. Inputs in bfloat16 and float16 are multiplied as they are and added in
float32.

Without a GPU the kernels run in Triton's interpreter, if `TRITON_INTERPRET=1` is set.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..._tools.once import check_no_tangent, named_errors
from ..._tools.precision import HALF, align
from .._operators import Pair, Three, Times
from . import _decay as decay, _launch as launch
from ._matrices import WHAT as SCALING, scale_matrices
from ._operators import WHAT, check_device, clock_of, reduce
from ._problem import Clock
from ._split import columns
from ._steps import (
    MOST,
    Work,
    adjoint_steps as run_adjoint,
    fits,
    record_steps,
    take_steps,
    term_factors as run_factors,
)
from ._tiles import NARROW, RADIAL_WIDTH

WIDEST = 256
"""The largest width of points and of values."""

IN_BASE = math.log2(math.e)
"""Natural logarithms times this have the base of `log_integral_parts`, which is 2 here."""

logarithm = torch.log2
"""The second summand of a log-integral, of what `log_integral_parts` keeps of it."""


def log_integral(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, times: Times, guard: bool,
    rounded: bool = False,
) -> Tensor:  # fmt: skip
    """Log-sum-exp, by powers of 2, in one pass over the keys.

    If `rounded`, wide float32 points are rounded to float16 in products.
    """
    dtype = torch.promote_types(bias.dtype, torch.float32)
    *_, log_z = _reduced((q, k, k[..., :0], bias), scale, times, guard, rounded)
    return log_z.to(dtype)


def average(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, times: Times, guard: bool,
    rounded: bool = False,
) -> Tensor:  # fmt: skip
    """Averages and the sums that divide them, in one pass over the keys."""
    out, _ = _reduced((q, k, v, bias), scale, times, guard, rounded)
    return out


class Side(NamedTuple):
    """Queries and keys that several reductions share, prepared once, with two leading axes.

    Args:
        batch: the leading axes.
        q: queries.
        k: keys.
        scale: what multiplies their dot products.
        clock: times.
        known: what kernels know of the points.
    """

    batch: torch.Size
    q: Tensor
    k: Tensor
    scale: float
    clock: Clock | None
    known: launch.Ready

    def outside(self, x: Tensor, axes: int = 1) -> Tensor:
        """Reshape a result to the leading axes of the inputs; `axes` others follow them."""
        return x if len(self.batch) == 2 else x.reshape(*self.batch, *x.shape[-axes:])


def ready(points: Pair, logs: Tensor, scale: float, times: Times) -> Side:
    """Prepare points for `log_integral_parts` and `vjp`; biases are -inf where `logs` is."""
    batch = points[0].shape[:-2]
    q, k, v, logs = _typed(*points, points[1][..., :0], logs)
    check_device("`impl='triton'`", q, ", or use `impl='streamed'`")
    q, k, v = (_folded(t, batch) for t in (q, k, v))
    stamps = (None, None) if times is None else (_folded_rows(t, batch) for t in times)
    if q.shape[-1] <= NARROW:
        pairs = q.shape[-2] * k.shape[-2]
        q, k = (columns(pairs, t, t[..., :0])[0] for t in (q, k))
    known = launch.ready(q, k, v, _folded_rows(logs, batch), timed=times is not None, values=False)
    return Side(batch, q, k, float(scale), clock_of(*stamps), known)


def log_integral_parts(side: Side, bias: Tensor) -> Three:
    """The log-integral, a shift of the scores in base 2, and the sum of weights relative to it."""
    bias = _folded_rows(bias, side.batch)
    inputs = (side.q, side.k, side.k[..., :0], bias)
    _, log_z, peak, total = launch.forward(inputs, side.scale, side.clock, side.known)
    return side.outside(log_z), side.outside(peak), side.outside(total)


def vjp(
    side: Side, bias: Tensor, record: Pair, c: Tensor, factors: Pair | None, wanted: list[bool]
) -> list[Tensor | None]:
    """Gradients in queries, keys and bias; the arguments are those of `_operators.vjp`."""
    q, k, known = side.q, side.k, side.known if factors is None else None
    x, v = q[..., :0], k[..., :0]
    if factors is not None:  # in float32, and points may then be wide that were narrow
        x, v = _balanced(*(_folded(t, side.batch) for t in factors))
        q, k = q.to(v.dtype), k.to(v.dtype)
    bias, peak, total, c = (_folded_rows(t, side.batch) for t in (bias, *record, c))
    result = launch.Reduced(x.new_zeros(x.shape), peak, peak, total)
    dq, dk, _, db = launch.backward(
        (q, k, v, bias), side.scale, side.clock, result, (x, c),
        [*wanted[:2], False, wanted[2]], known, largest=False,
    )  # fmt: skip
    grads = zip((dq, dk, db), wanted, (2, 2, 1), strict=True)
    return [side.outside(g, axes) if want and g is not None else None for g, want, axes in grads]


def decaying_sum(x: Tensor, y: Tensor, v: Tensor, power: float) -> Tensor:
    r"""The sums $\sum_jv_j(1+|x_i-y_j|^2)^{-p}$ in float32."""
    batch = _batch(x.shape[:-2], y.shape[:-2], v.shape[:-2])
    out = decay.decaying_sum(*(_folded(t, batch) for t in (x, y, v)), float(power))
    return out.reshape(*batch, *out.shape[-2:])


def has_radial(x: Tensor, v: Tensor) -> bool:
    """Whether kernels for decaying sums take points and values of these widths and dtypes."""
    narrow = x.shape[-1] <= NARROW and v.shape[-1] <= RADIAL_WIDTH
    return narrow and x.dtype == v.dtype == torch.float32


def has_steps(q: Tensor, k: Tensor) -> bool:
    """Whether kernels for Sinkhorn steps take these points, on their device."""
    return 1 <= q.shape[-1] <= WIDEST and fits(q, k)


def sinkhorn_steps(
    points: Pair, logs: Pair, constants: Pair | None, start: Tensor,
    scale: float, damping: tuple[float, float], steps: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    r"""The potential of the keys after some Sinkhorn steps, in few launches, without gradients.

    For the plan $e^{s\langle q_i,k_j\rangle+F_i+G_j}\mu\otimes\nu$ a step is
    $F=c_a-\tau_a\log\int e^{s\langle q,k\rangle+G}d\nu$, then
    $G=c_b-\tau_b\log\int e^{s\langle q,k\rangle+F}d\mu$.

    Args:
        points: queries and keys of 1 to `WIDEST` coordinates, in one dtype.
        logs: log-weights of both, in float32. Atoms without mass have finite points.
        constants: $c_a,c_b$; None for zeros.
        start: $G$ before.
        scale: $s$.
        damping: $\tau_a,\tau_b$.
        steps: how many, at least one.
        symmetric: whether queries are the keys, and a step is $G\leftarrow(G+F)/2$.
    """
    batch, work = _work(points, logs, constants, start, scale, damping, symmetric)
    out = take_steps(*work[:6], steps, symmetric)
    return out.reshape(*batch, out.shape[-1])


def has_recorded_steps(q: Tensor, k: Tensor, numbers: Tensor, steps: int) -> bool:
    """Whether so many steps on these points can be recorded, with numbers of this dtype."""
    single = numbers.dtype == torch.float32 and q.dtype == k.dtype in (torch.float32, *HALF)
    return single and q.shape[-1] > NARROW and steps <= MOST and has_steps(q, k)


def recorded_steps(
    points: Pair, logs: Pair, constants: Pair | None, start: Tensor,
    scale: float, damping: tuple[float, float], steps: int, symmetric: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The result of `sinkhorn_steps`, for wide points, and the record that `adjoint_steps` needs.

    The last tensor is the largest logarithm in the record, in size, of atoms with mass.
    """
    batch, work = _work(points, logs, constants, start, scale, damping, symmetric)
    *found, largest = record_steps(work, steps)
    out, of_queries, of_keys = (x.reshape(*x.shape[:-3], *batch, x.shape[-1]) for x in found)
    return out, of_queries, of_keys, largest


def adjoint_steps(
    points: Pair, record: Pair, grad: Tensor, scale: float, damping: tuple[float, float],
    symmetric: bool,
) -> Pair:  # fmt: skip
    r"""The adjoints $u^0,\dots,u^K$ and $x^1,\dots,x^K$ of recorded steps, in one launch.

    Args:
        points: queries and keys.
        record: what `recorded_steps` has recorded.
        grad: $u^K$.
        scale: $s$.
        damping: $\tau_a,\tau_b$.
        symmetric: whether steps are. There is no $x$ then.
    """
    batch = record[0].shape[2:-1]
    both, kept = [_folded(x, batch) for x in points], _folded_record(record)
    grad = _folded_rows(grad, batch)
    found = run_adjoint(both, kept, grad, float(scale), list(damping), symmetric)
    u, x = (y.reshape(len(y), *batch, y.shape[-1]) for y in found)
    return u, x


def term_factors(
    record: Pair, adjoints: Pair, damping: tuple[float, float], terms: slice, symmetric: bool
) -> Pair:
    r"""Factors of some terms of the gradient in the scores, for `vjp`, `(..., m, terms)`.

    Args:
        record: what `recorded_steps` has recorded.
        adjoints: for queries and keys, one number for each step.
        damping: $\tau_a,\tau_b$.
        terms: which, in the order of `sinkhorn._adjoint`.
        symmetric: whether steps are.
    """
    batch, kept = record[0].shape[2:-1], _folded_record(record)
    two = kept[0].shape[2:4]
    of_queries, of_keys = (x.reshape(len(x), *two, x.shape[-1]) for x in adjoints)
    left, right = run_factors(kept, (of_queries, of_keys), list(damping), terms, symmetric)
    return left.reshape(*batch, *left.shape[2:]), right.reshape(*batch, *right.shape[2:])


def doubly_stochastic(
    logits: Tensor, tol: float, max_steps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scaled matrices `(count, n, n)`, n at most 64, in float32 or float64, without a wait.

    Then their residuals, whether they converged, and the Newton steps of the slowest.
    """
    check_no_tangent(SCALING, logits)
    if torch.compiler.is_compiling():
        return scale_matrices(logits, tol, max_steps)
    with named_errors(SCALING):
        return scale_matrices(logits, tol, max_steps)


def _reduced(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor], scale: float, times: Times, guard: bool,
    rounded: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Average and log-integral, with any leading axes."""
    check_no_tangent(WHAT, *inputs)
    q, k, v, bias = _typed(*inputs)
    rows = (bias,) if times is None else (bias, *times)
    batch = _batch(*(t.shape[:-2] for t in (q, k, v)), *(t.shape[:-1] for t in rows))
    points = (_folded(t, batch) for t in (q, k, v))
    bias, *clock = (_folded_rows(t, batch) for t in rows)
    arguments = (*points, bias, float(scale), *(clock or (None, None)))
    arguments = (*arguments, [guard is not False, rounded])
    if torch.compiler.is_compiling():
        out, log_z, *_ = reduce(*arguments)
    else:
        with named_errors(WHAT):
            out, log_z, *_ = reduce(*arguments)
    if len(batch) == 2:
        return out, log_z
    return out.reshape(*batch, *out.shape[-2:]), log_z.reshape(*batch, log_z.shape[-1])


def _work(
    points: Pair, logs: Pair, constants: Pair | None, start: Tensor, scale: float,
    damping: tuple[float, float], symmetric: bool,
) -> tuple[torch.Size, Work]:  # fmt: skip
    """The leading axes of steps, and the steps with two of them."""
    numbers = [*logs, start, *(constants or ())]
    batch = _batch(*(t.shape[:-2] for t in points), *(t.shape[:-1] for t in numbers))
    m, n = points[0].shape[-2], points[1].shape[-2]
    log_a, log_b, start, *folded = [
        _folded_rows(t.expand(*t.shape[:-1], size), batch)
        for t, size in zip(numbers, (m, n, n, m, n), strict=False)
    ]
    both = [_folded(x, batch) for x in points]
    work = Work(both, [log_a, log_b], folded, start, float(scale), list(damping), symmetric)
    return batch, work


def _folded_record(record: Pair) -> Pair:
    """Records with exactly two axes between steps, kinds of numbers and points."""
    batch = record[0].shape[2:-1]
    two = (math.prod(batch[:-1]), *(batch[-1:] or (1,)))
    of_queries, of_keys = (x.reshape(*x.shape[:2], *two, x.shape[-1]) for x in record)
    return of_queries, of_keys


def _batch(*shapes: torch.Size) -> torch.Size:
    """The broadcast of the leading axes; `torch.broadcast_shapes` is slow if all agree."""
    first = shapes[0]
    return first if all(s == first for s in shapes) else torch.broadcast_shapes(*shapes)


def _balanced(x: Tensor, v: Tensor) -> Pair:
    """Factors whose columns have equally large numbers, up to a power of 2, on both sides."""
    if x.numel() == 0 or v.numel() == 0:
        return x, v
    ratio = x.abs().amax(-2, keepdim=True) / v.abs().amax(-2, keepdim=True)
    tilt = ratio.log2().div(2).round().nan_to_num(0.0, 0.0, 0.0).exp2()
    return x / tilt, v * tilt


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
    if x.shape[:-2] != batch:
        x = x.expand(*batch, *x.shape[-2:])
    return _two_axes(x, len(batch))


def _folded_rows(x: Tensor, batch: torch.Size) -> Tensor:
    """A tensor `(..., n)` of one number per point with exactly two leading axes."""
    if x.shape[:-1] != batch:
        x = x.expand(*batch, x.shape[-1])
    return _two_axes(x, len(batch))


def _two_axes(x: Tensor, axes: int) -> Tensor:
    """Reshape the first `axes` axes to exactly two."""
    match axes:
        case 0:
            return x[None, None]
        case 1:
            return x[None]
        case 2:
            return x
    return x.flatten(0, axes - 2)
