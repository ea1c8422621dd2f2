"""Does a model read the order of its tokens, and has one of them a role of its own?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..measures import Measure
from ..representation import BlackBox, BlackBoxError, Population, TokenBox
from ._case import Baseline, Reading, selected
from ._model import Model, WithClassToken

Orders = dict[int | None, Callable[[int], Tensor]]
"""Ways to reorder `n` tokens, by the token that stays where it is."""

CONTEXTS = 3
"""Contexts in which the order is changed."""

MUCH = 0.1
"""The order matters much if shuffling changes outputs by this share of their size or more. Less
than that is more likely to be a mistake than a model of sequences."""


def reading(
    model: Model, box: BlackBox, population: Population, queries: Tensor | None
) -> Reading:
    """What a user says, or else what the outputs show.

    Args:
        model: the model, with what the user says.
        box: the same as a black box.
        population: where contexts come from.
        queries: queries, for a model of a context and queries.

    Raises:
        ValueError: if something is said that a model of this kind cannot be.
    """
    tokens = isinstance(box, TokenBox)
    if not tokens and model.class_token is not None:
        raise ValueError("`class_token` is for a model of tokens, and this is none.")
    if not tokens and queries is None and model.mode == "sequence":
        raise ValueError('`mode="sequence"` is for a model of tokens: a measure has no order.')
    if model.mode is not None or box.weighted:
        return Reading(model.mode or "set", special=model.class_token)
    generator = torch.Generator().manual_seed(0)
    draw = partial(population.context, population.typical_size, generator)
    orders: Orders = {None: lambda n: torch.randperm(n, generator=generator)}
    if tokens and model.class_token is None and not isinstance(box.model, WithClassToken):
        orders[0] = lambda n: torch.cat(
            [torch.zeros(1, dtype=torch.long), 1 + torch.randperm(n - 1, generator=generator)]
        )
        orders[-1] = lambda n: torch.cat(
            [torch.randperm(n - 1, generator=generator), torch.tensor([n - 1])]
        )
    try:
        changes = []
        for _ in range(CONTEXTS):
            mu = draw()
            baseline = Baseline.measure(
                box, mu, None if queries is None else queries[:1], generator
            )
            changes.append(_changes(replace(baseline, given=model.tolerance), mu, orders))
    except BlackBoxError:
        return Reading("set", special=model.class_token)  # the sections report it
    shuffled = [part if changed else 0.0 for changed, part in (each[None] for each in changes)]
    if min(shuffled) < MUCH:
        return Reading("set", special=model.class_token)
    for special in (0, -1):
        if special in orders and not any(change[special][0] for change in changes):
            return Reading("set", True, special, max(shuffled))
    return Reading("sequence", True, model.class_token, max(shuffled))


def _changes(
    baseline: Baseline, mu: Measure, orders: Orders
) -> dict[int | None, tuple[bool, float]]:
    """Whether outputs change in one context for each way to reorder it, and by which share."""
    found = {}
    for name, order in orders.items():
        index = order(mu.n)
        change = baseline.change(selected(mu, index), index)
        found[name] = change > baseline.tolerance, baseline.share(change)
    return found


def prepared(
    box: BlackBox, population: Population, how: Reading
) -> tuple[BlackBox, Population, str]:
    """The model and the data to audit, and in sentences what was done to them.

    Args:
        box: the model as it was called.
        population: where contexts come from.
        how: how the model reads its tokens.
    """
    said = ""
    if how.special is not None and isinstance(box, TokenBox):
        place = "first" if how.special == 0 else "last"
        if not isinstance(box.model, WithClassToken):
            token, population = population.without_token(how.special)
            model = WithClassToken(box.model, token, how.special == -1, box.pooled)
            box = TokenBox(model, box.set_axis, box.pooled, box.tokens)
            said = f" The {place} token of the data is its class token and stays in its place."
    if how.mode == "sequence":
        seen = ", because shuffling the tokens changes its outputs much" if how.seen else ""
        return box, population.in_order(), f"{said} It is audited as a model of sequences{seen}."
    return box, population, f"{said} It is audited as a model of sets."
