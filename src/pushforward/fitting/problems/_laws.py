"""Laws: random measures of any number of atoms, on which maps are trained and judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._tools.checks import (
    check_callable,
    check_kind,
    check_limits,
    check_number,
    check_range,
    check_sizes,
)
from ...measures import Measure, listed

LARGEST_LOG = 12.0
"""Log-weights of `Box` lie within this distance of their mean."""


class Law(ABC):
    r"""A law of random measures on $\mathbb R^d$, from which batches are drawn.

    An author writes `draw(count, n, generator)`. As a function, `law(n, generator)` draws one
    measure; `pf.characterise` and `pf.audit` take laws of this form.

    Examples:
        >>> class Lines(pf.fitting.Law):
        ...     dim = 2
        ...     def draw(self, count, n, generator):
        ...         x = torch.rand(count, n, 1, generator=generator)
        ...         return pf.Measure(torch.cat([x, x], -1))
        >>> Lines()(5, torch.Generator())
        Measure(5 atoms in R^2, float32, cpu)
    """

    dim: int
    """Dimension of the points."""

    @abstractmethod
    def draw(self, count: int, n: int, generator: torch.Generator) -> Measure:
        """A batch of `count` measures of `n` atoms each, on the device of the generator."""

    def __call__(self, n: int, generator: torch.Generator) -> Measure:
        """One measure of `n` atoms."""
        _check_drawing(generator, n=n)
        return self.draw(1, n, generator)[0]


@dataclass(frozen=True)
class Mixtures(Law):
    r"""Samples of mixtures of Gaussians whose centres and scales are random.

    Each measure has its own mixture. Points are clamped to the box $[-r,r]^d$.

    Args:
        dim: dimension of the points.
        components: Gaussians of a mixture.
        spread: standard deviation of the centres.
        scales: least and largest standard deviation of a component.
        radius: $r$.
        unequal: share of the batches whose weights are unequal, independent exponential variables
            that are normalised; 0 gives equal weights always.

    Examples:
        >>> law = pf.fitting.Mixtures(2, unequal=1.0)
        >>> law.draw(8, 100, torch.Generator()).batch_shape
        (8,)
    """

    dim: int
    components: int = 3
    spread: float = 1.2
    scales: tuple[float, float] = (0.15, 0.65)
    radius: float = 2.5
    unequal: float = 0.5

    def __post_init__(self) -> None:
        check_sizes(dim=self.dim, components=self.components)
        check_number("spread", self.spread)
        check_number("radius", self.radius)
        check_range("unequal", self.unequal, 0, 1 + 1e-12)
        check_limits("scales", self.scales)

    def draw(self, count: int, n: int, generator: torch.Generator) -> Measure:
        _check_drawing(generator, count=count, n=n)
        where, (low, high) = generator.device, self.scales
        normal = lambda *shape: torch.randn(*shape, generator=generator, device=where)
        centres = self.spread * normal(count, self.components, self.dim)
        scales = low + (high - low) * _uniform(generator, count, self.components, 1)
        own = torch.randint(self.components, (count, n), generator=generator, device=where)
        row = torch.arange(count, device=where)[:, None]
        x = centres[row, own] + scales[row, own] * normal(count, n, self.dim)
        exponential = -_uniform(generator, count, n).clamp(1e-6, 1 - 1e-6).log()
        logs = torch.where(_uniform(generator, 1, 1) < self.unequal, exponential.log(), 0.0)
        return Measure.unchecked(x.clamp(-self.radius, self.radius), logs.log_softmax(-1))


@dataclass(frozen=True)
class Box(Law):
    r"""Measures of every kind on the box $[-r,r]^d$: a law whose support is nearly everything.

    Two fifths are spread out, two fifths lie on at most eight clumps, one fifth near corners.
    Weights go from equal ones to nearly all mass on one atom.

    Args:
        dim: dimension of the points.
        radius: $r$.

    Examples:
        >>> bool(pf.fitting.Box(2, radius=1.0)(50, torch.Generator()).atoms.abs().max() <= 1)
        True
    """

    dim: int
    radius: float = 2.5

    def __post_init__(self) -> None:
        check_sizes(dim=self.dim)
        check_number("radius", self.radius)

    def draw(self, count: int, n: int, generator: torch.Generator) -> Measure:
        _check_drawing(generator, count=count, n=n)
        where, r = generator.device, self.radius
        normal = lambda *shape: torch.randn(*shape, generator=generator, device=where)
        x = r * (2 * _uniform(generator, count, n, self.dim) - 1)
        clumps = torch.randint(1, 9, (count, 1), generator=generator, device=where)
        own = (_uniform(generator, count, n) * clumps).long().clamp_max(n - 1)
        centres = x.gather(1, own[..., None].expand(x.shape))
        clumped = centres + 0.04 * r * normal(count, n, self.dim)
        cornered = r * x.sign() - 0.3 * x
        kind = _uniform(generator, count, 1, 1)
        x = torch.where(kind < 0.4, x, torch.where(kind < 0.8, clumped, cornered)).clamp(-r, r)
        logs = 3 * _uniform(generator, count, 1) * normal(count, n)
        return Measure.unchecked(x, logs.clamp(-LARGEST_LOG, LARGEST_LOG).log_softmax(-1))


class Resampled(Law):
    """Independent draws from measures that a user has: each from one of them, chosen at random.

    Args:
        measures: the measures, or a batch of them.

    Examples:
        >>> mine = [pf.Measure(torch.zeros(9, 2)), pf.Measure(torch.ones(4, 2))]
        >>> pf.fitting.Resampled(mine)(3, torch.Generator()).atoms.shape
        torch.Size([3, 2])
    """

    def __init__(self, measures: Sequence[Measure] | Measure) -> None:
        self.measures = Measure.stack(listed("measures", measures)).normalise()
        self.dim = self.measures.dim

    def draw(self, count: int, n: int, generator: torch.Generator) -> Measure:
        _check_drawing(generator, count=count, n=n)
        where = generator.device
        chosen = torch.randint(len(self.measures), (count,), generator=generator, device=where)
        mu = self.measures.to(where)
        rows = mu.log_weights.exp()[chosen]
        picks = torch.multinomial(rows, n, replacement=True, generator=generator)
        x = mu.atoms[chosen[:, None], picks]
        return Measure.unchecked(x, mu.log_weights.new_zeros(count, n).log_softmax(-1))


class OneOf(Law):
    """A law that draws each batch from one of several, at random.

    Args:
        laws: the laws, all of one dimension.
        shares: how often each is chosen; equally often by default.

    Examples:
        >>> law = pf.fitting.OneOf(pf.fitting.Mixtures(2), pf.fitting.Box(2), shares=[0.75, 0.25])
        >>> law(4, torch.Generator()).n
        4
    """

    def __init__(self, *laws: Law, shares: Sequence[float] | None = None) -> None:
        if not laws:
            raise ValueError("`OneOf` needs at least one law, got none.")
        self.laws = [as_law(law, f"laws[{k}]") for k, law in enumerate(laws)]
        dims = sorted({law.dim for law in self.laws})
        if len(dims) > 1:
            raise ValueError(f"All laws must have one dimension, got {dims}.")
        self.dim = dims[0]
        given = [1.0] * len(laws) if shares is None else shares
        if not isinstance(given, tuple | list) or len(given) != len(laws):
            raise ValueError(f"`shares` must have one number for each law, got {shares!r}.")
        for k, share in enumerate(given):
            check_range(f"shares[{k}]", share, 0)
        if not sum(given) > 0:
            raise ValueError(f"`shares` must not all be zero, got {shares!r}.")
        self.shares = [s / sum(given) for s in given]

    def draw(self, count: int, n: int, generator: torch.Generator) -> Measure:
        _check_drawing(generator, count=count, n=n)
        left = float(_uniform(generator, 1))
        for law, share in zip(self.laws[:-1], self.shares, strict=False):
            if left < share:
                return law.draw(count, n, generator)
            left -= share
        return self.laws[-1].draw(count, n, generator)


class _Function(Law):
    """A user's function `law(n, generator)`, called once for each measure of a batch."""

    def __init__(
        self, function: Callable[[int, torch.Generator], Measure | Tensor], name: str
    ) -> None:
        self.function, self.name = function, name
        self.dim = self._one(2, torch.Generator().manual_seed(0)).dim

    def draw(self, count: int, n: int, generator: torch.Generator) -> Measure:
        return Measure.stack([self._one(n, generator) for _ in range(count)]).normalise()

    def _one(self, n: int, generator: torch.Generator) -> Measure:
        made = self.function(n, generator)
        if not isinstance(made, Measure | Tensor):
            raise TypeError(
                f"`{self.name}` must return a Measure or a tensor of points, got "
                f"{type(made).__name__}."
            )
        mu = made if isinstance(made, Measure) else Measure(made)
        if mu.batch_shape:
            raise ValueError(
                f"`{self.name}(n, generator)` must draw one measure, got a batch "
                f"{mu.batch_shape}. A law that draws batches is a subclass of `pf.fitting.Law`."
            )
        return mu


def as_law(law: object, name: str = "law") -> Law:
    """A law, also one that is given as a function `law(n, generator)`; its name in messages."""
    if isinstance(law, Law):
        return law
    check_callable(name, law, "a `pf.fitting.Law` or a function `law(n, generator)`")
    return _Function(law, name)  # type: ignore[arg-type]


def _check_drawing(generator: torch.Generator, **sizes: int) -> None:
    """Raise unless measures of these sizes can be drawn."""
    check_sizes(**sizes)
    check_kind("generator", generator, torch.Generator, "Make one with `torch.Generator()`.")


def _uniform(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, device=generator.device)


def centred(log_weights: Tensor) -> Tensor:
    """Log-weights of the same normalised measures, with the middle of their range at 0.

    They lie within `LARGEST_LOG` of it: atoms with less mass than that, or none, get the least.
    """
    high = log_weights.amax(-1, keepdim=True)
    low = log_weights.amin(-1, keepdim=True).maximum(high - 2 * LARGEST_LOG)
    return (log_weights - (high + low) / 2).clamp_min(-LARGEST_LOG)
