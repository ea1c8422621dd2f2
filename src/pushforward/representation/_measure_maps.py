r"""What can be tested without a search.

Does the map depend on the measure alone, and not on how it is written? Does it preserve supports,
condition (B1) of [A, Thm. 1]?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..distances import wasserstein
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._probes import Excess
from ._small_mass import weights_array
from ._subset_sums import Decoding, decode
from .boxes import MapBox
from .continuity import Region

DRAWS = 5
"""Draws of the law for each test."""

ATOMS = 12
"""Atoms of the measures whose masses are decoded."""

WHOLE_REGION = 24
"""Measures with atoms anywhere in the region, whose masses are decoded."""

ROUNDING_FACTOR = 1e3
"""A change up to this many times the response to a one-unit rounding error counts as none."""

MASS_TOL = {torch.float32: 1e-5, torch.float64: 1e-12}
"""How far an output mass may be from a sum of input masses."""


@dataclass(frozen=True, eq=False)
class Witness:
    """Measures that show what is wrong with a map, and can be tested again.

    Args:
        what: what they show, in words.
        mu: a measure.
        nu: another, None if one is enough.
        x: a point, if one matters.
        other: another point.
        eta: the mass put at the points.
        drawn: whether the measure is a draw of the law.
    """

    what: str
    mu: Measure
    nu: Measure | None = None
    x: Tensor | None = None
    other: Tensor | None = None
    eta: float | None = None
    drawn: bool = True

    @torch.no_grad()
    def replay(self, f: MeasureMap | InContextMap) -> float:
        r"""Test a map on these measures again.

        With points: the distance between the images of the mass at `x` and of the mass at `other`.
        With two measures: $W_1$ of their images. With one: the distance of an output mass from all
        sums of input masses.

        Args:
            f: a map between measures, or an in-context map.
        """
        box = MapBox(f, self.mu)
        if self.x is not None and self.other is not None and self.eta is not None:
            a, b = (Excess().image(box.push, self.mu, x, self.eta) for x in (self.x, self.other))
            return float((a - b).norm())
        if self.nu is not None:
            return float(wasserstein(box.push(self.mu), box.push(self.nu)))
        return _decoded(box, self.mu).residual


def rewritings(mu: Measure, generator: torch.Generator) -> dict[str, tuple[Measure, Tensor]]:
    """The same measure, written in other ways.

    For each the measure, and for each of its atoms the index of that atom in `mu`: permuted, every
    atom split in halves, and the whole list of atoms repeated three times.

    Args:
        mu: the measure.
        generator: of the permutation.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> again = pf.representation.rewritings(mu, torch.Generator())
        >>> again["splitting"][0].atoms.flatten()
        tensor([0., 0., 1., 1.])
    """
    once = torch.arange(mu.n)
    indices = {
        "permuting": torch.randperm(mu.n, generator=generator),
        "splitting": once.repeat_interleave(2),
        "repeating": once.repeat(3),
    }
    return {name: (_indexed(mu, index.to(mu.device)), index) for name, index in indices.items()}


def _indexed(mu: Measure, index: Tensor) -> Measure:
    times = None if mu.times is None else mu.times[index]
    return Measure.unchecked(mu.atoms[index], mu.log_weights[index], times).normalise()


def refinements(mu: Measure, generator: torch.Generator) -> dict[str, Measure]:
    """The same measure with atoms split into unequal parts: one of them, and all at random.

    Args:
        mu: the measure.
        generator: of atoms and shares.

    Examples:
        >>> mu = pf.Measure(torch.tensor([[0.0], [1.0]]))
        >>> finer = pf.representation.refinements(mu, torch.Generator().manual_seed(0))
        >>> finer["splitting one"].n, finer["splitting at random"].mass
        (3, tensor(1.))
    """
    rand = lambda n: torch.rand(n, generator=generator, dtype=torch.float64)
    share = 0.1 + 0.3 * float(rand(1))
    atom = int(torch.randint(mu.n, (), generator=generator))
    parts = torch.randint(1, 4, (mu.n,), generator=generator)
    index = torch.arange(mu.n).repeat_interleave(parts)
    raw = 0.1 + rand(len(index))
    total = torch.zeros(mu.n, dtype=torch.float64).index_add(0, index, raw)
    shares = (raw / total[index]).log().to(mu.log_weights)
    finer = _indexed(mu, index.to(mu.device))
    times = finer.times
    log_weights = mu.log_weights[index.to(mu.device)] + shares
    return {
        "splitting one": mu.split([share, 1 - share], atom=atom),
        "splitting at random": Measure.unchecked(finer.atoms, log_weights, times).normalise(),
    }


_CHANGES = {
    "permuting": "permuting its atoms",
    "splitting": "splitting its atoms in halves",
    "repeating": "repeating the whole of it three times",
    "splitting one": "splitting one atom into two of unequal weight",
    "splitting at random": "splitting its atoms into parts of random weights",
}


def change_by_rewriting(
    box: MapBox, draw: Callable[[], Measure], generator: torch.Generator
) -> tuple[float, Witness | None]:
    """Whether a map depends on more than the measure.

    Returns the largest change of an image when the measure is written in another way, in units of
    the tolerance, and a witness if that is more than one. The tolerance comes from the response of
    the map to changes of points and weights by rounding.

    Args:
        box: the map.
        draw: draws a measure.
        generator: of rounding errors and permutations.
    """
    worst, witness = 0.0, None
    for _ in range(DRAWS):
        mu = draw()
        out = box.push(mu)
        unit = torch.finfo(mu.dtype).eps
        response = max(float(wasserstein(out, box.push(nu))) for nu in _rounded(mu, generator))
        size = 1 + float(out.atoms.abs().max()) + float(mu.atoms.abs().max())
        tolerance = ROUNDING_FACTOR * (response + unit * size)
        same = {name: nu for name, (nu, _) in rewritings(mu, generator).items()}
        for name, nu in (same | refinements(mu, generator)).items():
            ratio = float(wasserstein(out, box.push(nu))) / tolerance
            if ratio > worst:
                worst = ratio
                witness = Witness(f"{_CHANGES[name]} changes the result", mu, nu)
    return worst, witness if worst > 1 else None


def _rounded(mu: Measure, generator: torch.Generator) -> Iterator[Measure]:
    """Measures whose points or weights differ by one rounding unit.

    Weights too: two of them that are equal up to rounding are a tie, in which a map that is not
    continuous may choose either side.
    """
    unit = torch.finfo(mu.dtype).eps
    for _ in range(3):
        signs = torch.randint(2, mu.atoms.shape, generator=generator) * 2 - 1
        yield mu.moved(mu.atoms * (1 + unit * signs.to(mu.atoms)))
        signs = torch.randint(2, (mu.n,), generator=generator) * 2 - 1
        for step in (4 * unit, -4 * unit):
            log_weights = mu.log_weights + step * signs.to(mu.log_weights)
            yield Measure.unchecked(mu.atoms, log_weights, mu.times)


def mass_residual(
    box: MapBox, draw: Callable[[], Measure], region: Region, generator: torch.Generator
) -> tuple[float, Witness | None]:
    """Whether a map splits or re-weights atoms, (B1) [A, Def. 1].

    Returns the largest distance of an output mass from all sums of input masses, and a witness if
    an output mass is no such sum.

    Args:
        box: the map.
        draw: draws a measure.
        region: where the points of draws lie.
        generator: of atoms and weights.
    """
    worst = 0.0
    for mu, drawn in _generic_measures(draw, region, generator):
        decoding = _decoded(box, mu)
        worst = max(worst, decoding.residual)
        # Several subsets within the tolerance: the weights are not generic enough to conclude.
        if decoding.owner is None and decoding.problem != "several subsets":
            what = f"an output mass is not a sum of input masses ({decoding.problem})"
            return worst, Witness(what, mu, drawn=drawn)
    return worst, None


def _decoded(box: MapBox, mu: Measure) -> Decoding:
    """Which atoms the images consist of; images that differ by rounding are merged first."""
    out = box.push(mu)
    out = out.merge(64 * torch.finfo(out.dtype).eps * (1 + float(out.atoms.abs().max())))
    tol = MASS_TOL.get(mu.dtype, MASS_TOL[torch.float32])
    return decode(weights_array(mu), weights_array(out), tol)


def _generic_measures(
    draw: Callable[[], Measure], region: Region, generator: torch.Generator
) -> Iterator[tuple[Measure, bool]]:
    """Measures whose subset sums all differ [A, Lem. 1], and whether their points are drawn.

    A map may split only heavy atoms, or atoms in a part of the region. So weights are nearly
    equal, skewed, or all on one atom; clouds are draws, a few atoms of a draw, or points anywhere.
    """
    rand = lambda n: torch.rand(n, generator=generator, dtype=torch.float64)
    weights = (
        lambda n: rand(n) + 0.2,
        lambda n: torch.exp(-5 * rand(n)),
        lambda n: torch.cat([torch.full((1,), 3.0 * n, dtype=torch.float64), rand(n - 1) + 0.2]),
    )
    for k in range(DRAWS * len(weights)):
        mu = draw().merge()
        count = (ATOMS, 4, 2, 1)[k // len(weights) % 4]
        some = torch.randperm(mu.n, generator=generator)[:count].to(mu.device)
        yield _weighted(mu.atoms[some], weights[k % len(weights)]), True
    for k in range(WHOLE_REGION):
        cells = rand(ATOMS * len(region.low)).reshape(ATOMS, -1).to(region.low)
        points = region.clamp(region.low + cells * (region.high - region.low))
        yield _weighted(points, weights[k % len(weights)]), False


def _weighted(atoms: Tensor, weights: Callable[[int], Tensor]) -> Measure:
    w = weights(len(atoms))
    return Measure(atoms, weights=(w / w.sum()).to(atoms))
