"""Attention as a velocity, given by the matrices Q, K and V of the theory."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from ... import ops
from ..._tools.checks import check_floating, check_kind, check_same, check_values_finite
from ..._tools.types import Images, Points, Queries
from ...affinities import Dot, PointAffinity
from ...maps import AttentionMap, Causal, Lipschitz, attention_bound, lipschitz_bound
from ...measures import Measure, check_measures
from ...relations import Coupling, Exponential, Normaliser, Sinkhorn, Softmax
from ._field import Field, register_tensors
from ._manifolds import Euclidean, Manifold, projection_lipschitz


class SelfAttention(AttentionMap, Field):
    r"""Attention as a velocity, $V[\mu](x)=\sum_h\int V_hy\,\pi_h(dy|x)$.

    Scores are $\langle Q_hx,K_hy\rangle$ without $1/\sqrt k$, and there is no output matrix. On a
    manifold it is the tangent part. Matrices are constants; one that is an `nn.Parameter` is a
    parameter of the field and can be trained.

    Args:
        Q: $(k,d)$, or $(h,k,d)$ for several heads.
        K: as `Q`.
        V: $(d,d)$ or $(h,d,d)$.
        affinity: `Dot(1.0)` by default; `SquaredDistance(2.0)` is the score $-\frac12|Qx-Ky|^2$.
        normaliser: `Softmax()` by default, or any that can be evaluated at all queries.
        manifold: `Euclidean()` by default.
        mask: `Causal()` or None.
        impl: implementation of the reductions, None to choose by size.

    Examples:
        >>> I = torch.eye(3)
        >>> field = pf.fields.SelfAttention(4 * I, I, I, manifold=pf.Sphere())
        >>> mu = pf.Measure(torch.randn(50, 3)).push(pf.Sphere().retract)
        >>> pf.flow(field, mu, t1=10.0, solver=pf.RK4(steps=50))[-1].mean().norm() < 1
        tensor(True)
    """

    Q: Tensor
    K: Tensor
    V: Tensor

    def __init__(
        self,
        Q: Float[Tensor, "*h k d"],
        K: Float[Tensor, "*h k d"],
        V: Float[Tensor, "*h d d"],
        *,
        affinity: PointAffinity | None = None,
        normaliser: Normaliser | None = None,
        manifold: Manifold | None = None,
        mask: Causal | None = None,
        impl: ops.Impl | None = None,
    ) -> None:
        affinity = Dot(1.0) if affinity is None else affinity
        normaliser = Softmax() if normaliser is None else normaliser
        super().__init__(affinity, normaliser, mask, impl)
        manifold = Euclidean() if manifold is None else manifold
        check_kind("manifold", manifold, Manifold, "For example `pf.Sphere()`.")
        self.manifold = manifold
        for name, matrix in (("Q", Q), ("K", K), ("V", V)):
            check_floating(name, matrix, "(k, d) or (h, k, d)", 2)
        d, heads = V.shape[-1], Q.shape[:-2]
        if Q.shape != K.shape or V.shape != (*heads, d, d) or Q.shape[-1] != d or len(heads) > 1:
            raise ValueError(
                "`Q`, `K` and `V` must be (h, k, d), (h, k, d) and (h, d, d), heads first or left "
                f"out, got Q {tuple(Q.shape)}, K {tuple(K.shape)}, V {tuple(V.shape)}."
            )
        for name, matrix in (("K", K), ("V", V)):
            for what in ("dtype", "device"):
                check_same(what, ("Q", Q), (name, matrix))
        check_values_finite(Q=Q, K=K, V=V)
        self.heads = heads.numel()
        self.dim = self.context_dim = self.out_dim = d
        register_tensors(self, Q=Q, K=K, V=V)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor]:
        """$Q$, $K$ and $V$, heads first."""
        Q, K, V = (m if m.ndim == 3 else m[None] for m in (self.Q, self.K, self.V))
        return Q, K, V

    def queries(self, x: Queries) -> Float[Tensor, "*b h m k"]:
        return x[..., None, :, :] @ self.Q.mT

    def keys(self, y: Points) -> Float[Tensor, "*b h n k"]:
        return y[..., None, :, :] @ self.K.mT

    def values(self, y: Points) -> Float[Tensor, "*b h n e"]:
        return y[..., None, :, :] @ self.V.mT

    def combine_heads(self, out: Float[Tensor, "*b h m e"], x: Queries) -> Images:
        total = out[..., 0, :, :] if self.heads == 1 else out.sum(-3)
        return self.manifold.tangent(x, total)

    def extra_repr(self) -> str:
        flat = self.manifold == Euclidean()
        return super().extra_repr() + ("" if flat else f", {self.manifold}")

    def energy(self, mu: Measure) -> Float[Tensor, "*b"]:
        r"""The energy whose gradient flow this is, if $V=c\,Q^\top K=V^\top$.

        For `Exponential` and `Softmax`, $E=\frac c2\iint e^{\langle Qx,Ky\rangle}d\mu\,d\mu$
        (with $Q=\beta I$, $K=V=I$ it is $\frac1{2\beta}\iint e^{\beta\langle x,y\rangle}$), which
        grows along the flow. For `Sinkhorn`, the entropic transport cost
        $E=c\min_\pi\int-\langle Qx,Ky\rangle\,d\pi+\mathrm{KL}(\pi|\mu\otimes\mu)$, which falls.
        """
        check_measures(mu=mu)
        ratio, mu = self._ratio(), mu.normalise()
        relation = self.relation(mu)
        if isinstance(relation, Coupling):
            f, g = (p.masked_fill(relation.log_a == -torch.inf, 0) for p in relation.potentials)
            weights = relation.log_a.exp()
            return ratio * (weights * (f + g)).sum(-1)[..., 0]
        logs = mu.log_weights[..., None, :]
        pairs = logs + relation.scores.over_keys(logs)
        return ratio / 2 * pairs.logsumexp(-1).exp()[..., 0]

    def dissipation(self, mu: Measure) -> Float[Tensor, "*b"]:
        r"""The rate of change $\dot E$ of the energy along the flow.

        $\int|V[\mu]|^2d\mu$ for `Exponential`, $\int Z\,|V[\mu]|^2d\mu$ with
        $Z(x)=\int e^{\langle Qx,Ky\rangle}d\mu(y)$ for `Softmax`, $-2\int|V[\mu]|^2d\mu$ for
        `Sinkhorn`.
        """
        check_measures(mu=mu)
        self._ratio()  # raises if there is no energy
        mu = mu.normalise()
        speed = self(mu, mu.atoms).square().sum(-1)
        if isinstance(self.normaliser, Sinkhorn):
            return -2 * mu.integrate(speed)
        if isinstance(self.normaliser, Softmax):
            logs = mu.log_weights[..., None, :]
            speed = self.relation(mu).scores.over_keys(logs)[..., 0, :].exp() * speed
        return mu.integrate(speed)

    def _ratio(self) -> float:
        r"""The $c$ in $V=c\,Q^\top K$, or an error that says why there is no energy."""
        known = isinstance(self.normaliser, Softmax | Exponential) or (
            isinstance(self.normaliser, Sinkhorn) and self.normaliser.balanced
        )
        Q, K, V = (m.detach()[0] for m in self.matrices())
        B = self.affinity.factor(len(Q)) * Q.mT @ K
        c = float((V * B).sum() / B.square().sum())
        tol = 1e3 * torch.finfo(B.dtype).eps
        fits = (V - c * B).norm() <= tol * V.norm() and (B - B.mT).norm() <= tol * B.norm()
        plain = isinstance(self.affinity, Dot) and not self.causal and self.heads == 1
        if not (known and plain and c and math.isfinite(c) and bool(fits)):
            raise ValueError(
                "This field is no gradient flow of an energy known here. That needs one head, "
                "`Dot(1.0)`, `Exponential()`, `Softmax()` or `Sinkhorn()`, and V = c Q^T K "
                "symmetric."
            )
        return c


@lipschitz_bound.register(SelfAttention)
def _(field: SelfAttention, radius: float) -> Lipschitz:
    """The bound of attention, and that of the tangent part of a vector as long as it."""
    bound = attention_bound(field, field.matrices(), radius)
    return replace(bound, x=bound.x + projection_lipschitz(field.manifold, bound.reach))
