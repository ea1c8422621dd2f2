"""Plain Sinkhorn steps, one by one or recorded as one operator, whose gradient is one pass."""

# No `from __future__ import annotations` here: operators are registered by their annotations.

from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._tools.once import named_errors, no_second_derivative, refuse, untransformed
from .._tools.precision import comparable, full_precision
from ..affinities import Kernel, PointScores
from ._adjoint import Steps, adjoint
from ._problem import Problem, at_once, tilted

WHAT = "A number of Sinkhorn steps"
"""Their name in messages."""


def alternate(kernel: Kernel, problem: Problem, g: Tensor, steps: int) -> Tensor:
    """The potential of the keys after `steps` plain steps from `g`; autocast is off meanwhile."""
    with full_precision(g):
        found = at_once(kernel, problem, g, steps)
        if found is None:
            found = _recorded(kernel, problem, g, steps)
        if found is not None:
            return found
        for _ in range(steps):
            f = problem.rows(kernel, g)
            g = (g + f) / 2 if problem.symmetric else problem.columns(kernel, f)
    return g


def _recorded(scores: Kernel, problem: Problem, g: Tensor, steps: int) -> Tensor | None:
    """Steps whose gradient is computed by one pass; None where no gradient is wanted.

    Where the dense reference is chosen, or a transform of `torch.func` is under way, it is None,
    too: there the steps are taken one by one and have all derivatives. Rounded products have no
    such gradient either.
    """
    if steps == 0 or not isinstance(scores, PointScores):
        return None
    points = (scores.queries.points, scores.keys.points)
    offsets = (scores.queries.offset, scores.keys.offset)
    numbers = [problem.log_a, problem.log_b, g]
    others = [x for x in (*offsets, *(problem.log_masses or ())) if x is not None]
    impl = ops.choose(*points, points[1]) if scores.impl is None else scores.impl
    if impl in ("reference", "triton_half") or not scores.shape.numel():
        return None
    if not _wants_gradient((*points, *numbers, *others)):
        return None
    times = [] if scores.times is None else list(comparable(scores.times))
    dtype = scores.dtype
    for x in (*numbers, *others):
        dtype = torch.promote_types(dtype, x.dtype)
    batch = torch.broadcast_shapes(
        scores.shape[:-2], *(x.shape[:-1] for x in (*numbers, *others, *times))
    )
    # The offset of a point is part of its potential, so that scores are dot products alone.
    if offsets[1] is not None:
        numbers[2] = g + offsets[1]
    if others:
        numbers += _constants(problem, offsets, g.new_zeros(1))
    m, n = scores.shape[-2:]
    whole = [
        x.to(dtype).expand(*batch, size) for x, size in zip(numbers, (m, n, n, m, n), strict=False)
    ]
    inputs = [*(x.expand(*batch, *x.shape[-2:]) for x in points), *whole]
    factors = [scores.scale, *problem.damping]
    result, *_ = take_steps(inputs, times, factors, problem.symmetric, impl, steps)
    return result if offsets[1] is None else result - offsets[1]


def _constants(
    problem: Problem, offsets: tuple[Tensor | None, Tensor | None], zero: Tensor
) -> list[Tensor]:
    r"""$c_a,c_b$ in potentials that contain offsets $o$: $(1-\tau)o+\log m$ with masses $m$."""
    masses = problem.log_masses or (zero, zero)
    return [
        mass if offset is None or tau == 1 else (1 - tau) * offset + mass
        for mass, offset, tau in zip(masses, offsets, problem.damping, strict=True)
    ]


def _wants_gradient(tensors: tuple[Tensor, ...]) -> bool:
    """Whether gradients are wanted, in reverse mode and outside `torch.func`."""
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return False
    return untransformed(*tensors)


