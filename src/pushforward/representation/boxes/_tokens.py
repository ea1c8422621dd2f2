r"""Models of tokens.

Such a model knows only lists. A measure is given to it as a list in which tokens repeat, and a
point as one more token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._tools.checks import check_callable, check_flags, check_sizes
from ...measures import Measure
from .._errors import BlackBoxError, CallRejected, call_model
from ..continuity import ImageFinder
from ._black_box import BlackBox
from ._calls import as_tensor, finite

MOST_COPIES = 4096
"""The longest list of tokens as which weights are written."""

PAIRS_PER_CALL = 1 << 22
"""Pairs of tokens in one call on several sets: a model may hold them all in memory."""


class TokenBox(BlackBox):
    """A model of tokens, given as a tensor `(n, d)` or `(1, n, d)`.

    Args:
        model: the module or function.
        set_axis: whether it takes an axis for sets.
        pooled: whether it has one output for the whole set.
        tokens: the most tokens of a list in the search for a jump.

    Examples:
        >>> box = pf.representation.TokenBox(lambda x: x - x.mean(0), set_axis=False)
        >>> mu = pf.Measure(torch.tensor([[0.0], [4.0]]), weights=torch.tensor([3.0, 1.0]))
        >>> box.outputs(mu).flatten(), box.answer(mu, torch.tensor([[6.0]]))
        (tensor([-1.,  3.]), tensor([[4.]]))
    """

    def __init__(
        self,
        model: Callable[..., Any],
        set_axis: bool,
        pooled: bool = False,
        tokens: int = 256,
    ) -> None:
        check_callable("model", model, "a module or a function of tokens")
        check_flags(set_axis=set_axis, pooled=pooled)
        check_sizes(tokens=tokens)
        self.model, self.set_axis, self.pooled, self.tokens = model, set_axis, pooled, tokens
        self.tokens_per_query = 0 if pooled else 1
        self.independent = False
        """Whether it takes several sets in one call, which do not change each other's outputs."""

    def call(self, atoms: Tensor, **options: Any) -> Tensor:
        """One call on tokens `(n, d)`: `(n, e)`, or `(1, e)` if there is one output."""
        given = atoms[None] if self.set_axis else atoms
        # A copy: the model may write into its input.
        out = as_tensor(call_model(self.model, given.clone(), **options))
        out = out[0] if self.set_axis and len(out) == 1 else out
        rows = out.reshape(1, -1) if self.pooled else out.reshape(len(out), -1)
        if not self.pooled and len(rows) != len(atoms):
            raise BlackBoxError(
                f"it changes the number of tokens: {len(atoms)} in, {len(rows)} out"
            )
        return finite(rows)

    def call_batch(self, sets: Tensor) -> Tensor:
        """One call on sets `(c, n, d)`: `(c, n, e)`, or `(c, 1, e)` if there is one output."""
        out = as_tensor(call_model(self.model, sets.clone()))
        rows = 1 if self.pooled else sets.shape[1]
        if out.shape[:1] != sets.shape[:1] or out.numel() % (len(sets) * rows):
            raise CallRejected(f"it returned {tuple(out.shape)} for sets {tuple(sets.shape)}")
        return finite(out.reshape(len(sets), rows, -1))

    def outputs(self, mu: Measure, x: Tensor | None = None) -> Tensor:
        if x is not None:
            return self.answer(mu, x)
        counts = repetitions(mu)
        out = self.call(as_token_list(mu))
        return out if self.pooled else out[counts.cumsum(0) - counts]  # the first copy of each

    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        atoms = as_token_list(mu)
        if self.pooled:
            return self.call(atoms).expand(len(x), -1)
        return self._output_of_last(torch.cat([atoms.expand(len(x), *atoms.shape), x[:, None]], 1))

    def push(self, mu: Measure) -> Measure:
        out = self.call(as_token_list(mu))
        return Measure(out).merge(256 * torch.finfo(out.dtype).eps * float(out.abs().max()))

    def images(self) -> ImageFinder:
        """A small mass is one token among many."""

        def find(atoms: Tensor, log_weights: Tensor, x: Tensor, eta: Tensor) -> Tensor:
            # k copies of n tokens give one more token the mass 1 / (k n + 1), to be near eta.
            n = atoms.shape[1]
            most = max(1, (self.tokens - 1) // n)
            copies = ((1 / eta - 1) / n).round().clamp(1, most).long()
            order, images = [], []
            for k in copies.unique().tolist():
                index = (copies == k).nonzero().flatten()
                lists = torch.cat([atoms[index].repeat(1, k, 1), x[index, None]], 1)
                order.append(index)
                images.append(self._output_of_last(lists))
            return torch.cat(images)[torch.cat(order).argsort()]

        return ImageFinder(find)

    def _output_of_last(self, contexts: Float[Tensor, "c n d"]) -> Float[Tensor, "c e"]:
        """The output for the last token of each context, in few calls where the model allows."""
        if not self.independent:
            return torch.stack([self.call(atoms)[-1] for atoms in contexts])
        parts = contexts.split(max(1, PAIRS_PER_CALL // contexts.shape[1] ** 2))
        return torch.cat([self.call_batch(part)[:, -1] for part in parts])


def repetitions(mu: Measure) -> Int[Tensor, " n"]:
    """How often each token is repeated to have its weight; the smallest such numbers."""
    weights = mu.normalise().weights.double()
    if bool((weights == weights[0]).all()):
        return torch.ones(mu.n, dtype=torch.long, device=weights.device)
    lightest = float(weights[weights > 0].min())
    share, tolerance = 1, MOST_COPIES * 64 * torch.finfo(mu.log_weights.dtype).eps
    while share / lightest <= MOST_COPIES:
        counts = weights * (share / lightest)
        if float((counts - counts.round()).abs().max()) < tolerance:
            return counts.round().long()
        share += 1
    raise BlackBoxError(
        "these weights cannot be written as repetitions of tokens: they are no multiples of 1/n "
        f"for any n up to {MOST_COPIES}"
    )


def as_token_list(mu: Measure) -> Float[Tensor, "n d"]:
    """The tokens of a context as a list, each repeated according to its weight."""
    return mu.atoms.repeat_interleave(repetitions(mu), 0)
