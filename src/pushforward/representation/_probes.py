r"""Ways to find where a small mass went.

All of them compare $f(\mu_\eta)$, where $\mu_\eta=(1-\eta)\mu+\eta\delta_x$, with what is known of
$f(\mu)$, and return the image of the mass at $x$. That is $G(\mu_\eta,x)$, which tends to
$G(\mu,x)$ as $\eta\to0$.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_callable, check_kind, check_number, check_share
from .._tools.linkage import label_points
from ..measures import Measure, MeasureMap
from ._errors import NotRecovered
from ._small_mass import add_mass, check_point, check_single, weights_array
from ._subset_sums import decode


class ProbedImage(NamedTuple):
    """Where a small mass went, and how well that is known for this mass.

    A probe of your own returns one from `find`, or a plain tuple of the three.
    """

    image: Tensor
    """The point."""
    resolution: float
    """How far the mass may be from it because the probe cannot see better."""
    rounding: float
    r"""The rounding error: of positions where they are read, of integrals over $\eta$ where their
    difference quotient is taken."""


class Probe(ABC):
    """A way to find where a map sends a small mass; an author writes `find`."""

    def image(
        self, f: MeasureMap, mu: Measure, x: Float[Tensor, " d"], eta: float
    ) -> Float[Tensor, " e"]:
        r"""Where $f$ sends the mass $\eta$ at $x$: the image of what was found.

        Args:
            f: the map.
            mu: the context, not batched.
            x: the point.
            eta: its mass.
        """
        check_callable("f", f, "a function of a Measure to a Measure")
        check_single(mu)
        check_point(mu, x)
        check_share("eta", eta)
        found = self.find(_to_measures(f), mu, x, eta)
        fix = "Return `pf.representation.ProbedImage(image, resolution, rounding)`."
        check_kind(f"{type(self).__name__}.find", found, ProbedImage, fix, returned=True)
        return found.image

    @abstractmethod
    def find(self, f: MeasureMap, mu: Measure, x: Float[Tensor, " d"], eta: float) -> ProbedImage:
        r"""Where $f$ sends the mass $\eta$ at $x$, the probe's resolution, and rounding.

        Args:
            f: the map; `recover` gives one whose values have been checked.
            mu: the context, not batched.
            x: the point.
            eta: its mass.

        Raises:
            NotRecovered: if the values of the map do not show it.
        """


def _to_measures(f: MeasureMap) -> MeasureMap:
    """The map, with an error if a value is no measure."""

    def checked(mu: Measure) -> Measure:
        out = f(mu)
        check_kind("f", out, Measure, "It maps a Measure to a Measure.", returned=True)
        return out

    return checked


@dataclass(frozen=True)
class Decode(Probe):
    r"""By subset sums: the masses determine which atoms an image consists of (Algorithm R1).

    For up to 32 atoms whose weights have distinct subset sums, such as $a_i\propto2^{-i}$
    [A, eq. 15]. The position is read directly: nothing is divided by $\eta$.

    Args:
        tol: how far a sum may be from a mass.

    Examples:
        >>> weights = torch.tensor([0.7, 0.3]).double()
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]).double(), weights)
        >>> double = lambda nu: nu.push(lambda y: 2 * y)
        >>> pf.representation.Decode().image(double, mu, torch.tensor([3.0]).double(), 1e-3)
        tensor([6.], dtype=torch.float64)
    """

    tol: float = 1e-12

    def __post_init__(self) -> None:
        check_number("tol", self.tol)

    def find(self, f: MeasureMap, mu: Measure, x: Float[Tensor, " d"], eta: float) -> ProbedImage:
        probed, index = add_mass(mu, x, eta)
        out = f(probed).merge()
        decoding = decode(weights_array(probed), weights_array(out), self.tol)
        if decoding.owner is None:
            raise NotRecovered(_PROBLEMS[decoding.problem or ""])
        return ProbedImage(out.atoms[decoding.owner[index]], 0.0, rounding_error(out))


_PROBLEMS = {
    "no subset": "An output mass is no sum of input masses: the map splits or re-weights atoms.",
    "several subsets": "Output masses are sums of input masses in several ways: weights are not "
    "generic. Recover by excess mass: `pf.recover(f, by=pf.representation.Excess())`.",
    "subsets overlap": "Two output masses contain the same atom: the map creates mass.",
    "mass is missing": "Some input mass is in no output: the map loses mass.",
}


@dataclass(frozen=True)
class Excess(Probe):
    r"""By excess mass: where $f(\mu_\eta)$ has $\eta$ more than $(1-\eta)f(\mu)$ (Algorithm R2).

    For any number of atoms and any weights. An image that lies alone is read to the last digit;
    one that coincides with others, up to the radius of their cluster.

    Args:
        radius: how far the other images may move when the mass is added; measured by default.
        fallback: another probe, used where images are too close to each other to be separated.

    Examples:
        >>> mu = pf.Measure(torch.randn(9, 1).double())
        >>> double = lambda nu: nu.push(lambda y: 2 * y)
        >>> pf.representation.Excess().image(double, mu, torch.tensor([3.0]).double(), 1e-3)
        tensor([6.], dtype=torch.float64)
    """

    radius: float | None = None
    fallback: Probe | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_number("radius", self.radius)
        if self.fallback is not None:
            check_kind("fallback", self.fallback, Probe, "Use `pf.representation.Decode()`.")

    def find(self, f: MeasureMap, mu: Measure, x: Float[Tensor, " d"], eta: float) -> ProbedImage:
        try:
            return self._excess(f, mu, x, eta)
        except NotRecovered as error:
            if self.fallback is None:
                raise
            try:
                return self.fallback.find(f, mu, x, eta)
            except (NotRecovered, ValueError):  # ValueError: too many atoms for subset sums
                raise error from None

    def _excess(self, f: MeasureMap, mu: Measure, x: Tensor, eta: float) -> ProbedImage:
        probed, index = add_mass(mu, x, eta)
        out = f(probed).merge()
        # If exactly one atom has this mass before and after, that atom is the image.
        mass = float(probed.weights[index])
        same = _with_mass(out, mass, eta)
        if len(same) == len(_with_mass(probed, mass, eta)) == 1:
            return ProbedImage(out.atoms[same[0]], 0.0, rounding_error(out))
        # Otherwise images before and after are grouped into clusters, and exactly one cluster must
        # have gained the mass eta. The radius covers how far images moved meanwhile.
        before = f(mu).merge()
        radius = displacement(before, out, self.radius)
        label, _ = label_points(torch.cat([before.atoms, out.atoms]).detach(), None, radius)
        excess = torch.zeros(int(label.max()) + 1, dtype=torch.float64, device=label.device)
        masses = torch.cat([-(1 - eta) * before.weights.double(), out.weights.double()])
        excess = excess.index_add(0, label, masses.detach())
        changed = (excess.abs() > 0.01 * eta).nonzero().flatten()
        if len(changed) != 1 or not abs(float(excess[changed[0]]) / eta - 1) < 0.01:
            raise NotRecovered(
                f"No single point has the excess mass {eta:g}: the map splits or re-weights "
                f"atoms, or images move by more than {radius:.2g} when the mass is added: "
                "`Excess(radius=...)`."
            )
        if int((label[: before.n] == changed[0]).sum()) > 1:
            raise NotRecovered(
                f"The excess mass is among images that cannot be separated within {radius:.2g}. "
                "Make the mass smaller (`eta`), or give the atoms different weights."
            )
        cluster = (label[before.n :] == changed[0]).nonzero().flatten()
        share = out.weights[cluster] / out.weights[cluster].sum()
        centre = (share[:, None] * out.atoms[cluster]).sum(0)
        extent = float((out.atoms[cluster] - centre).detach().norm(dim=-1).max())
        return ProbedImage(centre, extent, rounding_error(out))


def _with_mass(mu: Measure, mass: float, eta: float) -> Tensor:
    r"""Indices of the atoms that have a given mass, up to a hundredth of $\eta$."""
    return ((mu.weights - mass).abs() < 1e-2 * eta).nonzero().flatten()


@dataclass(frozen=True)
class Weak(Probe):
    r"""By test functions: $G_j(\mu,x)=\overline Df(\mu,x,\pi_j)$ [A, eq. 44] (Algorithm R3).

    $$\tfrac1\eta\bigl(\langle f(\mu_\eta),\psi\rangle-(1-\eta)\langle f(\mu),\psi\rangle\bigr)$$

    with coordinates $\psi$ that are constant within a radius of the images of $\mu$. The quotient
    loses digits: in float64 the best $\eta$ is about $10^{-8}$.

    Args:
        radius: within which coordinates are constant, by default a little more than the other
            images move when the mass is added; also the error if the image lies that close to
            another one.

    Examples:
        >>> mu = pf.Measure(torch.zeros(1, 1).double())
        >>> double = lambda nu: nu.push(lambda y: 2 * y)
        >>> y = pf.representation.Weak().image(double, mu, torch.tensor([3.0]).double(), 1e-6)
        >>> bool((y - 6).abs() < 1e-9)
        True
    """

    radius: float | None = None

    def __post_init__(self) -> None:
        if self.radius is not None:
            check_number("radius", self.radius)

    def find(self, f: MeasureMap, mu: Measure, x: Float[Tensor, " d"], eta: float) -> ProbedImage:
        before, after = f(mu), f(add_mass(mu, x, eta)[0])
        radius = separating_radius(before, after, self.radius)
        psi = lambda out: flattened(out.atoms, before.atoms, radius)
        z = (after.integrate(psi(after)) - (1 - eta) * before.integrate(psi(before))) / eta
        # What is found is psi(y). With |psi(y) - c| = s < 2r the image y is r - s/2 away from it,
        # or up to r if s = 0; beyond, psi is the identity. See `flattened`.
        distance = float(nearest(z[None], before.atoms)[0])
        return ProbedImage(z, max(0.0, radius - distance / 2), rounding_error(after) / eta)


def rounding_error(out: Measure) -> float:
    """The rounding error of positions of the size of these."""
    size = float(out.atoms.detach().norm(dim=-1).max())
    return torch.finfo(out.dtype).eps * size


def flattened(
    y: Float[Tensor, "m e"], centres: Float[Tensor, "n e"], radius: float
) -> Float[Tensor, "m e"]:
    r"""Coordinates that are constant near some points, as condition [A, eq. 7] asks.

    With $c$ the nearest of the points and $q=|y-c|$: $c$ for $q\le r$,
    $c+2(q-r)\frac{y-c}q$ for $r<q<2r$, and $y$ beyond. Within $r$ of the identity, and 2-Lipschitz
    if no two of the points are closer than $4r$.

    Args:
        y: where to evaluate them.
        centres: the points.
        radius: $r$.
    """
    _, index = nearest(y, centres)
    c = centres.detach()[index]
    offset = y - c
    q = offset.norm(dim=-1, keepdim=True)
    stretch = (2 * (q - radius) / q.clamp_min(radius)).clamp(0, 1)
    return torch.where(q >= 2 * radius, y, c + stretch * offset)


def displacement(before: Measure, after: Measure, radius: float | None) -> float:
    """How far images move when the mass is added, at most.

    Twice the largest distance of an image to the nearest image afterwards, plus rounding.

    Args:
        before: the images without the small mass.
        after: the images with it.
        radius: what a user allows; the result then. None: what was measured.
    """
    size = float(after.atoms.detach().abs().max())
    far = float(nearest(before.atoms, after.atoms)[0].max())
    measured = 2 * far + 16 * torch.finfo(after.dtype).eps * size
    if radius is None:
        return measured
    if measured <= radius:
        return radius
    raise NotRecovered(
        f"Images move by {far:.2g} when the mass is added, and the radius is {radius:g}. "
        "Make the mass smaller (`eta`), or the radius larger."
    )


def separating_radius(before: Measure, after: Measure, radius: float | None) -> float:
    """A radius larger than the displacement whose balls around the images do not meet.

    Args:
        before: the images without the small mass.
        after: the images with it.
        radius: what a user allows, None for the displacement.
    """
    found, images = displacement(before, after, radius), before.merge().atoms
    if len(images) == 1:
        return found
    gap = float(nearest(images, images, 2)[0].min())
    if gap < 2 * found:
        raise NotRecovered(
            f"Images are {gap:.2g} away from each other and move by up to {found / 2:.2g} when "
            "the mass is added: no test function is constant near each. Make the mass smaller "
            "(`eta`)."
        )
    return found


def nearest(x: Tensor, y: Tensor, rank: int = 1) -> tuple[Tensor, Tensor]:
    """The distance of each point of `x` to the nearest point of `y`, and its index.

    Args:
        x: the points.
        y: the points that are searched.
        rank: 1 for the nearest, 2 for the second nearest.
    """
    from scipy.spatial import cKDTree

    points, others = (t.detach().double().cpu().numpy() for t in (x, y))
    distance, index = cKDTree(others).query(points, [rank])
    put = lambda a: torch.as_tensor(a[:, 0], device=x.device)
    return put(distance), put(index)
