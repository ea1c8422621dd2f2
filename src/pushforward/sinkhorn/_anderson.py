r"""Anderson mixing of Sinkhorn steps, restarted and safeguarded.

Anderson mixing, type II, least squares in $L^2(\nu)$ (Anderson 1965; Walker and Ni 2011): from
potentials $g_0,\dots,g_k$ with images $F(g_i)$ and residuals $r_i=F(g_i)-g_i$ the next one is

$$g_{k+1}=F(g_k)-\sum_ic_i\,\Delta F_i,\qquad
  c=\arg\min_c\Bigl\|r_k-\sum_ic_i\,\Delta r_i\Bigr\|_{L^2(\nu)},$$

where $\Delta F_i=F(g_{i+1})-F(g_i)$ and $\Delta r_i=r_{i+1}-r_i$.
"""

import torch
from torch import Tensor

from ..affinities import Kernel
from ._problem import Point, Problem, integral, step
from ._stored import KernelCache

ROUNDING = 4
"""Units in the last place that rounding may take from a dual value."""

LOOK_EVERY = 4
"""Steps on a GPU after which the host waits for it, to see whether the tolerance is met."""

RIDGE = 1e3
"""Units in the last place added to the diagonal of the normal equations."""


def anderson_cycle(
    kernel: Kernel, cache: KernelCache, g: Tensor, best: Point | None, steps: int
) -> tuple[Point, Tensor, int]:
    """One cycle of Anderson mixing: the best point, the potential to go on from, the steps taken.

    Every batch element is mixed and safeguarded for itself. On a CPU, where reading a number costs
    nothing, the cycle ends as soon as the tolerance is met, and before the first step that the
    kernel does not cover. On a GPU only one step in `LOOK_EVERY` waits for it. Mixing restarts
    with every cycle: at most `steps` differences are in memory, and all of them are recent.

    Args:
        kernel: integrates $e^A$.
        cache: where it comes from: the marginals, the tolerance, and where it is accurate.
        g: the potential to start from.
        best: the best point so far, None at the very first step.
        steps: the most steps to take.
    """
    problem, tol, weights = cache.problem, cache.inner_tol, cache.problem.log_b.exp()
    delta_images: list[Tensor] = []
    delta_residuals: list[Tensor] = []
    on_cpu, taken, met = g.device.type == "cpu", 0, False
    if best is None:
        best = step(kernel, problem, g)
        if on_cpu and not cache.covers(best):
            return best, g, 0
        g, taken, met = best.image, 1, on_cpu and _meets(best, tol)
    while taken < steps and not met:
        new = step(kernel, problem, g)
        if on_cpu and not cache.covers(new):
            break
        taken += 1
        # The safeguard. A plain step never lowers the dual value, a mixed one may. Where it did,
        # the new point and the whole history are dropped, and the next point is the plain image
        # of the best one: the dual value never falls, so the iteration cannot diverge.
        rejected = _is_worse(new, best, problem, cache.rounding)
        reset = rejected[..., None]
        delta_images.append(new.image - best.image)
        delta_residuals.append(new.residual - best.residual)
        # A zero difference gets the coefficient zero: this is how one batch element forgets its
        # history while the others keep theirs.
        delta_images = [d.masked_fill(reset, 0) for d in delta_images]
        delta_residuals = [d.masked_fill(reset, 0) for d in delta_residuals]
        best = _select(rejected, best, new)
        g = best.image - _correction(delta_images, delta_residuals, best.residual, weights)
        met = (on_cpu or taken % LOOK_EVERY == 0) and _meets(best, tol)
    return best, g, taken


def _meets(point: Point, tol: float) -> bool:
    return bool((point.marginal_error <= tol).all())


def _is_worse(new: Point, best: Point, problem: Problem, kernel_rounding: float) -> Tensor:
    """Whether the dual value fell by more than rounding explains; true for NaN too."""
    size = integral(new.f.abs(), problem.log_a) + integral(new.g.abs(), problem.log_b)
    noise = ROUNDING * torch.finfo(new.g.dtype).eps
    return ~(new.dual >= best.dual - noise * size - ROUNDING * kernel_rounding)


def _select(rejected: Tensor, best: Point, new: Point) -> Point:
    """The best point in the rejected batch elements, the new one in the others."""
    pick = lambda old, now: torch.where(
        rejected if now.ndim == rejected.ndim else rejected[..., None], old, now
    )
    return Point(*map(pick, best, new))


def _correction(
    delta_images: list[Tensor], delta_residuals: list[Tensor], residual: Tensor, weights: Tensor
) -> Tensor:
    r"""$\sum_ic_i\,\Delta F_i$, with coefficients from the normal equations."""
    dF, dr = torch.stack(delta_images, -2), torch.stack(delta_residuals, -2)
    # Differences shrink by orders of magnitude within a cycle. With columns of norm one, a small
    # ridge makes the system solvable without favouring the old, large ones.
    norm = (weights[..., None, :] * dr * dr).sum(-1, keepdim=True)
    unit = torch.where(norm > 0, norm, 1).rsqrt()
    dr, dF = dr * unit, dF * unit
    weighted = weights[..., None, :] * dr
    gram = weighted @ dr.mT
    one = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    ridge = RIDGE * torch.finfo(gram.dtype).eps * one
    coefficients, _ = torch.linalg.solve_ex(gram + ridge, weighted @ residual[..., None])
    return (coefficients * dF).sum(-2)
