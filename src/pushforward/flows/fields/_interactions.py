r"""Interactions of pairs, $V[\mu](x)=\int K(x,y)\,d\mu(y)$, and second-order systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from ..._tools.checks import check_floating, check_kind, check_number, check_sizes
from ..._tools.precision import widen
from ..._tools.tiles import over_tiles, row_tiles
from ..._tools.types import Images, Queries
from ...maps import (
    Answer,
    Container,
    Euclidean,
    InContextMap,
    Lipschitz,
    Manifold,
    Starts,
    Torus,
    lipschitz_bound,
    norm,
    within,
)
from ...measures import Measure
from ._hold import hold

PairKernel = Callable[[Tensor, Tensor], Tensor]
"""A function of points `(..., m, 1, d)` and `(..., 1, n, d)` with values `(..., m, n, e)`."""


class Pairwise(InContextMap):
    r"""The field $V[\mu](x)=\int K(x,y)\,d\mu(y)$ of an interaction of pairs, $\mu$ normalised.

    It is streamed: no array of all pairs is formed, forward or backward.

    Args:
        kernel: $K$, called with points that broadcast, `(..., m, 1, d)` and `(..., 1, n, d)`, and
            giving a vector for each pair. A module's parameters are trained.
        manifold: `Euclidean()` by default; the tangent part is taken.

    Examples:
        >>> field = pf.fields.Pairwise(lambda x, y: torch.sin(y - x))
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> field(mu, mu.atoms).flatten()
        tensor([ 0.4207, -0.4207])
    """

    def __init__(self, kernel: PairKernel, *, manifold: Manifold | None = None):
        super().__init__()
        manifold = Euclidean() if manifold is None else manifold
        check_kind("manifold", manifold, Manifold, "Use `pf.Sphere()`, say.")
        self.kernel, self.manifold = kernel, manifold

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Some rows at a time."""
        y, weights = mu.atoms[..., None, :, :], mu.log_weights.softmax(-1)[..., None, None, :]

        def part(rows: Tensor) -> Tensor:
            pairs = self.kernel(rows[..., :, None, :], y)
            self._check_pairs(pairs, rows, y)
            return (weights.to(pairs.dtype) @ pairs)[..., 0, :].to(x.dtype)

        return self.manifold.tangent(x, by_tiles(part, x, mu.n * mu.dim))

    def extra_repr(self) -> str:
        """Where points live."""
        return str(self.manifold)

    def _check_pairs(self, pairs: Tensor, rows: Tensor, y: Tensor) -> None:
        batch = torch.broadcast_shapes(rows.shape[:-2], y.shape[:-3])
        expected = (*batch, rows.shape[-2], y.shape[-2])
        if not isinstance(pairs, Tensor) or tuple(pairs.shape[:-1]) != expected:
            got = tuple(pairs.shape) if isinstance(pairs, Tensor) else type(pairs).__name__
            raise ValueError(
                f"A kernel gives one vector per pair, here {(*expected, 'd')}, got {got}. It is "
                f"called with points of shapes {(*rows.shape[:-1], 1, rows.shape[-1])} and "
                f"{tuple(y.shape)}: let them broadcast."
            )


