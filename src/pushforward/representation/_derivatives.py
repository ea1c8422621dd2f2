r"""The derivative of a map between measures, and its regular part.

With $\mu_\varepsilon=\mu+\varepsilon\delta_x$ and $f=f_G$ extended to all positive measures,

$$\tfrac1\varepsilon\langle f(\mu_\varepsilon)-f(\mu),\psi\rangle\ \to\
  \underbrace{\psi(G(\mu,x))}_{\text{regular}}+
  \underbrace{\int\nabla\psi(G(\mu,y))\cdot\partial_\mu G(\mu,y)[\delta_x]\,d\mu(y)
  }_{\text{irregular}}.$$

The irregular part vanishes for $\psi$ that is constant near the images of $\mu$; so the regular
part is what such test functions see (Definition 4), and it is $G$ itself for coordinates (eq. 44).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_kind, check_shape, check_share
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._black_box import as_measure_map, called, check_single, with_probe
from ._probes import apart, flattened

Test = Callable[[Tensor], Tensor]
"""A test function of points `(m, e)`, with one or several values each."""

ETA = {torch.float32: 1e-2, torch.float64: 1e-5}
"""Masses at which truncation and rounding of a quotient balance."""


class Extension(ABC):
    """How a map of probabilities acts on measures of other masses."""

    @abstractmethod
    def quotient(self, after: Tensor, before: Tensor, eta: float) -> Tensor:
        r"""$\frac1\varepsilon\langle f(\mu+\varepsilon\delta_x)-f(\mu),\psi\rangle$.

        Args:
            after: the integral against $f$ of the normalised sum.
            before: the integral against $f(\mu)$.
            eta: $\varepsilon/(1+\varepsilon)$.
        """


@dataclass(frozen=True)
class MassPreserving(Extension):
    r"""$f(c\mu)=c\,f(\mu)$: the regular part of the derivative is $\psi(G(\mu,x))$."""

    def quotient(self, after, before, eta):
        """Of integrals against measures of mass one."""
        return (after - (1 - eta) * before) / eta


@dataclass(frozen=True)
class ProbabilityValued(Extension):
    r"""$f(c\mu)=f(\mu)$: the regular part is $\psi(G(\mu,x))-\langle f(\mu),\psi\rangle$."""

    def quotient(self, after, before, eta):
        """Of integrals against measures of mass one."""
        return (after - before) * ((1 - eta) / eta)


@dataclass(frozen=True, eq=False)
class Derivative:
    """A derivative in the direction of a point mass, and its two parts.

    Args:
        regular: what test functions that are constant near the images see.
        irregular: the rest, by which the images of the context move.
    """

    regular: Tensor
    irregular: Tensor

    @property
    def total(self) -> Tensor:
        """Their sum, the derivative itself."""
        return self.regular + self.irregular


def regular_derivative(
    f: MeasureMap | InContextMap,
    mu: Measure,
    x: Float[Tensor, " d"],
    psi: Test,
    *,
    extension: Extension | None = None,
    eta: float | None = None,
    radius: float | None = None,
) -> Tensor:
    r"""The regular part $\overline Df(\mu,x,\psi)$ of the derivative of a black box.

    The quotient for $\psi$ made constant within a radius of the images of $\mu$, extrapolated to
    $\eta\to0$. Where the image of $x$ lies within twice the radius of another image, the error is
    at most the radius times the slope of $\psi$.

    Args:
        f: the black box, or an in-context map.
        mu: the measure, not batched.
        x: the point whose mass grows.
        psi: a test function of points `(m, e)`.
        extension: `MassPreserving()` by default, or `ProbabilityValued()`.
        eta: the mass put at `x`, chosen by dtype by default.
        radius: within which the test function is made constant, by default a little more than the
            images of the context move.

    Examples:
        >>> mu, x = pf.Measure(torch.randn(9, 2).double()), torch.ones(2).double()
        >>> shift = lambda nu: nu.push(lambda y: y + nu.mean())
        >>> regular = pf.representation.regular_derivative(shift, mu, x, lambda y: y)
        >>> regular - (x + mu.mean()) < 1e-8
        tensor([True, True])
    """
    return _limit(
        f, mu, x, psi, extension, eta, lambda before, after: apart(before, after, radius)
    )


def derivative(
    f: MeasureMap | InContextMap,
    mu: Measure,
    x: Float[Tensor, " d"],
    psi: Test,
    *,
    extension: Extension | None = None,
    eta: float | None = None,
    radius: float | None = None,
) -> Derivative:
    r"""The derivative of $\langle f(\mu),\psi\rangle$ in the direction $\delta_x$, split in two.

    Args:
        f: as in `regular_derivative`.
        mu: likewise.
        x: likewise.
        psi: likewise, smooth.
        extension: likewise.
        eta: likewise.
        radius: likewise.

    Examples:
        >>> mu, x = pf.Measure(torch.zeros(1, 1).double()), torch.ones(1).double()
        >>> shift = lambda nu: nu.push(lambda y: y + nu.mean())
        >>> d = pf.representation.derivative(shift, mu, x, lambda y: y[:, 0])
        >>> round(d.regular.item(), 6), round(d.irregular.item(), 6)
        (1.0, 1.0)
    """
    total = _limit(f, mu, x, psi, extension, eta, None)
    regular = regular_derivative(f, mu, x, psi, extension=extension, eta=eta, radius=radius)
    return Derivative(regular, total - regular)


def _limit(
    f: MeasureMap | InContextMap,
    mu: Measure,
    x: Tensor,
    psi: Test,
    extension: Extension | None,
    eta: float | None,
    radius: Callable[[Measure, Measure], float] | None,
) -> Tensor:
    """Two quotients, extrapolated; `radius` says how far the test function is made constant."""
    f = as_measure_map(f)
    extension = MassPreserving() if extension is None else extension
    check_kind("extension", extension, Extension, "Use `pf.representation.MassPreserving()`.")
    eta = ETA.get(mu.dtype, 1e-2) if eta is None else eta
    check_share("eta", eta)
    check_single(mu)
    check_shape("x", x, (mu.dim,), "One point, without further axes.")
    before = called(f, mu)
    after = {mass: called(f, with_probe(mu, x, mass)[0]) for mass in (eta, eta / 2)}
    test = psi
    if radius is not None:
        r = radius(before, after[eta])
        test = lambda y: psi(flattened(y, before.atoms, r))
    integrals = {mass: out.integrate(test(out.atoms)) for mass, out in after.items()}
    base = before.integrate(test(before.atoms))
    first, second = (extension.quotient(v, base, mass) for mass, v in integrals.items())
    return 2 * second - first
