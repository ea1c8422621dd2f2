"""Launches of Sinkhorn steps and of the way back through them, and the operator of steps."""

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._tools.once import refuse
from ..._tools.precision import HALF
from ._operators import check_device
from ._problem import Halves, maybe_strides, padded_width, survey
from ._split import processors
from ._tiles import NARROW, WidePlan, planned, wide_planned
from .programs import steps, wide_adjoint, wide_steps

WHAT = "Sinkhorn steps with `impl='triton'`"
"""Their name in messages."""

EXTRA = steps.EXTRA.value
"""Numbers that are kept for a point beside its coordinates."""

TERM_ROWS = 64
"""Points of which a program forms the factors."""

MOST = 1 << 16
"""The most Sinkhorn steps of one launch, whose barriers are then counted in 32 bits."""


class Work(NamedTuple):
    r"""Steps to be taken.

    Args:
        points: queries `(b, h, m, d)` and keys.
        logs: log-weights of both, `(b, h, m)` and `(b, h, n)`.
        constants: $c_a,c_b$ of the same shapes; empty for zeros.
        start: $G$ before.
        factor: $s$.
        damping: $\tau_a,\tau_b$.
        symmetric: whether a step is $G\leftarrow(G+F)/2$, for queries that are the keys.
    """

    points: list[Tensor]
    logs: list[Tensor]
    constants: list[Tensor]
    start: Tensor
    factor: float
    damping: list[float]
    symmetric: bool

    @property
    def numbers(self) -> tuple[Tensor | None, ...]:
        """Log-weights, constants and the start, as kernels take them."""
        return *self.logs, *(self.constants or (None, None)), self.start


def run_steps(work: Work, count: int) -> Tensor:
    """The potential of the keys after `count` Sinkhorn steps, at most `MOST` in each turn."""
    narrow = work.points[0].shape[-1] <= NARROW
    for done in range(0, count, MOST):
        steps = min(count - done, MOST)
        half_steps = steps if work.symmetric else 2 * steps
        found = _narrow(work, half_steps) if narrow else _wide(work, half_steps)
        work = work._replace(start=found)
    return work.start


def fits(q: Tensor, k: Tensor) -> bool:
    """Whether a device has room for the programs that take steps on these points."""
    return q.shape[-1] <= NARROW or _wide_plan(q, k) is not None


