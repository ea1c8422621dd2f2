r"""The derivative of a map between measures, and its regular part.

With $\mu_\varepsilon=\mu+\varepsilon\delta_x$ and $f=f_G$ extended to all positive measures,

$$\tfrac1\varepsilon\langle f(\mu_\varepsilon)-f(\mu),\psi\rangle\ \to\
  \underbrace{\psi(G(\mu,x))}_{\text{regular}}+
  \underbrace{\int\nabla\psi(G(\mu,y))\cdot\partial_\mu G(\mu,y)[\delta_x]\,d\mu(y)
  }_{\text{irregular}}.$$

The irregular part vanishes if $\psi$ is constant near the images of $\mu$. The regular part is the
derivative for such test functions [A, Def. 4]; for coordinates it is $G$ itself [A, eq. 44].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import (
    check_callable,
    check_kind,
    check_number,
    check_returned,
    check_share,
)
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._probes import flattened, separating_radius
from ._small_mass import add_mass, check_point, check_single, richardson
from .boxes import MapBox

TestFunction = Callable[[Tensor], Tensor]
"""A function of points `(m, e)`, with one or several values for each."""

ETA = {torch.float32: 1e-2, torch.float64: 1e-5}
"""Masses at which the truncation error and the rounding error of a quotient balance."""


class Extension(ABC):
    """How a map of probability measures is extended to positive measures of any mass."""

    @abstractmethod
    def quotient(self, after: Tensor, before: Tensor, eta: float) -> Tensor:
        r"""$\frac1\varepsilon\langle f(\mu+\varepsilon\delta_x)-f(\mu),\psi\rangle$.

        Args:
            after: $\langle f(\mu_\eta),\psi\rangle$, where $\mu_\eta$ is
                $\mu+\varepsilon\delta_x$ normalised.
            before: $\langle f(\mu),\psi\rangle$.
            eta: $\varepsilon/(1+\varepsilon)$.
        """


@dataclass(frozen=True)
class MassPreserving(Extension):
    r"""$f(c\mu)=c\,f(\mu)$: the regular part of the derivative is $\psi(G(\mu,x))$."""

    def quotient(self, after: Tensor, before: Tensor, eta: float) -> Tensor:
        return (after - (1 - eta) * before) / eta


@dataclass(frozen=True)
class ProbabilityValued(Extension):
    r"""$f(c\mu)=f(\mu)$: the regular part is $\psi(G(\mu,x))-\langle f(\mu),\psi\rangle$."""

    def quotient(self, after: Tensor, before: Tensor, eta: float) -> Tensor:
        return (after - before) * ((1 - eta) / eta)


@dataclass(frozen=True, eq=False)
class Derivative:
    r"""A derivative in the direction of a point mass, in two parts.

    Args:
        regular: $\overline Df(\mu,x,\psi)$, the derivative for test functions that are constant
            near the images of the context.
        irregular: the rest, from the motion of the images of the context.
    """

    regular: Tensor
    irregular: Tensor

    @property
    def total(self) -> Tensor:
        """The derivative itself, the sum of both parts."""
        return self.regular + self.irregular


def derivative(
    f: MeasureMap | InContextMap,
    mu: Measure,
    x: Float[Tensor, " d"],
    psi: TestFunction,
    *,
    extension: Extension | None = None,
    eta: float | None = None,
    radius: float | None = None,
) -> Derivative:
    r"""The derivative of $\langle f(\mu),\psi\rangle$ in the direction $\delta_x$ [A, Def. 4].

    Its regular part $\overline Df(\mu,x,\psi)$ is the same quotient with $\psi$ made constant
    within a radius of the images of $\mu$. Both are extrapolated to $\eta\to0$. Where the image of
    $x$ lies within twice the radius of another image, the regular part has an error of at most the
    radius times the slope of $\psi$.

    Args:
        f: the black box, or an in-context map.
        mu: the measure, not batched.
        x: the point whose mass grows.
        psi: a test function of points `(m, e)`; for the irregular part it must be smooth.
        extension: `MassPreserving()` by default, or `ProbabilityValued()`.
        eta: the mass put at `x`, chosen by dtype by default.
        radius: within which the test function is made constant, by default a little more than the
            images of the context move.

    Examples:
        >>> mu, x = pf.Measure(torch.zeros(1, 1).double()), torch.ones(1).double()
        >>> shift = lambda nu: nu.push(lambda y: y + nu.mean())
        >>> d = pf.representation.derivative(shift, mu, x, lambda y: y[:, 0])
        >>> round(d.regular.item(), 6), round(d.irregular.item(), 6)
        (1.0, 1.0)
    """
    push = MapBox(f).push
    check_single(mu)
    check_callable("psi", psi, "a test function of points (m, e)")
    extension = MassPreserving() if extension is None else extension
    check_kind("extension", extension, Extension, "Use `pf.representation.MassPreserving()`.")
    eta = ETA.get(mu.dtype, ETA[torch.float32]) if eta is None else eta
    check_share("eta", eta)
    if radius is not None:
        check_number("radius", radius)
    check_point(mu, x)
    before = push(mu)
    after = {mass: push(add_mass(mu, x, mass)[0]) for mass in (eta, eta / 2)}
    r = separating_radius(before, after[eta], radius)

    def limit(test: TestFunction) -> Tensor:
        check_returned("psi", values := test(before.atoms), "(m,) or (m, e)")
        base = before.integrate(values)
        integral = {mass: out.integrate(test(out.atoms)) for mass, out in after.items()}
        return richardson(lambda mass: extension.quotient(integral[mass], base, mass), eta)

    regular = limit(lambda y: psi(flattened(y, before.atoms, r)))
    return Derivative(regular, limit(psi) - regular)
