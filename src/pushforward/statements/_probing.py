"""Small masses and test functions, of which experiments on derivatives are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..measures import Measure, MeasureMap
from ..representation import flattened
from ._laws import unit

TestFunction = Callable[[Tensor], Tensor]


def first(y: Tensor) -> Tensor:
    """The first coordinate."""
    return y[:, 0]


def shift(mu: Measure) -> Measure:
    r"""$G(\mu,x)=x+\bar\mu$, with the barycentre $\bar\mu$."""
    return mu.push(lambda y: y + mu.mean())


def added(mu: Measure, x: Tensor, eps: float) -> Measure:
    r"""$\mu+\varepsilon\delta_x$."""
    return Measure(torch.cat([mu.atoms, x[None]]), torch.cat([mu.weights, torch.tensor([eps])]))


def quotient(f: MeasureMap, mu: Measure, x: Tensor, psi: TestFunction, eps: float) -> float:
    r"""$\frac1\varepsilon\langle f(\mu+\varepsilon\delta_x)-f(\mu),\psi\rangle$."""
    return float(f(added(mu, x, eps)).integrate(psi) - f(mu).integrate(psi)) / eps


def flat(psi: TestFunction, centres: Tensor, radius: float) -> TestFunction:
    """A test function made constant near some points."""
    return lambda y: psi(flattened(y, centres, radius))


def safe_radius(points: Tensor) -> float:
    """A radius for which the balls of twice the radius around points do not meet."""
    return float(torch.pdist(points).min()) / 4


def approaches(
    mu: Measure, x: Tensor, e: float, generator: torch.Generator
) -> Iterator[tuple[Measure, Tensor]]:
    """Measures and points at a distance of about `e` from given ones, in five ways."""
    noise = lambda *shape: 2 * torch.rand(*shape, generator=generator) - 1
    yield Measure(mu.atoms, mu.weights * (1 + e * noise(mu.n))).normalise(), x
    yield mu.moved(mu.atoms + e * noise(mu.n, 2)), x
    halves = mu.split([0.37, 0.63])
    yield halves.moved(halves.atoms + e * noise(halves.n, 2)), x
    for side in (-e, e):
        yield mu, x + side * unit(generator)


def soft(y: Tensor, points: Tensor, radius: float) -> Tensor:
    r"""Coordinates constant near some points, of Lipschitz constant 1: soft thresholds in turn.

    Each is $c+(1-\frac{r}{n|y-c|})_+(y-c)$, which moves the other points too.
    """
    step = radius / len(points)
    for k in range(len(points)):
        offsets = [z - points[k] for z in (y, points)]
        y, points = (
            points[k] + (1 - step / v.norm(dim=-1, keepdim=True)).clamp_min(0) * v for v in offsets
        )
    return y
