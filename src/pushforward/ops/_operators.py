"""What the operators behind fast reductions share: leading axes made one, gradients."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._tools.once import named_errors, no_second_derivative, refuse
from .._tools.precision import align, full_precision

Times = tuple[Tensor, Tensor] | None
"""Times of queries and of keys, if there is a causal mask."""

Pair = tuple[Tensor, Tensor]
"""A tensor of the queries and one of the keys."""

Three = tuple[Tensor, Tensor, Tensor]
"""A log-integral and its two summands."""

MaybeTimes = tuple[Tensor | None, Tensor | None]
"""The same inside the operators, which take no optional pairs: twice None without a mask."""


def fold(tensors: tuple[Tensor, ...], times: Times) -> tuple[torch.Size, list[Tensor], MaybeTimes]:
    """Broadcast the leading axes against each other and flatten them to one."""
    if times is not None:
        tensors = (*tensors, *(t[..., None] for t in times))
    batch = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors))
    count = batch.numel()
    folded = [t.expand(*batch, *t.shape[-2:]).reshape(count, *t.shape[-2:]) for t in tensors]
    if times is None:
        return batch, folded, (None, None)
    *folded, query_times, key_times = folded
    return batch, folded, (query_times[..., 0], key_times[..., 0])


class Side(NamedTuple):
    r"""Queries and keys that several reductions share, prepared once, with one leading axis.

    Args:
        batch: the leading axes.
        q: queries, times $s$.
        k: keys.
        scale: $s$.
        clock: times.
    """

    batch: torch.Size
    q: Tensor
    k: Tensor
    scale: float
    clock: MaybeTimes

    def rows(self, x: Tensor) -> Tensor:
        """Reshape a tensor with one number per query or key to one leading axis."""
        return x.reshape(len(self.q), x.shape[-1])

    def points(self, x: Tensor) -> Tensor:
        """Reshape a tensor with one vector per query or key to one leading axis."""
        return x.reshape(len(self.q), *x.shape[-2:])

    def outside(self, x: Tensor) -> Tensor:
        """Reshape a result to the leading axes of the inputs."""
        return x.reshape(*self.batch, *x.shape[1:])


def ready(points: Pair, logs: Tensor, scale: float, times: Times) -> Side:
    """Prepare points for `log_integral_parts` and `vjp`; biases have the dtype of `logs`."""
    q, k, _ = align(*points, logs)
    batch, (q, k), clock = fold((scale * q, k), times)
    return Side(batch, q, k, scale, clock)


def log_integral_parts(forward: Any, side: Side, bias: Tensor) -> Three:
    """The log-integral and its two summands, which `vjp` needs, by a forward pass."""
    _, top, rest = forward(side.q, side.k, side.k[..., :0], side.rows(bias), *side.clock)
    return side.outside(top + rest), side.outside(top), side.outside(rest)


def vjp(
    backward: Any, side: Side, bias: Tensor, record: Pair, c: Tensor, factors: Pair | None,
    wanted: list[bool],
) -> list[Tensor | None]:  # fmt: skip
    r"""Gradients in queries, keys and bias for given gradients in the scores, by a backward pass.

    With weights $P_{ij}=e^{S_{ij}-\ell_i}$, the gradient in the scores is
    $S'_{ij}=P_{ij}\,(\langle x_i,v_j\rangle+c_i)$.

    Args:
        backward: that pass, of a reduction whose average is taken to be 0.
        side: what `ready` found.
        bias: $b$.
        record: $\ell$ as two summands. A query whose first is minus infinity is left out.
        c: $c$.
        factors: $x,v$; None for zeros.
        wanted: which gradients; None stands for the others.
    """
    x, v = map(side.points, factors or (side.q[..., :0], side.k[..., :0]))
    outputs = [torch.zeros_like(x), *map(side.rows, record)]
    inputs = [side.q, side.k, v, side.rows(bias)]
    dq, dk, _, db = backward(
        inputs, *side.clock, outputs, [x, side.rows(c)], [*wanted[:2], False, wanted[2]]
    )
    grads = zip((side.scale * dq, dk, db), wanted, strict=True)
    return [side.outside(g) if want else None for g, want in grads]


def register_gradients(forward: Any, backward: Any, what: str) -> None:
    """Make `backward` the derivative of `forward`, once; `what` names the operator in errors.

    Outputs are the average and two summands of the log-integral. Since only their sum is used,
    both have the same gradient, and one of them is enough.
    """

    def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs, *output)

    def first(ctx: Any, d_out: Tensor, d_log_z: Tensor, _: Tensor) -> tuple:
        q, k, v, bias, query_times, key_times, *outputs = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:4])
        inputs, upstream = [q, k, v, bias], [d_out, d_log_z]
        with full_precision(q), named_errors(what):
            grads = backward(inputs, query_times, key_times, outputs, upstream, wanted)
        return *(g if want else None for g, want in zip(grads, wanted, strict=True)), None, None

    def second(ctx: Any, *_: Any) -> tuple:
        refuse(no_second_derivative(what))

    backward.register_autograd(second)
    forward.register_autograd(first, setup_context=keep)
