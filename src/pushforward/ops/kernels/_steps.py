"""Many Sinkhorn steps in one launch, or in one for each half-step, and their operator."""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._tools.once import refuse
from ..._tools.precision import HALF
from ._operators import check_device
from ._problem import Halves, maybe_strides, padded_width, survey
from ._split import processors
from ._tiles import NARROW, WidePlan, planned, wide_planned
from .programs import steps, wide_steps

WHAT = "Sinkhorn steps in one launch"
"""Their name in messages."""

EXTRA = steps.EXTRA.value
"""Numbers that are kept for a point beside its coordinates."""

MOST = 1 << 16
"""Sinkhorn steps in one launch, so that meetings of programs can be counted in 32 bits."""


def run_steps(
    points: list[Tensor], logs: list[Tensor], constants: list[Tensor], start: Tensor,
    factor: float, damping: list[float], count: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    """The potential of the keys after `count` Sinkhorn steps from `start`."""
    launch = _narrow if points[0].shape[-1] <= NARROW else _wide
    for done in range(0, count, MOST):
        half_steps = min(count - done, MOST) * (1 if symmetric else 2)
        start = launch(points, logs, constants, start, factor, damping, half_steps, symmetric)
    return start


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether a device has room for the programs that take steps on these points."""
    return q.shape[-1] <= NARROW or _wide_plan(q, k) is not None


def _narrow(
    points: list[Tensor], logs: list[Tensor], constants: list[Tensor], start: Tensor,
    factor: float, damping: list[float], half_steps: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    """Points of at most `NARROW` coordinates: one launch, or one for each half-step."""
    q, k = points
    (*batch, m, d), n = q.shape, k.shape[-2]
    problems, cuda = prod(batch), q.device.type == "cuda"
    plan = planned(problems, m, n, d, processors(q.device) if cuda else 1)
    if not cuda and plan.programs:  # the interpreter runs one after the other: none may wait
        plan = plan._replace(programs=1)
    block = plan.columns * plan.group
    length = -(-m // block) * block + -(-n // block) * block
    room = q.new_empty(problems * length * (d + EXTRA), dtype=torch.float32)
    out = q.new_empty(*batch, n, dtype=torch.float32)
    given = (q, k, *logs, *(constants or (None, None)), start)
    layout = tuple(map(maybe_strides, given))
    tile: dict[str, Any] = dict(
        D=d, BM=plan.rows, BN=plan.columns, GROUP=plan.group, SYMMETRIC=symmetric,
        num_warps=plan.warps, maxnreg=plan.registers,
    )  # fmt: skip
    shifted = bool(constants)
    if plan.programs is None:
        steps.prepare[(-(-max(m, n) // block) * problems,)](
            *given, room, m, n, q.shape[1], factor, *layout, D=d, SHIFTED=shifted, STEP=block
        )
        for half in range(half_steps):
            blocks = -(-(m, n)[half % 2] // plan.rows)
            steps.half_step[(blocks * problems,)](
                room, out, m, n, *damping, int(half == half_steps - 1), TURNED=half % 2 == 1,
                **tile,
            )  # fmt: skip
        return out
    alone = plan.programs == 1
    counters = q.new_zeros(0 if alone else problems, dtype=torch.int32)
    steps.run[(problems * plan.programs,)](
        *given, out, room, counters, m, n, q.shape[1], factor, *damping, half_steps,
        plan.programs, *layout, ALONE=alone, SHIFTED=shifted, launch_cooperative_grid=not alone,
        **tile,
    )  # fmt: skip
    return out


def _wide(
    points: list[Tensor], logs: list[Tensor], constants: list[Tensor], start: Tensor,
    factor: float, damping: list[float], half_steps: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    """One launch for wider points, on tensor cores."""
    q, k = points
    (*batch, m, d), n = q.shape, k.shape[-2]
    problems, plan = prod(batch), _wide_plan(q, k)
    if plan is None:
        raise ValueError(
            f"{WHAT} need a GPU with more shared memory for points of width {d}, got {q.device}. "
            "Take them one by one, with `ops.log_integral`."
        )
    tile, alone, divided = plan.tile, plan.programs == 1, max(plan.shares) > 1
    # Without the branch for shares Triton 3.6 takes shared memory for two loops at once.
    shares = max(2, *plan.shares)
    block = max(tile.rows, tile.columns)
    sides = [-(-size // block) * block for size in (m, n)]
    operands = _operands(q, k, block)
    room = q.new_empty(problems * sum(sides) * EXTRA, dtype=torch.float32)
    partial = problems * 2 * shares * max(sides) if divided else 0
    shared = q.new_empty(partial, dtype=torch.float32)
    meetings = 1 + sum(sides) // tile.rows if divided or not alone else 0
    counters = q.new_zeros(problems * meetings, dtype=torch.int32)
    out = q.new_empty(*batch, n, dtype=torch.float32)
    given = (*logs, *(constants or (None, None)), start)
    wide_steps.run[(problems * plan.programs,)](
        *operands, *given, out, room, shared, counters, m, n, q.shape[1], factor,
        *damping, half_steps, plan.programs, *plan.shares, *map(maybe_strides, given),
        D=padded_width(d), BM=tile.rows, BN=tile.columns, SHARES=shares, STAGES=tile.stages,
        ALONE=alone, SPLIT=q.dtype not in HALF, SHIFTED=bool(constants), SYMMETRIC=symmetric,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=plan.registers,
        launch_cooperative_grid=not alone,
    )  # fmt: skip
    return out


def _operands(q: Tensor, k: Tensor, block: int) -> tuple[Tensor | None, ...]:
    """Queries and keys as tensor cores take them, their low halves, and their survey.

    Their width is a power of two, and zeros follow them in memory up to whole blocks.
    """
    if q.dtype not in HALF:
        found = survey(q, k, k, None, points=True, values=False)
        high, low = Halves.of(q, k, k, None, found, values=False, rows=block)
        return *high[:2], *low[:2], found
    width = padded_width(q.shape[-1]) - q.shape[-1]
    q, k = (pad(x, (0, width, 0, -x.shape[-2] % block)).contiguous() for x in (q, k))
    return q, k, q, k, None


def _wide_plan(q: Tensor, k: Tensor) -> WidePlan | None:
    """The plan for these points on their device; one program for each problem if interpreted."""
    count, memory = 4, 1 << 20  # in the interpreter, so that shares are tested
    if q.device.type == "cuda":
        device = torch.cuda.get_device_properties(q.device)
        count, memory = device.multi_processor_count, device.shared_memory_per_multiprocessor
    problems = prod(torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]))
    plan = wide_planned(
        problems, q.shape[-2], k.shape[-2], padded_width(q.shape[-1]),
        halves=1 if q.dtype in HALF else 2, processors=count, memory=memory,
    )  # fmt: skip
    if plan is None or q.device.type == "cuda":
        return plan
    return plan._replace(programs=1)


@torch.library.custom_op("pushforward::sinkhorn_steps", mutates_args=())
def take_steps(
    points: list[Tensor], logs: list[Tensor], constants: list[Tensor], start: Tensor,
    factor: float, damping: list[float], steps: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    r"""The potential $G$ `(b, h, n)` after some steps from `start`.

    Args:
        points: queries `(b, h, m, d)` and keys.
        logs: log-weights of both, `(b, h, m)` and `(b, h, n)`.
        constants: $c_a,c_b$ of the same shapes; empty for zeros.
        start: $G$.
        factor: $s$.
        damping: $\tau_a,\tau_b$.
        steps: at least one.
        symmetric: whether a step is $G\leftarrow(G+F)/2$, for queries that are the keys.
    """
    check_device(WHAT, start)
    return run_steps(points, logs, constants, start, factor, damping, steps, symmetric)


@take_steps.register_fake
def _(points: list[Tensor], *_: Any) -> Tensor:
    return points[1].new_empty(points[1].shape[:-1], dtype=torch.float32)


def _no_gradient(*_: Any) -> None:
    refuse(f"{WHAT} have no gradient. Take them one by one, with `ops.log_integral`.")


take_steps.register_autograd(_no_gradient)
