r"""The gradient of plain Sinkhorn steps on points, by one pass over the pairs for all steps.

With scores $S_{ij}=s\langle q_i,k_j\rangle$ and masses $a_i,b_j$, step $t$ is

$$R^t_i=\log\sum_je^{S_{ij}+G^{t-1}_j}b_j,\quad F^t=c_a-\tau_aR^t,\qquad
  C^t_j=\log\sum_ie^{S_{ij}+F^t_i}a_i,\quad G^t=c_b-\tau_bC^t.$$

What these log-integrals need for their own gradients is kept: their biases, and two summands of
each, because a sum would be rounded relative to its size. With the weights
$P^t_{ij}=e^{S_{ij}+\log b_j+G^{t-1}_j-R^t_i}$ and $Q^t_{ij}=e^{S_{ij}+\log a_i+F^t_i-C^t_j}$, the
adjoint $u^t$ of $G^t$, which begins with the upstream gradient $u^K$, goes back through the
adjoint $x^t$ of $F^t$:

$$x^t_i=-\tau_b\sum_jQ^t_{ij}u^t_j,\qquad u^{t-1}_j=-\tau_a\sum_iP^t_{ij}x^t_i.$$

Sums of these are the gradients in log-weights and constants: all $x^t$ in $\log a$ and $c_a$,
$u^0,\dots,u^{K-1}$ in $\log b$, $u^1,\dots,u^K$ in $c_b$. The gradient in the scores is

$$S'_{ij}=-\sum_t\bigl(\tau_b\,Q^t_{ij}u^t_j+\tau_a\,P^t_{ij}x^t_i\bigr).$$

Its terms have the form $e^{S_{ij}+\varphi^t_i+\psi^t_j}A^t_iB^t_j$. Relative to the potentials
$\varphi,\psi$ of one of them they add up to $e^{S_{ij}+\varphi_i+\psi_j}\langle A_i,B_j\rangle$,
where the vectors $A_i,B_j$ have a number for each term, $A^t_ie^{\varphi^t_i-\varphi_i}$ and
$B^t_je^{\psi^t_j-\psi_j}$. So one pass over the pairs gives the gradient in the points.

Terms whose potentials are too far apart for these exponentials are in different groups, with a
pass each. Where potentials are so large that their rounding matters, every term is a group of its
own, because relative to others its weights do not quite add up to one.

A symmetric step is $G^t=(G^{t-1}+F^t)/2$. It has no $Q^t$, and no gradient in $\log a$ and $c_b$.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .._tools.checks import on_host
from .._tools.precision import reversed_order

FAR = 30.0
r"""How far apart, up to a constant, potentials of a group may be. Pairs whose weight is down to
$e^{-60}$ in one term may still count in another, and float32 has numbers down to $e^{-87}$."""

ROUNDING = 2.0**-19
"""The relative rounding of weights from which on every term is a group of its own: in float32
that of potentials of size 16."""

FAR_IN_HALVES = 6.0
"""The same for kernels that multiply float16 halves. Bounds of the factors of a group may be too
high by the exponential of twice this distance, 17 bits of 40 that the halves keep."""

SMALL = 15.0
"""Potentials of at most this size are not rounded too much for a group, see `ROUNDING`."""

MOST_TERMS = 64
"""The largest number of terms in a group."""

Pair = tuple[Tensor, Tensor]
"""A tensor of the queries and one of the keys, or two summands."""


class Steps:
    r"""The inputs of the steps, prepared for the reductions.

    Args:
        inputs: queries, keys, $\log a,\log b$, $G^0$, and $c_a,c_b$ unless they are 0.
        times: of queries and keys, or nothing.
        factors: $s,\tau_a,\tau_b$.
        symmetric: whether steps are.
        impl: the implementation of the reductions.
    """

    def __init__(
        self, inputs: list[Tensor], times: list[Tensor], factors: list[float], symmetric: bool,
        impl: str,
    ) -> None:  # fmt: skip
        q, k, self.log_a, self.log_b, self.start, *constants = inputs
        self.points, self.constants = (q, k), constants or (0.0, 0.0)
        self.scale, *self.damping = factors
        self.symmetric, self.impl, self.reductions = symmetric, impl, ops.implementation(impl)
        self._clock = (times[0], times[1]) if times else None
        self._sides = dict[int, Any]()

    def in_one_launch(self, count: int) -> bool:
        """Whether there are kernels that take so many steps, and go back through them."""
        if self.impl != "triton" or self._clock is not None:
            return False
        return self.reductions.has_recorded_steps(*self.points, self.log_a, count)

    def _side(self, side: int) -> Any:
        """What the reductions need of the points, found once."""
        if side not in self._sides:
            (q, k), logs, clock = self.points, (self.log_b, self.log_a)[side], self._clock
            points = (q, k) if side == 0 else (k, q)
            if side == 1 and clock is not None:
                clock = reversed_order(clock)
            self._sides[side] = self.reductions.ready(points, logs, self.scale, clock)
        return self._sides[side]

    def log_integral_parts(self, side: int, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """$R$ (side 0) or $C$ (side 1), and two summands of it."""
        return self.reductions.log_integral_parts(self._side(side), bias)

    def vjp(
        self, side: int, kept: tuple[Tensor, Pair], c: Tensor, factors: Pair | None,
        wanted: list[bool],
    ) -> list[Any]:  # fmt: skip
        r"""Gradients in queries, keys and bias, for the weights $P$ (side 0) or $Q$ (side 1).

        None stands for what is not wanted.

        Args:
            side: which.
            kept: the bias, and two summands of the log-integrals.
            c: a number for each log-integral. Weights are multiplied by it, plus
                $\langle A_i,B_j\rangle$.
            factors: $A,B$; None for zeros.
            wanted: which gradients.
        """
        turn = lambda two: two if side == 0 else (two[1], two[0])
        of_both = None if factors is None else turn(factors)
        *found, of_bias = self.reductions.vjp(
            self._side(side), *kept, c, of_both, [*turn(wanted[:2]), wanted[2]]
        )
        return [*turn(found), of_bias]


def adjoint(
    steps: Steps, record: Pair, largest: Tensor, grad: Tensor, wanted: list[bool]
) -> tuple[list[Tensor | None], list[Tensor]]:
    r"""Gradients in queries and in keys, and the sums that give all other gradients.

    These are $\sum_tx^t$, $u^0$, the sum of what reaches $G^{t-1}$ through $R^t$, and
    $\sum_{t\ge1}u^t$.

    Args:
        steps: the steps.
        record: what was kept of them: for each query two summands of $R^t$ and the bias of $C^t$,
            for each key the bias of $R^t$ and two summands of $C^t$; nothing of $C^t$ for
            symmetric steps.
        largest: the largest of these biases and log-integrals, in size; infinite if not known.
        grad: $u^K$.
        wanted: whether gradients in queries and in keys are.
    """
    points: list[Tensor | None] = [None, None]

    def add(found: list[Any]) -> None:
        """Add some terms to the gradients in the points, as far as they are wanted."""
        points[:] = [
            x if y is None else y if x is None else x + y
            for x, y in zip(points, found, strict=True)
        ]

    if steps.in_one_launch(len(record[0])):
        u, x = _in_few_launches(steps, record, largest, grad, wanted, add)
    else:
        terms = _Terms(steps, record)
        groups = terms.groups() if any(wanted) else []
        alone = {group.start for group in groups if group.stop - group.start == 1}
        of_term = lambda i: wanted if i in alone else [False, False]
        u, x = _one_by_one(steps, terms, grad, of_term, add)
        left, right = terms.factors(u, x)
        for group in groups:
            if group.start not in alone:
                add(terms.vjp(group, left[group], right[group], wanted))
    of_rows, through_rows = x.sum(0), u[:-1].sum(0)
    if steps.symmetric:
        through_rows = through_rows - of_rows
    return points, [of_rows, u[0], through_rows, u[1:].sum(0)]


def _in_few_launches(
    steps: Steps, record: Pair, largest: Tensor, grad: Tensor, wanted: list[bool],
    add: Callable[[list[Any]], None],
) -> Pair:  # fmt: skip
    r"""The adjoints $u^0,\dots,u^K$ and $x^1,\dots,x^K$, by one launch for all steps.

    Then the gradients of all terms in the points are added. Where all potentials are small and
    marginals are prescribed, one kernel for each side forms the factors of a group of terms.
    """
    few = steps.damping == [1.0, 1.0] and not steps.symmetric
    read = None
    if any(wanted) and few:
        read = on_host(torch.cat([largest, _changes(steps, record)]))
    u, x = steps.reductions.adjoint_steps(
        steps.points, record, grad, steps.scale, steps.damping, steps.symmetric
    )
    x = u[1:] / 2 if steps.symmetric else x
    if not any(wanted):
        return u, x
    size, *changes = [torch.inf] if read is None else read().tolist()
    if size <= SMALL:
        for group in _grouped(changes, 2 * FAR_IN_HALVES):
            factors = steps.reductions.term_factors(
                record, (x, u[1:]), steps.damping, group, steps.symmetric
            )
            add(_of_factors(steps, record, group.start, factors, wanted))
        return u, x
    terms = _Terms(steps, record)
    left, right = terms.factors(u, x)
    for group in terms.groups():
        if group.stop - group.start > 1:
            add(terms.vjp(group, left[group], right[group], wanted))
        else:
            side, kept = terms.kept(group.start)
            c = (left if side == 0 else right)[group.start]
            add(steps.vjp(side, kept, c, None, [*wanted, False])[:2])
    return u, x


def _changes(steps: Steps, record: Pair) -> Tensor:
    r"""How far each term is from the next if marginals are prescribed, but for masses.

    From $Q^t$ to $P^t$ only the potential of the keys changes, from $G^t$ to $G^{t-1}$, and from
    $P^t$ to $Q^{t-1}$ that of the queries. A constant in a change does not matter.
    """
    of_queries, of_keys = record
    whole = of_keys[-1, 1] + steps.reductions.logarithm(of_keys[-1, 2])
    last = steps.log_b + steps.constants[1] - whole / steps.reductions.IN_BASE
    of_g = torch.cat([of_keys[:, 0], last[None]])
    spans = list[Tensor]()
    for potentials in (of_g, of_queries[:, 2]):
        low, high = torch.aminmax(potentials.diff(dim=0).nan_to_num(0.0), dim=-1)
        spans.append((high - low)[..., None].flatten(1).amax(1) / 2)
    first, later = spans[0][:1], torch.stack([spans[1], spans[0][1:]], 1).flatten()
    return torch.cat([first, later]).flip(0)


def _grouped(distances: list[float], most: float) -> list[slice]:
    """Groups of terms that follow each other and are at most so far from the first of them."""
    starts, far = [0], 0.0
    for i, distance in enumerate(distances, start=1):
        far += distance
        if not far <= most or i - starts[-1] == MOST_TERMS:
            starts.append(i)
            far = 0.0
    return [slice(*ends) for ends in pairwise([*starts, len(distances) + 1])]


def _one_by_one(
    steps: Steps, terms: _Terms, grad: Tensor, wanted: Callable[[int], list[bool]],
    add: Callable[[list[Any]], None],
) -> Pair:  # fmt: skip
    r"""The adjoints $u^0,\dots,u^K$ and $x^1,\dots,x^K$, half-step by half-step.

    The gradients of a term in the points are added where they are `wanted`.
    """
    tau_a, tau_b = steps.damping
    us, xs, term = [grad], list[Tensor](), 0

    def back(c: Tensor) -> Tensor:
        """The gradient of the next term in its bias."""
        nonlocal term
        want = wanted(term)
        *found, to_bias = steps.vjp(*terms.kept(term), c, None, [*want, True])
        if any(want):
            add(found)
        term += 1
        return to_bias

    for _ in range(terms.steps):
        xs.append(us[-1] / 2 if steps.symmetric else back(-tau_b * us[-1]))
        y = back(-tau_a * xs[-1])
        us.append(xs[-1] + y if steps.symmetric else y)
    return torch.stack(us[::-1]), torch.stack(xs[::-1])


def _kept_of(record: Pair, term: int, symmetric: bool) -> tuple[int, tuple[Tensor, Pair]]:
    """Which side a term is from, its bias, and two summands of the log-integral."""
    of_queries, of_keys = record
    back, kind = divmod(term, 1 if symmetric else 2)
    step = len(of_queries) - 1 - back
    if symmetric or kind == 1:
        return 0, (of_keys[step, 0], (of_queries[step, 0], of_queries[step, 1]))
    return 1, (of_queries[step, 2], (of_keys[step, 1], of_keys[step, 2]))


def _of_factors(
    steps: Steps, record: Pair, term: int, factors: Pair, wanted: list[bool]
) -> list[Any]:
    """Gradients in the points of terms whose factors are relative to the first of them."""
    side, kept = _kept_of(record, term, steps.symmetric)
    none = torch.zeros_like(kept[1][0])
    return steps.vjp(side, kept, none, factors, [*wanted, False])[:2]


class _Terms:
    r"""The terms of the gradient in the scores, and their potentials $\varphi,\psi$.

    They are ordered as they are met on the way back: $Q^K,P^K,Q^{K-1},\dots,P^1$.

    Args:
        steps: the steps.
        record: as in `adjoint`.
    """

    def __init__(self, steps: Steps, record: Pair) -> None:
        self._steps, self._record, self.unit = steps, record, steps.reductions.IN_BASE
        self._far = FAR_IN_HALVES if steps.impl == "triton" else FAR
        of_queries, of_keys = ([x.flip(0) for x in kept.unbind(1)] for kept in record)
        self._kinds = [(of_keys[0], of_queries[:2])]
        if not steps.symmetric:
            self._kinds = [(of_queries[2], of_keys[1:]), *self._kinds]
        self.steps = len(record[0])
        self.count = len(self._kinds) * self.steps
        self.live = torch.cat([steps.log_b, steps.log_a], -1) != -torch.inf

    def kept(self, term: int) -> tuple[int, tuple[Tensor, Pair]]:
        """Which side a term is from, its bias, and two summands of the log-integral."""
        return _kept_of(self._record, term, self._steps.symmetric)

    def potentials(self, group: slice, dtype: torch.dtype) -> list[Tensor]:
        r"""$\varphi,\psi$ of some terms, in the base of the implementation."""
        kinds, logarithm = len(self._kinds), self._steps.reductions.logarithm
        first, last = group.start // kinds, -(-group.stop // kinds)
        sides = list[Pair]()
        for bias, (high, low) in self._kinds:
            tilt = (bias[first:last] * self.unit).to(dtype)
            whole = -high[first:last].to(dtype) - logarithm(low[first:last].to(dtype))
            sides.append((tilt, whole) if len(sides) < kinds - 1 else (whole, tilt))
        inside = slice(group.start - first * kinds, group.stop - first * kinds)
        merged = zip(*sides, strict=True)
        return [torch.stack(both, 1).flatten(0, 1)[inside] for both in merged]

    def _ranges(self, x: Tensor) -> Pair:
        """The smallest and the largest number, over keys and queries with mass."""
        low = x.masked_fill(~self.live, torch.inf).amin(-1, keepdim=True)
        return low, x.masked_fill(~self.live, -torch.inf).amax(-1, keepdim=True)

    def factors(self, u: Tensor, x: Tensor) -> Pair:
        r"""$A^t$ and $B^t$ of all terms, for the adjoints of all steps."""
        tau_a, tau_b = self._steps.damping
        live = lambda logs, like: (logs != -torch.inf).to(like.dtype).expand(like.shape)
        left, right = -tau_a * x.flip(0), live(self._steps.log_b, u[1:])
        if len(self._kinds) == 1:
            return left, right
        both = lambda *pair: torch.stack(pair, 1).flatten(0, 1)
        return both(live(self._steps.log_a, x), left), both(-tau_b * u[1:].flip(0), right)

    def groups(self) -> list[slice]:
        """Terms that follow each other, none of them far from the first, and none of them large.

        Up to a constant that one side gives to the other. This waits for the device; while a CUDA
        graph is recorded, it cannot, and every term is alone.
        """
        if self.live.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return [slice(i, i + 1) for i in range(self.count)]
        return _grouped(self._distances().tolist(), self._far)

    def _distances(self) -> Tensor:
        """How far each term is from the next, without masses; infinite if one of them is large."""
        dtype = self._steps.log_a.dtype
        phi, psi = self.potentials(slice(0, self.count), dtype)
        whole = torch.cat([psi, -phi], -1) / self.unit
        plain = whole.clone()
        n, kinds = psi.shape[-1], len(self._kinds)
        plain[kinds - 1 :: kinds, ..., :n] -= self._steps.log_b
        if kinds == 2:
            plain[::2, ..., n:] += self._steps.log_a
        span = lambda x: torch.sub(*reversed(self._ranges(x))).flatten(1).amax(1) / 2
        low, high = self._ranges(whole)
        size = torch.maximum(high, -low).flatten(1).amax(1)
        large = size * torch.finfo(dtype).eps > ROUNDING
        apart = large[1:] | large[:-1] | (span(whole.diff(dim=0)) > self._far)
        return span(plain.diff(dim=0)).masked_fill(apart, torch.inf)

    def vjp(self, group: slice, left: Tensor, right: Tensor, wanted: list[bool]) -> list[Any]:
        r"""Gradients in the points by one pass, relative to the potentials of the first term.

        Of the constants that can be added to $\varphi$ and taken from $\psi$, the one with the
        smallest exponents is chosen. Exponents are formed in float64, because the exponentials of
        many terms may nearly cancel.

        Args:
            group: the terms.
            left: $A^t$ of each.
            right: $B^t$ of each.
            wanted: whether gradients in queries and in keys are.
        """
        phi, psi = ((x - x[:1]) / self.unit for x in self.potentials(group, torch.float64))
        low, high = self._ranges(torch.cat([psi, -phi], -1))
        middle = (low + high) / 2
        left = (phi + middle).masked_fill(left == 0, 0).exp().to(left.dtype) * left
        right = (psi - middle).masked_fill(right == 0, 0).exp().to(right.dtype) * right
        factors = (left.movedim(0, -1), right.movedim(0, -1))
        return _of_factors(self._steps, self._record, group.start, factors, wanted)
