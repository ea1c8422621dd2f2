r"""Ways to see where a small mass went.

All of them look at $f(\mu_\eta)$ with $\mu_\eta=(1-\eta)\mu+\eta\delta_x$, and say where the mass
at $x$ is: at $G(\mu_\eta,x)$, which tends to $G(\mu,x)$ with $\eta$.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .._tools.checks import check_number
from .._tools.linkage import label_points
from ..measures import Measure, MeasureMap
from ._black_box import BlackBoxError, called, masses, with_probe
from ._subset_sums import LIMIT, decode


class Probe(ABC):
    """A way to see where a small mass went."""

    @abstractmethod
    def image(
        self, f: MeasureMap, mu: Measure, x: Float[Tensor, " d"], eta: float
    ) -> Float[Tensor, " e"]:
        r"""Where the mass $\eta$ at $x$ goes.

        Args:
            f: the black box.
            mu: the context, not batched.
            x: the point.
            eta: its mass.
        """


@dataclass(frozen=True)
class Decode(Probe):
    r"""By subset sums: masses say which atoms an image is made of (Algorithm R1).

    For up to 32 atoms whose weights have distinct subset sums, such as $a_i\propto2^{-i}$. The
    position is read, not differenced: nothing is divided by $\eta$.

    Args:
        tol: how far a sum may be from a mass.
    """

    tol: float = 1e-12

    def __post_init__(self):
        check_number("tol", self.tol)

    def image(self, f, mu, x, eta):
        """The output that the tagged atom is part of."""
        probed, tagged = with_probe(mu, x, eta)
        out = called(f, probed).merge()
        found = decode(masses(probed), masses(out), self.tol)
        if found.owner is None:
            raise BlackBoxError(_WHY[found.problem or ""])
        return out.atoms[found.owner[tagged]]


_WHY = {
    "no subset": "An output mass is no sum of input masses: the map splits or re-weights atoms.",
    "several subsets": "Output masses are sums of input masses in several ways: weights are not "
    "generic. Recover by excess mass: `pf.recover(f, by=pf.representation.Excess())`.",
    "subsets overlap": "Output masses claim the same atom twice: the map makes mass.",
    "mass is missing": "Some input mass is in no output: the map loses mass.",
}


@dataclass(frozen=True)
class Excess(Probe):
    r"""By excess mass: where $f(\mu_\eta)$ has $\eta$ more than $(1-\eta)f(\mu)$ (Algorithm R2).

    For any number of atoms and any weights. An image apart from all others is read to the last
    digit; one that fell onto others, to the radius of their cluster.

    Args:
        radius: how far other images may move when the probe comes in; by default as far as they
            are seen to.
    """

    radius: float | None = None

    def __post_init__(self):
        if self.radius is not None:
            check_number("radius", self.radius)

    def image(self, f, mu, x, eta):
        """The one output of the probe's mass, or the one cluster with an excess."""
        probed, tagged = with_probe(mu, x, eta)
        out = called(f, probed).merge()
        mass = float(probed.weights[tagged])
        alone = _of_mass(out, mass, eta)
        if len(alone) == len(_of_mass(probed, mass, eta)) == 1:
            return out.atoms[alone[0]]
        before = called(f, mu).merge()
        radius = reach(before, out, self.radius)
        label, _ = label_points(torch.cat([before.atoms, out.atoms]).detach(), None, radius)
        change = torch.zeros(int(label.max()) + 1, dtype=torch.float64, device=label.device)
        gains = torch.cat([-(1 - eta) * before.weights.double(), out.weights.double()])
        change = change.index_add(0, label, gains.detach())
        odd = (change.abs() > 0.01 * eta).nonzero().flatten()
        if len(odd) != 1 or not abs(float(change[odd[0]]) / eta - 1) < 0.01:
            raise BlackBoxError(
                f"No one place has the excess mass {eta:g}: the map splits or re-weights atoms, "
                f"or images move by more than {radius:.2g} when it comes in: `Excess(radius=...)`."
            )
        if int((label[: before.n] == odd[0]).sum()) > 1:
            raise BlackBoxError(
                f"The excess mass is among images that cannot be told apart within {radius:.2g}. "
                "Make the probe lighter (`eta`), or give the atoms weights that differ."
            )
        cluster = (label[before.n :] == odd[0]).nonzero().flatten()
        share = out.weights[cluster] / out.weights[cluster].sum()
        return (share[:, None] * out.atoms[cluster]).sum(0)


