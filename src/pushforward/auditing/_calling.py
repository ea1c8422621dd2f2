"""How a model is called: tried out on two contexts, and checked to give the same outputs again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure
from ..representation import BlackBoxError, CallRejected, call_model, near, why_unusable
from ._case import QUERIES, outputs_at
from ._model import Model
from ._population import Population
from ._subjects import MeasureSubject, QuerySubject, Subject, TokenSubject
from ._tensors import as_tensor, output_name


def usable_subject(
    model: Model, population: Population, queries: Tensor | None, tokens: int, seed: int
) -> Subject:
    """A model as a subject; an error unless it gives outputs, and the same when called again.

    Args:
        model: the model.
        population: where contexts come from.
        queries: queries `(m, q)`, for a model of a context and queries.
        tokens: the most tokens of a context.
        seed: the seed of all random draws.
    """
    generator = torch.Generator().manual_seed(seed)
    mu = population.context(min(population.typical_size, tokens // 4), generator)
    other = population.draw(mu.n + 1, generator)
    x = None if queries is None else queries[:QUERIES]
    batched = model.batched
    axes = [population.batched, not population.batched] if batched is None else [batched]
    hint = ""
    if isinstance(model.model, nn.Module) and model.model.training:
        hint = " (it is in training mode: call `model.eval()`)"
    buffers = _buffers(model.model)
    subject = as_subject(model.model, mu, other, x, axes)
    for name, after in _buffers(model.model).items():
        before = buffers.get(name)
        if before is None or before.shape != after.shape or not _equal(before, after):
            raise BlackBoxError(f"it keeps state: a call changes its buffer `{name}`{hint}")
    further = population.draw(mu.n + 2, generator)
    reason = why_unusable(lambda m: outputs_at(subject, m, x), mu, further, seed)
    if reason is not None:
        raise BlackBoxError(reason + hint)
    return subject


def _buffers(model: Any) -> dict[str, Tensor]:
    """Copies of the buffers of a module, such as running statistics."""
    if not isinstance(model, nn.Module):
        return {}
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@contextmanager
def buffers_restored(model: Any) -> Iterator[None]:
    """Give the buffers of a module their old values back, whatever its calls do to them."""
    before = _buffers(model)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in before.items():
                now = model.get_buffer(name)
                if now.shape == buffer.shape:
                    now.copy_(buffer)


def _equal(before: Tensor, after: Tensor) -> bool:
    """Whether no number has changed; NaN counts as unchanged."""
    return bool(((before == after) | (before != before)).all())


def as_subject(
    model: Any, mu: Measure, other: Measure, queries: Tensor | None, axes: Sequence[bool]
) -> Subject:
    """A model as a subject, by trying which calls it takes.

    Args:
        model: the model.
        mu: a context of at least four tokens.
        other: a context of one token more.
        queries: some queries, for a model of a context and queries.
        axes: whether to call it with an axis for sets, in the order to try.
    """
    if getattr(model, "__func__", None) is InContextMap.push:
        model = model.__self__
    if isinstance(model, InContextMap):
        return MeasureSubject(model)
    errors: dict[str, BlackBoxError] = {}
    for batched in axes:
        try:
            if queries is not None:
                return _query_subject(model, mu, queries, batched)
            subject = _token_subject(model, mu, other, batched)
            subject.independent = _independent(subject, mu, other)
            if len(axes) > 1:
                subject.how += _other_call_differs(subject, mu, other)
            return subject
        except BlackBoxError as error:
            errors["(1, n, d)" if batched else "(n, d)"] = error
    if queries is None and not isinstance(model, nn.Module):
        try:
            of_measures = MeasureSubject(model)
            of_measures.push(mu)
            return of_measures
        except BlackBoxError as error:
            errors["a Measure"] = error
    texts = {str(error) for error in errors.values()}
    each = "; ".join(f"called with {form} {error}" for form, error in errors.items())
    reason = texts.pop() if len(texts) == 1 else each
    raise BlackBoxError(reason + _hint(model, mu, list(errors.values())))


def _hint(model: Any, mu: Measure, errors: Sequence[BlackBoxError]) -> str:
    """What is likely to help, in brackets."""
    causes = [error.__cause__ for error in errors if isinstance(error, CallRejected)]
    if any(isinstance(e, TypeError) and "positional argument" in str(e) for e in causes):
        return " (pass `queries=` for a model of a context and queries, and only for such a model)"
    if isinstance(model, nn.Module) and causes:
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        if dtypes and mu.dtype not in dtypes:
            its, given = (str(t).removeprefix("torch.") for t in (dtypes.pop(), mu.dtype))
            return f" (its parameters are {its} and the data {given}: convert one of them)"
    return ""


def _token_subject(
    model: Callable[..., Any], mu: Measure, other: Measure, batched: bool
) -> TokenSubject:
    """A model of tokens: called with two sizes, which show what the outputs' shape depends on."""
    shapes, used = [], ""
    for context in (mu, other):
        given = context.atoms[None] if batched else context.atoms
        raw = call_model(model, given.clone())
        out, used = as_tensor(raw), output_name(raw)
        if batched:
            if not out.ndim or len(out) != 1:
                raise BlackBoxError(
                    f"it returned shape {tuple(out.shape)} for one set of shape "
                    f"{tuple(given.shape)}"
                )
            out = out[0]
        shapes.append(tuple(out.shape))
    form = "(1, n, d)" if batched else "(n, d)"
    first, second = shapes
    if first == second and (len(first) <= 1 or (len(first) == 2 and first[0] == 1)):
        how = f"called with tokens {form}; one output for the whole set{used}"
        return TokenSubject(model, batched, True, how)
    _check_rows(first, second, mu.n, other.n)
    return TokenSubject(model, batched, False, f"called with tokens {form}; one output each{used}")


