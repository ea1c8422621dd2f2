r"""Gradients of flows: through the steps, or by the continuous adjoint.

For $\dot y=F(t,y,\theta)$ and a loss of $y(T)$ with gradient $a(T)$, the adjoint solves

$$\dot a=-\partial_yF^\top a,\qquad \nabla_\theta=\int_0^T\partial_\theta F^\top a\,dt$$

backwards in time. It needs no graph of the steps, and is as accurate as the solver.

torchdiffeq has an adjoint of its own (`odeint_adjoint`). It is not used here: it does not retract
the stages to a manifold, it integrates the state back from the end without starting afresh at the
times between, and it would make fixed steps depend on torchdiffeq.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .._tools.checks import check_optional_sizes
from .._tools.once import refuse_second_derivative
from ._dynamics import Dynamics, State
from ._solvers import Grid, Solver


@dataclass(frozen=True)
class Piece:
    """The steps from the time `first` of a grid to the time `last`, as a function of the state."""

    solver: Solver
    dynamics: Dynamics
    grid: Grid
    first: int
    last: int

    def __call__(self, *state: Tensor) -> State:
        states = self.solver.solve(self.dynamics, state, self.grid, self.first, self.last)
        (end,) = deque(states, maxlen=1)  # the last, without storing the others
        return end

    def split(self, size: int) -> Iterator[Piece]:
        """Pieces of at most `size` intervals of the grid each."""
        for first in range(self.first, self.last, size):
            yield replace(self, first=first, last=min(first + size, self.last))

    def backwards(self, dynamics: Dynamics) -> Piece:
        """The same times in the opposite order, for other dynamics."""
        end, grid = self.grid.last, self.grid.backwards()
        return Piece(self.solver, dynamics, grid, end - self.last, end - self.first)


class Gradients(ABC):
    """How gradients pass through a solve."""

    adjoint: ClassVar[bool] = False
    """Whether the solver also solves the continuous adjoint, afresh from each saved time."""

    @abstractmethod
    def through(self, piece: Piece, state: State) -> State:
        """The state at the end of a piece, with a graph from which gradients can be computed."""


@dataclass(frozen=True)
class Backprop(Gradients):
    """Backpropagation through the steps, exact for the discrete flow.

    Args:
        checkpoint: how many steps are recomputed at a time in the backward pass, so that one state
            of so many is stored; None stores the graph of all steps. About the square root of the
            number of steps takes the least memory.
    """

    checkpoint: int | None = None

    def __post_init__(self) -> None:
        check_optional_sizes(checkpoint=self.checkpoint)

    def through(self, piece: Piece, state: State) -> State:
        if self.checkpoint is None or not torch.is_grad_enabled():
            return piece(*state)
        for part in piece.split(self.checkpoint):
            state = checkpoint(part, *state, use_reentrant=False)
        return state


@dataclass(frozen=True)
class Adjoint(Gradients):
    """The continuous adjoint, with the same solver backwards in time.

    States at the times of the grid are stored and the backward solve starts afresh from each of
    them: a contracting flow cannot be integrated backwards for long. Gradients reach atoms,
    queries, weights and the tensors of the field, but not tensors inside a user's function.
    """

    adjoint: ClassVar[bool] = True

    def through(self, piece: Piece, state: State) -> State:
        tensors = [t for t in piece.dynamics.tensors() if t.requires_grad]
        for part in piece.split(1):
            state = _AdjointPiece.apply(part, len(state), *state, *tensors)
        return piece.dynamics.retract(state)  # the gradient of which is the tangent part


class _AdjointPiece(torch.autograd.Function):
    """A piece of a solve: forward without a graph, backward by the adjoint."""

    @staticmethod
    def forward(ctx: Any, piece: Piece, clouds: int, *inputs: Tensor) -> State:
        """`inputs` are the clouds of the state, then the tensors of the dynamics."""
        state = piece(*inputs[:clouds])
        ctx.piece, ctx.clouds = piece, clouds
        ctx.save_for_backward(*state, *inputs[clouds:])
        return state

    @staticmethod
    def backward(ctx: Any, *adjoint: Tensor) -> tuple[Tensor | None, ...]:
        """Solve for the adjoint and the gradients of the tensors, from the end of the piece."""
        refuse_second_derivative("The continuous adjoint is differentiable once")
        state, tensors = ctx.saved_tensors[: ctx.clouds], ctx.saved_tensors[ctx.clouds :]
        augmented = _Augmented(ctx.piece.dynamics, len(state), tensors)
        zeros = (torch.zeros_like(p) for p in tensors)
        end = ctx.piece.backwards(augmented)(*state, *adjoint, *zeros)
        return None, None, *end[len(state) :]


class _Augmented(Dynamics):
    """The state, its adjoint, and the integrals that become gradients of tensors."""

    def __init__(self, dynamics: Dynamics, clouds: int, tensors: Sequence[Tensor]) -> None:
        self.dynamics, self.clouds, self.others = dynamics, clouds, tensors

    def __call__(self, t: float, state: State, stage: int) -> State:
        """One vector-Jacobian product."""
        n = self.clouds
        with torch.enable_grad():
            y = tuple(s.detach().requires_grad_() for s in state[:n])
            slopes = self.dynamics(t, y, stage)
            # A constant velocity has no graph, and no gradient.
            pairs = [(s, a) for s, a in zip(slopes, state[n : 2 * n], strict=True) if s.grad_fn]
            products = tuple(torch.zeros_like(p) for p in (*y, *self.others))
            if pairs:
                products = torch.autograd.grad(
                    [s for s, _ in pairs], (*y, *self.others), [a for _, a in pairs],
                    allow_unused=True, materialize_grads=True,
                )  # fmt: skip
        return (*(s.detach() for s in slopes), *(-g for g in products))

    def retract(self, state: State) -> State:
        return (*self.dynamics.retract(state[: self.clouds]), *state[self.clouds :])

    def parts(self) -> Sequence[Dynamics]:
        return [self]

    def tensors(self) -> Sequence[Tensor]:
        return self.others