def _of_mass(mu: Measure, mass: float, eta: float) -> Tensor:
    """The atoms that have a mass, up to far less than the probe's."""
    return ((mu.weights - mass).abs() < 1e-2 * eta).nonzero().flatten()


@dataclass(frozen=True)
class Automatic(Probe):
    """By excess mass; where images cannot be told apart so, by subset sums if atoms are few."""

    def image(self, f, mu, x, eta):
        """The first that can tell."""
        try:
            return Excess().image(f, mu, x, eta)
        except BlackBoxError as error:
            if mu.n >= LIMIT:
                raise
            try:
                return Decode().image(f, mu, x, eta)
            except BlackBoxError:
                raise error from None


@dataclass(frozen=True)
class Weak(Probe):
    r"""By test functions: $G_j(\mu,x)=\overline Df(\mu,x,\pi_j)$, eq. (44) (Algorithm R3).

    $$\tfrac1\eta\bigl(\langle f(\mu_\eta),\psi\rangle-(1-\eta)\langle f(\mu),\psi\rangle\bigr)$$

    with coordinates $\psi$ that are constant within a radius of the images of $\mu$. Quotients
    lose digits: in float64 the best $\eta$ is about $10^{-8}$.

    Args:
        radius: within which coordinates are constant, by default a little more than other images
            move when the probe comes in; also the error where the image falls there.
    """

    radius: float | None = None

    def __post_init__(self):
        if self.radius is not None:
            check_number("radius", self.radius)

    def image(self, f, mu, x, eta):
        """A quotient of integrals."""
        before, after = called(f, mu), called(f, with_probe(mu, x, eta)[0])
        radius = apart(before, after, self.radius)
        psi = lambda out: flattened(out.atoms, before.atoms, radius)
        return (after.integrate(psi(after)) - (1 - eta) * before.integrate(psi(before))) / eta


def flattened(
    y: Float[Tensor, "m e"], centres: Float[Tensor, "n e"], radius: float
) -> Float[Tensor, "m e"]:
    r"""Coordinates that are constant near some points, 2-Lipschitz, within $r$ of the identity.

    With $c$ the nearest of the points and $q=|y-c|$: $c$ for $q\le r$,
    $c+2(q-r)\frac{y-c}q$ for $r<q<2r$, and $y$ beyond.

    Args:
        y: where.
        centres: the points.
        radius: $r$.
    """
    _, index = nearest(y, centres)
    c = centres.detach()[index]
    away = y - c
    q = away.norm(dim=-1, keepdim=True)
    stretch = (2 * (q - radius) / q.clamp_min(radius)).clamp(0, 1)
    return torch.where(q >= 2 * radius, y, c + stretch * away)


def reach(before: Measure, after: Measure, radius: float | None) -> float:
    """A little more than the farthest any image is from the nearest one afterwards.

    Args:
        before: the images without the probe.
        after: the images with it.
        radius: what a user allows, None for as far as it is.
    """
    size = float(after.atoms.detach().abs().max())
    far = float(nearest(before.atoms, after.atoms)[0].max())
    found = 2 * far + 16 * torch.finfo(after.dtype).eps * size
    if radius is None or found <= radius:
        return found if radius is None else radius
    raise BlackBoxError(
        f"Images move by {far:.2g} when the probe comes in, and the radius is {radius:g}. "
        "Make the probe lighter (`eta`), or the radius larger."
    )


def apart(before: Measure, after: Measure, radius: float | None) -> float:
    """The same, where balls of that radius around the images must not meet."""
    found, images = reach(before, after, radius), before.merge().atoms
    if len(images) == 1:
        return found
    gap = float(nearest(images, images, 2)[0].min())
    if gap < 2 * found:
        raise BlackBoxError(
            f"Images lie {gap:.2g} apart and move by up to {found / 2:.2g} when the probe comes "
            "in: test functions cannot be constant near each. Make the probe lighter (`eta`)."
        )
    return found


def nearest(x: Tensor, y: Tensor, rank: int = 1) -> tuple[Tensor, Tensor]:
    """The distance of each point to the nearest of others, and which it is.

    Args:
        x: the points.
        y: the others.
        rank: 1 for the nearest, 2 for the second.
    """
    from scipy.spatial import cKDTree

    points, others = (t.detach().double().cpu().numpy() for t in (x, y))
    distance, index = cKDTree(others).query(points, [rank])
    put = lambda a: torch.as_tensor(a[:, 0], device=x.device)
    return put(distance), put(index)
