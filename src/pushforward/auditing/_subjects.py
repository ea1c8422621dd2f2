r"""Every kind of model behind one interface.

A subject says what a model makes of the tokens of a context, and where it sends a point $x$ in a
context, $G(\mu,x)$. A model that knows only lists of tokens is given a measure as a list in which
tokens repeat, and a point as one more token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ..representation import BlackBox, BlackBoxError, CallRejected, MapBox, call_model
from ..representation.continuity import Box
from ._inside import attention_of_map, attention_of_run, layers_of_map, layers_of_run
from ._model import Padded
from ._tensors import as_tensor, as_token_list, finite, largest_change, repetitions

PAIRS_PER_CALL = 1 << 22
"""Pairs of tokens in one call on several sets: a model may hold them all in memory."""

Tests = dict[str, Callable[[], float]]
"""Symmetries by name, each with a function that returns how far outputs move."""


class Subject(ABC):
    """A model as an audit calls it."""

    model: Any
    """The module, function or map itself."""
    how: str
    """How it is called, in words."""
    weighted: bool
    """Whether it takes measures with weights, not only lists of tokens."""
    pooled: bool
    """Whether it has one output for the whole set."""
    tokens_per_query: int
    """1 if a query enters the model as one more token, else 0."""
    padded: Padded | None
    """The model on tokens some of which are padding, None if it is not known to take a mask."""

    @abstractmethod
    def outputs(self, mu: Measure) -> Tensor | Measure:
        """The outputs for the tokens of a context.

        They are the rows of `(n, e)`, or of `(1, e)` if there is one output for the set; a measure
        if the outputs have no order.
        """

    @abstractmethod
    def answer(self, mu: Measure, x: Float[Tensor, "m q"]) -> Float[Tensor, "m e"]:
        r"""The output $G(\mu,x)$ for each of some points, each alone with the context."""

    @abstractmethod
    def push(self, mu: Measure) -> Measure:
        r"""The image $G(\mu,\cdot)_\sharp\mu$ of a context."""

    @abstractmethod
    def black_box(self, mu: Measure, x: Tensor | None, tokens: int) -> BlackBox:
        """The model as the search for jumps calls it.

        Args:
            mu: the context in which queries move.
            x: queries; None if tokens move, as small masses in contexts that vary too.
            tokens: the most tokens of a context.
        """

    @abstractmethod
    def own_symmetries(self, mu: Measure, x: Tensor | None, other: Callable[[], Tensor]) -> Tests:
        """Symmetries that only models of this kind can break.

        Args:
            mu: a context.
            x: some queries, for a model of a context and queries.
            other: draws another set of as many tokens.
        """

    @abstractmethod
    def region(self, points: Float[Tensor, "m d"]) -> Box:
        """The box around points, or the manifold they lie on, in which searches move tokens."""

    @abstractmethod
    def layers(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        """Tokens before and after each layer, `(n, d)` each; empty where no layers are found."""

    @abstractmethod
    def attention(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        """Attention matrices, one tensor `(heads, queries, keys)` per layer."""


class MeasureSubject(Subject):
    """An in-context map, or a map between measures of which it is recovered.

    Args:
        f: the map.
    """

    weighted, pooled, tokens_per_query, padded = True, False, 0, None

    def __init__(self, f: InContextMap | MeasureMap) -> None:
        self.model, self._box = f, MapBox(f)
        self.how = "an in-context map, called with measures"
        if self._box.gamma is None:
            self.how = "a map between measures; images of tokens are recovered from its values"

    def outputs(self, mu: Measure) -> Tensor | Measure:
        # Images of an in-context map are in the order of the tokens; those of another map are not.
        return self.push(mu) if self._box.gamma is None else self.push(mu).atoms

    def push(self, mu: Measure) -> Measure:
        return self._box.push(mu)

    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        return finite(self._box.answer(mu, x))

    def black_box(self, mu: Measure, x: Tensor | None, tokens: int) -> BlackBox:
        return self._box if x is None else QueryBox(self, mu)

    def own_symmetries(self, mu: Measure, x: Tensor | None, other: Callable[[], Tensor]) -> Tests:
        return {}

    def region(self, points: Tensor) -> Box:
        return Box.around(points, self._box.manifold)

    def layers(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        gamma = self._box.gamma
        return [] if gamma is None or x is not None else layers_of_map(gamma, mu)

    def attention(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        gamma = self._box.gamma
        return [] if gamma is None else attention_of_map(gamma, mu, x)


class TokenSubject(Subject):
    """A model of tokens, given as a tensor `(n, d)` or `(1, n, d)`.

    Args:
        model: the module or function.
        batched: whether it takes an axis for sets.
        pooled: whether it has one output for the whole set.
        how: how it is called, in words.
    """

    weighted = False

    def __init__(self, model: Callable[..., Any], batched: bool, pooled: bool, how: str) -> None:
        self.model, self.batched, self.pooled, self.how = model, batched, pooled, how
        self.tokens_per_query = 0 if pooled else 1
        self.independent = False
        """Whether it takes several sets in one call, which do not change each other's outputs."""
        encoders = nn.TransformerEncoder, nn.TransformerEncoderLayer
        self.padded = self._masked if isinstance(model, encoders) else None

    def _masked(self, atoms: Tensor, real: Tensor) -> Tensor:
        """A call with padding, for PyTorch's own encoders."""
        mask = ~real[None] if self.batched else ~real
        return self.call(atoms, src_key_padding_mask=mask)

    def call(self, atoms: Tensor, **options: Any) -> Tensor:
        """One call on tokens `(n, d)`: `(n, e)`, or `(1, e)` if there is one output."""
        given = atoms[None] if self.batched else atoms
        # A copy: the model may write into its input.
        out = as_tensor(call_model(self.model, given.clone(), **options))
        out = out[0] if self.batched and len(out) == 1 else out
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

    def output_of_last(self, contexts: Float[Tensor, "c n d"]) -> Float[Tensor, "c e"]:
        """The output for the last token of each context, in few calls where the model allows."""
        if not self.independent:
            return torch.stack([self.call(atoms)[-1] for atoms in contexts])
        parts = contexts.split(max(1, PAIRS_PER_CALL // contexts.shape[1] ** 2))
        return torch.cat([self.call_batch(part)[:, -1] for part in parts])

    def outputs(self, mu: Measure) -> Tensor:
        counts = repetitions(mu)
        out = self.call(as_token_list(mu))
        return out if self.pooled else out[counts.cumsum(0) - counts]  # the first copy of each

    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        atoms = as_token_list(mu)
        if self.pooled:
            return self.call(atoms).expand(len(x), -1)
        return self.output_of_last(torch.cat([atoms.expand(len(x), *atoms.shape), x[:, None]], 1))

    def push(self, mu: Measure) -> Measure:
        out = self.call(as_token_list(mu))
        return Measure(out).merge(256 * torch.finfo(out.dtype).eps * float(out.abs().max()))

    def black_box(self, mu: Measure, x: Tensor | None, tokens: int) -> BlackBox:
        return TokenBox(self, tokens)

    def own_symmetries(self, mu: Measure, x: Tensor | None, other: Callable[[], Tensor]) -> Tests:
        tests: Tests = {}
        if not self.pooled:
            first_twice = torch.cat([mu.atoms[:1], mu.atoms])
            tests["equal tokens"] = lambda: largest_change(*self.call(first_twice)[:2])
        if self.batched and self._takes_two_sets(mu.atoms):
            tests["neighbours"] = lambda: largest_change(
                self.call_batch(torch.stack([mu.atoms, other()]))[0], self.call(mu.atoms)
            )
        return tests

    def _takes_two_sets(self, atoms: Tensor) -> bool:
        """Whether it returns something for two sets at once, even if that is wrong."""
        try:
            self.call_batch(torch.stack([atoms, atoms]))
        except CallRejected:
            return False
        except BlackBoxError:
            pass  # it takes them, and returns NaN for example
        return True

    def region(self, points: Tensor) -> Box:
        return Box.around(points)

    def layers(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        # one row more than tokens: a model may add a class token
        return layers_of_run(self.model, lambda: self.outputs(mu), (mu.n, mu.n + 1))

    def attention(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        return attention_of_run(lambda: self.call(mu.atoms), mu.n, 0)


class QuerySubject(Subject):
    """A model of a context `(n, d)` and queries `(m, q)`, or with an axis for sets before both.

    Args:
        model: the module or function.
        batched: whether it takes an axis for sets.
        how: how it is called, in words.
    """

    weighted, pooled, tokens_per_query, padded = False, False, 0, None

    def __init__(self, model: Callable[..., Any], batched: bool, how: str) -> None:
        self.model, self.batched, self.how = model, batched, how
        self.independent = False
        """Whether the queries of one call do not change each other's outputs."""

    def outputs(self, mu: Measure) -> Tensor:
        raise BlackBoxError("a context has no outputs of its own, only queries have")

    def push(self, mu: Measure) -> Measure:
        raise BlackBoxError("a context has no image of its own, only queries have")

    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        return self.together(mu, x) if self.independent else self.alone(mu, x)

    def alone(self, mu: Measure, x: Tensor) -> Tensor:
        """A call for each query."""
        return torch.cat([self.together(mu, point[None]) for point in x])

    def together(self, mu: Measure, x: Tensor) -> Tensor:
        """All queries in one call."""
        atoms = as_token_list(mu)
        given = (atoms[None], x[None]) if self.batched else (atoms, x)
        out = as_tensor(call_model(self.model, *(t.clone() for t in given)))
        out = out[0] if self.batched and out.ndim and len(out) == 1 else out
        if not out.ndim or len(out) != len(x):
            raise BlackBoxError(
                f"it returned shape {tuple(out.shape)} for {len(x)} queries, not one row for each"
            )
        return finite(out.reshape(len(x), -1))

    def black_box(self, mu: Measure, x: Tensor | None, tokens: int) -> BlackBox:
        return QueryBox(self, mu)

    def own_symmetries(self, mu: Measure, x: Tensor | None, other: Callable[[], Tensor]) -> Tests:
        if x is None:
            return {}
        return {"queries": lambda: largest_change(self.together(mu, x), self.alone(mu, x))}

    def region(self, points: Tensor) -> Box:
        return Box.around(points)

    def layers(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        if x is None:
            return []
        # one row more than tokens: the query, or a class token
        run = lambda: self.answer(mu, x[:1])
        return layers_of_run(self.model, run, (mu.n, mu.n + 1))

    def attention(self, mu: Measure, x: Tensor | None) -> list[Tensor]:
        return [] if x is None else attention_of_run(lambda: self.together(mu, x), mu.n, len(x))


class TokenBox(BlackBox):
    """A model of tokens in the search for jumps: a small mass is one token among many.

    Args:
        subject: the model.
        tokens: the most tokens of a context.
    """

    def __init__(self, subject: TokenSubject, tokens: int) -> None:
        self.subject, self.tokens = subject, tokens
        self.batched, self.differentiable = False, True

    def images(
        self,
        atoms: Float[Tensor, "c n d"],
        log_weights: Float[Tensor, "c n"],
        x: Float[Tensor, "c d"],
        eta: Float[Tensor, " c"],
    ) -> Float[Tensor, "c e"]:
        # k copies of n tokens give one more token the mass 1 / (k n + 1), which is to be near eta.
        n = atoms.shape[1]
        most = max(1, (self.tokens - 1) // n)
        copies = ((1 / eta - 1) / n).round().clamp(1, most).long()
        order, images = [], []
        for k in copies.unique().tolist():
            index = (copies == k).nonzero().flatten()
            lists = torch.cat([atoms[index].repeat(1, k, 1), x[index, None]], 1)
            order.append(index)
            images.append(self.subject.output_of_last(lists))
        return torch.cat(images)[torch.cat(order).argsort()]


class QueryBox(BlackBox):
    """A model of a context and queries in the search for jumps: a query has no mass.

    Args:
        subject: the model.
        mu: the context, always the same.
    """

    def __init__(self, subject: Subject, mu: Measure) -> None:
        self.subject, self.mu = subject, mu
        self.batched, self.differentiable = False, True

    def images(
        self,
        atoms: Float[Tensor, "c n d"],
        log_weights: Float[Tensor, "c n"],
        x: Float[Tensor, "c d"],
        eta: Float[Tensor, " c"],
    ) -> Float[Tensor, "c e"]:
        return self.subject.answer(self.mu, x)
