r"""Paths of measures, along which a jump is looked for.

A mixture $(1-t)\mu+t\nu$ is written in log-odds, $t=\sigma(\tau)$. There attention is tame at any
scale: the slope of $\tau\mapsto\Gamma((1-t)\mu+t\nu,x)$ is at most
$\frac14|\Gamma(\nu,x)-\Gamma(\mu,x)|$, because a scale only shifts a sigmoid. And log-weights hold
masses that no float can: $e^{-690}$ is not small. A motion carries every atom along a line.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ...distances import wasserstein
from ...measures import Measure
from ._region import Law, Region

MIXTURES, MOTIONS = 24, 36
"""Paths of each kind."""

SIZES = (1, 2, 4, None)
"""Atoms that are taken from a draw; None for all of them."""

ODDS = (-690, -230, -80, -30, -12, -5, -2, 0, 2, 5, 12, 30, 80, 230, 690)
"""Log-odds at which a mixture is first looked at; float64 has masses down to e^-745."""

LEAST_STEP = 64 * torch.finfo(torch.float64).eps
"""The least relative step at which two points of a path still differ clearly."""


class Path(ABC):
    """A path of measures, as a function of a parameter."""

    nodes: tuple[float, ...]
    """The parameters at which it is first looked at."""
    span: tuple[float, float]
    """The first and the last parameter."""

    @abstractmethod
    def at(self, t: float) -> Measure:
        """The measure at a parameter."""

    @abstractmethod
    def least_step(self, t: float) -> float:
        """The least step in the parameter that floats resolve."""

    @abstractmethod
    def transferred(self, s: float, t: float) -> float:
        """The mass that changes places between two parameters."""

    @abstractmethod
    def log_distance(self, s: float, t: float) -> float:
        """The logarithm of an upper bound of $W_1$ between two parameters $s<t$."""


class Mixture(Path):
    r"""$(1-t)\mu+t\nu$ with $t=\sigma(\tau)$, the parameter being $\tau$.

    At $\tau=\mp\infty$ it is $\mu$ or $\nu$ itself, without the atoms of the other.

    Args:
        mu: the measure at $-\infty$, normalised.
        nu: the measure at $+\infty$, normalised.
    """

    nodes, span = ODDS, (-math.inf, math.inf)

    def __init__(self, mu: Measure, nu: Measure) -> None:
        self.mu, self.nu = mu, nu
        self.log_length = math.log(max(float(wasserstein(mu, nu)), 1e-300))

    def at(self, t: float) -> Measure:
        if math.isinf(t):
            return self.mu if t < 0 else self.nu
        logs = logsigmoid(torch.tensor([-t, t], dtype=torch.float64)).to(self.mu.log_weights)
        log_weights = self.mu.log_weights + logs[0], self.nu.log_weights + logs[1]
        atoms = torch.cat([self.mu.atoms, self.nu.atoms])
        return Measure.unchecked(atoms, torch.cat(log_weights))

    def least_step(self, t: float) -> float:
        return LEAST_STEP * max(1.0, abs(t))

    def transferred(self, s: float, t: float) -> float:
        return float(torch.tensor([s, t], dtype=torch.float64).sigmoid().diff())

    def log_distance(self, s: float, t: float) -> float:
        # sigmoid(t) - sigmoid(s) = sigmoid(t) sigmoid(-s) (1 - e^(s-t)), in logarithms
        return _log_sigmoid(t) + _log_sigmoid(-s) + math.log(-math.expm1(s - t)) + self.log_length


class Motion(Path):
    r"""All atoms on straight lines, from those of a measure at 0 to other points at 1.

    On a manifold the points of the lines are retracted to it.

    Args:
        mu: the measure at 0.
        end: its points at 1.
        region: where the points lie.
    """

    nodes, span = tuple(k / 16 for k in range(17)), (0.0, 1.0)

    def __init__(self, mu: Measure, end: Tensor, region: Region) -> None:
        self.mu, self.end, self.manifold = mu, end, region.manifold
        steps = (end - mu.atoms).norm(dim=-1)
        self.longest = max(float(steps.max()), 1e-9)
        self.length = float(mu.weights @ steps) + 1e-300

    def at(self, t: float) -> Measure:
        points = self.end if t == 1 else self.mu.atoms + t * (self.end - self.mu.atoms)
        return self.mu.moved(self.manifold.retract(points))

    def least_step(self, t: float) -> float:
        return LEAST_STEP * max(1.0, float(self.mu.atoms.abs().max()) / self.longest)

    def transferred(self, s: float, t: float) -> float:
        return 0.0

    def log_distance(self, s: float, t: float) -> float:
        # Retraction may stretch a step, so the distance that the points really move counts too.
        moved = (self.at(t).atoms - self.at(s).atoms).norm(dim=-1)
        return math.log(max((t - s) * self.length, float(self.mu.weights @ moved)))


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def draw_paths(law: Law, size: int, region: Region, generator: torch.Generator) -> Iterator[Path]:
    """Mixtures and motions of draws of a law, and of some of their atoms.

    Args:
        law: `law(n, generator)` draws a measure.
        size: `n`, the atoms of a draw.
        region: where points may be.
        generator: of all random numbers.
    """
    draw = _Draws(law, size, region, generator)
    for k in range(MIXTURES):
        ends = draw.corner, draw.somewhere, lambda: draw.cloud(SIZES[draw.index(len(SIZES))])
        other = ends[k // len(SIZES) % len(ends)]()
        yield Mixture(draw.cloud(SIZES[k % len(SIZES)]), other)
    for k in range(MOTIONS):
        mu = draw.cloud(SIZES[k % len(SIZES)])
        yield Motion(mu, draw.target(mu.atoms, k // len(SIZES) % 6), region)


class _Draws:
    """Random clouds, points and motions."""

    def __init__(self, law: Law, size: int, region: Region, generator: torch.Generator) -> None:
        self.law, self.size, self.region, self.generator = law, size, region, generator

    def index(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.generator))

    def rand(self, *shape: int) -> Tensor:
        like = self.region.low
        return torch.rand(*shape, generator=self.generator, dtype=like.dtype).to(like.device)

    def points(self, count: int) -> Tensor:
        """Points anywhere in the region."""
        low, high = self.region.low, self.region.high
        return self.region.clamp(low + self.rand(count, len(low)) * (high - low))

    def somewhere(self) -> Measure:
        """One atom anywhere in the region."""
        return Measure(self.points(1))

    def corner(self) -> Measure:
        """One atom in a corner of the region."""
        low, high = self.region.low, self.region.high
        return Measure(self.region.clamp(torch.where(self.rand(1, len(low)) < 0.5, low, high)))

    def cloud(self, count: int | None) -> Measure:
        """A draw or some of its atoms, with its weights or with random ones."""
        mu = self.law(self.size, self.generator).strip().normalise()
        if count is not None and count < mu.n:
            some = torch.randperm(mu.n, generator=self.generator)[:count]
            mu = Measure(mu.atoms[some.to(mu.device)])
        if self.index(3) == 0:
            return mu
        return Measure(mu.atoms, 0.2 + self.rand(mu.n)).normalise()

    def target(self, x: Tensor, kind: int) -> Tensor:
        """Where atoms move to: one of six kinds of motion."""
        low, high, end = self.region.low, self.region.high, x.clone()
        i, j = self.index(len(x)), self.index(len(x))
        match kind:
            case 0:  # all anywhere
                return self.points(len(x))
            case 1:  # one anywhere
                end[i] = self.points(1)[0]
            case 2:  # all through the centre
                end = low + high - x
            case 3:  # all onto one
                end = x[i].expand_as(x).clone()
            case 4:  # one onto another
                end[i] = x[j] if i != j else self.points(1)[0]
            case _:  # all into a hyperplane
                end[:, self.index(len(low))] = self.points(1)[0, 0]
        return self.region.clamp(end)