def _check_rows(first: tuple[int, ...], second: tuple[int, ...], n: int, other_n: int) -> None:
    """Raise unless the shapes of outputs for two numbers of tokens are `(n, e)`.

    Args:
        first: the shape for `n` tokens.
        second: the shape for `other_n` tokens.
        n: a number of tokens.
        other_n: another.
    """
    if len(first) not in (1, 2):
        raise BlackBoxError(f"it returned shape {first} for {n} tokens, not (n, e)")
    if (first[0], second[0]) != (n, other_n):
        hint = ""
        if (first[0], second[0]) == (n + 1, other_n + 1):
            hint = "; a class token? Leave it out: `lambda x: model(x)[..., 1:, :]`"
        raise BlackBoxError(
            f"it changes the number of tokens: {n} in, {first[0]} out; {other_n} in, "
            f"{second[0]} out{hint}"
        )
    if first[1:] != second[1:]:
        raise BlackBoxError(
            f"the dimension of its outputs varies with the number of tokens: {first}, {second}"
        )


def _query_subject(
    model: Callable[..., Any], mu: Measure, queries: Tensor, batched: bool
) -> QuerySubject:
    form = "(1, n, d) and (1, m, q)" if batched else "(n, d) and (m, q)"
    subject = QuerySubject(model, batched, f"called with a context and queries, {form}")
    together, alone = subject.together(mu, queries), subject.alone(mu, queries)
    subject.independent = near(together, alone)
    return subject


def _independent(subject: TokenSubject, mu: Measure, other: Measure) -> bool:
    """Whether it takes sets `(c, n, d)` too, and they do not change each other's outputs."""
    n = min(mu.n, other.n)
    two = torch.stack([mu.atoms[:n], other.atoms[:n]])
    try:
        with warnings.catch_warnings():  # the model may warn of an input it is not made for
            warnings.simplefilter("ignore")
            alone = torch.stack([subject.call(atoms) for atoms in two])
            both = subject.call_batch(two)
    except BlackBoxError:
        return False
    return near(both, alone)


def _other_call_differs(subject: TokenSubject, mu: Measure, other: Measure) -> str:
    """A remark for the report if tokens with another number of axes give other outputs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            second = _token_subject(subject.model, mu, other, not subject.batched)
            a, b = subject.call(mu.atoms), second.call(mu.atoms)
    except BlackBoxError:
        return ""
    if near(a, b):
        return ""
    form = "(n, d)" if subject.batched else "(1, n, d)"
    return f"; tokens {form} give other outputs: choose by `pf.auditing.Model(model, batched=...)`"
