"""Flows as in-context maps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .._tools.checks import check_kind, check_number
from ..maps import (
    Answer,
    Container,
    InContextMap,
    Lipschitz,
    Residual,
    Starts,
    Transformer,
    lipschitz_bound,
)
from ..measures import Measure
from ._dynamics import Characteristics
from ._gradients import Adjoint, Backprop, Gradients
from ._solvers import RK4, Euler, FixedStep, LieSplit, Solver, State
from ._watch import Watched
from .fields import adopt, at_time, manifold_of

STEPS = 100
"""Of the solver that is taken if none is given."""

GROWTHS = 100
"""Tries to find a ball that a short flow does not leave; beyond, no bound is known."""


class Flow(Container):
    r"""The flow of a field as an in-context map, $\partial_tG_t(\mu,x)=V_t[\mu_t](G_t(\mu,x))$.

    Here $\mu_t=G_t(\mu,\cdot)_\sharp\mu$: queries move with the context, which does not see them.
    The push-forward is the solution map $\mu_0\mapsto\mu_T$ of the Vlasov equation
    $\partial_t\mu+\operatorname{div}(V_t[\mu]\mu)=0$. As every in-context map it composes, pushes,
    and is trained.

    Args:
        field: a velocity, any in-context map from a space into itself.
        t1: the end $T$.
        t0: the beginning; flows also run backwards.
        solver: `RK4(steps=100)` by default.
        gradients: `Backprop()` or `Adjoint()`.

    Examples:
        >>> decay = pf.Pointwise(lambda x: -x)
        >>> G = pf.Flow(decay, t1=1.0)
        >>> G(pf.Measure(torch.zeros(3, 1)), torch.ones(1, 1))
        tensor([[0.3679]])
    """

    def __init__(
        self,
        field: InContextMap,
        t1: float,
        *,
        t0: float = 0.0,
        solver: Solver | None = None,
        gradients: Gradients | None = None,
    ):
        super().__init__()
        solver, gradients = check_flow(field, t0, t1, solver, gradients)
        adopt(self, [field])
        self.field, self.t0, self.t1 = field, float(t0), float(t1)
        self.solver, self.gradients = solver, gradients

    def parts(self) -> Sequence[InContextMap]:
        return (self.field,)

    def with_parts(self, parts: Sequence[InContextMap]) -> Flow:
        (field,) = parts
        return Flow(field, self.t1, t0=self.t0, solver=self.solver, gradients=self.gradients)

    def at_time(self, t: float) -> Flow:
        """The flow itself: time of its own passes inside."""
        return self

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        """Queries move with the context; its own atoms move alone."""

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            if queries is None and x is mu.atoms:
                dynamics = Characteristics(self.field, mu)
                return self._end(dynamics, dynamics.start())[0]
            dynamics = Characteristics(self.field, mu, t, queries)
            return self._end(dynamics, dynamics.start(_spread(mu, x)))[-1]

        return answer

    def _end(self, dynamics: Characteristics, state: State) -> State:
        grid = self.solver.grid(self.t0, self.t1, 1)
        for cloud in state:
            manifold_of(self.field).check("points", cloud)
        watched = Watched(self.solver, self.gradients, dynamics, grid)
        return watched.march(state, 0, len(grid.times) - 1)

    def extra_repr(self) -> str:
        """The choices that are no parameters."""
        return f"t0={self.t0:g}, t1={self.t1:g}, {self.solver}, {self.gradients}"


@lipschitz_bound.register(Flow)
def _(flow: Flow, radius: float) -> Lipschitz:
    r"""By Dobrushin's estimate, piece by piece in time as the cloud grows.

    With constants $L,K$ of the field on the ball reached within a piece of length $h$, points
    move apart by $e^{Lh}$ at most, measures by $e^{(L+K)h}$. Euler, Midpoint and RK4 stay
    below that too; an adaptive solver up to its error.
    """
    if at_time(flow.field, flow.t0) is not flow.field and not isinstance(
        flow.solver, Euler | LieSplit
    ):
        raise NotImplementedError(
            "No Lipschitz bound of a field that depends on time is known here, but with "
            "`Euler` and `LieSplit`, which look at the beginning of a step only."
        )
    times = flow.solver.grid(flow.t0, flow.t1, 1).times
    if not isinstance(flow.solver, FixedStep):
        times = tuple(flow.t0 + (flow.t1 - flow.t0) * k / STEPS for k in range(STEPS + 1))
    whole = Lipschitz(1.0, 0.0, radius, radius)
    for start, end in pairwise(times):
        piece = _piece(flow.field, start, abs(end - start), whole.reach)
        whole = whole.then(piece)
    return whole


def _piece(field: InContextMap, t: float, h: float, radius: float) -> Lipschitz:
    """The bound of a short flow, in a ball that it cannot leave."""
    field, reach = at_time(field, t), radius
    for _ in range(GROWTHS):
        found = lipschitz_bound(field, reach)
        if radius + h * found.reach <= reach:
            break
        reach = 1.1 * (radius + h * found.reach) - 0.1 * radius
    else:
        return Lipschitz(math.inf, math.inf, radius, math.inf)
    apart = lambda rate: math.exp(rate * h) if rate * h < 700 else math.inf
    x, both = apart(found.x), apart(found.measure)
    return Lipschitz(x, both - x if both < math.inf else both, radius, radius + h * found.reach)


def check_flow(
    field: InContextMap, t0: float, t1: float, solver: Solver | None, gradients: Gradients | None
) -> tuple[Solver, Gradients]:
    """Choices that make a flow, with their defaults."""
    fix = "A function of points becomes one with `pf.Pointwise(function)`."
    check_kind("field", field, InContextMap, fix)
    solver = RK4(steps=STEPS) if solver is None else solver
    gradients = Backprop() if gradients is None else gradients
    check_kind("solver", solver, Solver, "Use `pf.RK4(steps=100)`, say.")
    check_kind(
        "gradients", gradients, Gradients, "Use `pf.flows.Backprop()` or `pf.flows.Adjoint()`."
    )
    for name, t in (("t0", t0), ("t1", t1)):
        check_number(name, t, least=-float("inf"))
        if not abs(t) < float("inf"):
            raise ValueError(f"`{name}` must be finite, got {t}.")
    if isinstance(field, Residual | Transformer):
        warnings.warn(
            f"A field is a velocity, but {type(field).__name__} adds the point itself: points "
            "will fly apart as e^t. Use the map within, `residual.gamma`, or "
            "`pf.fields.of_transformer(model)`.",
            stacklevel=3,
        )
    if isinstance(gradients, Adjoint) and isinstance(solver, LieSplit):
        raise TypeError("`LieSplit` has no continuous adjoint here. Use `Backprop()`.")
    if t0 == t1:
        raise ValueError(f"A flow needs time to pass, got t0 = t1 = {t0:g}.")
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
    return solver, gradients


def _spread(mu: Measure, x: Tensor) -> Tensor:
    """Queries for every context of a batch."""
    if not mu.batch_shape:
        return x
    batch = torch.broadcast_shapes(mu.batch_shape, x.shape[:-2])
    return x.expand(*batch, *x.shape[-2:])
