"""How a model is called: tried out on two contexts, and checked to give the same outputs again."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..maps import InContextMap
from ..measures import Measure
from ..representation import (
    BlackBox,
    BlackBoxError,
    CallRejected,
    MapBox,
    Population,
    QueryBox,
    TokenBox,
    call_model,
)
from ..representation.boxes import as_tensor, near, output_name, why_unusable
from ._case import QUERIES
from ._model import Model, WithClassToken


@dataclass(frozen=True, eq=False)
class Called:
    """A model as a black box.

    Args:
        box: the model.
        how: how it is called, in words.
        problem: why nothing can be concluded from its outputs, None if something can.
    """

    box: BlackBox
    how: str
    problem: str | None = None


def called(
    model: Model, population: Population, queries: Tensor | None, tokens: int, seed: int
) -> Called:
    """Find out how a model is called, and whether it gives the same outputs when called again.

    Args:
        model: the model.
        population: where contexts come from.
        queries: queries `(m, q)`, for a model of a context and queries.
        tokens: the most tokens of a context.
        seed: the seed of all random draws.

    Raises:
        BlackBoxError: if the model takes none of the calls that were tried.
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
    box, how = as_box(model.model, mu, other, x, axes, model.class_token)
    if isinstance(box, TokenBox):
        box.tokens = tokens
    for name, after in _buffers(model.model).items():
        before = buffers.get(name)
        if before is None or before.shape != after.shape or not _equal(before, after):
            return Called(box, how, f"it keeps state: a call changes its buffer `{name}`{hint}")
    further = population.draw(mu.n + 2, generator)
    reason = why_unusable(box, mu, further, x, seed)
    return Called(box, how, None if reason is None else reason + hint)


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


def as_box(
    model: Any,
    mu: Measure,
    other: Measure,
    queries: Tensor | None,
    axes: Sequence[bool],
    own_token: int | None = None,
) -> tuple[BlackBox, str]:
    """A model as a black box, by trying which calls it takes; and how it is called, in words.

    Args:
        model: the model.
        mu: a context of at least four tokens.
        other: a context of one token more.
        queries: some queries, for a model of a context and queries.
        axes: whether to call it with an axis for sets, in the order to try.
        own_token: where its class token is if it adds one, None if that is not known.
    """
    if getattr(model, "__func__", None) is InContextMap.push:
        model = model.__self__
    if isinstance(model, InContextMap):
        return MapBox(model), "An in-context map, called with measures."
    errors: dict[str, BlackBoxError] = {}
    for set_axis in axes:
        try:
            if queries is not None:
                return _query_box(model, mu, queries, set_axis)
            box, how = _token_box(model, mu, other, set_axis, own_token)
            box.independent = _independent(box, mu, other)
            return box, how + (_other_call_differs(box, mu, other) if len(axes) > 1 else "")
        except BlackBoxError as error:
            errors["(1, n, d)" if set_axis else "(n, d)"] = error
    if queries is None:
        try:
            return _measure_box(model, mu)
        except BlackBoxError as error:
            # Only if it took no tokens: what a function of tokens does to a measure says nothing.
            rejected = all(isinstance(e, CallRejected) for e in errors.values())
            if rejected and not isinstance(model, nn.Module):
                errors["a Measure"] = error
    texts = {str(error) for error in errors.values()}
    each = "; ".join(f"called with {form} {error}" for form, error in errors.items())
    reason = f"called with {' or '.join(errors)} {texts.pop()}" if len(texts) == 1 else each
    raise BlackBoxError(reason + _hint(model, mu, list(errors.values())))


def _measure_box(model: Callable[..., Any], mu: Measure) -> tuple[MapBox, str]:
    """A function of a measure: its value is a measure, or one output for the whole set."""
    out = call_model(model, mu)
    if isinstance(out, Measure):
        box = MapBox(model)
        box.push(mu)
        return box, "A map between measures. Images of tokens are recovered from its values."
    if as_tensor(out).numel() != as_tensor(out).shape[-1]:
        raise BlackBoxError(f"it returned shape {tuple(out.shape)} for one measure")
    # One output F(mu) for all tokens is the in-context map G(mu, x) = F(mu).
    value = lambda nu: as_tensor(call_model(model, nu)).reshape(1, -1)
    box = MapBox(lambda nu: nu.moved(value(nu).expand(nu.n, -1)))
    box.model, box.pooled = model, True
    return box, "Called with a measure, with one output for the whole set."


