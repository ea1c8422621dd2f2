"""How a model is to be called, tried out, and whether it answers the same again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure
from ..representation import BlackBoxError
from ._case import QUERIES
from ._look import outputs
from ._population import Population
from ._subjects import (
    BoxSubject,
    MapSubject,
    QuerySubject,
    Refused,
    Subject,
    TokenSubject,
    as_tensor,
    near,
    tried,
)


def sane_subject(
    model: Any,
    population: Population,
    queries: Tensor | None,
    forms: Sequence[bool],
    tokens: int,
    seed: int,
) -> Subject:
    """A model as a subject that answers, and answers the same when asked again.

    Args:
        model: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        forms: whether it wants an axis for sets, in the order to try.
        tokens: of the largest context.
        seed: of all that is random.
    """
    generator = torch.Generator().manual_seed(seed)
    mu = population.context(generator, min(population.typical, tokens // 4))
    other = population.draw(mu.n + 1, generator)
    some = None if queries is None else queries[:QUERIES]
    hint = ""
    if isinstance(model, nn.Module) and model.training:
        hint = " (it is in training mode: call `model.eval()`)"
    buffers = _buffers(model)
    found = as_subject(model, mu, other, some, forms)
    for name, after in _buffers(model).items():
        before = buffers.get(name)
        if before is None or before.shape != after.shape or not _equal(before, after):
            raise BlackBoxError(f"it keeps state: a call changes its buffer `{name}`{hint}")

    def ask(luck: int) -> Tensor:
        torch.manual_seed(luck)
        out = outputs(found, mu, some)
        return out.atoms if isinstance(out, Measure) else out

    first = ask(seed)
    if not near(first, ask(seed)):
        raise BlackBoxError(f"it keeps state: a second call gives another output{hint}")
    if not near(first, ask(seed + 1)):
        raise BlackBoxError(f"it is random: two calls on the same tokens differ{hint}")
    if isinstance(found, BoxSubject):
        found.push(other)
    else:
        found.answer(other, mu.atoms[:1] if some is None else some)
    if not near(first, ask(seed)):
        raise BlackBoxError(f"it keeps state: a call changes the output of a later one{hint}")
    return found


def _buffers(model: Any) -> dict[str, Tensor]:
    """What a module keeps beside its parameters."""
    if not isinstance(model, nn.Module):
        return {}
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@contextmanager
def left_alone(model: Any) -> Iterator[None]:
    """Leaves the buffers of a module as they were, whatever its calls do to them."""
    before = _buffers(model)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in before.items():
                now = model.get_buffer(name)
                if now.shape == buffer.shape:
                    now.copy_(buffer)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Where NaN is what it was."""
    return bool(((a == b) | (a != a)).all())


def as_subject(
    model: Any, mu: Measure, other: Measure, queries: Tensor | None, forms: Sequence[bool]
) -> Subject:
    """A model as a subject.

    Args:
        model: the model.
        mu: a context of at least four tokens.
        other: one with a token more.
        queries: points apart from the context, if the model takes those.
        forms: whether it wants an axis for sets, in the order to try.
    """
    if getattr(model, "__func__", None) is InContextMap.push:
        model = model.__self__
    if isinstance(model, InContextMap):
        return MapSubject(model)
    reasons: dict[str, BlackBoxError] = {}
    for with_sets in forms:
        try:
            if queries is not None:
                return _query_subject(model, mu, queries, with_sets)
            return _whole_subject(model, mu, other, with_sets, len(forms) > 1)
        except BlackBoxError as error:
            reasons["(1, n, d)" if with_sets else "(n, d)"] = error
    if queries is None and not isinstance(model, nn.Module):
        try:
            box = BoxSubject(model)
            box.push(mu)
            return box
        except BlackBoxError as error:
            reasons["a Measure"] = error
    said = {str(error) for error in reasons.values()}
    why = "; ".join(f"called with {form} {error}" for form, error in reasons.items())
    raise BlackBoxError((said.pop() if len(said) == 1 else why) + _hint(model, mu, reasons))


def _hint(model: Any, mu: Measure, reasons: dict[str, BlackBoxError]) -> str:
    """What is likely to help."""
    causes = [e.__cause__ for e in reasons.values() if isinstance(e, Refused)]
    if any(isinstance(e, TypeError) and "positional argument" in str(e) for e in causes):
        return " (a model of a context and queries is given `queries=`, others are not)"
    if isinstance(model, nn.Module) and causes:
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        if dtypes and mu.dtype not in dtypes:
            name = str(dtypes.pop()).removeprefix("torch.")
            mine = str(mu.dtype).removeprefix("torch.")
            return f" (its parameters are {name} and the data {mine}: convert one of them)"
    return ""


def _whole_subject(
    model: Callable, mu: Measure, other: Measure, batched: bool, unsure: bool
) -> TokenSubject:
    """With what else can be found out about it."""
    found = _token_subject(model, mu, other, batched)
    found.independent = _independent(found, mu, other)
    if unsure:
        found.how += _other_form(found, mu, other)
    return found


def _token_subject(model: Callable, mu: Measure, other: Measure, batched: bool) -> TokenSubject:
    """Try two sizes, and see what the shapes of the outputs follow."""
    shapes, key = [], ""
    for context in (mu, other):
        given = context.atoms[None] if batched else context.atoms
        raw = tried(model, given.clone())
        out, key = as_tensor(raw), _read(raw)
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
        how = f"called with tokens {called_with}; one output for the whole set{key}"
        return TokenSubject(model, batched, True, how)
    if len(first) not in (1, 2):
        raise BlackBoxError(f"it returned shape {first} for {mu.n} tokens, not (n, e)")
    if (first[0], second[0]) != (mu.n, other.n):
        hint = ""
        if (first[0], second[0]) == (mu.n + 1, other.n + 1):
            hint = "; a class token? Leave it out: `lambda x: model(x)[..., 1:, :]`"
        raise BlackBoxError(
            f"it changes the number of tokens: {mu.n} in, {first[0]} out; {other.n} in, "
            f"{second[0]} out{hint}"
        )
    if first[1:] != second[1:]:
        raise BlackBoxError(
            f"the dimension of its outputs varies with the number of tokens: {first}, {second}"
        )
    how = f"called with tokens {called_with}; one output for each{key}"
    return TokenSubject(model, batched, False, how)


def _query_subject(model: Callable, mu: Measure, queries: Tensor, batched: bool) -> QuerySubject:
    called_with = "(1, n, d) and (1, m, q)" if batched else "(n, d) and (m, q)"
    found = QuerySubject(model, batched, f"called with a context and queries, {called_with}")
    together, alone = found.together(mu, queries), found.alone(mu, queries)
    found.independent = near(together, alone)
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
    return near(both, alone)


def _other_form(found: TokenSubject, mu: Measure, other: Measure) -> str:
    """What there is to say if tokens with another number of axes give other outputs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            second = _token_subject(found.model, mu, other, not found.batched)
            a, b = found.raw(mu.atoms), second.raw(mu.atoms)
    except BlackBoxError:
        return ""
    if near(a, b):
        return ""
    called = "(n, d)" if found.batched else "(1, n, d)"
    return f"; tokens {called} give other outputs: say `batched=`"


def _read(raw: Any) -> str:
    """Which part of an output is read, where there are several."""
    if isinstance(raw, Mapping):
        key = "last_hidden_state" if "last_hidden_state" in raw else next(iter(raw), "")
        return f"; of its outputs `{key}` is read"
    several = isinstance(raw, (tuple, list)) and len(raw) > 1
    return "; of its outputs the first is read" if several else ""
