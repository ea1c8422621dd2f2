r"""Gaussians under attention: the mean-field limit in closed form, without particles.

Where a field is affine on Gaussians, $V[\mathcal N(\alpha,\Sigma)](x)=B(\alpha,\Sigma)\,x+
b(\alpha,\Sigma)$, the flow of a Gaussian is a moving affine map $x\mapsto M_tx+c_t$, and
$\mu_t=\mathcal N(M_t\alpha_0+c_t,\ M_t\Sigma_0M_t^\top)$. An affine map is determined by the
images of the origin and the unit vectors. So the same solvers move these $d+1$ points, and the
result is what they would give for infinitely many particles, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_finite,
    check_floating,
    check_kind,
    check_same,
    check_shape,
    check_values_finite,
)
from .._tools.types import Images, Queries
from ..affinities import Dot
from ..maps import Container, InContextMap
from ..measures import Measure
from ..relations import Bilinear, Sinkhorn, Softmax
from ._flow import flow
from ._solvers import Solver
from .fields import Euclidean, Linear, SelfAttention, at_time, summands

Affine = tuple[Tensor, Tensor]
r"""$B$ and $b$ of $x\mapsto Bx+b$."""


@dataclass(frozen=True, eq=False)
class GaussianPath:
    r"""Gaussians $\mathcal N(\alpha_t,\Sigma_t)$ at some times, and the map that moved them.

    Args:
        times: the times.
        means: $\alpha_t$.
        covariances: $\Sigma_t$.
        matrices: $M_t$ of the map $x\mapsto M_tx+c_t$.
        offsets: $c_t$.
    """

    times: Float[Tensor, " s"]
    means: Float[Tensor, "s d"]
    covariances: Float[Tensor, "s d d"]
    matrices: Float[Tensor, "s d d"]
    offsets: Float[Tensor, "s d"]

    def __len__(self) -> int:
        """Number of saved times."""
        return len(self.times)

    def __call__(self, x: Float[Tensor, "m d"]) -> Float[Tensor, "s m d"]:
        """The positions at every time of points that start at `x`."""
        check_floating("x", x, "(m, d)", 2)
        check_same("dtype", ("means", self.means), ("x", x))
        check_shape("x", x, (len(x), self.means.shape[-1]), "Points of the space of the flow.")
        check_values_finite(x=x)
        return x @ self.matrices.mT + self.offsets[:, None, :]


def gaussian(
    field: InContextMap,
    mean: Float[Tensor, " d"],
    cov: Float[Tensor, "d d"],
    *,
    t0: float = 0.0,
    t1: float,
    solver: Solver | None = None,
    save: int | Sequence[float] | None = None,
) -> GaussianPath:
    r"""The flow of $\mathcal N(\alpha,\Sigma)$ under a field that maps Gaussians to Gaussians.

    Such a field is `fields.SelfAttention` with scores $y^\top Ax$ and

    - `Softmax()`: $V[\mu](x)=V(\alpha+\Sigma Ax)$, so $\dot\Sigma=V\Sigma A\Sigma+(\cdot)^\top$;
    - `Softmax()` of $-\frac12|Qx-Ky|^2$: $V(I+\Sigma K^\top K)^{-1}(\alpha+\Sigma K^\top Qx)$;
    - `Sinkhorn()`: $V(\alpha+C^\top\Sigma^{-1}(x-\alpha))$, where
      $C=\Sigma^{1/2}U\operatorname{diag}(s)W^\top\Sigma^{1/2}$,
      $\Sigma^{1/2}A^\top\Sigma^{1/2}=U\operatorname{diag}(\sigma)W^\top$ and
      $s=(\sqrt{1+4\sigma^2}-1)/2\sigma$;
    - `Bilinear()`: $V(\Sigma+\alpha\alpha^\top)Ax$;

    and so are `fields.Linear` and sums of all these. With `Euler(steps=L)` it is the recursion of
    the layers of a residual network, with finer solvers their depth limit.

    Args:
        field: the field.
        mean: $\alpha$ at the beginning.
        cov: $\Sigma$ at the beginning, symmetric positive definite; it may be singular unless
            the field has a `Sinkhorn()`, which inverts it.
        t0: the beginning.
        t1: the end.
        solver: `RK4(steps=100)` by default.
        save: as in `flow`.

    Examples:
        >>> I = torch.eye(1, dtype=torch.float64)
        >>> field = pf.fields.SelfAttention(I, I, I)
        >>> path = pf.flows.gaussian(field, I[0], 0.25 * I, t1=1.0)  # S / (1 - 2 S t)
        >>> path.covariances[-1]
        tensor([[0.5000]], dtype=torch.float64)
    """
    check_floating("mean", mean, "(d,)", 1)
    d = mean.shape[-1]
    check_shape("mean", mean, (d,), "One mean, without further axes.")
    check_shape("cov", cov, (d, d), "One row and column per coordinate of `mean`.")
    for what in ("dtype", "device"):
        check_same(what, ("mean", mean), ("cov", cov))
    check_values_finite(mean=mean, cov=cov)
    check_finite("t0", t0)
    check_kind("field", field, InContextMap, "For example `pf.fields.SelfAttention(Q, K, V)`.")
    _on_gaussian(at_time(field, float(t0)), mean, cov)  # raises if it is not affine
    _check_gaussian(field, mean, cov)
    limit = _MeanField(field, mean, cov)
    simplex = torch.cat([torch.zeros_like(mean)[None], torch.eye(d).to(mean)])
    path = flow(limit, Measure(simplex), t0=t0, t1=t1, solver=solver, save=save)
    matrices, offsets = _affine_map(path.map(lambda mu: mu.atoms))
    means = (matrices @ mean) + offsets
    return GaussianPath(path.times, means, matrices @ cov @ matrices.mT, matrices, offsets)


@torch.no_grad()
def _check_gaussian(field: InContextMap, mean: Tensor, cov: Tensor) -> None:
    """Raise unless there is such a Gaussian, by the check of `Measure.gaussian`.

    That one refuses singular covariances. Where no inverse is taken they are allowed here: what
    is checked is then larger by the rounding of the covariance.
    """
    heads = (m for m in field.modules() if isinstance(m, SelfAttention))
    if not any(isinstance(head.normaliser, Sinkhorn) for head in heads):
        limits = torch.finfo(cov.dtype)
        rounding = len(cov) * limits.eps * cov.abs().max() + limits.tiny
        cov = cov + rounding * torch.eye(len(cov)).to(cov)
    Measure.gaussian(mean, cov, order=1)


def _affine_map(points: Tensor) -> Affine:
    """The affine map that sends the origin and the unit vectors to the points."""
    return (points[..., 1:, :] - points[..., :1, :]).mT, points[..., 0, :]


class _MeanField(Container):
    """A field on a Gaussian that was moved by an affine map, given by the images of a simplex."""

    def __init__(self, field: InContextMap, mean: Tensor, cov: Tensor) -> None:
        super().__init__()
        self.field, self.mean, self.cov = field, mean, cov

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        M, c = _affine_map(mu.atoms)
        B, b = _on_gaussian(self.field, M @ self.mean + c, M @ self.cov @ M.mT)
        return x @ B.mT + b


def _on_gaussian(field: InContextMap, mean: Tensor, cov: Tensor) -> Affine:
    r"""$B$ and $b$ of the field on $\mathcal N(\alpha,\Sigma)$; an error if it is not affine."""
    if parts := summands(field):
        return _total(_on_gaussian(part, mean, cov) for part in parts)
    if isinstance(field, Linear):
        return field.A, field.B @ mean
    if isinstance(field, SelfAttention) and not field.causal and field.manifold == Euclidean():
        heads = zip(*field.matrices(), strict=True)
        return _total(_head(field, Q, K, V, mean, cov) for Q, K, V in heads)
    raise TypeError(_refused(field))


def _total(maps: Iterable[Affine]) -> Affine:
    """The sum of affine maps."""
    (B, b), *others = maps
    for more_B, more_b in others:
        B, b = B + more_B, b + more_b
    return B, b


def _head(
    field: SelfAttention, Q: Tensor, K: Tensor, V: Tensor, mean: Tensor, cov: Tensor
) -> Affine:
    """One head, by its normaliser and affinity."""
    A = field.affinity.factor(len(Q)) * K.mT @ Q
    dot = isinstance(field.affinity, Dot)
    match field.normaliser:
        case Softmax() if dot:
            return V @ cov @ A, V @ mean
        case Softmax():
            strength = field.affinity.factor(len(Q)) * cov @ K.mT @ K
            shrunk = torch.linalg.inv(torch.eye(len(mean)).to(mean) + strength)
            return V @ shrunk @ cov @ A, V @ shrunk @ mean
        case Sinkhorn(balanced=True, steps=None):  # a shift of scores by points changes nothing
            root, inverse = _roots(cov)
            U, sigma, Wt = torch.linalg.svd(root @ A.mT @ root)
            # 2 sigma / (sqrt(1 + 4 sigma^2) + 1) is the same without cancellation.
            s = 2 * sigma / ((1 + 4 * sigma.square()).sqrt() + 1)
            B = V @ (root @ Wt.mT @ (s[:, None] * U.mT) @ inverse)
            return B, V @ mean - B @ mean
        case Bilinear() if dot:
            return V @ (cov + torch.outer(mean, mean)) @ A, torch.zeros_like(mean)
    raise TypeError(_refused(field))


def _roots(cov: Tensor) -> tuple[Tensor, Tensor]:
    r"""$\Sigma^{1/2}$ and $\Sigma^{-1/2}$."""
    values, vectors = torch.linalg.eigh((cov + cov.mT) / 2)
    root = values.clamp_min(torch.finfo(cov.dtype).tiny).sqrt()
    return (vectors * root) @ vectors.mT, (vectors / root) @ vectors.mT


def _refused(field: InContextMap) -> str:
    return (
        f"{type(field).__name__} does not keep Gaussians Gaussian, or not in a closed form known "
        "here. Those that do: `fields.SelfAttention` in flat space with `Softmax()`, `Sinkhorn()` "
        "to a tolerance or `Bilinear()`, `fields.Linear`, and their sums."
    )
