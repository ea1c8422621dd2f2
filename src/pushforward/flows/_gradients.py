r"""Gradients of flows: through the steps, or by the continuous adjoint.

For $\dot y=F(t,y,\theta)$ and a loss of $y(T)$ with gradient $a(T)$, the adjoint solves

$$\dot a=-\partial_yF^\top a,\qquad \nabla_\theta=\int_0^T\partial_\theta F^\top a\,dt$$

backwards in time. It needs no graph of the steps, and is as accurate as the solver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._tools.checks import check_sizes
from .._tools.once import refuse_second_derivative
from ._dynamics import Characteristics
from ._solvers import Dynamics, FixedStep, Grid, Solver, State


class Gradients(ABC):
    """How gradients pass through a solve."""

    @abstractmethod
    def march(
        self, solver: Solver, dynamics: Characteristics, state: State, grid: Grid, first: int,
        last: int,
    ) -> State:  # fmt: skip
        """From one time of the grid to a later one."""


@dataclass(frozen=True)
class Backprop(Gradients):
    """Through the steps, exact for the discrete flow.

    Args:
        checkpoint: how many steps are done again at a time in the backward pass, so that only one
            state of so many is kept; None keeps the graph of all. About the root of the number of
            steps takes least memory.
    """

    checkpoint: int | None = None

    def __post_init__(self):
        check_sizes(checkpoint=self.checkpoint)

    def march(self, solver, dynamics, state, grid, first, last):
        """In pieces, where asked for."""
        if self.checkpoint is None or not torch.is_grad_enabled():
            return solver.march(dynamics, state, grid, first, last)
        for begin in range(first, last, self.checkpoint):
            end = min(begin + self.checkpoint, last)
            piece = lambda *s, b=begin, e=end: solver.march(dynamics, s, grid, b, e)
            state = checkpoint(piece, *state, use_reentrant=False)
        return state


@dataclass(frozen=True)
class Adjoint(Gradients):
    """By the continuous adjoint, with the same solver backwards in time.

    States at the times of the grid are kept and the backward solve starts from each anew, so that
    contracting flows, which cannot be run backwards for long, do not spoil it. Gradients reach
    atoms, queries, weights and the tensors of the field, not those that a user's function holds.
    """

    def march(self, solver, dynamics, state, grid, first, last):
        """One node of the graph for each piece of the grid."""
        field, measures = dynamics.field, (dynamics.mu, dynamics.queries)
        held = [*field.parameters(), *field.buffers()]
        held += [m.log_weights for m in measures if m is not None]
        others = [t for t in held if t.requires_grad]
        steps = range(first, last + 1) if isinstance(solver, FixedStep) else (first, last)
        for begin, end in pairwise(steps):
            span = Grid((grid.times[begin], grid.times[end]), (0, 1))
            solve = _one_step(solver, dynamics, span)
            state = _Backsolve.apply(solve, len(state), *state, *others)
        return dynamics.retract(state)  # whose gradient is the tangent part


def _one_step(solver: Solver, dynamics: Dynamics, span: Grid):
    """What a node needs: how to go, and how to come back."""

    def forward(state: State) -> State:
        return solver.march(dynamics, state, span, 0, 1)

    def backward(state: State, adjoint: State, others: Sequence[Tensor]) -> State:
        back = Grid(span.times[::-1], (0, 1))
        zeros = tuple(torch.zeros_like(p) for p in others)
        augmented = _Augmented(dynamics, len(state), others)
        end = solver.march(augmented, (*state, *adjoint, *zeros), back, 0, 1)
        return end[len(state) :]

    return forward, backward


class _Augmented(Dynamics):
    """States, their adjoint, and the integrals that are gradients of parameters."""

    def __init__(self, dynamics: Dynamics, count: int, others: Sequence[Tensor]):
        self.dynamics, self.count, self.others = dynamics, count, others

    def __call__(self, t, state, stage):
        """One vector-Jacobian product."""
        n = self.count
        with torch.enable_grad():
            y = tuple(s.detach().requires_grad_() for s in state[:n])
            slopes = self.dynamics(t, y, stage)
            free = [(s, a) for s, a in zip(slopes, state[n : 2 * n], strict=True) if s.grad_fn]
            found = tuple(torch.zeros_like(p) for p in (*y, *self.others))
            if free:  # a constant velocity has no gradients
                found = torch.autograd.grad(
                    [s for s, _ in free], (*y, *self.others), [a for _, a in free],
                    allow_unused=True, materialize_grads=True,
                )  # fmt: skip
        return (*(s.detach() for s in slopes), *(-g for g in found))

    def retract(self, state):
        """The states alone."""
        return (*self.dynamics.retract(state[: self.count]), *state[self.count :])

    def parts(self):
        """None: a split flow is not that of its parts backwards."""
        raise NotImplementedError


class _Backsolve(torch.autograd.Function):
    """Forward without a graph, backward by the adjoint."""

    @staticmethod
    def forward(ctx, solve, count, *tensors):
        """March."""
        state = solve[0](tensors[:count])
        ctx.solve, ctx.count = solve, count
        ctx.save_for_backward(*state, *tensors[count:])
        return state

    @staticmethod
    def backward(ctx, *adjoint):
        """March back."""
        refuse_second_derivative("The continuous adjoint is differentiable once")
        tensors = ctx.saved_tensors
        state, others = tensors[: ctx.count], tensors[ctx.count :]
        return None, None, *ctx.solve[1](state, adjoint, others)
