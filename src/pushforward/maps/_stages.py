"""Maps one after another: what each does to points, its context moved by those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..measures import Measure
from ..sinkhorn import Starts

if TYPE_CHECKING:
    from ._in_context import InContextMap

Answer = Callable[[Tensor, Tensor | None], Tensor]
r"""The map $\Gamma(\mu,\cdot)$ of points and their times, with the context's work done."""


def within(starts: Starts | None, name: str) -> Starts | None:
    """What `condition` hands on as `starts` to the part of that name."""
    return None if starts is None else starts.within(name)


def advance(gamma: InContextMap, mu: Measure) -> Measure:
    """The push-forward, unchecked: each layer evaluated once."""
    for layer in layers(gamma):
        if getattr(layer, "residual", False):
            # What is inside is evaluated on the context alone, not again on the same points.
            inner = advance(layer.gamma, mu).atoms  # type: ignore[arg-type]
            images = residual_step(mu.atoms, layer.step, inner)  # type: ignore[arg-type]
        else:
            images = conditioned(layer, mu)(mu.atoms, mu.times)
        mu = mu.moved(images)
    return mu


def residual_step(x: Tensor, step: float, y: Tensor) -> Tensor:
    """The points $x+hy$, unless the images `y` of the points lie in another space."""
    if y.shape[-2:] != x.shape[-2:]:
        raise ValueError(
            f"A residual step stays in its space, got points of shape {tuple(x.shape)} "
            f"and images of shape {tuple(y.shape)}."
        )
    return torch.add(x, y, alpha=step)


def conditioned(
    gamma: InContextMap,
    mu: Measure,
    queries: Measure | None = None,
    starts: Starts | None = None,
) -> Answer:
    """`gamma.condition`, with an error that names the class if an author's method is wrong."""
    answer = gamma.condition(mu, queries, starts)
    name = type(gamma).__name__
    if not callable(answer):
        raise TypeError(
            f"`{name}.condition` must return a function of points and times, got "
            f"{type(answer).__name__}."
        )

    def images(x: Tensor, t: Tensor | None) -> Tensor:
        y = answer(x, t)
        if not isinstance(y, Tensor) or y.shape[-2:-1] != x.shape[-2:-1]:
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(
                f"`{name}` must give one image per query, a tensor of shape "
                f"(..., {x.shape[-2]}, e), got {got}."
            )
        return y

    return images


def stages(
    maps: Sequence[InContextMap],
    mu: Measure,
    queries: Measure | None = None,
    starts: Starts | None = None,
) -> Iterator[Answer]:
    """Each map as a function of points, its context being what the maps before made of `mu`.

    Atoms are moved by themselves, so that queries do not change a bit of them. Queries that move
    are other ones for every context of a batch.
    """
    *inner, last = maps
    if not any(gamma.two_sided for gamma in maps):
        queries = None
    if inner and queries is not None:
        queries = queries_for_each(mu, queries)
    for k, gamma in enumerate(inner):
        own = asked = conditioned(gamma, mu, None, within(starts, f"{k}"))
        if queries is not None and gamma.two_sided:
            asked = conditioned(gamma, mu, queries, within(starts, f"{k}.queries"))
        yield asked
        mu = mu.moved(own(mu.atoms, mu.times))
        if queries is not None:
            queries = queries.moved(asked(queries.atoms, queries.times))
    yield conditioned(last, mu, queries, within(starts, f"{len(inner)}"))


def walk(stages: Iterable[Answer], x: Tensor, t: Tensor | None) -> Tensor:
    """Points moved by one map after another."""
    for stage in stages:
        x = stage(x, t)
    return x


def layers(gamma: InContextMap) -> list[InContextMap]:
    """The maps that a map applies one after another: itself, if it is no composition."""
    if not getattr(gamma, "sequential", False):
        return [gamma]
    return [layer for part in gamma.parts() for layer in layers(part)]  # type: ignore[operator]


def queries_for_each(mu: Measure, queries: Measure) -> Measure:
    """A copy of the queries, with weights and times, for every context of a batch."""
    atoms = for_each_context(mu, queries.atoms, 2)
    logs = for_each_context(mu, queries.log_weights, 1)
    times = None if queries.times is None else for_each_context(mu, queries.times, 1)
    return Measure.unchecked(atoms, logs, times)


def for_each_context(mu: Measure, x: Tensor, axes: int) -> Tensor:
    """A copy for every context of a batch; `axes` counts the axes of `x` that are no batch."""
    batch = x.shape[:-axes]
    if not mu.batch_shape or batch == mu.batch_shape:
        return x
    return x.expand(*torch.broadcast_shapes(mu.batch_shape, batch), *x.shape[-axes:])
