r"""What kernels must know before they start: strides, ends of problems, ranks of times, halves.

All of it is found on the device, so nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

BOUND = 60.0
"""Up to this size of the scores, in base 2, weights need no maximum: their sums stay in range."""

LARGE = 1 << 26
"""From this many pairs on, a survey of the points costs less than it saves."""

LATEST = 2**31 - 1


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


def survey(q: Tensor, k: Tensor, bias: Tensor, factor: float) -> Survey:
    r"""Whether $|s||q_i||k_j|$ is at most `BOUND` $\log2$, by the largest norms."""
    longest = lambda x: torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).amax(-1)
    limit = abs(factor) * longest(q) * longest(k) / torch.tensor(2.0).log().item()
    highest = bias.amax(-1)
    highest = highest.masked_fill(highest == -torch.inf, 0) / torch.tensor(2.0).log().item()
    index = torch.arange(1, bias.shape[-1] + 1, dtype=torch.int32, device=bias.device)
    ends = index.masked_fill(bias == -torch.inf, 0).amax(-1)
    small = torch.stack([(limit <= BOUND).float(), highest], -1)
    return Survey(small.flatten(0, 1), ends.flatten())


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
    def of(x: Tensor, width: int) -> Halves:
        """The halves, with zeros up to a width. The largest number becomes about 2^15.

        Numbers down to 2^-18 of the largest keep all their bits.
        """
        x = x if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)
        largest = x.abs().amax((-2, -1), keepdim=True)
        exponent = (15 - torch.frexp(largest).exponent).clamp(-120, 120)
        y = pad(x * _power_of_two(exponent), (0, width - x.shape[-1]))
        high = y.half()
        low = (y - high).half()
        return Halves(high, low, _power_of_two(-exponent).flatten())


def _power_of_two(exponent: Tensor) -> Tensor:
    """Exactly $2^e$, from the bits of a float32."""
    return (exponent.int() + 127 << 23).view(torch.float32)
