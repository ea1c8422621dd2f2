"""Flows: as in-context maps, and as paths of measures."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from inspect import Parameter, signature
from itertools import pairwise
from numbers import Integral, Real

import torch
from torch import Tensor

from .._tools.checks import (
    check_finite,
    check_flags,
    check_floating,
    check_kind,
    check_path,
    check_same,
    check_sizes,
    check_values_finite,
)
from .._tools.output import bar
from .._tools.precision import exp_or_inf
from .._tools.warn import warn
from ..maps import (
    Answer,
    Container,
    InContextMap,
    Lipschitz,
    Residual,
    Transformer,
    checked_bound,
    lipschitz_bound,
    relations_inside,
)
from ..measures import Measure
from ..relations import Relation
from ..sinkhorn import Starts
from ._dynamics import Characteristics, State
from ._gradients import Backprop, Gradients
from ._path import Path
from ._snapshots import Snapshots, describe
from ._solve import Solve
from ._solvers import RK4, Solver
from .fields import at_time, summands

STEPS = 100
"""Steps of the solver that is used if none is given."""

GROWTHS = 100
"""How often a ball is enlarged until a short flow stays in it; beyond, the bound is infinite."""


class Flow(Container):
    r"""The flow of a field as an in-context map [A, Prop. 2].

    $$\partial_tG_t(\mu,x)=V_t[\mu_t](G_t(\mu,x)),\qquad\mu_t=G_t(\mu,\cdot)_\sharp\mu.$$

    Queries move with the context, which does not see them. The push-forward is the solution map
    $\mu_0\mapsto\mu_T$ [A, eq. 14] of the Vlasov equation
    $\partial_t\mu+\operatorname{div}(V_t[\mu]\mu)=0$ [A, eq. 13]. Like every in-context map it
    composes, pushes, and can be trained.

    Args:
        field: a velocity, any in-context map from a space into itself.
        t0: the beginning.
        t1: the end; flows also run backwards.
        solver: `RK4(steps=100)` by default.
        gradients: `Backprop()` by default, or `Adjoint()`.

    Examples:
        >>> decay = pf.Pointwise(lambda x: -x)
        >>> G = pf.Flow(decay, t1=1.0)
        >>> G(pf.Measure(torch.zeros(3, 1)), torch.ones(1, 1))
        tensor([[0.3679]])
    """

    def __init__(
        self,
        field: InContextMap,
        *,
        t0: float = 0.0,
        t1: float,
        solver: Solver | None = None,
        gradients: Gradients | None = None,
    ) -> None:
        super().__init__()
        solver = RK4(steps=STEPS) if solver is None else solver
        gradients = Backprop() if gradients is None else gradients
        _check_choices(field, solver, gradients)
        _check_times(t0, t1)
        _check_velocity(field)
        self.field, self.t0, self.t1 = field, float(t0), float(t1)
        self.solver, self.gradients = solver, gradients
        self.dim, self.context_dim, self.out_dim = field.dim, field.context_dim, field.out_dim

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        queries = queries if self.two_sided else None

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            moves_anyway = x is mu.atoms and t is mu.times and queries is None
            dynamics = Characteristics(self.field, mu, queries, t)
            grid = self.solver.grid(self.t0, self.t1, 1)
            solve = Solve(self.solver, self.gradients, grid, dynamics)
            return solve.end(dynamics.start(None if moves_anyway else x))[-1]

        return answer

    def path(
        self,
        mu: Measure,
        *,
        save: int | Sequence[float] | Tensor | None = None,
        queries: Tensor | Measure | None = None,
        folder: str | os.PathLike | None = None,
        progress: bool | None = None,
    ) -> Path:
        r"""The measures $\mu_t$ on the way, with the gradients of the flow.

        Args:
            mu: $\mu_{t_0}$, or a batch of measures.
            save: how many measures to save beyond the first, evenly spaced, or their times; by
                default the last one only.
            queries: points that move with the context unseen, or a measure of them for fields
                that relate two measures.
            folder: where to write each saved measure as soon as it is reached, instead of keeping
                it in memory. The same call continues an interrupted run and ends with the same
                bits; gradients are lost.
            progress: whether to show a progress bar; by default at a terminal, for runs of more
                than a second, if rich is installed.

        Examples:
            >>> G = pf.Flow(pf.Pointwise(lambda x: -x), t1=1.0)
            >>> G.path(pf.Measure(torch.ones(1, 1)), save=2).map(lambda mu: mu.atoms).flatten()
            tensor([1.0000, 0.6065, 0.3679])
        """
        check_flags(progress=progress)
        if folder is not None:
            check_path("folder", folder)
        self._check(mu)
        dynamics, state = self._start(mu, queries)
        grid = self.solver.grid(self.t0, self.t1, _saved(save))
        with bar("flow", grid.last, progress) as tick:
            solve = Solve(self.solver, self.gradients, grid, dynamics, folder is not None, tick)
            if folder is not None:
                _write(solve, state, folder)
                return Path.load(folder, self.field)
            states = list(solve.states(state))
        times = torch.tensor([grid.times[k] for k in grid.saved], dtype=torch.float64)
        measures = [mu.moved(s[0]) for s in states]
        moved = None if queries is None else torch.stack([s[-1] for s in states])
        return Path(times, measures, self.field, moved, dynamics.history.steps)

    def _start(
        self, mu: Measure, queries: Tensor | Measure | None
    ) -> tuple[Characteristics, State]:
        """What moves, and the state at the beginning."""
        if not isinstance(queries, Measure):
            if queries is not None:
                check_floating("queries", queries, "(..., m, d)", 2)
                for what in ("dtype", "device"):
                    check_same(what, ("mu", mu.atoms), ("queries", queries))
                check_values_finite(queries=queries)
                self._check(mu, queries)
            dynamics = Characteristics(self.field, mu)
            return dynamics, dynamics.start(queries)
        self._check(mu, queries.atoms, queries.times)
        if self.two_sided:
            dynamics = Characteristics(self.field, mu, queries)
            return dynamics, dynamics.start()
        dynamics = Characteristics(self.field, mu, times=queries.times)
        return dynamics, dynamics.start(queries.atoms)

    def extra_repr(self) -> str:
        return f"t0={self.t0:g}, t1={self.t1:g}, {self.solver}, {self.gradients}"


@at_time.register(Flow)
def _(gamma: Flow, t: float) -> InContextMap:
    """The flow itself: the time inside it runs from its `t0` to its `t1`."""
    return gamma


@relations_inside.register(Flow)
def _(gamma: Flow, mu: Measure) -> list[Relation]:
    """Those of the field at the beginning of the flow."""
    return relations_inside(at_time(gamma.field, gamma.t0), mu)


@lipschitz_bound.register(Flow)
def _(gamma: Flow, radius: float) -> Lipschitz:
    r"""Dobrushin's estimate, piece by piece in time as the cloud grows.

    With constants $L,K$ of the field on the ball reached within a piece of length $h$, points
    move apart by $e^{Lh}$ at most, measures by $e^{(L+K)h}$. Euler, Midpoint and RK4 stay
    below that too; an adaptive solver up to its error.
    """
    solver, field = gamma.solver, gamma.field
    at_step_starts = solver.nodes is not None and not any(solver.nodes)
    if at_time(field, gamma.t0) is not field and not at_step_starts:
        raise NotImplementedError(
            "For a field that depends on time, a bound is known with `Euler` and `LieSplit` only. "
            "Use one of them."
        )
    times = solver.grid(gamma.t0, gamma.t1, 1).times
    if not solver.fixed_grid:
        times = tuple(gamma.t0 + (gamma.t1 - gamma.t0) * k / STEPS for k in range(STEPS + 1))
    whole = Lipschitz(1.0, 0.0, radius, radius)
    for start, end in pairwise(times):
        whole = whole.then(_short_flow(at_time(field, start), abs(end - start), whole.reach))
    return whole


def flow(
    field: InContextMap,
    mu: Measure,
    *,
    t0: float = 0.0,
    t1: float,
    solver: Solver | None = None,
    save: int | Sequence[float] | Tensor | None = None,
    queries: Tensor | Measure | None = None,
    folder: str | os.PathLike | None = None,
) -> Path:
    r"""Let a measure flow: $\partial_t\mu_t+\operatorname{div}(V_t[\mu_t]\,\mu_t)=0$ [A, eq. 10].

    Atoms follow $\dot x_i=V_t[\mu_t](x_i)$ and keep their weights. It is a shorthand for
    `pf.Flow(field, t0=t0, t1=t1, solver=solver).path(mu, ...)`, which also lets one choose how
    gradients are computed. A flow whose values become infinite raises a `FlowError` that names the
    time and the atom.

    Args:
        field: the velocity $V$, any in-context map from a space into itself.
        mu: $\mu_{t_0}$, or a batch of measures.
        t0: the beginning.
        t1: the end.
        solver: `RK4(steps=100)` by default.
        save: how many measures to save beyond the first, evenly spaced, or their times.
        queries: points, or a measure, that move with the context unseen.
        folder: where to write the measures instead of keeping them in memory; the three are
            explained at `Flow.path`.

    Examples:
        >>> mu = pf.Measure(torch.randn(64, 2))
        >>> field = pf.fields.Pairwise(lambda x, y: y - x)
        >>> path = pf.flow(field, mu, t1=1.0, solver=pf.RK4(steps=20), save=4)
        >>> path.times, torch.allclose(path[-1].mean(), mu.mean(), atol=1e-6)
        (tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000], dtype=torch.float64), True)
    """
    G = Flow(field, t0=t0, t1=t1, solver=solver)
    return G.path(mu, save=save, queries=queries, folder=folder)


def _write(solve: Solve, state: State, folder: str | os.PathLike) -> None:
    """Write each saved state as it is reached, continuing from the last one in the folder."""
    grid, dynamics = solve.grid, solve.dynamics
    snapshots = Snapshots.begin(folder, describe(solve, state))
    begin = max(len(snapshots) - 1, 0)
    if len(snapshots):
        state = snapshots.resume(begin, state[0].device, dynamics.history)
        solve.tick(grid.saved[begin])
    with torch.no_grad():
        for k, now in enumerate(solve.states(state, begin), begin):
            if k == len(snapshots):
                snapshots.write(k, grid.times[grid.saved[k]], now, dynamics)


def _saved(save: int | Sequence[float] | Tensor | None) -> int | list[float]:
    """How many measures to save, or at which times."""
    if save is None:
        return 1
    if isinstance(save, Integral) and not isinstance(save, bool):
        check_sizes(save=save)  # type: ignore[arg-type]
        return int(save)
    times = save.tolist() if isinstance(save, Tensor) and save.ndim == 1 else save
    if not isinstance(times, Sequence) or not all(isinstance(t, Real) for t in times):
        raise TypeError(f"`save` must be a whole number or a list of times, got {save!r}.")
    values = [float(t) for t in times]
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"`save` must name finite times, got {values}.")
    return values


def _short_flow(field: InContextMap, h: float, radius: float) -> Lipschitz:
    """The bound of a flow of length `h`, on a ball that it cannot leave."""
    reach = radius
    for _ in range(GROWTHS):
        velocity = checked_bound(field, reach)
        if radius + h * velocity.reach <= reach:
            break
        reach = 1.1 * (radius + h * velocity.reach) - 0.1 * radius
    else:
        return Lipschitz(math.inf, math.inf, radius, math.inf)
    x, both = exp_or_inf(h * velocity.x), exp_or_inf(h * velocity.measure)
    return Lipschitz(x, both - x if both < math.inf else both, radius, radius + h * velocity.reach)


def _check_choices(field: InContextMap, solver: Solver, gradients: Gradients) -> None:
    """Raise unless the field, the solver and the gradients go together."""
    check_kind("field", field, InContextMap, _how_to_make(field))
    check_kind("solver", solver, Solver, "For example `pf.RK4(steps=100)`.")
    fix = "Use `pf.flows.Backprop()` or `pf.flows.Adjoint()`."
    check_kind("gradients", gradients, Gradients, fix)
    name = type(solver).__name__
    if gradients.adjoint and solver.splits:
        raise TypeError(f"`{name}` has no continuous adjoint here. Use `Backprop()`.")
    if solver.splits and not summands(field):
        raise TypeError(
            f"`{name}` needs a field with parts, `pf.fields.Sum(...)`, got "
            f"{type(field).__name__}. Use `Euler`."
        )


def _how_to_make(field: object) -> str:
    """How what was given for a field becomes one: a function by the arguments it needs."""
    try:
        given = list(signature(field).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):  # not callable, or a built-in function without a signature
        given = []
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in given if p.default is p.empty and p.kind in positional]
    if isinstance(field, type) or len(needed) < 2:
        return "Make one of a function of points with `pf.Pointwise(function)`."
    return (
        "Make one of a function of a measure and points as the method `evaluate(self, mu, x)` of "
        "a subclass of `pf.InContextMap`, of a function of two points with `pf.fields.Pairwise`."
    )


def _check_times(t0: float, t1: float) -> None:
    """Raise unless a flow has a beginning and another end."""
    for name, t in (("t0", t0), ("t1", t1)):
        check_finite(name, t)
    if t0 == t1:
        raise ValueError(f"`t1` must differ from `t0`, got t0 = t1 = {t0:g}.")


def _check_velocity(field: InContextMap) -> None:
    """Raise unless a map can be a velocity on one space; warn if it adds the point itself."""
    if isinstance(field, Residual | Transformer):
        warn(
            f"{type(field).__name__} returns the new point, not a velocity, so points would grow "
            "like e^t. Use the map within, `residual.gamma`, or `pf.fields.of_transformer(model)`."
        )
    if None not in (field.dim, field.out_dim) and field.dim != field.out_dim:
        raise ValueError(
            f"A field is a velocity in its own space, got a map from R^{field.dim} to "
            f"R^{field.out_dim}."
        )
    if field.dim != field.context_dim:
        raise ValueError(
            f"A flow moves its context, got cross-attention from R^{field.context_dim} to "
            f"R^{field.dim}."
        )
