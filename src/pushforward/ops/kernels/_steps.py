"""Many Sinkhorn steps in one launch, and their operator."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from ..._tools.once import refuse
from ._operators import check_device
from ._problem import strides
from ._split import processors
from ._tiles import REGISTERS, planned
from .programs import steps as programs

WHAT = "Sinkhorn steps in one launch"
"""Their name in messages."""

MOST = 1 << 16
"""Sinkhorn steps in one launch, so that meetings of programs can be counted in 32 bits."""


def run_steps(
    points: list[Tensor], logs: list[Tensor], constants: list[Tensor], start: Tensor,
    factor: float, damping: list[float], count: int, symmetric: bool,
) -> Tensor:  # fmt: skip
    """The potential of the keys after `count` Sinkhorn steps from `start`."""
    q, k = points
    (*batch, m, d), n = q.shape, k.shape[-2]
    problems, cuda = prod(batch), q.device.type == "cuda"
    plan = planned(problems, m, n, processors(q.device) if cuda else 1)
    if not cuda:  # the interpreter runs one program after the other: none may wait
        plan = plan._replace(programs=1)
    block = plan.columns * plan.group
    length = -(-m // block) * block + -(-n // block) * block
    room = q.new_empty(problems * length * (d + programs.EXTRA.value), dtype=torch.float32)
    alone = plan.programs == 1
    for done in range(0, count, MOST):
        out = q.new_empty(*batch, n, dtype=torch.float32)
        given = (*logs, *(constants or (None, None)), start)
        counters = q.new_zeros(0 if alone else problems, dtype=torch.int32)
        halves = min(count - done, MOST) * (1 if symmetric else 2)
        programs.run[(problems * plan.programs,)](
            q, k, *given, out, room, counters, m, n, q.shape[1], factor, *damping, halves,
            plan.programs, strides(q), strides(k),
            *(None if x is None else strides(x) for x in given),
            D=d, BM=plan.rows, BN=plan.columns, GROUP=plan.group, ALONE=alone,
            SHIFTED=bool(constants), SYMMETRIC=symmetric, num_warps=plan.warps,
            maxnreg=REGISTERS, launch_cooperative_grid=not alone,
        )  # fmt: skip
        start = out
    return start


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
