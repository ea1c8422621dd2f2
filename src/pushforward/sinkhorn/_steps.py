r"""Plain Sinkhorn steps.

Potentials $f,g$ of the plan $e^{A+f\oplus g}\,\mu\otimes\nu$ solve

$$f=-\tau_a\log\int e^{A+g}d\nu,\qquad g=-\tau_b\log\int e^{A+f}d\mu,$$

with $\tau=1$ for a marginal that is prescribed and $\tau=\rho/(\rho+\varepsilon)$ for one that is
relaxed. One step does the first, then the second: a map $g\mapsto F(g)$ whose fixed point is
sought. A step needs only a `Kernel`: something that integrates $e^A$ over queries and over keys.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..affinities import Kernel
from ._problem import Problem, integral

CHECK_EVERY = 10
"""Steps between two checks for convergence. Reading a number makes the host wait for the device,
and the steps between two checks are queued without waiting."""


def alternate(kernel: Kernel, problem: Problem, g: Tensor, steps: int) -> Tensor:
    """The potential of the keys after `steps` plain steps from `g`."""
    for _ in range(steps):
        f = problem.rows(kernel, g)
        g = (g + f) / 2 if problem.symmetric else problem.columns(kernel, f)
    return g


class Point(NamedTuple):
    """A potential `g`, and the quantities that one plain step from it gives."""

    f: Tensor
    """The potential of the queries that the first half-step gives."""
    g: Tensor
    image: Tensor
    """The next potential of the keys, $F(g)$."""
    residual: Tensor
    """The fixed-point residual $F(g)-g$, with mean zero where constants do not change the plan."""
    marginal_error: Tensor
    """The L1 error of the second marginal of the plan of `f` and `g`; its rows are exact."""
    dual: Tensor
    """The dual value, up to a constant."""


def step(kernel: Kernel, problem: Problem, g: Tensor) -> Point:
    """One plain step from `g`."""
    no_mass = problem.log_b == -torch.inf
    g = g.masked_fill(no_mass, 0)
    f = problem.rows(kernel, g)
    if problem.symmetric:
        image = (g + f).masked_fill(no_mass, 0) / 2
        residual = image - g
        # The columns of the plan of (g, g) have density e^(g - f). The plan of (f, g), which is
        # the result, has at most twice its error.
        relative_error = 2 * torch.expm1(g - f)
        dual = integral(2 * g - torch.expm1(g - f), problem.log_b)
    else:
        image = problem.columns(kernel, f).masked_fill(no_mass, 0)
        residual = image - g
        # The column at y of the plan of (f, g) has density e^(g - F(g)).
        relative_error = torch.expm1(-residual)
        dual = problem.dual(f, g)
        if problem.balanced:
            # A shift of g by a constant is undone by f. Left in, it would dominate the residual
            # that acceleration tries to reduce.
            residual = residual - integral(residual, problem.log_b)[..., None]
    marginal_error = integral(relative_error.abs(), problem.log_b)
    return Point(f, g, image, residual, marginal_error, dual)
