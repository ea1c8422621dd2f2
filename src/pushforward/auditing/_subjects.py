r"""Anything that maps a set to outputs, asked in one way.

A subject answers two questions: what becomes of the tokens of a context, and what becomes of a
point $x$ in a context, $G(\mu,x)$. How a model is called is tried out, and said.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure
from ..representation import BlackBoxError, MapBox, recover

MOST_COPIES = 4096
"""Tokens that weights may be written out as."""


class Subject(ABC):
    """A model, asked for what becomes of tokens and points."""

    how: str
    """How it is called, in words."""
    model: Any
    """What is called."""
    weighted: bool = False
    """Whether contexts have weights of their own, not only repetitions."""
    pooled: bool = False
    """Whether there is one output for the whole set."""
    independent: bool = False
    """Whether several contexts can be answered in one call."""

    @abstractmethod
    def outputs(self, mu: Measure) -> Tensor | Measure:
        """What becomes of the tokens of a context.

        One row for each, `(n, e)`, or `(1, e)` if there is one output; a measure if nobody can say
        which image is whose.
        """

    @abstractmethod
    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        """What becomes of points `(m, q)` in a context, each alone with it: `(m, e)`."""

    @abstractmethod
    def push(self, mu: Measure) -> Measure:
        """The map between measures."""

    def joining(self) -> int:
        """How many tokens a point is that is asked for: one more, or none."""
        return 0


class MapSubject(Subject):
    """An in-context map."""

    weighted = True

    def __init__(self, gamma: InContextMap):
        self.model = gamma
        self.how = "an in-context map, asked with measures"

    def outputs(self, mu):
        """The push-forward."""
        return finite(tried(self.model.push, mu).atoms)

    def push(self, mu):
        """With the weights there were."""
        return Measure.unchecked(self.outputs(mu), mu.log_weights)

    def answer(self, mu, x):
        """The map itself."""
        gamma = self.model
        queries = Measure(x) if gamma.paired else x
        times = None if mu.times is None else mu.times.amax().expand(len(x))
        return finite(tried(gamma, mu, queries, times))


class BoxSubject(Subject):
    """A map between measures, whose in-context map is recovered."""

    weighted = True

    def __init__(self, f: Callable[[Measure], Measure]):
        self.model, self._box = f, MapBox(f)
        self.how = "a map between measures; what becomes of a token is recovered from outside"

    def outputs(self, mu):
        """The images, in no order."""
        return self.push(mu)

    def answer(self, mu, x):
        """By small masses."""
        return finite(recover(self._box.push)(mu, x))

    def push(self, mu):
        """The map itself."""
        return self._box.push(mu)


class TokenSubject(Subject):
    """A model on tensors of tokens, `(n, d)` or `(1, n, d)`.

    Args:
        model: what is called.
        batched: whether with an axis for sets.
        pooled: whether it has one output for the whole set.
        how: in words.
    """

    def __init__(self, model: Callable, batched: bool, pooled: bool, how: str):
        self.model, self.batched, self.pooled, self.how = model, batched, pooled, how

    @property
    def masks(self) -> bool:
        """Whether it takes the mask of PyTorch's own encoders."""
        return isinstance(self.model, (nn.TransformerEncoder, nn.TransformerEncoderLayer))

    def padded(self, atoms: Tensor, real: Tensor) -> Tensor:
        """The same with tokens that are padding, for PyTorch's own encoders."""
        mask = ~real[None] if self.batched else ~real
        return self.raw(atoms, src_key_padding_mask=mask)

    def raw(self, atoms: Tensor, **options: Any) -> Tensor:
        """One call on tokens `(n, d)`: `(n, e)`, or `(1, e)` for the set."""
        given = atoms[None] if self.batched else atoms
        out = as_tensor(tried(self.model, given.clone(), **options))
        return self._rows(out[0] if self.batched and len(out) == 1 else out, len(atoms))

    def outputs(self, mu):
        """The tokens written out as often as they weigh, the first of each."""
        counts = repetitions(mu)
        out = self.raw(written(mu))
        return out if self.pooled else out[counts.cumsum(0) - counts]

    def joining(self):
        """One, if tokens have outputs."""
        return 0 if self.pooled else 1

    def answer(self, mu, x):
        """Each point as one more token."""
        atoms = written(mu)
        if self.pooled:
            return self.raw(atoms).expand(len(x), -1)
        return self.last(torch.cat([atoms.expand(len(x), *atoms.shape), x[:, None]], 1))

    def last(self, contexts: Tensor) -> Tensor:
        """What becomes of the last token of each context `(c, n, d)`: `(c, e)`.

        In one call where the model takes sets beside each other.
        """
        if not self.independent:
            return torch.stack([self.raw(atoms)[-1] for atoms in contexts])
        parts = contexts.split(max(1, (1 << 22) // contexts.shape[1] ** 2))
        return torch.cat([self.batch(part)[:, -1] for part in parts])

    def batch(self, sets: Tensor) -> Tensor:
        """One call on sets `(c, n, d)`, for models that take them: `(c, n or 1, e)`."""
        out = as_tensor(tried(self.model, sets.clone()))
        rows = 1 if self.pooled else sets.shape[1]
        if out.shape[:1] != sets.shape[:1] or out.numel() % (len(sets) * rows):
            raise Refused(f"it returned {tuple(out.shape)} for sets {tuple(sets.shape)}")
        return finite(out.reshape(len(sets), rows, -1))

    def push(self, mu):
        """Outputs of all repetitions, those that agree as one."""
        out = self.raw(written(mu))
        return Measure(out).merge(256 * torch.finfo(out.dtype).eps * float(out.abs().max()))

    def _rows(self, out: Tensor, n: int) -> Tensor:
        """As rows, of which there must be as many as tokens."""
        rows = out.reshape(1, -1) if self.pooled else out.reshape(len(out), -1)
        if not self.pooled and len(rows) != n:
            raise BlackBoxError(f"it changes the number of tokens: {n} in, {len(rows)} out")
        return finite(rows)


class QuerySubject(Subject):
    """A model of a context and queries, `(n, d)` and `(m, q)`, or with an axis for sets.

    Args:
        model: what is called.
        batched: whether with an axis for sets.
        how: in words.
    """

    def __init__(self, model: Callable, batched: bool, how: str):
        self.model, self.batched, self.how = model, batched, how

    def outputs(self, mu):
        """A context has none of its own."""
        raise BlackBoxError("a context has no outputs of its own, only queries have")

    def push(self, mu):
        """Nor an image."""
        raise BlackBoxError("a context has no image of its own, only queries have")

    def answer(self, mu, x):
        """In one call, if queries do not see each other."""
        return self.together(mu, x) if self.independent else self.alone(mu, x)

    def alone(self, mu: Measure, x: Tensor) -> Tensor:
        """A call for each query."""
        return torch.cat([self.together(mu, point[None]) for point in x])

    def together(self, mu: Measure, x: Tensor) -> Tensor:
        """All queries in one call."""
        atoms = written(mu)
        given = (atoms[None], x[None]) if self.batched else (atoms, x)
        out = as_tensor(tried(self.model, *(t.clone() for t in given)))
        out = out[0] if self.batched and out.ndim and len(out) == 1 else out
        if not out.ndim or len(out) != len(x):
            raise BlackBoxError(
                f"it returned shape {tuple(out.shape)} for {len(x)} queries, not one row for each"
            )
        return finite(out.reshape(len(x), -1))


def repetitions(mu: Measure) -> Tensor:
    """How often each token is written to have its weight, the fewest that do."""
    weights = mu.normalise().weights.double()
    if bool((weights == weights[0]).all()):
        return torch.ones(mu.n, dtype=torch.long, device=weights.device)
    lightest = float(weights[weights > 0].min())
    share, near = 1, MOST_COPIES * 64 * torch.finfo(mu.log_weights.dtype).eps
    while share / lightest <= MOST_COPIES:
        counts = weights * (share / lightest)
        if float((counts - counts.round()).abs().max()) < near:
            return counts.round().long()
        share += 1
    raise BlackBoxError(
        f"weights that are no multiples of one over at most {MOST_COPIES} cannot be written as "
        "repetitions"
    )


def written(mu: Measure) -> Tensor:
    """The tokens of a context as a list, each as often as it weighs."""
    return mu.atoms.repeat_interleave(repetitions(mu), 0)


class Refused(BlackBoxError):
    """A call that the model does not take."""


def tried(call: Callable, *given: Any, **options: Any) -> Any:
    """The result of a call; whatever it raises, as one kind of error."""
    try:
        return call(*given, **options)
    except BlackBoxError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise Refused(f"it raised {type(error).__name__}: {first}") from error


def as_tensor(out: Any) -> Tensor:
    """The tensor of an output; the first of several."""
    if isinstance(out, Mapping):
        out = out.get("last_hidden_state", next(iter(out.values()), None))
    if isinstance(out, (tuple, list)) and out:
        out = out[0]
    if isinstance(out, Tensor) and out.layout != torch.strided:
        out = out.to_dense()
    if isinstance(out, Tensor) and not out.numel():
        raise BlackBoxError(f"it returned nothing, a tensor of shape {tuple(out.shape)}")
    if not isinstance(out, Tensor):
        raise BlackBoxError(f"it returned {type(out).__name__}, not a tensor")
    if not out.is_floating_point():
        raise BlackBoxError(
            f"it returned {out.dtype} numbers, which have no limits: have it return scores or "
            "probabilities"
        )
    return out.detach() if not torch.is_grad_enabled() else out


def finite(out: Tensor) -> Tensor:
    """The same, if it is."""
    if not bool(out.isfinite().all()):
        raise BlackBoxError("it returned NaN or infinity")
    return out


def near(a: Tensor, b: Tensor) -> bool:
    """Whether outputs agree up to rounding that threads and shapes may change."""
    if a.shape != b.shape:
        return False
    size = float(b.abs().max())
    return bool((a - b).abs().max() <= 256 * torch.finfo(b.dtype).eps * size)
