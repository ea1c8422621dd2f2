r"""Gradients of Sinkhorn potentials, by implicit differentiation.

At the fixed point $f=-\tau_ar(\theta,g)$, $g=-\tau_bc(\theta,f)$, where $r_i=\log\int
e^{A_{ij}+g_j}d\nu$ and $c_j=\log\int e^{A_{ij}+f_i}d\mu$ (with slack, minus a constant each, which
depends on the masses), let $P$ be the plan, $\tilde a,\tilde b$
its marginals, $R=P/\tilde a$ and $C=P^\top/\tilde b$ its two conditionals. Since $\partial
r/\partial g=R$ and $\partial c/\partial f=C$, an upstream gradient $g'$ reaches $\theta$ as

$$-\tau_a\lambda\cdot\partial_\theta r-\tau_b\kappa\cdot\partial_\theta c,\qquad
  \lambda=-\tau_bC^\top\kappa,\quad\kappa=g'-\tau_aR^\top\lambda.$$

With $\kappa=\tilde b\,y$ this is $y-\tau_a\tau_bCRy=g'/\tilde b$, $\lambda=-\tau_b\tilde a\,Ry$:
one symmetric system in $L^2(\tilde b)$, the Schur complement, solved by conjugate gradients with
two averages per product. $r$ and $c$ are ordinary functions of $\theta$, so their own gradients do
the rest, whatever $\theta$ is, and nothing of the iteration is kept.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._tools.once import refuse_second_derivative
from .._tools.precision import full_precision
from .._tools.warn import warn
from ..affinities import Scores
from ._problem import CHECK_EVERY, Problem, tilted
from ._stored import stored_at

MAX_STEPS = 2000
"""Steps after which conjugate gradients give up, with a warning."""

Linear = Callable[[Tensor], Tensor]


def differentiable(
    scores: Scores, problem: Problem, g: Tensor, memory: int | None = None
) -> Tensor:
    """The solution `g` on the keys, with its gradients in the scores and the marginals.

    `memory` are the bytes that a stored kernel may take in the backward pass, as in `Settings`.
    """
    g = g.detach()
    inputs = (scores.tile(slice(0, 1)), problem.log_a, problem.log_b)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        return g
    with full_precision(g):
        r = problem.row_integrals(scores, g)
        f = -problem.damping[0] * r.detach()
        c = problem.column_integrals(scores, f)
    adjoint = lambda grad: _adjoint(scores.detach(), problem.detach(), f, g, grad, memory)
    return _Implicit.apply(r, c, g, adjoint)


class _Implicit(torch.autograd.Function):
    """The potential, whose gradient is sent to the two integrals that define it."""

    @staticmethod
    def forward(
        ctx: Any, r: Tensor, c: Tensor, g: Tensor, adjoint: Callable[[Tensor], tuple]
    ) -> Tensor:
        ctx.adjoint = adjoint
        return g.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Solve the adjoint system, unless a graph of it is requested."""
        refuse_second_derivative(
            "A Sinkhorn to a tolerance is differentiable once: its gradient is implicit",
            ", or use `Sinkhorn(steps=...)`, which is unrolled",
        )
        with full_precision(grad):
            return *ctx.adjoint(grad), None, None


def _adjoint(
    scores: Scores, problem: Problem, f: Tensor, g: Tensor, grad: Tensor, memory: int | None
) -> tuple[Tensor, Tensor]:
    """Gradients of `r` and `c` for the gradient `grad` of the potential."""
    log_bg, log_af = tilted(problem.log_b, g), tilted(problem.log_a, f)
    tau_a, tau_b = problem.damping
    kernel = stored_at(scores, problem, f, g, memory)
    R = lambda y: kernel.average(y[..., None], log_bg)[..., 0]
    C = lambda x: kernel.T.average(x[..., None], log_af)[..., 0]
    # The marginals of the plan itself: with slack they are not the prescribed ones.
    a = _marginal(log_af, scores.over_keys(log_bg))
    b = _marginal(log_bg, scores.over_queries(log_af))
    has_mass = b > 0
    target = torch.where(has_mass, grad / torch.where(has_mass, b, 1), 0)
    total = _sums_over_parts(problem)
    project: Linear = lambda y: y
    if problem.balanced:
        # A constant on each component does not change the plan: the matrix is singular there, and
        # rounding would feed that direction. It is projected out.
        mass = total(b)
        project = lambda y: y - total(b * y) / torch.where(mass > 0, mass, 1)
    product: Linear = lambda y: project(y - tau_a * tau_b * C(R(y)))
    inner = lambda u, v: total(b * u * v)
    y = _conjugate_gradients(product, project(target), inner)
    return tau_a * tau_b * a * R(y), -tau_b * b * y


def _marginal(logs: Tensor, integrals: Tensor) -> Tensor:
    """Masses of rows or columns, 0 where no pair is allowed."""
    return torch.where(integrals == -torch.inf, 0, (logs + integrals).exp())


def _sums_over_parts(problem: Problem) -> Linear:
    """Sums over the component of each key: every component is a linear system of its own."""
    if problem.parts is None:
        return lambda x: x.sum(-1, keepdim=True)
    parts = problem.parts[1]

    def total(x: Tensor) -> Tensor:
        index = parts.expand(x.shape)
        return torch.zeros_like(x).scatter_add(-1, index, x).gather(-1, index)

    return total


def _conjugate_gradients(
    A: Linear, b: Tensor, inner: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Solve `A(x) = b` for `A` symmetric in the inner product, for all systems at once."""
    tol = 1e-12 if b.dtype == torch.float64 else 1e-6
    ratio = lambda u, v: torch.where(v > 0, u / torch.where(v > 0, v, 1), 0)
    x, r, p = torch.zeros_like(b), b, b
    rho = rho_0 = inner(r, r)
    for step in range(1, MAX_STEPS + 1):
        Ap = A(p)
        # Converged systems get alpha = 0: further steps would only follow rounding.
        alpha = torch.where(rho > tol**2 * rho_0, ratio(rho, inner(p, Ap)), 0)
        x, r = x + alpha * p, r - alpha * Ap
        rho, rho_old = inner(r, r), rho
        beta = ratio(rho, rho_old)
        p = r + beta * p
        if step % CHECK_EVERY == 0 and bool((rho <= tol**2 * rho_0).all()):
            return x
    worst = float(ratio(rho, rho_0).max()) ** 0.5
    if worst > 1e-3:
        warn(
            f"The gradient of a Sinkhorn relation is only accurate to {worst:.0e}: its linear "
            f"system was not solved in {MAX_STEPS} steps. Raise `eps`, or use "
            "`Sinkhorn(steps=...)`."
        )
    return x
