r"""Second-order systems $\dot x=v$, $\dot v=F$ on tokens $(x,v)$."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ... import ops
from ..._tools.checks import check_callable, check_finite, check_floating, check_kind, check_number
from ..._tools.precision import widen
from ..._tools.tiles import distance_matrix
from ..._tools.types import Images, Queries
from ...maps import Answer, Container, InContextMap, within
from ...measures import Measure
from ...sinkhorn import Starts
from ._field import Field
from ._interactions import by_rows


class SecondOrder(Container, Field):
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

    second_order: ClassVar[bool] = True

    def __init__(self, force: InContextMap) -> None:
        super().__init__()
        check_kind("force", force, InContextMap, "For example `pf.fields.Pairwise(kernel)`.")
        self.force = force

    def condition(
        self, mu: Measure, queries: Measure | None = None, starts: Starts | None = None
    ) -> Answer:
        acceleration = self.force.condition(mu, queries, within(starts, "force"))

        def answer(x: Tensor, t: Tensor | None) -> Tensor:
            position, velocity = halves(x)
            force = acceleration(x, t)
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


@dataclass(frozen=True)
class Decay:
    r"""The influence $\psi(r)=\kappa(1+r^2)^{-p}$ of a distance $r$.

    `CuckerSmale` knows its formula and uses `ops.decaying_sum`, which for many atoms is far faster
    than calling a function of all distances.

    Args:
        power: $p>0$. Up to $1/2$ every flock stays together, if $\kappa>0$.
        strength: $\kappa$.

    Examples:
        >>> pf.fields.Decay(power=1.0, strength=3.0)(torch.tensor([0.0, 1.0, 2.0]))
        tensor([3.0000, 1.5000, 0.6000])
    """

    power: float = 0.5
    strength: float = 1.0

    def __post_init__(self) -> None:
        fix = "An influence that does not decay is a function: `lambda r: torch.ones_like(r)`."
        check_number("power", self.power, fix=fix)
        check_finite("power", self.power, fix=fix)
        check_finite("strength", self.strength, fix="For example `strength=1.0`.")

    def __call__(self, r: Tensor) -> Tensor:
        """The influence at distances `r`."""
        check_floating("r", r, "(...)", 0)
        return self.strength * (1 + r.square()) ** -self.power


class CuckerSmale(Field):
    r"""Flocking: $\dot x=v$, $\dot v=\int\psi(|x-y|)\,(w-v)\,d\mu(y,w)$ on tokens $(x,v)$.

    Velocities become equal if $D_V(0)<\int_{D_X(0)}^\infty\psi$, where $D$ are diameters.

    Args:
        influence: $\psi$, a function of distances, or a `Decay`, which is fast; by default
            $\psi(r)=(1+r^2)^{-1/2}$, with which every flock stays together.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
        >>> pf.fields.CuckerSmale()(mu, mu.atoms)
        tensor([[ 1., -1.],
                [-1.,  1.]])
    """

    second_order: ClassVar[bool] = True

    def __init__(self, influence: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        if influence is not None:
            check_callable(
                "influence", influence, "a `pf.fields.Decay` or a function of distances"
            )
        self.influence = Decay() if influence is None else influence

    def extra_repr(self) -> str:
        """The influence, by which runs and reports tell fields apart."""
        if isinstance(self.influence, Decay):
            return "" if self.influence == Decay() else repr(self.influence)
        return getattr(self.influence, "__name__", type(self.influence).__name__)

    def evaluate(self, mu: Measure, x: Queries) -> Images:
        y, w = halves(widen(mu.atoms))
        weights = mu.log_weights.softmax(-1)[..., None, :]
        if isinstance(self.influence, Decay):
            return self._decaying(self.influence, x, y, w, weights.mT)

        def moving(rows: Tensor) -> Tensor:
            position, velocity = halves(widen(rows))
            pull = self.influence(distance_matrix(position, y)) * weights
            # The integral of psi (w - v) is a product with all w, less its mass times v.
            force = pull @ w - pull.sum(-1, keepdim=True) * velocity
            return torch.cat([velocity.expand(force.shape), force], -1).to(x.dtype)

        return by_rows(moving, x, mu.n)

    def _decaying(self, decay: Decay, x: Tensor, y: Tensor, w: Tensor, weights: Tensor) -> Tensor:
        """The field by `ops.decaying_sum`: sums of velocities, and of masses."""
        position, velocity = halves(widen(x))
        values = torch.cat([w, torch.ones_like(w[..., :1])], -1) * (decay.strength * weights)
        sums = ops.decaying_sum(position, y, values, power=decay.power)
        force = sums[..., :-1] - sums[..., -1:] * velocity
        return torch.cat([velocity.expand(force.shape), force], -1).to(x.dtype)
