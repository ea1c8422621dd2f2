r"""Anything that maps a set to outputs, asked in one way.

A subject answers two questions: what becomes of the tokens of a context, and what becomes of a
point $x$ in a context, $G(\mu,x)$. How a model is called is tried out, and said.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure
from ..recovery import BlackBoxError, recover
from ..recovery.black_box import called, guarded

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
    separate: bool = False
    """Whether queries are apart from the context."""
    independent: bool = False
    """Whether several contexts can be answered in one call."""

    @abstractmethod
    def tokens(self, mu: Measure) -> Tensor:
        """What becomes of the tokens of a context, `(n, e)`; `(1, e)` if there is one output."""

    @abstractmethod
    def answer(self, mu: Measure, x: Tensor) -> Tensor:
        """What becomes of points `(m, q)` in a context, each alone with it: `(m, e)`."""

    def rest(self, mu: Measure) -> float:
        """The mass of the context, the point that is asked for being one more token or none."""
        return 1.0

    def last(self, contexts: Tensor) -> Tensor:
        """What becomes of the last token of each context `(c, n, d)`: `(c, e)`."""
        return torch.stack([self.tokens(Measure(atoms))[-1] for atoms in contexts])

    def push(self, mu: Measure) -> Measure:
        """The map between measures."""
        out = self.tokens(mu)
        if self.pooled:
            return Measure(out)
        return Measure.unchecked(out, mu.log_weights)


class MapSubject(Subject):
    """An in-context map."""

    weighted = True

    def __init__(self, gamma: InContextMap, separate: bool):
        self.model, self.separate = gamma, separate
        self.how = "an in-context map, asked with measures"

    def tokens(self, mu):
        """The push-forward."""
        return finite(_tried(self.model.push, mu).atoms)

    def answer(self, mu, x):
        """The map itself."""
        gamma = self.model
        queries = Measure(x) if gamma.paired else x
        times = None if mu.times is None else mu.times.amax().expand(len(x))
        return finite(_tried(gamma, mu, queries, times))

    def last(self, contexts):
        """One call for all."""
        return finite(_tried(self.model.push, Measure(contexts)).atoms)[:, -1]


class Unrecovered(BlackBoxError):
    """A map whose values do not say what becomes of a point."""


class BoxSubject(Subject):
    """A map between measures, whose in-context map is recovered."""

    weighted = True

    def __init__(self, f: Callable[[Measure], Measure]):
        self.model, self._f = f, guarded(f)
        self.how = "a map between measures; what becomes of a token is recovered from outside"

    def tokens(self, mu):
        """The images, if there is one of the same weight for each token."""
        out = self.push(mu)
        if out.n != mu.n or not torch.allclose(
            out.log_weights, mu.strip().normalise().log_weights
        ):
            raise BlackBoxError(
                f"{mu.n} tokens have {out.n} images of other weights: what becomes of a token "
                "cannot be read off"
            )
        return out.atoms

    def answer(self, mu, x):
        """By small masses."""
        try:
            return finite(recover(self._f)(mu, x))
        except BlackBoxError as error:
            if isinstance(error.__cause__, Exception):  # its own failure
                raise
            raise Unrecovered(str(error)) from error

    def push(self, mu):
        """The map itself."""
        return called(self._f, mu)


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
        mask = _mask_keyword(model)
        self.padded: Callable[[Tensor, Tensor], Tensor] | None = None
        if mask is not None:
            self.padded = lambda x, real: _masked(self, mask, x, real)

    def raw(self, atoms: Tensor, **options: Any) -> Tensor:
        """One call on tokens `(n, d)`: `(n, e)`, or `(1, e)` for the set."""
        given = atoms[None] if self.batched else atoms
        out = as_tensor(_tried(self.model, given.clone(), **options))
        return self._rows(out[0] if self.batched and len(out) == 1 else out, len(atoms))

    def tokens(self, mu):
        """The tokens written out as often as they weigh."""
        counts = repetitions(mu)
        out = self.raw(mu.atoms.repeat_interleave(counts, 0))
        if self.pooled:
            return out
        return out[counts.cumsum(0) - counts]

    def rest(self, mu):
        """All but one token."""
        n = int(repetitions(mu).sum())
        return 1.0 if self.pooled else n / (n + 1)

    def answer(self, mu, x):
        """Each point as one more token."""
        atoms = mu.atoms.repeat_interleave(repetitions(mu), 0)
        if self.pooled:
            return self.raw(atoms).expand(len(x), -1)
        each = torch.cat([atoms.expand(len(x), *atoms.shape), x[:, None]], 1)
        return self.last(each)

    def last(self, contexts):
        """In one call where the model takes sets beside each other."""
        if not self.independent:
            return torch.stack([self.raw(atoms)[-1] for atoms in contexts])
        parts = contexts.split(max(1, (1 << 22) // contexts.shape[1] ** 2))
        return torch.cat([self.batch(part)[:, -1] for part in parts])

    def batch(self, sets: Tensor) -> Tensor:
        """One call on sets `(c, n, d)`, for models that take them: `(c, n or 1, e)`."""
        out = as_tensor(_tried(self.model, sets.clone()))
        rows = 1 if self.pooled else sets.shape[1]
        if out.shape[:1] != sets.shape[:1] or out.numel() % (len(sets) * rows):
            raise BlackBoxError(f"it returned {tuple(out.shape)} for sets {tuple(sets.shape)}")
        return finite(out.reshape(len(sets), rows, -1))

    def push(self, mu):
        """Outputs of all repetitions, those that agree as one."""
        counts = repetitions(mu)
        out = self.raw(mu.atoms.repeat_interleave(counts, 0))
        size = 1 + float(out.abs().max())
        return Measure(out).merge(256 * torch.finfo(out.dtype).eps * size)

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

    separate = True

    def __init__(self, model: Callable, batched: bool, how: str):
        self.model, self.batched, self.how = model, batched, how

    def tokens(self, mu):
        """A context has no outputs of its own."""
        raise BlackBoxError("a context has no outputs of its own, only queries have")

    def answer(self, mu, x):
        """In one call, if queries do not see each other."""
        return self.together(mu, x) if self.independent else self.alone(mu, x)

    def alone(self, mu: Measure, x: Tensor) -> Tensor:
        """A call for each query."""
        return torch.cat([self.together(mu, point[None]) for point in x])

    def together(self, mu: Measure, x: Tensor) -> Tensor:
        """All queries in one call."""
        atoms = mu.atoms.repeat_interleave(repetitions(mu), 0)
        given = (atoms[None], x[None]) if self.batched else (atoms, x)
        out = as_tensor(_tried(self.model, *(t.clone() for t in given)))
        out = out[0] if self.batched and out.ndim and len(out) == 1 else out
        if not out.ndim or len(out) != len(x):
            raise BlackBoxError(
                f"it returned shape {tuple(out.shape)} for {len(x)} queries, not one row for each"
            )
        return finite(out.reshape(len(x), -1))


def subject(
    model: Any, mu: Measure, other: Measure, queries: Tensor | None, forms: Sequence[bool]
) -> Subject:
    """A model as a subject, how it is called being tried out.

    Args:
        model: the model.
        mu: a context of at least four tokens.
        other: one with a token more.
        queries: points apart from the context, if the model takes those.
        forms: whether it wants an axis for sets, in the order to try.
    """
    if isinstance(model, InContextMap):
        return MapSubject(model, queries is not None)
    if not callable(model):
        raise TypeError(
            f"`model` must be a module, a function or an in-context map, got "
            f"{type(model).__name__}."
        )
    reasons = []
    for with_sets in forms:
        try:
            if queries is not None:
                return _query_subject(model, mu, queries, with_sets)
            found = _token_subject(model, mu, other, with_sets)
            found.independent = _independent(found, mu, other)
            if len(forms) > 1:
                found.how += _other_form(found, mu, other)
            return found
        except BlackBoxError as error:
            reasons.append(f"called with {'(1, n, d)' if with_sets else '(n, d)'} {error}")
    if queries is None and not isinstance(model, nn.Module):
        try:
            box = BoxSubject(model)
            box.push(mu)
            return box
        except BlackBoxError as error:
            reasons.append(f"called with a Measure {error}")
    said = {reason.split(") ", 1)[-1] for reason in reasons}
    raise BlackBoxError(said.pop() if len(said) == 1 else "; ".join(reasons))


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


class _Raised(BlackBoxError):
    """What the model raised itself."""


def _tried(call: Callable, *given: Any, **options: Any) -> Any:
    """The result of a call; whatever it raises, as one kind of error."""
    try:
        return call(*given, **options)
    except BlackBoxError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise _Raised(f"it raised {type(error).__name__}: {first}") from error


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


def _token_subject(model: Callable, mu: Measure, other: Measure, batched: bool) -> TokenSubject:
    """Try two sizes, and see what the shapes of the outputs follow."""
    shapes = []
    for context in (mu, other):
        given = context.atoms[None] if batched else context.atoms
        out = as_tensor(_tried(model, given))
        if batched:
            if not out.ndim or len(out) != 1:
                raise BlackBoxError(
                    f"it returned shape {tuple(out.shape)} for one set of shape "
                    f"{tuple(given.shape)}"
                )
            out = out[0]
        shapes.append(tuple(out.shape))
    called_with = "(1, n, d)" if batched else "(n, d)"
    first, second = shapes
    if first == second and (len(first) <= 1 or (len(first) == 2 and first[0] == 1)):
        how = f"called with tokens {called_with}; one output for the whole set"
        return TokenSubject(model, batched, True, how)
    if len(first) not in (1, 2):
        raise BlackBoxError(f"it returned shape {first} for {mu.n} tokens, not (n, e)")
    if (first[0], second[0]) != (mu.n, other.n):
        raise BlackBoxError(
            f"it changes the number of tokens: {mu.n} in, {first[0]} out; {other.n} in, "
            f"{second[0]} out"
        )
    if first[1:] != second[1:]:
        raise BlackBoxError(
            f"the dimension of its outputs varies with the number of tokens: {first}, {second}"
        )
    how = f"called with tokens {called_with}; one output for each"
    return TokenSubject(model, batched, False, how)


def _query_subject(model: Callable, mu: Measure, queries: Tensor, batched: bool) -> QuerySubject:
    called_with = "(1, n, d) and (1, m, q)" if batched else "(n, d) and (m, q)"
    found = QuerySubject(model, batched, f"called with a context and queries, {called_with}")
    together, alone = found.together(mu, queries), found.alone(mu, queries)
    found.independent = _near(together, alone)
    return found


def _independent(found: TokenSubject, mu: Measure, other: Measure) -> bool:
    """Whether it takes sets `(c, n, d)` too, and they do not change each other."""
    n = min(mu.n, other.n)
    two = torch.stack([mu.atoms[:n], other.atoms[:n]])
    try:
        with warnings.catch_warnings():  # it may not be made for this, and say so
            warnings.simplefilter("ignore")
            alone = torch.stack([found.raw(atoms) for atoms in two])
            both = found.batch(two)
    except BlackBoxError:
        return False
    if both.shape != alone.shape:
        return False
    return _near(both, alone)


def _near(a: Tensor, b: Tensor) -> bool:
    """Up to rounding."""
    size = float(b.abs().max())
    return bool((a - b).abs().max() <= 1e3 * torch.finfo(b.dtype).eps * size)


def _other_form(found: TokenSubject, mu: Measure, other: Measure) -> str:
    """What there is to say if tokens with another number of axes give other outputs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            second = _token_subject(found.model, mu, other, not found.batched)
            a, b = found.raw(mu.atoms), second.raw(mu.atoms)
    except BlackBoxError:
        return ""
    if a.shape == b.shape and _near(a, b):
        return ""
    called = "(n, d)" if found.batched else "(1, n, d)"
    return f"; tokens {called} give other outputs: say `batched=`"


def _mask_keyword(model: Callable) -> str | None:
    """The name under which PyTorch's own encoders take a mask of what is padding."""
    if isinstance(model, (nn.TransformerEncoder, nn.TransformerEncoderLayer)):
        return "src_key_padding_mask"
    return None


def _masked(found: TokenSubject, name: str, x: Tensor, real: Tensor) -> Tensor:
    ignore = ~real
    return found.raw(x, **{name: ignore[None] if found.batched else ignore})
