"""Where contexts come from: sets of tokens that a user has, or a law to draw them from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._tools.checks import check_callable, check_floating, check_kind, check_whole
from ..measures import Measure

_DATA = "tokens `(n, d)`, a list of such sets, a Measure, or a function `law(n, generator)`"
"""What a population is made of, in messages."""

TokenLaw = Callable[[int, torch.Generator], Any]
"""`law(n, generator)` draws `n` tokens, as a tensor `(n, d)` or a measure."""

FEWEST_TOKENS = 4
"""The smallest context: with fewer tokens there is hardly another way to write it."""

DEFAULT_TOKENS = 32
"""The size of a typical context, where the data do not ask for a smaller one."""


class Population:
    r"""Draws contexts from sets of tokens, each taken as an empirical measure, or from a law.

    A context of $n$ tokens is $n$ independent draws from one of the sets, with replacement: draws
    from the empirical measure itself, whatever its size. Weights become frequencies.

    Args:
        data: one set `(n, d)`, several (a list, or a tensor `(b, n, d)`), a measure, or a function
            `law(n, generator)`.
        dtype: the dtype of tokens that are no tensors, such as NumPy arrays; their own by default.

    Examples:
        >>> population = pf.representation.Population([torch.zeros(5, 2), torch.ones(9, 2)])
        >>> population.draw(3, torch.Generator())
        Measure(3 atoms in R^2, float32, cpu)
    """

    def __init__(self, data: Any, dtype: torch.dtype | None = None) -> None:
        if dtype is not None:
            check_kind("dtype", dtype, torch.dtype, "For example `torch.float32`.")
        if isinstance(data, type):
            check_callable("data", data, _DATA)
        self.law: TokenLaw | None = None
        self._dtype = dtype
        self.sets: list[Measure] = []
        self.batched = False
        """Whether the sets came as a tensor of three axes."""
        self.ordered = False
        """Whether contexts are tokens that follow each other, in their order."""
        if callable(data) and not isinstance(data, Measure):
            self.law = data
        else:
            self.batched = getattr(data, "ndim", 0) == 3
            self.sets = [_as_measure(part, dtype) for part in _parts(data)]
            _check_sizes(self.sets)
            dims = sorted({mu.dim for mu in self.sets})
            if len(dims) > 1:
                raise ValueError(f"All sets of `data` must have one dimension, got {dims}.")
        first = self.draw(2, torch.Generator().manual_seed(0))
        self.dim, self.dtype, self.device = first.dim, first.dtype, first.device

    @property
    def typical_size(self) -> int:
        """The size of a typical context: at most half of a set, so that contexts differ."""
        if not self.sets:
            return DEFAULT_TOKENS
        smallest = min(mu.merge().n for mu in self.sets)
        return max(FEWEST_TOKENS, min(DEFAULT_TOKENS, smallest // 2))

    def context(self, n: int, generator: torch.Generator) -> Measure:
        """A context of `n` different tokens, or of all there are if a set has fewer.

        If the population is `ordered`, they are `n` tokens in a row, which may be equal.

        Args:
            n: the number of tokens.
            generator: the source of the random draw.
        """
        _check_draw("n", n, generator)
        if self.law is not None:
            return self.draw(n, generator)
        mu = self.sets[int(torch.randint(len(self.sets), (), generator=generator))]
        if self.ordered:
            start = int(torch.randint(max(1, mu.n - n + 1), (), generator=generator))
            return Measure(mu.atoms[start : start + n])
        mu = mu.merge()
        if mu.n < FEWEST_TOKENS:
            return mu.sample(FEWEST_TOKENS, generator=generator)
        n = min(n, mu.n)
        index = torch.multinomial(mu.weights.double().cpu(), n, generator=generator)
        index = index.to(mu.device)
        return Measure(mu.atoms[index], times=None if mu.times is None else mu.times[index])

    def draw(self, n: int, generator: torch.Generator) -> Measure:
        """A context of `n` independent tokens of equal weight, some of them perhaps equal."""
        _check_draw("n", n, generator)
        if self.law is not None:
            try:
                drawn = self.law(n, generator)
            except TypeError as error:
                raise TypeError(
                    "If `data` is a function, it is called as `data(n, generator)`, got an error "
                    f"from that call: {error}"
                ) from error
            mu = _as_measure(drawn, self._dtype)
            if mu.n != n:
                raise ValueError(f"`data(n, generator)` must draw n = {n} tokens, got {mu.n}.")
            uniform = bool((mu.log_weights == mu.log_weights[0]).all())
            return mu if uniform else mu.sample(n, generator=generator)
        which = int(torch.randint(len(self.sets), (), generator=generator))
        return self.sets[which].sample(n, generator=generator)

    def largest_set(self) -> Population:
        """The population of the largest set alone, for contexts of all sizes from one law."""
        if len(self.sets) < 2:
            return self
        return self._with(sets=[max(self.sets, key=lambda mu: mu.n)])

    def in_order(self) -> Population:
        """The same sets as sequences: contexts are tokens that follow each other."""
        return self._with(ordered=True)

    def without_token(self, index: int) -> tuple[Tensor, Population]:
        """The first or the last token of the first set, and the population without it.

        Args:
            index: 0 for the first token of every set, -1 for the last.

        Examples:
            >>> population = pf.representation.Population(torch.tensor([[9.0], [1.0], [2.0]]))
            >>> token, others = population.without_token(0)
            >>> token, others.sets[0].n
            (tensor([9.]), 2)
        """
        check_whole("index", index, -1)
        if index > 0:
            raise ValueError(f"`index` must be 0 (the first token) or -1 (the last), got {index}.")
        law, kept = self.law, slice(1, None) if index == 0 else slice(None, -1)
        if law is not None:
            token = self.draw(2, torch.Generator().manual_seed(0)).atoms[index]
            shorter: TokenLaw = lambda n, generator: _cut(
                _as_measure(law(n + 1, generator), self._dtype), kept
            )
            return token, self._with(law=shorter)
        sets = [_cut(mu, kept) for mu in self.sets if mu.n > 1]
        _check_sizes(sets)
        return self.sets[0].atoms[index], self._with(sets=sets)

    def _with(self, **changes: Any) -> Population:
        """A copy with other attributes."""
        other = copy(self)
        vars(other).update(changes)
        return other

    def points(self, m: int, generator: torch.Generator) -> Tensor:
        """Independent points, `(m, d)`."""
        _check_draw("m", m, generator)
        return self.draw(m, generator).atoms


def _cut(mu: Measure, kept: slice) -> Measure:
    """Some of the tokens in a row."""
    times = None if mu.times is None else mu.times[kept]
    return Measure.unchecked(mu.atoms[kept], mu.log_weights[kept], times).normalise()


def _check_draw(name: str, count: int, generator: torch.Generator) -> None:
    check_whole(name, count)
    check_kind("generator", generator, torch.Generator, "Make one with `torch.Generator()`.")


def _parts(data: Any) -> Sequence[Any]:
    """The sets that `data` consists of, not yet as measures."""
    if isinstance(data, Measure):
        return list(data) if data.batch_shape else [data]
    if isinstance(data, (list, tuple)):
        if not data:
            raise ValueError("`data` must hold at least one set, got an empty list.")
        return data
    return list(data) if getattr(data, "ndim", 0) == 3 else [data]


def _check_sizes(sets: Sequence[Measure]) -> None:
    """Raise if there is no set of at least two tokens."""
    if max(mu.n for mu in sets) > 1:
        return
    count, dim = len(sets), sets[0].dim
    what = "one token" if count == 1 else f"{count} sets of one token each"
    fix = "Give at least two tokens."
    if count > 1:
        fix = f"If these are {count} tokens of one set, give them as ({count}, {dim})."
    raise ValueError(
        f"`data` must have sets of at least two tokens, got {what}: a set of one token does not "
        f"show how tokens act on each other. {fix}"
    )


def _as_measure(part: Any, dtype: torch.dtype | None) -> Measure:
    """One set of tokens as a measure."""
    if isinstance(part, Measure):
        if part.batch_shape:
            raise ValueError(f"A set of `data` must be one measure, got a batch: {part}.")
        return part.detach().strip()
    if hasattr(part, "to_numpy"):  # a data frame
        part = part.to_numpy()
    if isinstance(part, np.ndarray):
        part = torch.as_tensor(part)
        if part.is_floating_point() and dtype is not None:
            part = part.to(dtype)
    if not isinstance(part, Tensor):
        raise TypeError(f"`data` must be {_DATA}, got {type(part).__name__}.")
    if not part.is_floating_point():
        raise ValueError(
            f"`data` must be floating point, got {part.dtype}. Convert numbers with "
            "`data.float()`; for token ids give their embeddings, and the model without its "
            "embedding layer."
        )
    check_floating("data", part, "(n, d)", 2)
    if part.ndim != 2:
        raise ValueError(f"A set of `data` must have shape (n, d), got {tuple(part.shape)}.")
    if not bool(part.isfinite().all()):
        raise ValueError("`data` must be finite, got NaN or infinity. Remove such rows.")
    return Measure(part.detach())
