r"""What kernels must know before they start: strides, ends of problems, ranks of times, halves.

All of it is found on the device, so nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, prod

import torch
from torch import Tensor
from torch.nn.functional import pad

from .programs import survey as kernels

BOUND = 60.0
"""Up to this size of the scores, in base 2, weights need no maximum: their sums stay in range."""

LARGE = 1 << 26
"""From this many pairs on, a survey of the points costs less than it saves."""

LATEST = 2**31 - 1
"""The rank of a query that sees everything."""

LOG2 = log(2)
SIZE, STEPS = 256, 8
"""Points that are read at once, and how often, by a program that reads each once."""


def strides(x: Tensor) -> tuple[int, ...]:
    """Strides of batch, head and what follows, in elements."""
    return tuple(x.stride())


@dataclass(frozen=True)
class Survey:
    """Which problems have small scores, and where each problem ends.

    Args:
        small: for each problem 1 or 0, and its largest bias in base 2.
        ends: one more than the last atom with mass, for each problem.
    """

    small: Tensor
    ends: Tensor


def largest(q: Tensor, k: Tensor, factor: float) -> Tensor:
    r"""For each problem, $|s|\max|q_i|\max|k_j|/\log2$."""
    return abs(factor) / LOG2 * (extent(q).longest.sqrt() * extent(k).longest.sqrt())


def survey(bias: Tensor, limit: Tensor) -> Survey:
    """Whether scores are at most `BOUND`, of a bound on them for each problem in base 2."""
    problems, heads, n = prod(bias.shape[:2]), bias.shape[1], bias.shape[-1]
    highest = bias.new_full((problems,), -torch.inf)
    ends = torch.zeros_like(highest, dtype=torch.int32)
    grid = (-(-n // (SIZE * STEPS)) * problems,)
    kernels.bias[grid](bias, highest, ends, n, heads, strides(bias), SIZE=SIZE, STEPS=STEPS)
    highest = highest.masked_fill(highest == -torch.inf, 0) / LOG2
    return Survey(torch.stack([(limit <= BOUND).float(), highest], -1), ends)


@dataclass(frozen=True)
class Extent:
    """How large the points of each problem are.

    Args:
        largest: the largest coordinate.
        longest: the largest squared length.
    """

    largest: Tensor
    longest: Tensor


def extent(x: Tensor) -> Extent:
    """The extent of points `(b, h, n, k)`, in one pass."""
    problems, (heads, n, width) = prod(x.shape[:2]), x.shape[1:]
    found = torch.zeros(2, problems, device=x.device)
    padded, size = padded_width(width), min(SIZE, 8192 // padded_width(width))
    grid = (-(-n // (size * STEPS)) * problems,)
    kernels.points[grid](
        x, *found, n, heads, strides(x), WIDTH=width, PADDED=padded, SIZE=size, STEPS=STEPS
    )
    return Extent(*found)


def padded_width(width: int) -> int:
    """The next power of two, as blocks need it, and at least 16, as tensor cores need it."""
    return max(16, 1 << max(0, width - 1).bit_length())


@dataclass(frozen=True)
class Clock:
    """Times of queries and keys as whole numbers: a key is hidden if its rank is the higher one.

    Args:
        ranks: those of the queries, then those of the keys, for each problem.
        queries: how many queries there are.
    """

    ranks: Tensor
    queries: int

    @staticmethod
    def of(query_times: Tensor, key_times: Tensor) -> Clock:
        """Ranks of times of shape `(b, h, m)` and `(b, h, n)`, compared as numbers.

        The rank of a key is how many keys are earlier. That of a query is how many are not later,
        less one.
        """
        told = key_times.contiguous()
        order = told.sort(-1).values
        count = lambda t, right: torch.searchsorted(order, t.contiguous(), right=right)
        seen = count(query_times, True).int() - 1
        earlier = count(told, False).int()
        if told.is_floating_point():  # nothing is later than NaN, and NaN is not later
            earlier = earlier.masked_fill(told.isnan(), -1)
            seen = seen.masked_fill(query_times.isnan(), LATEST)
        ranks = torch.cat([seen, earlier], -1)
        return Clock(ranks.flatten(0, 1), query_times.shape[-1])

    def ends(self, rows: int, columns: int) -> Tensor:
        """For each block of queries, where the keys end that any of them may see."""
        latest = self._blocks(self.ranks[:, : self.queries], rows, -1).amax(-1)
        first = self._blocks(self.ranks[:, self.queries :], columns, LATEST).amin(-1)
        later = first.flip(-1).cummin(-1).values.flip(-1).contiguous()
        blocks = torch.searchsorted(later, latest.contiguous(), right=True)
        keys = self.ranks.shape[-1] - self.queries
        return (blocks * columns).clamp(max=keys).int()

    def starts(self, rows: int, columns: int) -> Tensor:
        """For each block of keys, where the queries begin that may see any of them."""
        latest = self._blocks(self.ranks[:, : self.queries], rows, -1).amax(-1)
        first = self._blocks(self.ranks[:, self.queries :], columns, LATEST).amin(-1)
        so_far = latest.cummax(-1).values.contiguous()
        return (torch.searchsorted(so_far, first.contiguous()) * rows).int()

    @staticmethod
    def _blocks(ranks: Tensor, size: int, filler: int) -> Tensor:
        """Ranks in blocks of one size."""
        blocks = -(-ranks.shape[-1] // size)
        padded = pad(ranks, (0, blocks * size - ranks.shape[-1]), value=filler)
        return padded.unflatten(-1, (blocks, size))


@dataclass(frozen=True)
class Halves:
    r"""A float32 tensor as $x=2^{-e}(x_h+x_l)$ with float16 $x_h,x_l$, to about 23 bits.

    Args:
        high: $x_h$.
        low: $x_l$.
        back: $2^{-e}$, one for each problem.
    """

    high: Tensor
    low: Tensor
    back: Tensor

    @staticmethod
    def of(x: Tensor) -> Halves:
        """The halves, with zeros up to a power of two. The largest number becomes about 2^15.

        Numbers down to 2^-18 of the largest keep all their bits.
        """
        (*batch, n, width), padded = x.shape, padded_width(x.shape[-1])
        high, low = (x.new_empty(*batch, n, padded, dtype=torch.float16) for _ in range(2))
        back = x.new_empty(prod(batch))
        size = min(SIZE, 8192 // padded)
        kernels.halves[(-(-n // size) * prod(batch),)](
            x, extent(x).largest, high, low, back, n, batch[1], strides(x),
            WIDTH=width, PADDED=padded, SIZE=size,
        )  # fmt: skip
        return Halves(high, low, back)
