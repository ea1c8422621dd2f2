r"""How much can one token of $n$ do, as $n$ grows?

For a map that is continuous in the measure, replacing one of $n$ tokens changes outputs by an
amount that falls like $1/n$ in the end, for attention as soon as $n$ exceeds the exponential of
the spread of its scores. For max pooling it does not fall. In lists of at most $N$ tokens the two
look alike if the spread of scores is more than $\log N$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...measures import Measure
from .._case import Case
from ..findings import Finding, Status, found, number, share as share_of

SMALLEST = 8
"""Tokens of the smallest context."""

CONTEXTS = 2
"""Sets of tokens of which contexts consist."""

DIFFERENT = 8
"""Different tokens of a context; larger ones repeat them, so that their measure stays the same."""

REPLACEMENTS = 8
"""Tokens that are tried in the place of another, in each context."""

STAYS = 0.9
"""An effect stays if this share of it is left when contexts become four times as large."""

MOST = 0.9
"""Effects do not fall if this share of them stays. Attention, however sharp, has some tokens
whose scores differ by less than log N, and their effects fall."""

LEAST = 0.01
"""Effects below this share of the spread of outputs are not looked at."""


@dataclass(frozen=True)
class OneToken:
    """The effect of one token, by the number of tokens.

    Args:
        sizes: numbers of tokens.
        effects: how far the output moves when one of so many tokens is replaced, for the token
            with the largest effect.
        exponent: the exponent of this effect in the number of tokens, over the last factor of
            four; NaN if there is no effect.
        share: the share of effects that do not fall over the last factor of four.
        spread: how far outputs are from their mean, at most.
    """

    sizes: list[int]
    effects: list[float]
    exponent: float
    share: float
    spread: float

    @property
    def part(self) -> float:
        """The effect of one token in the largest context, as a share of the size of outputs."""
        return self.effects[-1] / self.spread if self.spread > 0 else 0.0

    @property
    def stays(self) -> bool:
        """Whether the effect of one token does not fall."""
        return self.share >= MOST

    def finding(self) -> Finding:
        """In words."""
        n = self.sizes[-1]
        by = f"moves the output by {share_of(self.part)} of its size"
        if self.stays:
            said = (
                f"One token of {n} {by}, and this does not fall as sets grow to {n} tokens. "
                f"Attention does that only if its scores differ by more than log {n} = "
                f"{math.log(n):.1f}."
            )
        elif math.isnan(self.exponent):
            said = f"One token of {n} has no effect that could be measured."
        else:
            said = (
                f"One token of {n} {by} at most, and this goes like n to the power "
                f"{number(self.exponent)}."
            )
        status: Status = "refuted" if self.stays else "open"
        return found("sensitivity", "one token", status, said, effect=self.part, figure=1)


def one_token(case: Case, points: Tensor, rounding: float) -> OneToken | None:
    """Replace one token of larger and larger contexts; None if contexts cannot be large enough.

    Args:
        case: the model.
        points: where outputs are compared.
        rounding: changes of outputs up to this count as none.
    """
    most = case.tokens - case.box.tokens_per_query
    sizes = [SMALLEST * 2**k for k in range(20) if SMALLEST * 2**k <= most]
    if len(sizes) < 3:
        return None
    lists = [_tokens(case, sizes[-1]) for _ in range(CONTEXTS)]
    replaced = [
        (k, new)
        for k in range(CONTEXTS)
        for new in case.population.points(REPLACEMENTS, case.generator)
    ]

    def effects(n: int, chosen: list[tuple[int, Tensor]]) -> Tensor:
        """One row per replacement, one column per point."""
        before = [case.box.answer(Measure(tokens[:n]), points) for tokens in lists]
        rows = []
        for k, new in chosen:
            changed = torch.cat([new[None], lists[k][1:n]])
            rows.append((case.box.answer(Measure(changed), points) - before[k]).norm(dim=-1))
        return torch.stack(rows)

    early, late = effects(sizes[-3], replaced), effects(sizes[-1], replaced)
    outputs = torch.stack(
        [case.box.answer(Measure(tokens[:SMALLEST]), points) for tokens in lists]
    )
    spread = float((outputs - outputs.mean((0, 1))).norm(dim=-1).max())
    floor = max(10 * rounding, LEAST * spread)
    largest = int(late.amax(1).argmax())
    point = int(late[largest].argmax())
    along = [float(effects(n, replaced[largest : largest + 1])[0, point]) for n in sizes]
    seen = early > floor
    if not bool(seen.any()):
        return OneToken(sizes, along, math.nan, 0.0, spread)
    share = float((late >= STAYS * early)[seen].double().mean())
    exponent = math.nan
    if along[-1] > 0 and along[-3] > 0:
        exponent = math.log(along[-1] / along[-3]) / math.log(sizes[-1] / sizes[-3])
    return OneToken(sizes, along, exponent, share, spread)


def _tokens(case: Case, n: int) -> Tensor:
    """A list of `n` tokens, of which few are different."""
    few = case.context(DIFFERENT).atoms
    index = torch.randint(len(few), (n,), generator=case.generator)
    return few[index.to(few.device)]