def _hint(model: Any, mu: Measure, errors: Sequence[BlackBoxError]) -> str:
    """What is likely to help, in brackets."""
    causes = [error.__cause__ for error in errors if isinstance(error, CallRejected)]
    if any(isinstance(e, TypeError) and "positional argument" in str(e) for e in causes):
        return " (pass `queries=` for a model of a context and queries, and only for such a model)"
    if any(isinstance(e, RuntimeError) and "of the following scalar types: Long" in str(e)
           for e in causes):  # fmt: skip
        return (
            " (it looks up token ids: give the embeddings of the tokens as data, and as model a "
            "function of them, such as `lambda x: model(inputs_embeds=x)`)"
        )
    if isinstance(model, nn.Module) and causes:
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        if dtypes and mu.dtype not in dtypes:
            its, given = (str(t).removeprefix("torch.") for t in (dtypes.pop(), mu.dtype))
            return f" (its parameters are {its} and the data {given}: convert one of them)"
    return ""


def _token_box(
    model: Callable[..., Any], mu: Measure, other: Measure, set_axis: bool, own_token: int | None
) -> tuple[TokenBox, str]:
    """A model of tokens: called with two sizes, which show what the outputs' shape depends on.

    Args:
        model: the model.
        mu: a context.
        other: a context of one token more.
        set_axis: whether to call it with an axis for sets.
        own_token: where its class token is if it adds one, None if that is not known.
    """
    shapes, used = [], ""
    for context in (mu, other):
        given = context.atoms[None] if set_axis else context.atoms
        raw = call_model(model, given.clone())
        out, used = as_tensor(raw), output_name(raw)
        if set_axis:
            if not out.ndim or len(out) != 1:
                raise BlackBoxError(
                    f"it returned shape {tuple(out.shape)} for one set of shape "
                    f"{tuple(given.shape)}"
                )
            out = out[0]
        shapes.append(tuple(out.shape))
    how = f"Called with tokens {'(1, n, d)' if set_axis else '(n, d)'}, with one output for"
    first, second = shapes
    if first == second and (len(first) <= 1 or (len(first) == 2 and first[0] == 1)):
        return TokenBox(model, set_axis, pooled=True), f"{how} the whole set{used}."
    how = f"{how} each token{used}."
    if (first[:1], second[:1]) == ((mu.n + 1,), (other.n + 1,)) and len(first) <= 2:
        last = own_token == -1 if own_token is not None else _adds_last(model, mu, set_axis)
        if last is not None:
            box = TokenBox(WithClassToken(model, None, last), set_axis)
            return box, f"{how} It adds a class token, whose output is left out."
    _check_rows(first, second, mu.n, other.n)
    return TokenBox(model, set_axis), how


def _adds_last(model: Callable[..., Any], mu: Measure, set_axis: bool) -> bool | None:
    """Whether a model that returns a row more than it is given adds it last; None if unclear.

    The row of a class token stays the same if the tokens are turned round.
    """
    outs = []
    for atoms in (mu.atoms, mu.atoms.flip(0)):
        out = as_tensor(call_model(model, (atoms[None] if set_axis else atoms).clone()))
        outs.append(out[0] if set_axis else out)
    first, last = near(outs[0][0], outs[1][0]), near(outs[0][-1], outs[1][-1])
    return None if first == last else last


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
            hint = (
                ". Perhaps it adds a class token: say where with `pf.auditing.Model(model, "
                "class_token=0)`, or -1"
            )
        raise BlackBoxError(
            f"it changes the number of tokens: {n} in, {first[0]} out; {other_n} in, "
            f"{second[0]} out{hint}"
        )
    if first[1:] != second[1:]:
        raise BlackBoxError(
            f"the width of its outputs changes with the number of tokens: {first}, {second}"
        )


def _query_box(
    model: Callable[..., Any], mu: Measure, queries: Tensor, set_axis: bool
) -> tuple[QueryBox, str]:
    """A model of a context and queries; together and one by one, they are compared."""
    box = QueryBox(model, set_axis)
    box.independent = near(box.outputs(mu, queries), box.alone(mu, queries))
    form = "(1, n, d) and (1, m, q)" if set_axis else "(n, d) and (m, q)"
    return box, f"Called with a context and queries, {form}."


def _independent(box: TokenBox, mu: Measure, other: Measure) -> bool:
    """Whether it takes sets `(c, n, d)` too, and they do not change each other's outputs."""
    n = min(mu.n, other.n)
    two = torch.stack([mu.atoms[:n], other.atoms[:n]])
    try:
        with warnings.catch_warnings():  # the model may warn of an input it is not made for
            warnings.simplefilter("ignore")
            alone = torch.stack([box.call(atoms) for atoms in two])
            both = box.call_batch(two)
    except BlackBoxError:
        return False
    return near(both, alone)


def _other_call_differs(box: TokenBox, mu: Measure, other: Measure) -> str:
    """A remark for the report if tokens with another number of axes give other outputs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            second, _ = _token_box(box.model, mu, other, not box.set_axis, None)
            a, b = box.call(mu.atoms), second.call(mu.atoms)
    except BlackBoxError:
        return ""
    if near(a, b):
        return ""
    form = "(n, d)" if box.set_axis else "(1, n, d)"
    return (
        f" It also accepts tokens {form} but then gives other outputs. Say which is right: "
        "`pf.auditing.Model(model, batched=True)` or `False`."
    )
