r"""Gradients of Sinkhorn potentials, by implicit differentiation.

At the fixed point $f=-\tau_ar(\theta,g)$, $g=-\tau_bc(\theta,f)$, where $r_i=\log\int
e^{A_{ij}+g_j}d\nu$ and $c_j=\log\int e^{A_{ij}+f_i}d\mu$, let $P$ be the plan, $\tilde a,\tilde b$
its marginals, $R=P/\tilde a$ and $C=P^\top/\tilde b$ its two conditionals. Since $\partial
r/\partial g=R$ and $\partial c/\partial f=C$, an upstream gradient $g'$ reaches $\theta$ as

$$-\tau_a\lambda\cdot\partial_\theta r-\tau_b\kappa\cdot\partial_\theta c,\qquad
  \lambda=-\tau_bC^\top\kappa,\quad\kappa=g'-\tau_aR^\top\lambda.$$

With $\kappa=\tilde b\,y$ this is $y-\tau_a\tau_bCRy=g'/\tilde b$, $\lambda=-\tau_b\tilde a\,Ry$:
one symmetric system in $L^2(\tilde b)$, the Schur complement, solved by conjugate gradients with
two averages a product. $r$ and $c$ are ordinary functions of $\theta$, so their own gradients do
the rest, whatever $\theta$ is, and nothing of the iteration is kept.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .._tools.once import refuse_second_derivative
from ..affinities import Kernel, Scores
from ._problem import Problem, tilted
from ._solve import CYCLE, stored

MAX_STEPS = 2000
"""Products after which conjugate gradients give up, with a warning."""


def differentiable(
    scores: Scores, problem: Problem, g: Tensor, memory: int | None = None
) -> Tensor:
    """The potential `g` of a fixed point, with its gradients in scores and weights.

    `memory` is how many bytes a stored kernel may take in the backward pass, as in `Settings`.
    """
    g = g.detach()
    some = (scores.tile(slice(0, 1)), problem.log_a, problem.log_b)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in some)):
        return g
    r = scores.over_keys(tilted(problem.log_b, g))
    f = -problem.damping[0] * r.detach()
    c = scores.over_queries(tilted(problem.log_a, f))
    return _Implicit.apply(
        r, c, g, lambda up: _adjoint(scores.detach(), problem.detach(), (f, g), up, memory)
    )


class _Implicit(torch.autograd.Function):
    """Hands out the potential and sends its gradient to the two integrals that define it."""

    @staticmethod
    def forward(ctx, r, c, g, adjoint):
        """The potential itself."""
        ctx.adjoint = adjoint
        return g.clone()

    @staticmethod
    def backward(ctx, up):
        """Solve the adjoint system, unless a graph of it is asked for."""
        refuse_second_derivative(
            "A Sinkhorn to a tolerance is differentiable once: its gradient is implicit",
            ", or use `Sinkhorn(steps=...)`, which is unrolled",
        )
        return *ctx.adjoint(up), None, None


def _adjoint(
    scores: Scores,
    problem: Problem,
    potentials: tuple[Tensor, Tensor],
    up: Tensor,
    memory: int | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of `r` and `c` for the gradient `up` of the potential."""
    f, g = potentials
    over_keys, over_queries = tilted(problem.log_b, g), tilted(problem.log_a, f)
    tau = problem.damping[0] * problem.damping[1]
    kernel: Kernel = stored(scores, problem, f, g, memory)
    rows = lambda y: kernel.average(y[..., None], over_keys)[..., 0]
    columns = lambda x: kernel.T.average(x[..., None], over_queries)[..., 0]
    b = (over_keys + scores.over_queries(over_queries)).exp().nan_to_num(0)
    live = b > 0
    target = torch.where(live, up / torch.where(live, b, 1), 0)
    total = _totals(problem)
    gauge = lambda y: y
    if problem.balanced:  # remove the constants, one per part, that no relation can see
        mass = total(b)
        gauge = lambda y: y - total(b * y) / torch.where(mass > 0, mass, 1)
    y = _conjugate_gradients(lambda y: y - tau * columns(rows(y)), target, b, gauge, total)
    a = (over_queries + scores.over_keys(over_keys)).exp().nan_to_num(0)
    return tau * a * rows(y), -problem.damping[1] * b * y


def _totals(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Sums over the keys of every connected part, told to all of them: each is a system apart."""
    if problem.parts is None:
        return lambda x: x.sum(-1, keepdim=True)
    parts = problem.parts[1]

    def total(x: Tensor) -> Tensor:
        index = parts.expand(x.shape)
        return torch.zeros_like(x).scatter_add(-1, index, x).gather(-1, index)

    return total


def _conjugate_gradients(product, target: Tensor, weights: Tensor, gauge, total) -> Tensor:
    """Solve a symmetric system in the norm of `weights`, each batch element and part for itself.

    One that is solved rests: past that point there is only rounding to follow.
    """
    tol = 1e-12 if target.dtype == torch.float64 else 1e-6
    dot = lambda u, v: total(weights * u * v)
    ratio = lambda u, v: torch.where(v > 0, u / torch.where(v > 0, v, 1), 0)
    rest = gauge(target)
    y, way = torch.zeros_like(rest), rest
    size = first = dot(rest, rest)
    for step in range(1, MAX_STEPS + 1):
        image = gauge(product(way))
        along = torch.where(size > tol**2 * first, ratio(size, dot(way, image)), 0)
        y, rest = y + along * way, rest - along * image
        new = dot(rest, rest)
        way, size = rest + ratio(new, size) * way, new
        if step % CYCLE == 0 and bool((size <= tol**2 * first).all()):
            return y
    worst = float(ratio(size, first).max()) ** 0.5
    if worst > 1e-3:
        warnings.warn(
            f"The gradient of a Sinkhorn relation is only good to {worst:.0e}: its linear system "
            f"was not solved in {MAX_STEPS} products. Raise `eps`, or use `Sinkhorn(steps=...)`.",
            stacklevel=2,
        )
    return y