def record_steps(work: Work, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The potential after at most `MOST` steps on wide points, and a record for gradients.

    The record has shapes `(count, 3, b, h, m)` and `(count, 3, b, h, n)`; of symmetric steps it
    has two numbers for a query and one for a key. `sinkhorn._adjoint.adjoint` says what they are.
    The last result is the largest of its biases and log-integrals, in size.
    """
    q, k = work.points
    kinds = (2, 1) if work.symmetric else (3, 3)
    of_queries, of_keys = (
        q.new_empty(count, kind, *x.shape[:-1], dtype=torch.float32)
        for kind, x in zip(kinds, (q, k), strict=True)
    )
    dead = work.logs[1] == -torch.inf
    of_keys[0, 0] = (work.logs[1] + work.start).masked_fill_(dead, -torch.inf)
    largest = q.new_zeros(1, dtype=torch.int32)
    record = of_queries, of_keys, largest
    out = _wide(work, count if work.symmetric else 2 * count, record)
    return out, of_queries, of_keys, largest.view(torch.float32)


def adjoint_steps(
    points: list[Tensor], record: tuple[Tensor, Tensor], grad: Tensor, factor: float,
    damping: list[float], symmetric: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    r"""The adjoints $u^0,\dots,u^K$ and $x^1,\dots,x^K$ of recorded steps.

    Args:
        points: queries `(b, h, m, d)` and keys.
        record: what `record_steps` has recorded.
        grad: $u^K$, `(b, h, n)`.
        factor: $s$.
        damping: $\tau_a,\tau_b$.
        symmetric: whether steps are. There is no $x$ then.
    """
    (q, k), (of_queries, of_keys) = points, record
    count, tasks = len(of_queries), _tasks(q, k)
    u = grad.new_empty(count + 1, *k.shape[:-1], dtype=torch.float32)
    x = grad.new_empty(0 if symmetric else count, *q.shape[:-1], dtype=torch.float32)
    u[count] = grad
    room = q.new_empty(tasks.rows * wide_adjoint.KEPT.value, dtype=torch.float32)
    wide_adjoint.run[(tasks.problems * tasks.plan.programs,)](
        *tasks.operands, of_queries, of_keys, x, u, room, tasks.shared, tasks.counters,
        q.shape[-2], k.shape[-2], factor, *damping, count, tasks.problems,
        tasks.plan.programs, *tasks.plan.shares, SYMMETRIC=symmetric, **tasks.options,
    )  # fmt: skip
    return u, x


def term_factors(
    record: tuple[Tensor, Tensor], adjoints: tuple[Tensor, Tensor], damping: list[float],
    terms: slice, symmetric: bool,
) -> list[Tensor]:  # fmt: skip
    """The factors of some terms for queries, `(b, h, m, terms)`, and for keys.

    They are relative to the potentials of the first of these terms, see `sinkhorn._adjoint`.
    """
    count, each = terms.stop - terms.start, 1 if symmetric else 2
    padded, found = 1 << max(0, count - 1).bit_length(), list[Tensor]()
    # Which term of a step has an adjoint of this side as factor: for queries the one with weights
    # P, the last; for keys that with Q, the first. Symmetric steps have no Q: 1 is none of theirs.
    weighted = each - 1, 0 if each == 2 else 1
    # A record of queries has two summands, then a bias; one of keys a bias, then two summands.
    high, bias = (0, 1), (2, 0)
    for side, (kept, adjoint) in enumerate(zip(record, adjoints, strict=True)):
        steps, kinds, b, h, n = kept.shape
        made = kept.new_empty(b, h, n, count)
        wide_adjoint.factors[(-(-n // TERM_ROWS) * b * h,)](
            kept, adjoint, made, n, steps, terms.start, count, damping[side],
            EACH=each, KINDS=kinds, HIGH=high[side], BIAS=bias[side], WEIGHTED=weighted[side],
            TERMS=padded, SIZE=TERM_ROWS,
        )  # fmt: skip
        found.append(made)
    return found


def _narrow(work: Work, half_steps: int) -> Tensor:
    """Points of at most `NARROW` coordinates: one launch, or one for each half-step."""
    q, k = work.points
    (*batch, m, d), n = q.shape, k.shape[-2]
    problems, cuda = prod(batch), q.device.type == "cuda"
    plan = planned(problems, m, n, d, processors(q.device) if cuda else 1)
    if not cuda and plan.programs:  # the interpreter runs one after the other: none may wait
        plan = plan._replace(programs=1)
    block = plan.columns * plan.group
    length = -(-m // block) * block + -(-n // block) * block
    room = q.new_empty(problems * length * (d + EXTRA), dtype=torch.float32)
    out = q.new_empty(*batch, n, dtype=torch.float32)
    given = (q, k, *work.numbers)
    layout = tuple(map(maybe_strides, given))
    tile: dict[str, Any] = dict(
        D=d, BM=plan.rows, BN=plan.columns, GROUP=plan.group, SYMMETRIC=work.symmetric,
        num_warps=plan.warps, maxnreg=plan.registers,
    )  # fmt: skip
    shifted = bool(work.constants)
    if plan.programs is None:
        steps.prepare[(-(-max(m, n) // block) * problems,)](
            *given, room, m, n, q.shape[1], work.factor, *layout, D=d, SHIFTED=shifted,
            STEP=block,
        )  # fmt: skip
        for half in range(half_steps):
            blocks = -(-(m, n)[half % 2] // plan.rows)
            steps.half_step[(blocks * problems,)](
                room, out, m, n, *work.damping, int(half == half_steps - 1),
                TURNED=half % 2 == 1, **tile,
            )  # fmt: skip
        return out
    alone = plan.programs == 1
    counters = q.new_zeros(0 if alone else problems, dtype=torch.int32)
    steps.run[(problems * plan.programs,)](
        *given, out, room, counters, m, n, q.shape[1], work.factor, *work.damping, half_steps,
        plan.programs, *layout, ALONE=alone, SHIFTED=shifted, launch_cooperative_grid=not alone,
        **tile,
    )  # fmt: skip
    return out


def _wide(
    work: Work, half_steps: int, record: tuple[Tensor | None, ...] = (None, None, None)
) -> Tensor:
    """Wider points: one launch, on tensor cores; the record is filled if there is one."""
    (q, k), numbers = work.points, work.numbers
    (*batch, m, _), n = q.shape, k.shape[-2]
    tasks = _tasks(q, k)
    room = q.new_empty(tasks.rows * EXTRA, dtype=torch.float32)
    out = q.new_empty(*batch, n, dtype=torch.float32)
    wide_steps.run[(tasks.problems * tasks.plan.programs,)](
        *tasks.operands, *numbers, out, *record, room, tasks.shared, tasks.counters, m, n,
        q.shape[1], work.factor, *work.damping, half_steps, tasks.plan.programs,
        *tasks.plan.shares, *map(maybe_strides, numbers), SHIFTED=bool(work.constants),
        SYMMETRIC=work.symmetric, RECORD=record[0] is not None, **tasks.options,
    )  # fmt: skip
    return out


class _Tasks(NamedTuple):
    """How the work on wide points is shared out.

    Args:
        plan: tiles, programs and shares.
        operands: points as tensor cores take them, their low halves, and their survey.
        problems: how many there are.
        rows: rows of both sides of all problems, up to whole blocks.
        shared: room for what programs find in their shares.
        counters: numbers of programs that have arrived, zeros.
        options: what kernels are compiled for.
    """

    plan: WidePlan
    operands: tuple[Tensor | None, ...]
    problems: int
    rows: int
    shared: Tensor
    counters: Tensor
    options: dict[str, Any]


def _tasks(q: Tensor, k: Tensor) -> _Tasks:
    """Share out the work on these points."""
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
    partial = problems * 2 * shares * max(sides) if divided else 0
    meetings = 1 + sum(sides) // tile.rows if divided or not alone else 0
    options: dict[str, Any] = dict(
        D=padded_width(d), BM=tile.rows, BN=tile.columns, SHARES=shares, STAGES=tile.stages,
        ALONE=alone, SPLIT=0 if q.dtype in HALF else 2, num_warps=tile.warps,
        num_stages=tile.stages, maxnreg=plan.registers, launch_cooperative_grid=not alone,
    )  # fmt: skip
    shared = q.new_empty(partial, dtype=torch.float32)
    counters = q.new_zeros(problems * meetings, dtype=torch.int32)
    operands = _operands(q, k, block)
    return _Tasks(plan, operands, problems, problems * sum(sides), shared, counters, options)


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
    """The potential of the keys after at least one step; the arguments are those of `Work`."""
    check_device(WHAT, start)
    return run_steps(Work(points, logs, constants, start, factor, damping, symmetric), steps)


@take_steps.register_fake
def _(points: list[Tensor], *_: Any) -> Tensor:
    return points[1].new_empty(points[1].shape[:-1], dtype=torch.float32)


def _no_gradient(*_: Any) -> None:
    refuse(f"{WHAT} have no gradient. Take them one by one, with `ops.log_integral`.")


take_steps.register_autograd(_no_gradient)
