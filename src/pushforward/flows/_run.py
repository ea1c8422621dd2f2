"""Run a flow, keep what was asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor

from .._tools.checks import check_floating, check_kind, check_sizes
from .._tools.output import bar
from ..maps import InContextMap
from ..measures import Measure
from ._dynamics import Characteristics
from ._flow import check_flow
from ._gradients import Backprop, Gradients
from ._path import Path
from ._snapshots import Snapshots, describe
from ._solvers import Dopri5, Solver, State
from ._watch import Apart, Watched
from .fields import manifold_of


def flow(
    field: InContextMap,
    mu: Measure,
    t1: float,
    *,
    t0: float = 0.0,
    solver: Solver | None = None,
    save: int | Sequence[float] | Tensor | None = None,
    queries: Tensor | Measure | None = None,
    gradients: Gradients | None = None,
    folder: str | os.PathLike | None = None,
    progress: bool | None = None,
) -> Path:
    r"""Let a measure flow: $\partial_t\mu_t+\operatorname{div}(V_t[\mu_t]\,\mu_t)=0$.

    Atoms follow $\dot x_i=V_t[\mu_t](x_i)$ and keep their weights. A flow that leaves the finite
    numbers raises a `FlowError` that says where, when and which atom.

    Args:
        field: the velocity $V$, any in-context map from a space into itself.
        mu: $\mu_{t_0}$, or a batch of measures.
        t1: the end.
        t0: the beginning.
        solver: `RK4(steps=100)` by default.
        save: how many measures to keep beyond the first, evenly spread, or their times; by default
            the last only.
        queries: points that ride along without being seen, or a measure of them for fields that
            relate two measures.
        gradients: `Backprop()` by default, or `Adjoint()`.
        folder: where to write each saved measure as soon as it is reached, instead of keeping it
            in memory. The same call goes on with a run that was interrupted, and ends with the
            same bits; gradients are not kept.
        progress: whether to show a bar with the time left; by default at a terminal, for runs that
            take more than a second, if rich is installed.

    Examples:
        >>> mu = pf.Measure(torch.randn(64, 2))
        >>> field = pf.fields.Pairwise(lambda x, y: y - x)
        >>> path = pf.flow(field, mu, t1=1.0, solver=pf.RK4(steps=20), save=4)
        >>> path.times, torch.allclose(path[-1].mean(), mu.mean(), atol=1e-6)
        (tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64), True)
    """
    solver, gradients = check_flow(field, t0, t1, solver, gradients)
    check_kind("mu", mu, Measure, "Tokens become one with `pf.Measure(tokens)`.")
    field._check(mu, mu.atoms, mu.times)
    dynamics, state = _begin(field, mu, queries)
    grid = solver.grid(float(t0), float(t1), _stops(save))
    times = torch.tensor([grid.times[k] for k in grid.saved], dtype=torch.float64)
    apart = isinstance(solver, Dopri5) and queries is not None
    watched = (Apart if apart else Watched)(solver, gradients, dynamics, grid)
    with bar("flow", len(grid.times) - 1, progress) as tick:
        if folder is not None:
            about = describe(field, solver, grid, state, mu)
            _to_disk(watched, state, Snapshots.begin(folder, about), tick)
            return Path.load(folder, field)
        states = list(_in_memory(watched, state, tick))
    measures = [mu.moved(s[0]) for s in states]
    asked = None if queries is None else torch.stack([s[-1] for s in states])
    return Path(times, measures, field, asked, dynamics.memory.steps)


def _stops(save: int | Sequence[float] | Tensor | None) -> int | list[float]:
    """How many measures to save, or when."""
    if save is None:
        return 1
    if isinstance(save, Integral):
        check_sizes(save=save)  # type: ignore[arg-type]
        return int(save)
    times = save.tolist() if isinstance(save, Tensor) else save
    if isinstance(times, str) or not isinstance(times, Iterable):
        raise TypeError(f"`save` must be a whole number or a list of times, got {save!r}.")
    found = [float(t) for t in times]
    if not all(map(math.isfinite, found)):
        raise ValueError(f"`save` must name finite times, got {found}.")
    return found


def _begin(
    field: InContextMap, mu: Measure, queries: Tensor | Measure | None
) -> tuple[Characteristics, State]:
    """What moves, and where it starts."""
    points: list[Tensor] = []
    t, other = None, None
    if isinstance(queries, Measure):
        other, t = queries, queries.times
        points = [queries.atoms]
    elif queries is not None:
        check_floating("queries", queries, "(..., m, d)", 2)
        points = [queries]
    for x in points:
        field._check(mu, x, t)
    dynamics = Characteristics(field, mu, t, other)
    batch = mu.batch_shape
    state = dynamics.start(
        *(x.expand(*torch.broadcast_shapes(batch, x.shape[:-2]), *x.shape[-2:]) for x in points)
    )
    for cloud in state:
        manifold_of(field).check("mu" if cloud is mu.atoms else "queries", cloud)
    return dynamics, state


def _in_memory(watched: Watched, state: State, tick: Callable[[int], None]) -> Iterator[State]:
    """States at the saved times."""
    grid, plain = watched.grid, isinstance(watched.gradients, Backprop)
    if isinstance(watched.solver, Dopri5) and plain:
        for k, now in enumerate(watched.trace(state)):
            yield now
            tick(k)
        return
    yield state
    for first, last in zip(grid.saved, grid.saved[1:], strict=False):
        state = watched.march(state, first, last, tick)
        yield state


def _to_disk(watched: Watched, state: State, kept: Snapshots, tick: Callable[[int], None]) -> None:
    """Save each state as it is reached, going on from the last that is there."""
    grid, dynamics = watched.grid, watched.dynamics
    found, begin = kept.resume(state[0].device), 0
    with torch.no_grad():
        if found is None:
            kept.write(0, grid.times[0], dynamics.mu, state, dynamics.memory)
        else:
            begin, state, memory = found
            dynamics.memory.past, dynamics.memory.steps = memory.past, memory.steps
            tick(grid.saved[begin])
        for k in range(begin, len(grid.saved) - 1):
            state = watched.march(state, grid.saved[k], grid.saved[k + 1], tick)
            kept.write(k + 1, grid.times[grid.saved[k + 1]], dynamics.mu, state, dynamics.memory)
