"""The two passes: which kernels run, on tiles of which size, in how many programs."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._tools.precision import HALF
from . import _hopper as hopper
from ._problem import LARGE, Clock, Halves, Inputs, padded_width, strides, survey, without_dead
from ._split import columns, room, split, summed
from ._tiles import GROUP, NARROW, TOGETHER, Tile, tile_of
from .programs import narrow, survey as survey_programs, wide, wide_backward

Handed = list[tuple[Any, ...]]
"""What the kernels of queries and of keys are given about the queries, see `backward`: offsets,
gradients, summands, and for float32 low halves of gradients and units."""


class Reduced(NamedTuple):
    """Average, log-integral, shift of the scores in base 2, sum of weights relative to it."""

    out: Tensor
    log_z: Tensor
    peak: Tensor
    total: Tensor


class Ready(NamedTuple):
    """What is computed from points once, for all passes over them.

    Args:
        found: their survey, if they need one.
        high: queries, keys and values as tensor cores take them.
        low: their low halves.
        halves: how many halves of a float32 number are used in products, 2 or 1; 0 where points
            are multiplied as they are.
    """

    found: Tensor | None
    high: tuple[Tensor, Tensor, Tensor]
    low: tuple[Tensor, Tensor, Tensor]
    halves: int = 0


def ready(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *, timed: bool, values: bool) -> Ready:
    """Prepare points of shape `(b, h, n, k)`; values only if they are wanted.

    It serves passes with other biases, too, if these are minus infinity wherever this one is.
    Only the highest bias, which narrow points need in the forward pass, is then another one.
    """
    points, pairs = (q, k, v), prod(q.shape[:-1]) * k.shape[-2]
    thin = max(q.shape[-1], v.shape[-1]) <= NARROW
    exact = not (thin or q.dtype in HALF)
    if not exact and (timed or pairs < LARGE):
        return Ready(None, points, points)
    found = survey(q, k, v, bias, points=thin or exact, values=values and exact)
    if not exact:
        return Ready(found, points, points)
    return Ready(found, *Halves.of(q, k, v, bias, found, values=values), 2)


def forward(
    inputs: Inputs, factor: float, clock: Clock | None, known: Ready | None = None, *,
    guard: bool = False,
) -> Reduced:  # fmt: skip
    """Averages and sums of weights, for points of shape `(b, h, n, k)`.

    With `guard`, keys and values without mass need not be finite.
    """
    q, k, v, bias = inputs
    (*batch, m, d), n, e = q.shape, k.shape[-2], v.shape[-1]
    problems = prod(batch)
    thin, half = max(d, e) <= NARROW, q.dtype in HALF
    tile = tile_of("forward", d, e, half=half)
    group = GROUP if thin else 1
    parts = split(q, problems * -(-m // tile.rows), n, group * tile.columns)
    dtype = q.dtype if half else torch.float32
    result = _room(q, (*batch, m), e, dtype)
    if result.peak.numel() == 0:
        return result
    large = problems * m * n >= LARGE and clock is None
    # Weights multiply wide values in half precision. Relative to another shift than the largest
    # score they may be too large for float16, which has the halves of float32 numbers, too.
    bounded = large and (thin or e == 0 or q.dtype == torch.bfloat16)
    modes: tuple[int, ...] = (1, 2) if bounded else (0,)
    if guard and half and not thin and not bounded:
        k, v = without_dead(k, v, bias)
    if known is None or thin:  # narrow points need the highest of these very biases
        known = ready(q, k, v, bias, timed=clock is not None, values=True)
    found, high, low, halves = known
    made = result if parts == 1 else _room(q, (parts, *batch, m), e, torch.float32)
    places = (made.out, made.peak, made.total, made.log_z)
    ends = found if clock is None else clock.ends(tile.rows, group * tile.columns)
    if parts == 1 and bounded and ends is not None:
        if hopper.takes(q, k, v, bias):
            hopper.forward((q, k, v), bias, ends, factor, places)
            modes = modes[1:]
        elif e == 0 and halves == 2 and hopper.takes_log(q, k, bias):
            hopper.log_integral(high, low, bias, ends, factor, places[1:])
            modes = modes[1:]
    options = _options(tile, thin, n % tile.columns == 0) | dict(
        D=d, E=e, ENDS=_kind_of_ends(found, clock), WHOLE=parts == 1
    )
    given: tuple[Any, ...] = (None if clock is None else clock.ranks, ends, found)
    sizes: tuple[Any, ...] = (m, n, q.shape[1], factor)
    if thin:
        points = (q, *columns(m * n, k, v, bias if guard else None), bias)
    else:
        points, given, sizes = (*high, bias), (*low, *given), (*sizes, 1.0)
        options |= dict(
            D_PAD=padded_width(d), E_PAD=padded_width(e), SPLIT=halves,
            GUARD=guard and half and bounded,
        )  # fmt: skip
    run = narrow.forward if thin else wide.forward
    for mode in modes:
        run[-(-m // tile.rows) * problems, parts](
            *points, *given, *places, *sizes, *map(strides, points), MODE=mode, **options
        )  # fmt: skip
    if parts > 1:
        rows, width = result.peak.numel(), padded_width(e)
        size = max(1, 2048 // width)
        survey_programs.merge[(-(-rows // size),)](
            *places[:3], result.out, result.peak, result.total, result.log_z, rows, parts,
            E=e, E_PAD=width, SIZE=size,
        )  # fmt: skip
    return result


def backward(
    inputs: Inputs, factor: float, clock: Clock | None, result: Reduced,
    upstream: tuple[Tensor, Tensor], wanted: list[bool], known: Ready | None = None, *,
    largest: bool = True,
) -> list[Tensor | None]:  # fmt: skip
    r"""Gradients in `q, k, v, bias`, if wanted, from those of the average and the log-integral.

    With $P$ the weights, $o',\ell'$ the upstream gradients and $o$ the average,

    $$c_i=\ell'_i-\langle o'_i,o_i\rangle,\quad S'_{ij}=P_{ij}\,(\langle o'_i,v_j\rangle+c_i),\quad
      q'=s\,S'k,\quad k'=s\,S'^\top q,\quad v'=P^\top o',\quad b'_j=\sum_iS'_{ij}.$$

    In float32, and for narrow points, the weights are formed relative to the shift, and $o'$ and
    $c$ are divided by the total instead. So the gradients of large scores are as accurate as
    their differences. Wide points in float32 are multiplied as halves, see `upstream_halves`.
    For them `largest` says whether the shift is the largest score. Without values it need not be.
    What is `known` may be so for other biases.
    In half precision, keys and values of wide points must be finite even where there is no mass.
    """
    q, k, v, bias = inputs
    m, n, d, e = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    half, thin = q.dtype in HALF, max(d, e) <= NARROW
    grads: list[Tensor | None] = [None] * 4
    wanted = [want and prod(q.shape[:-2]) * m * n > 0 for want in wanted]
    if not any(wanted):
        return grads
    biases = known is None
    dead = bias if known is None else None  # points that are known are finite
    if known is None:
        known = ready(q, k, v, bias, timed=clock is not None, values=not half)
    found, high, low, _ = known
    if thin or half:
        handed = _upstream(result, *upstream, thin=thin)
    else:
        size, bounds = tile_of("keys", d, e, half=False).rows, (largest and e > 0, biases)
        handed = _upstream_halves(result, upstream, found, factor, size, bounds)
    g = handed[0][1]
    operands: tuple[Any, ...] = (*high, bias, *low, found)
    sizes: tuple[Any, ...] = (m, n, q.shape[1], factor, 1.0)
    if thin:
        (q, g), (k, v) = columns(m * n, q, g), columns(m * n, k, v, dead)
        operands, handed, sizes = (q, k, v, bias), [(x[0], g, x[2]) for x in handed], sizes[:4]
    shared = _Shared(inputs, operands, handed, sizes, known, clock)
    if wanted[0]:
        grads[0] = _gradient_of_queries(shared)
    if any(wanted[1:]):
        grads[1:] = _gradients_of_keys(shared, wanted[1:])
    return grads


class _Shared(NamedTuple):
    """What the kernels of both sides are given.

    Args:
        inputs: queries, keys, values, biases.
        operands: the same as kernels take them, low halves, and the survey.
        handed: what is handed on to the kernel of queries, and to that of keys.
        sizes: numbers of queries, of keys and of heads, and factors.
        known: what is known of the points.
        clock: times.
    """

    inputs: Inputs
    operands: tuple[Any, ...]
    handed: Handed
    sizes: tuple[Any, ...]
    known: Ready
    clock: Clock | None

    @property
    def thin(self) -> bool:
        """Whether points and values are narrow."""
        return max(self.inputs[0].shape[-1], self.inputs[2].shape[-1]) <= NARROW

    @property
    def steps(self) -> tuple[tuple[int, ...], ...]:
        """Strides of queries, keys, values, biases and upstream gradients."""
        return tuple(map(strides, (*self.operands[:4], self.handed[0][1])))

    def gluon(self, which: hopper.Gradient, parts: int) -> bool:
        """Whether a gradient is faster in Gluon."""
        alone = parts == 1 and self.clock is None
        return alone and hopper.takes_gradient(which, self.inputs, self.handed[0][1])

    def options(self, tile: Tile, even: bool) -> dict[str, Any]:
        """Arguments of a kernel that it is compiled for."""
        d, e = self.inputs[0].shape[-1], self.inputs[2].shape[-1]
        widths: dict[str, Any] = dict(D=d, E=e, ENDS=_kind_of_ends(self.known.found, self.clock))
        if not self.thin:
            padded = dict(D_PAD=padded_width(d), E_PAD=padded_width(e))
            widths |= padded | dict(SPLIT=self.known.halves)
        return widths | _options(tile, self.thin, even)


def _gradient_of_queries(shared: _Shared) -> Tensor:
    """The gradient in queries, by a loop over keys."""
    q, k, v, _ = shared.inputs
    m, n, problems = q.shape[-2], k.shape[-2], prod(q.shape[:-2])
    half, thin = q.dtype in HALF, shared.thin
    tile, group = tile_of("queries", q.shape[-1], v.shape[-1], half=half), GROUP if thin else 1
    parts = split(q, problems * -(-m // tile.rows), n, group * tile.columns)
    made = room(parts, q.shape, q.dtype if half else torch.float32, q.device)
    clock, handed = shared.clock, shared.handed[0]
    ends = shared.known.found if clock is None else clock.ends(tile.rows, group * tile.columns)
    if shared.gluon("queries", parts):
        offset, g, delta, *_ = handed
        hopper.queries(shared.inputs, g, (offset, delta), ends, shared.sizes[3], made)
    else:
        run = narrow.backward_queries if thin else wide_backward.queries
        run[-(-m // tile.rows) * problems, parts](
            *shared.operands, None if clock is None else clock.ranks, ends, *handed, made,
            *shared.sizes, *shared.steps, **shared.options(tile, n % tile.columns == 0),
        )  # fmt: skip
    return summed(made, parts, q.dtype)


def _gradients_of_keys(shared: _Shared, wanted: list[bool]) -> list[Tensor | None]:
    """The gradients in keys, values and biases, by a loop over queries."""
    q, k, v, bias = shared.inputs
    (*batch, n, d), m, e = k.shape, q.shape[-2], v.shape[-1]
    problems, half, thin = prod(batch), q.dtype in HALF, shared.thin
    tile, group = tile_of("keys", d, e, half=half), GROUP if thin else 1
    parts = split(q, problems * -(-n // tile.columns), m, group * tile.rows)
    dtype = q.dtype if half else torch.float32
    needed = (wanted[0], wanted[1] and e > 0, True)
    several = [
        room(parts, x.shape if want else (0,), t, q.device)
        for x, want, t in zip((k, v, bias), needed, (dtype, dtype, torch.float32), strict=True)
    ]
    clock, handed = shared.clock, shared.handed[1]
    starts = shared.known.found if clock is None else clock.starts(group * tile.rows, tile.columns)
    if shared.gluon("keys", parts):
        (offset, g, delta, *_), factor = handed, shared.sizes[3]
        hopper.keys(shared.inputs, g, (offset, delta), starts, factor, several, needed[:2])
    else:
        run = narrow.backward_keys if thin else wide_backward.keys
        for turn in _turns(needed, max(d, e), half=half):
            run[-(-n // tile.columns) * problems, parts](
                *shared.operands, None if clock is None else clock.ranks, starts, *handed,
                *several, *shared.sizes, *shared.steps, **turn,
                **shared.options(tile, m % tile.rows == 0),
            )  # fmt: skip
    return [
        summed(x, parts, y.dtype) if want else None
        for x, y, want in zip(several, (k, v, bias), needed, strict=True)
    ]


def _turns(needed: tuple[bool, bool, bool], width: int, *, half: bool) -> list[dict[str, bool]]:
    """Which gradients of keys, values and bias are found together, as arguments of a kernel."""
    points, values, _ = needed
    turn = dict(POINTS=points, VALUES=values)
    if width <= NARROW:
        return [turn]
    if half or width <= TOGETHER or not values:
        return [turn | dict(BIAS=True)]
    return [turn | dict(VALUES=False, BIAS=True), turn | dict(POINTS=False, BIAS=False)]


def _kind_of_ends(found: Tensor | None, clock: Clock | None) -> int:
    """Whether keys end with their problem (0), by a survey (1), or by times for each block (2)."""
    return 2 if clock is not None else 0 if found is None else 1


def _room(q: Tensor, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> Reduced:
    """Room for a result."""
    rows = (q.new_empty(shape, dtype=torch.float32) for _ in range(3))
    return Reduced(q.new_empty(*shape, width, dtype=dtype), *rows)


def _upstream(result: Reduced, d_out: Tensor, d_log: Tensor, *, thin: bool) -> Handed:
    """What each query hands on: an offset of scores, a gradient, a summand or its negative."""
    (*batch, m, e), width = d_out.shape, padded_width(d_out.shape[-1])
    g = d_out.new_empty(d_out.shape, dtype=torch.float32 if thin else d_out.dtype)
    slope, offset = torch.empty_like(result.peak), torch.empty_like(result.peak)
    size = max(1, 4096 // width)
    survey_programs.upstream[(-(-m // size) * prod(batch),)](
        result.out, result.peak, result.total, d_out, d_log, g, slope, offset, m, batch[1],
        strides(d_out), strides(d_log), E=e, E_PAD=width, SIZE=size, DIVIDE=thin,
    )  # fmt: skip
    return [(offset, g, slope) if thin else (offset, g, slope, None, None, None)] * 2


def _upstream_halves(
    result: Reduced, upstream: tuple[Tensor, Tensor], found: Tensor | None, factor: float,
    size: int, bounds: tuple[bool, bool],
) -> Handed:  # fmt: skip
    """The same in halves: an offset, a gradient, a summand, the low half of the gradient, units.

    The kernel of keys has one unit for `size` queries; see `survey.upstream_halves`. The two
    bounds of weights are its `LARGEST` and `BIASES`.
    """
    d_out, d_log = upstream
    (*batch, m, e), width = d_out.shape, padded_width(d_out.shape[-1])
    high, low = (
        d_out.new_empty(*batch, m, width if e else 0, dtype=torch.float16) for _ in range(2)
    )
    blocks = -(-m // size) * prod(batch)
    rows, units = d_out.new_empty(5, *batch, m), d_out.new_empty(blocks)
    survey_programs.upstream_halves[(blocks,)](
        result.out, result.peak, result.total, d_out, d_log, found, high, low, rows, units, m,
        batch[1], factor, strides(d_out), strides(d_log), E=e, E_PAD=width, SIZE=size,
        LARGEST=bounds[0], BIASES=bounds[1],
    )  # fmt: skip
    delta, offset, unit, fit_queries, fit_keys = rows
    first = (offset, high, delta, low)
    return [(*first, fit_queries, unit), (*first, fit_keys, units)]


def _options(tile: Tile, thin: bool, even: bool) -> dict[str, Any]:
    """The tile as arguments of a kernel, and whether its blocks divide the loop."""
    options: dict[str, Any] = dict(
        BM=tile.rows, BN=tile.columns, num_warps=tile.warps, num_stages=tile.stages,
        maxnreg=tile.registers,
    )  # fmt: skip
    return options | (dict(GROUP=GROUP) if thin else dict(STAGES=tile.stages, EVEN=even))
