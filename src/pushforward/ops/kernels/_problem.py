r"""What kernels must know before they start: strides, ends of problems, ranks of times, halves.

All of it is found on the device, so nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .programs import survey as programs

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries, keys, values and biases."""

LARGE = 1 << 26
"""From this many pairs on, a survey of the points costs less than it saves."""

LATEST = 2**31 - 1
"""The highest rank: that of a query that sees everything, and of a key past the end."""

SIZE, STEPS = 256, 2
"""Points that are read at once, and how often, by a program that reads each once."""


def strides(x: Tensor) -> tuple[int, ...]:
    """Strides of batch, head and what follows, in elements."""
    return tuple(x.stride())


def maybe_strides(x: Tensor | None) -> tuple[int, ...] | None:
    """Strides of a tensor, or None where there is no tensor."""
    return None if x is None else strides(x)


def survey(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, points: bool, values: bool
) -> Tensor:
    """How large `points` and `values` of each problem are, and where keys end, for kernels."""
    batch, m, n = q.shape[:-2], q.shape[-2], k.shape[-2]
    d, e = q.shape[-1] if points else 0, v.shape[-1] if values else 0
    problems, size = prod(batch), _at_once(d, e)
    found = torch.zeros(problems, programs.FIELDS.value, dtype=torch.int32, device=q.device)
    programs.survey[(-(-max(m, n) // (size * STEPS)) * problems,)](
        q, k, v, bias, found, m, n, q.shape[1], *map(strides, (q, k, v)), maybe_strides(bias),
        D=d, E=e, D_PAD=padded_width(d), E_PAD=padded_width(e), SIZE=size, STEPS=STEPS,
    )  # fmt: skip
    return found


class Halves(NamedTuple):
    r"""Float32 points as $x=2^{-e}(x_h+x_l)$ with float16 $x_h,x_l$, to about 23 bits.

    Zeros follow their coordinates up to a width that is a power of two. The largest number comes
    to lie between 2^14 and 2^15, and numbers down to 2^-18 of it keep all their bits. A survey
    knows $e$.

    Args:
        high: $x_h$ of queries, keys and values.
        low: $x_l$ of them.
    """

    high: tuple[Tensor, Tensor, Tensor]
    low: tuple[Tensor, Tensor, Tensor]

    @staticmethod
    def of(
        q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, found: Tensor, *, values: bool,
        rows: int = 1,
    ) -> Halves:  # fmt: skip
        """The halves of points `(b, h, n, k)`, and of the values if they are wanted.

        Keys and values are zeros where a bias is minus infinity. Zeros follow each array of points
        in memory, up to a multiple of `rows`.
        """
        (*batch, m, d), n, e = q.shape, k.shape[-2], v.shape[-1] if values else 0
        lengths = [-(-size // rows) * rows for size in (m, n)]
        widths, size = (padded_width(d), padded_width(e)), _at_once(d, e)
        made = lambda side, width: q.new_empty(*batch, lengths[side], width, dtype=torch.float16)
        parts = [made(0, widths[0]), made(0, widths[0]), made(1, widths[0]), made(1, widths[0])]
        parts += [made(1, widths[1]), made(1, widths[1])] if e else [v, v]
        programs.halves[(-(-max(lengths) // size) * prod(batch),)](
            q, k, v, bias, *parts, found, m, n, *lengths, batch[1], *map(strides, (q, k, v)),
            maybe_strides(bias),
            D=d, E=e, D_PAD=widths[0], E_PAD=widths[1], SIZE=size,
        )  # fmt: skip
        if rows > 1:
            counts = (m, m, n, n, n, n)
            parts = [t[..., :count, :] for t, count in zip(parts, counts, strict=True)]
        return Halves((parts[0], parts[2], parts[4]), (parts[1], parts[3], parts[5]))


def without_dead(k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Copies of keys and values, with zeros where the bias is minus infinity."""
    (*batch, n, d), e = k.shape, v.shape[-1]
    made, size = [k.new_empty(*batch, n, d), v.new_empty(*batch, n, e)], _at_once(d, e)
    programs.without_dead[(-(-n // size) * prod(batch),)](
        k, v, bias, *made, n, batch[1], *map(strides, (k, v, bias)),
        D=d, E=e, D_PAD=padded_width(d), E_PAD=padded_width(e), SIZE=size,
    )  # fmt: skip
    return made[0], made[1]


def _at_once(d: int, e: int) -> int:
    """How many points of these widths a program reads at once."""
    return min(SIZE, 8192 // max(padded_width(d), padded_width(e)))


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
