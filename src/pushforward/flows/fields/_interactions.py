r"""Interactions of pairs, $V[\mu](x)=\int K(x,y)\,d\mu(y)$."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from ..._tools.checks import (
    check_callable,
    check_finite,
    check_flags,
    check_floating,
    check_kind,
    check_same,
    check_sizes,
    check_values_finite,
)
from ..._tools.precision import widen
from ..._tools.tiles import over_tiles, row_tiles
from ..._tools.types import Images, Queries
from ...maps import Lipschitz, lipschitz_bound, norm
from ...measures import Measure
from ._field import Field, register_tensors
from ._manifolds import Euclidean, Manifold, Torus

PairKernel = Callable[[Tensor, Tensor], Tensor]
"""A function of points `(..., m, 1, d)` and `(..., 1, n, d)` with values `(..., m, n, e)`."""


class Pairwise(Field):
    r"""The field $V[\mu](x)=\int K(x,y)\,d\mu(y)$ of an interaction of pairs, $\mu$ normalised.

    It is computed some rows at a time: no array of all pairs is formed, forward or backward.

    Args:
        kernel: $K$, called with points that broadcast, `(..., m, 1, d)` and `(..., 1, n, d)`; it
            returns a vector for each pair. The parameters of a module are trained.
        manifold: `Euclidean()` by default; else the tangent part is taken.

    Examples:
        >>> field = pf.fields.Pairwise(lambda x, y: torch.sin(y - x))
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> field(mu, mu.atoms).flatten()
        tensor([ 0.4207, -0.4207])
    """

    def __init__(self, kernel: PairKernel, *, manifold: Manifold | None = None) -> None:
        super().__init__()
        manifold = Euclidean() if manifold is None else manifold
        check_callable("kernel", kernel, "a function K(x, y) of points")
        check_kind("manifold", manifold, Manifold, "For example `pf.Sphere()`.")
        self.kernel, self.manifold = kernel, manifold

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        y, weights = mu.atoms[..., None, :, :], mu.log_weights.softmax(-1)[..., None, None, :]

        def integral(rows: Tensor) -> Tensor:
            pairs = self.kernel(rows[..., :, None, :], y)
            _check_pairs(pairs, rows, y)
            return (weights.to(pairs.dtype) @ pairs)[..., 0, :].to(x.dtype)

        return self.manifold.tangent(x, by_rows(integral, x, mu.n * mu.dim))

    def extra_repr(self) -> str:
        return str(self.manifold)


def _check_pairs(pairs: Tensor, rows: Tensor, y: Tensor) -> None:
    """Raise unless a kernel gave one vector for each pair."""
    batch = torch.broadcast_shapes(rows.shape[:-2], y.shape[:-3])
    expected = (*batch, rows.shape[-2], y.shape[-2])
    if not isinstance(pairs, Tensor) or tuple(pairs.shape[:-1]) != expected:
        got = tuple(pairs.shape) if isinstance(pairs, Tensor) else type(pairs).__name__
        raise ValueError(
            f"A kernel gives one vector per pair, here {(*expected, 'd')}, got {got}. It is "
            f"called with points of shapes {(*rows.shape[:-1], 1, rows.shape[-1])} and "
            f"{tuple(y.shape)}: let them broadcast."
        )


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor, row_size: int) -> Tensor:
    """A function of points `(..., m, d)`, some points at a time; gradients compute it again.

    `row_size` counts the numbers that the function needs for one point.
    """
    tiles = row_tiles(x.shape[-2], prod(x.shape[:-2]) * row_size, x.device)
    images = list(over_tiles(lambda rows: function(x[..., rows, :]), tiles))
    return images[0] if len(images) == 1 else torch.cat(images, -2)


class Linear(Field):
    r"""The linear field $V[\mu](x)=Ax+Bm(\mu)$ with the barycentre $m(\mu)$.

    Its flow is $e^{At}(x-m_0)+e^{(A+B)t}m_0$. On tokens $(x,v)$, the blocks
    $A=\begin{pmatrix}0&I\\-\omega^2I&0\end{pmatrix}$ and
    $B=\begin{pmatrix}0&0\\\omega^2I&0\end{pmatrix}$ make it the harmonic system
    $\ddot x=-\omega^2(x-\bar x)$.

    Args:
        A: $(d,d)$, a constant unless it is an `nn.Parameter`.
        B: $(d,d)$, likewise.

    Examples:
        >>> field = pf.fields.Linear(-torch.eye(2), torch.eye(2))
        >>> mu = pf.Measure(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        >>> field(mu, mu.atoms)
        tensor([[ 1.,  0.],
                [-1.,  0.]])
    """

    A: Tensor
    B: Tensor

    def __init__(self, A: Float[Tensor, "d d"], B: Float[Tensor, "d d"]) -> None:
        super().__init__()
        for name, matrix in (("A", A), ("B", B)):
            check_floating(name, matrix, "(d, d)", 2)
        if A.shape != B.shape or A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(
                f"`A` and `B` must be square and alike, got {tuple(A.shape)} and {tuple(B.shape)}."
            )
        for what in ("dtype", "device"):
            check_same(what, ("A", A), ("B", B))
        check_values_finite(A=A, B=B)
        self.dim = self.context_dim = self.out_dim = len(A)
        register_tensors(self, A=A, B=B)

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        return x @ self.A.mT + mu.mean()[..., None, :] @ self.B.mT


@lipschitz_bound.register(Linear)
def _(field: Linear, radius: float) -> Lipschitz:
    r"""$\|A\|$ in the point, $\|B\|$ in the measure."""
    a, b = norm(field.A), norm(field.B)
    return Lipschitz(a, b, radius, (a + b) * radius)


class Kuramoto(Field):
    r"""Coupled oscillators $\dot\theta=\omega+k\int\sin(\phi-\theta)\,d\mu(\phi)$ on a torus.

    Its cost is linear in the number of oscillators, since $\sin(\phi-\theta)$ is a sum of two
    products.

    Args:
        coupling: $k$.
        dim: number of angles of an oscillator.
        frequencies: whether tokens are $(\theta,\omega)$, each with its own frequencies.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> pf.fields.Kuramoto(1.0)(mu, mu.atoms).flatten()
        tensor([ 0.4207, -0.4207])
    """

    def __init__(self, coupling: float = 1.0, *, dim: int = 1, frequencies: bool = False) -> None:
        super().__init__()
        check_finite("coupling", coupling)
        check_flags(frequencies=frequencies)
        check_sizes(dim=dim)
        self.coupling, self.frequencies = coupling, frequencies
        self.dim = self.context_dim = self.out_dim = dim * (2 if frequencies else 1)
        self.manifold = Torus(axes=dim)

    def extra_repr(self) -> str:
        return f"coupling={self.coupling:g}, frequencies={self.frequencies}"

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        angles = lambda z: z.chunk(2, -1)[0] if self.frequencies else z
        phi, theta = angles(mu.atoms), angles(x)
        weights = mu.log_weights.softmax(-1)[..., None, :]
        sine, cosine = ((weights @ widen(f(phi))).to(x.dtype) for f in (torch.sin, torch.cos))
        pull = self.coupling * (sine * theta.cos() - cosine * theta.sin())
        if not self.frequencies:
            return pull
        omega = x.chunk(2, -1)[1].expand(pull.shape)
        return torch.cat([omega + pull, torch.zeros_like(omega)], -1)