@torch.library.custom_op("pushforward::recorded_steps", mutates_args=())
def take_steps(
    inputs: list[Tensor], times: list[Tensor], factors: list[float], symmetric: bool, impl: str,
    count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Take `count` steps: the potential of the keys, and what is kept for the gradient.

    The other arguments are those of `Steps`. What is kept has shapes `(count, 3, *b, m)` and
    `(count, 3, *b, n)`; with symmetric steps there are two numbers for a query, one for a key.
    Then the largest of them in size, infinite where it was not looked for.
    """
    steps = Steps(inputs, times, factors, symmetric, impl)
    (tau_a, tau_b), (c_a, c_b), g = steps.damping, steps.constants, steps.start
    if steps.in_one_launch(count):
        constants = None if isinstance(c_a, float) else (c_a, c_b)
        return steps.reductions.recorded_steps(
            steps.points, (steps.log_a, steps.log_b), constants, g, steps.scale, (tau_a, tau_b),
            count, symmetric,
        )  # fmt: skip
    dead_a, dead_b = (logs == -torch.inf for logs in (steps.log_a, steps.log_b))
    base_a, base_b = steps.log_a + c_a, steps.log_b + c_b
    of_queries, of_keys = [], []
    bias = tilted(steps.log_b, g)
    for _ in range(count):
        integral, *summands = steps.log_integral_parts(0, bias)
        of_queries += summands
        of_keys.append(bias)
        if symmetric:
            g = (g + (c_a - tau_a * integral)) / 2
            bias = tilted(steps.log_b, g)
            continue
        bias = base_a.sub(integral, alpha=tau_a).masked_fill_(dead_a, -torch.inf)
        of_queries.append(bias)
        integral, *summands = steps.log_integral_parts(1, bias)
        of_keys += summands
        bias = base_b.sub(integral, alpha=tau_b).masked_fill_(dead_b, -torch.inf)
    if not symmetric:
        g = c_b - tau_b * integral
    rows, columns = (torch.stack(x).unflatten(0, (count, -1)) for x in (of_queries, of_keys))
    return g, rows, columns, g.new_full((1,), torch.inf)


@take_steps.register_fake
def _(
    inputs: list[Tensor], times: list[Tensor], factors: list[float], symmetric: bool, impl: str,
    count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of = lambda x, *shape: x.new_empty(*shape, *x.shape)
    a, b = inputs[2:4]
    kept = of(a, count, 2 if symmetric else 3), of(b, count, 1 if symmetric else 3)
    return of(b), *kept, b.new_empty(1)


@torch.library.custom_op("pushforward::recorded_steps_backward", mutates_args=())
def steps_backward(
    inputs: list[Tensor], times: list[Tensor], factors: list[float], symmetric: bool, impl: str,
    record: list[Tensor], grad: Tensor, wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients in queries and keys, if `wanted`, and the sums that give all other gradients."""
    steps = Steps(inputs, times, factors, symmetric, impl)
    points, sums = adjoint(steps, (record[0], record[1]), record[2], grad, wanted)
    q, k = (
        y.new_zeros(y.shape) if x is None else x.to(y.dtype)
        for x, y in zip(points, inputs, strict=False)
    )
    of_rows, start, through_rows, of_columns = (x.clone() for x in sums)
    return q, k, of_rows, start, through_rows, of_columns


@steps_backward.register_fake
def _(inputs: list[Tensor], *_: Any) -> tuple[Tensor, ...]:
    q, k, a, b = inputs[:4]
    return tuple(x.new_empty(x.shape) for x in (q, k, a, b, b, b))


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    given, times, *ctx.options, _ = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.count = len(given)
    ctx.save_for_backward(*given, *output[1:], *times)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple:
    saved = list(ctx.saved_tensors)  # asked for once, as checkpoints want it
    inputs, record, times = (
        saved[: ctx.count], saved[ctx.count : ctx.count + 3], saved[ctx.count + 3 :],
    )  # fmt: skip
    wanted = list(ctx.needs_input_grad[0])
    with full_precision(grad), named_errors(WHAT):
        q, k, of_rows, start, through_rows, of_columns = steps_backward(
            inputs, times, *ctx.options, record, grad, wanted[:2]
        )
    in_log_a = of_rows
    if ctx.options[1]:  # symmetric steps have neither log a nor the constant of the keys
        in_log_a, of_columns = torch.zeros_like(of_rows), torch.zeros_like(of_columns)
    found = [q, k, in_log_a, through_rows, start, of_rows, of_columns][: ctx.count]
    chosen = [x if want else None for x, want in zip(found, wanted, strict=True)]
    return chosen, [None] * len(times), None, None, None, None


def _second_backward(ctx: Any, *_: Any) -> tuple:
    refuse(no_second_derivative(WHAT))


steps_backward.register_autograd(_second_backward)
take_steps.register_autograd(_backward, setup_context=_setup_context)