def by_tiles(part: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """What `part` makes of some rows of points at a time; gradients make it again."""
    tiles = row_tiles(x.shape[-2], prod(x.shape[:-2]) * width, x.device)
    parts = list(over_tiles(lambda rows: part(x[..., rows, :]), tiles))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


class Linear(InContextMap):
    r"""The linear field $V[\mu](x)=Ax+Bm(\mu)$ with the barycentre $m(\mu)$.

    Its flow is $e^{At}(x-m_0)+e^{(A+B)t}m_0$.

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

    def __init__(self, A: Float[Tensor, "d d"], B: Float[Tensor, "d d"]):
        super().__init__()
        for name, matrix in (("A", A), ("B", B)):
            check_floating(name, matrix, "(d, d)", 2)
        if A.shape != B.shape or A.ndim != 2 or A.shape[0] != A.shape[1]:
            raise ValueError(
                f"`A` and `B` must be square and alike, got {tuple(A.shape)} and {tuple(B.shape)}."
            )
        self.dim = self.context_dim = self.out_dim = len(A)
        hold(self, A=A, B=B)

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """One barycentre."""
        return x @ self.A.mT + mu.mean()[..., None, :] @ self.B.mT


@lipschitz_bound.register(Linear)
def _(field: Linear, radius: float) -> Lipschitz:
    a, b = norm(field.A), norm(field.B)
    return Lipschitz(a, b, radius, (a + b) * radius)


class SecondOrder(Container):
    r"""The system $\dot x=v$, $\dot v=F(\mu,(x,v))$ on tokens $(x,v)\in\mathbb R^{2d}$.

    Args:
        force: an in-context map from $\mathbb R^{2d}$ to $\mathbb R^d$, such as a `Pairwise`
            whose kernel reads positions and velocities.

    Examples:
        >>> spring = pf.fields.Pairwise(lambda z, w: w[..., :1] - z[..., :1])
        >>> field = pf.fields.SecondOrder(spring)
        >>> field(pf.Measure(torch.tensor([[0.0, 1.0], [2.0, 0.0]])), torch.tensor([[0.0, 1.0]]))
        tensor([[1., 1.]])
    """

    def __init__(self, force: InContextMap):
        super().__init__()
        check_kind("force", force, InContextMap, "Use `pf.fields.Pairwise(kernel)`, say.")
        self.force = force

    def parts(self) -> Sequence[InContextMap]:
        return (self.force,)

    def with_parts(self, parts: Sequence[InContextMap]) -> SecondOrder:
        (force,) = parts
        return SecondOrder(force)

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        inner = self.force.condition(mu, queries, within(starts, "force"))

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            position, velocity = halves(x)
            force = inner(x, t)
            if force.shape[-1] != position.shape[-1]:
                raise ValueError(
                    f"A force on positions in R^{position.shape[-1]} has as many coordinates, got "
                    f"{force.shape[-1]}. Tokens are (x, v), positions first."
                )
            return torch.cat([velocity.expand(force.shape), force], -1)

        return answer


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and velocities of tokens $(x,v)$."""
    if x.shape[-1] % 2:
        raise ValueError(
            f"Tokens of a second-order system are (x, v), of even dimension, got {x.shape[-1]}."
        )
    position, velocity = x.chunk(2, -1)
    return position, velocity


class Harmonic(InContextMap):
    r"""The harmonic system $\ddot x=-\omega^2(x-\bar x)$ on tokens $(x,v)$.

    Args:
        frequency: $\omega$.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        >>> pf.fields.Harmonic(2.0)(mu, mu.atoms)
        tensor([[ 0., -4.],
                [ 0.,  4.]])
    """

    def __init__(self, frequency: float):
        super().__init__()
        check_number("frequency", frequency)
        self.frequency = frequency

    def extra_repr(self) -> str:
        """The choices that are no parameters."""
        return f"frequency={self.frequency:g}"

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """One barycentre."""
        position, velocity = halves(x)
        centre = halves(mu.mean()[..., None, :])[0]
        force = -(self.frequency**2) * (position - centre)
        return torch.cat([velocity.expand(force.shape), force], -1)


class CuckerSmale(InContextMap):
    r"""Flocking: $\dot x=v$, $\dot v=\int\psi(|x-y|)\,(w-v)\,d\mu(y,w)$ on tokens $(x,v)$.

    Velocities agree in the end if $D_V(0)<\int_{D_X(0)}^\infty\psi$, where $D$ are diameters.

    Args:
        influence: $\psi$ of distances; $\psi(r)=(1+r^2)^{-1/2}$, with which every flock holds, by
            default.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
        >>> pf.fields.CuckerSmale()(mu, mu.atoms)
        tensor([[ 1., -1.],
                [-1.,  1.]])
    """

    def __init__(self, influence: Callable[[Tensor], Tensor] | None = None):
        super().__init__()
        self.influence = _slowly if influence is None else influence

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Some rows at a time: distances, then a product with the velocities."""
        y, w = halves(widen(mu.atoms))
        weights = mu.log_weights.softmax(-1)[..., None, :]

        def part(rows: Tensor) -> Tensor:
            position, velocity = halves(widen(rows))
            far = torch.cdist(
                *_same_batch(position, y), compute_mode="donot_use_mm_for_euclid_dist"
            )
            pull = self.influence(far) * weights
            force = pull @ w - pull.sum(-1, keepdim=True) * velocity
            return torch.cat([velocity.expand(force.shape), force], -1).to(x.dtype)

        return by_tiles(part, x, mu.n)


def _same_batch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:])


def _slowly(r: Tensor) -> Tensor:
    return (1 + r.square()).rsqrt()


class Kuramoto(InContextMap):
    r"""Coupled oscillators $\dot\theta=\omega+k\int\sin(\phi-\theta)\,d\mu(\phi)$ on a torus.

    Time linear in their number, since $\sin(\phi-\theta)$ is a sum of two products.

    Args:
        coupling: $k$.
        dim: number of angles of an oscillator.
        frequencies: whether tokens are $(\theta,\omega)$, each with frequencies of its own.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> pf.fields.Kuramoto(1.0)(mu, mu.atoms).flatten()
        tensor([ 0.4207, -0.4207])
    """

    def __init__(self, coupling: float = 1.0, *, dim: int = 1, frequencies: bool = False):
        super().__init__()
        check_number("coupling", coupling, least=-float("inf"))
        check_sizes(dim=dim)
        self.coupling, self.frequencies = coupling, frequencies
        self.dim = self.context_dim = self.out_dim = dim * (2 if frequencies else 1)
        self.manifold = Torus(axes=dim)

    def extra_repr(self) -> str:
        """The choices that are no parameters."""
        return f"coupling={self.coupling:g}, frequencies={self.frequencies}"

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        """Two integrals."""
        angles = lambda z: halves(z)[0] if self.frequencies else z
        told, asked = angles(mu.atoms), angles(x)
        weights = mu.log_weights.softmax(-1)[..., None, :]
        sine, cosine = ((weights @ widen(f(told))).to(x.dtype) for f in (torch.sin, torch.cos))
        pull = self.coupling * (sine * asked.cos() - cosine * asked.sin())
        if not self.frequencies:
            return pull
        own = halves(x)[1].expand(pull.shape)
        return torch.cat([own + pull, torch.zeros_like(own)], -1)
