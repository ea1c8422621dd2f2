"""What can be seen without a search: sanity, dependence on the measure alone, masses."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..distances import wasserstein
from ..maps import InContextMap
from ..measures import Measure, MeasureMap
from ._black_box import BlackBoxError, called, masses
from ._probes import Excess
from ._subset_sums import Decoding, decode
from ._views import embedded, widened
from .continuity import Law

DRAWS = 5
ATOMS = 12
MASS_TOL = {torch.float32: 1e-5, torch.float64: 1e-12}


@dataclass(frozen=True, eq=False)
class Witness:
    """Measures that show what is wrong, to be looked at again.

    Args:
        what: what they show.
        mu: a measure.
        nu: another, None where one is enough.
        x: a point, where one matters.
        other: another point.
        eta: the mass put at the points.
        drawn: whether the measure is a draw of the law.
    """

    what: str
    mu: Measure
    nu: Measure | None = None
    x: torch.Tensor | None = None
    other: torch.Tensor | None = None
    eta: float | None = None
    drawn: bool = True

    @torch.no_grad()
    def replay(self, f: MeasureMap | InContextMap) -> float:
        r"""What the map does to it now.

        For a point, how far the image of the mass at `x` is from that of the mass at `other`; for
        two measures, $W_1$ of their images; for one, how far an output mass is from all sums of
        input masses.
        """
        call = embedded(widened(f, self.mu)[0])
        if self.x is not None and self.other is not None and self.eta is not None:
            a, b = (Excess().image(call, self.mu, x, self.eta) for x in (self.x, self.other))
            return float((a - b).norm())
        if self.nu is not None:
            return float(wasserstein(called(call, self.mu), called(call, self.nu)))
        return _decoded(call, self.mu).residual


def draw(law: Law, generator: torch.Generator, dim: int) -> Measure:
    """A measure of a law, of the dimension it should have."""
    mu = law(generator)
    if not isinstance(mu, Measure):
        raise TypeError(
            f"`law(generator)` must return a Measure, got {type(mu).__name__}. Points become one "
            "with `pf.Measure(points)`."
        )
    if mu.batch_shape or mu.dim != dim:
        raise ValueError(
            f"`law` must draw single measures in R^{dim}, got {mu}. Say `dim={mu.dim}`?"
        )
    return mu.strip().normalise()


def insane(f: MeasureMap, law: Law, generator: torch.Generator, dim: int) -> str | None:
    """Why a map cannot be looked at: it raises, returns no measure, or not twice the same."""
    dims = set()
    for _ in range(3):
        mu, nu = draw(law, generator, dim), draw(law, generator, dim)
        try:
            first = called(f, mu)
            again = called(f, mu)
            called(f, nu)
            later = called(f, mu)
        except BlackBoxError as error:
            return str(error)
        dims.add(first.dim)
        if not _same(first, again):
            return "the same measure gave different results: it is random, or keeps state"
        if not _same(first, later):
            return "a call changed the result of a later one: it keeps state"
    if len(dims) > 1:
        return f"the dimension of its images varies: {sorted(dims)}"
    return None


def _same(a: Measure, b: Measure) -> bool:
    """Up to rounding that threads may change."""
    if a.atoms.shape != b.atoms.shape:
        return False
    size = 1 + float(a.atoms.abs().max())
    tol = 64 * torch.finfo(a.dtype).eps * size
    return bool((a.atoms - b.atoms).abs().max() <= tol)


def wrong_for_measures(
    f: MeasureMap, law: Law, generator: torch.Generator, dim: int
) -> tuple[float, Witness | None]:
    """The worst change by another way to write a measure, in units of what is allowed."""
    worst, witness = 0.0, None
    for _ in range(DRAWS):
        mu = draw(law, generator, dim)
        out = called(f, mu)
        unit = torch.finfo(mu.dtype).eps
        signs = torch.randint(2, (3, *mu.atoms.shape), generator=generator) * 2 - 1
        moves = [mu.moved(mu.atoms * (1 + unit * s)) for s in signs.to(mu.atoms)]
        jitter = max(float(wasserstein(out, called(f, nudged))) for nudged in moves)
        size = 1 + float(out.atoms.abs().max()) + float(mu.atoms.abs().max())
        allowed = 1e3 * (jitter + unit * size)
        order = torch.randperm(mu.n, generator=generator).to(mu.device)
        for name, other in (
            ("permuting its atoms", Measure.unchecked(mu.atoms[order], mu.log_weights[order])),
            ("splitting its atoms in halves", mu.split(2)),
            ("repeating the whole of it three times", mu.split(3)),
        ):
            ratio = float(wasserstein(out, called(f, other))) / allowed
            if ratio > worst:
                worst = ratio
                witness = Witness(f"{name} changes the result", mu, other)
    return worst, witness if worst > 1 else None


def wrong_masses(
    f: MeasureMap, law: Law, generator: torch.Generator, dim: int
) -> tuple[float, Witness | None]:
    """The largest distance of an output mass from the sums of input masses, and who shows it."""
    worst = 0.0
    for _ in range(DRAWS):
        mu = _generic(draw(law, generator, dim), generator)
        found = _decoded(f, mu)
        worst = max(worst, found.residual)
        if found.owner is None and found.problem != "several subsets":
            what = f"output masses are no sums of input masses ({found.problem})"
            return worst, Witness(what, mu)
    return worst, None


def _decoded(f: MeasureMap, mu: Measure) -> Decoding:
    """What the masses of the image say."""
    out = called(f, mu)
    out = out.merge(64 * torch.finfo(out.dtype).eps * (1 + float(out.atoms.abs().max())))
    return decode(masses(mu), masses(out), MASS_TOL.get(mu.dtype, 1e-5))


def _generic(mu: Measure, generator: torch.Generator) -> Measure:
    """A few of its atoms with weights whose sums all differ."""
    mu = mu.merge()
    some = torch.randperm(mu.n, generator=generator)[:ATOMS]
    weights = torch.rand(len(some), generator=generator, dtype=torch.float64) + 0.2
    return Measure(mu.atoms[some.to(mu.device)], weights=(weights / weights.sum()).to(mu.atoms))
