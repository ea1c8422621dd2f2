r"""What no push-forward can do, seen in pairs of measures.

A push-forward carries the mass of every point as a whole, which is (B1) of [A, Thm. 1]. Targets
that re-weight points, split them or create mass break this, whatever the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._tools.checks import check_kind
from ..._tools.tiles import distance_matrix
from ...distances import wasserstein
from ...measures import Measure, check_measures
from ._tasks import FromPairs, Simulation, Task, check_usable, pushed

TOLERANCE = 1e-5
"""Masses, as shares of the whole, that differ by less are equal up to rounding."""

EXACT = 16
"""All subset sums of so many of the heaviest atoms are listed; the others count as dust."""

DIRECTIONS = 4
"""Principal directions, and heaviest target points, of which 1-Lipschitz functions are made."""

TRANSPORT = 1 << 18
"""Pairs of atoms up to which the displacement is exact $W_1$; beyond, that of a projection."""

INSPECTED = 16
"""Pairs that `fit` looks at."""

BATCHES = 4
"""Batches of a simulation that these are taken from."""

RELEVANT = 0.5
r"""The share of the displacement out of reach from which on `fit` warns.

Two samples of one law break (B1) as well: 8 atoms of mass 1/8 do not become 13 of mass 1/13. Then
the levels of $F$ miss the subset sums by a quarter of an atom in the mean, which over a range $L$
is $L/4n$, and the displacement is at least the sampling error, of order $L/\sqrt n$. The quotient
is largest for few atoms, on the line, if the target has many atoms and nothing moves: 0.4 for 8
atoms, below 0.5 from 5 atoms on. The splitting of atoms has 1."""

NOTABLE = 0.01
"""Differences of masses, in the mean over the pairs, from which on `fit` warns."""


@dataclass(frozen=True)
class Obstruction:
    r"""What keeps push-forwards from carrying one measure to another.

    Args:
        problems: which necessary conditions of (B1) fail, of "mass", "splits" and "re-weights".
        mass: how far the total masses are apart, as a share of the larger one.
        reweighted: if source and target have the same points and masses that no permutation of
            them explains, the total variation between the two; else 0.
        bound: $W_1$ of any push-forward to the target is at least this, both normalised.
        displacement: $W_1$ of source and target, both normalised. If these are in spaces of
            different dimensions, the mean distance of the target's points to their mean.
    """

    problems: tuple[str, ...]
    mass: float
    reweighted: float
    bound: float
    displacement: float


@dataclass(frozen=True)
class Obstructions:
    """What keeps push-forwards from fitting pairs of measures.

    Args:
        pairs: one entry for each pair.
    """

    pairs: tuple[Obstruction, ...]

    @property
    def share(self) -> float:
        """The share of the pairs that break (B1)."""
        return sum(bool(pair.problems) for pair in self.pairs) / len(self.pairs)

    @property
    def mass(self) -> float:
        """The mean difference of total masses, as a share of the larger one."""
        return sum(pair.mass for pair in self.pairs) / len(self.pairs)

    @property
    def reweighted(self) -> float:
        """The mean total variation between masses of the same points."""
        return sum(pair.reweighted for pair in self.pairs) / len(self.pairs)

    @property
    def out_of_reach(self) -> float:
        """The sum of the bounds over that of the displacements: 1 minus the best score."""
        moved = sum(pair.displacement for pair in self.pairs)
        return sum(pair.bound for pair in self.pairs) / moved if moved else 0.0

    @property
    def serious(self) -> bool:
        """Whether it is more than what two samples of unequal sizes show as well."""
        masses = max(self.mass, self.reweighted)
        return masses >= NOTABLE or self.out_of_reach >= RELEVANT

    @property
    def remedies(self) -> str:
        """What to train instead."""
        return (
            "Train `pf.maps.Reweighted(gamma, density)`, which gives points new masses, or "
            "`pf.maps.NoiseSource(gamma)`, which may split them."
        )

    def __str__(self) -> str:
        """What is broken, and by how much."""
        if not self.share:
            return f"No obstruction was seen in {len(self.pairs)} pairs."
        found = [
            f"A push-forward carries the mass of every point as a whole, and {self.share:.0%} of "
            f"{len(self.pairs)} pairs break this."
        ]
        if self.mass >= NOTABLE:
            found.append(f"Total masses differ by {self.mass:.1%} in the mean (births or deaths).")
        if self.reweighted >= NOTABLE:
            found.append(
                "Sources and targets have the same points with other masses: "
                f"{self.reweighted:.1%} of the mass in the mean (re-weighting)."
            )
        if self.out_of_reach >= TOLERANCE:
            bound = sum(pair.bound for pair in self.pairs) / len(self.pairs)
            found.append(
                f"The mean W1 error of any push-forward is at least {bound:.3g}, "
                f"{self.out_of_reach:.1%} of the displacement."
            )
        return " ".join(found)


def obstructions(pairs: Sequence[Any]) -> Obstructions:
    r"""What keeps push-forwards from carrying sources to targets, pair by pair.

    Let $\mu=\sum_{i\le n}a_i\delta_{x_i}$ and $\nu=\sum_{j\le m}b_j\delta_{y_j}$, with equal
    points merged. $\nu=T_\sharp\mu$ for some $T$ if and only if the $b_j$ are the sums of the
    $a_i$ over the classes of a partition [A, Def. 1]. Hence the necessary conditions: total masses
    agree; $m\le n$ and $\max a_i\le\max b_j$; every $b_j$ is a subset sum of the $a_i$; for $n=m$,
    the same masses in another order.

    The error of any push-forward is bounded from below. Let $\Sigma$ be the set of the subset sums
    of the $a_i$, $p$ a 1-Lipschitz function, and $F$ the distribution function of $p_\sharp\nu$.
    Then

    $$W_1(T_\sharp\mu,\nu)\ge W_1\bigl((p\circ T)_\sharp\mu,\,p_\sharp\nu\bigr)
      =\int|F_{(p\circ T)_\sharp\mu}-F|\,dt\ge\int\operatorname{dist}(F(t),\Sigma)\,dt,$$

    because $p$ does not enlarge distances, and because every value of the distribution function of
    $(p\circ T)_\sharp\mu$ is the mass of a set of atoms. Here $p$ runs through projections on
    principal directions of $\nu$, and distances to its heaviest points. If there are many atoms
    of unequal masses, $\Sigma$ is replaced by a larger set: sums of the 16 heaviest, plus any
    share of the mass of the others.

    Args:
        pairs: pairs `(source, target)` of single measures.

    Examples:
        No push-forward of $\frac12\delta_{-1}+\frac12\delta_1$ is nearer than $\frac13$ to
        $\frac13\delta_{-1}+\frac23\delta_1$:

        >>> x = torch.tensor([[-1.0], [1.0]])
        >>> found = pf.fitting.obstructions([(pf.Measure(x), pf.Measure(x, [1.0, 2.0]))])
        >>> found.share, round(found.out_of_reach, 4), round(found.pairs[0].bound, 4)
        (1.0, 1.0, 0.3333)
    """
    if isinstance(pairs, Measure) or not isinstance(pairs, Sequence) or not len(pairs):
        got = "none" if isinstance(pairs, list | tuple) else type(pairs).__name__
        raise ValueError(
            f"`pairs` must be a list of pairs (source, target), at least one, got {got}."
        )
    found = []
    for pair in pairs:
        check_kind("pairs", pair, tuple, "Each entry is a pair (source, target).")
        if len(pair) != 2:
            raise ValueError(
                f"`pairs` must have entries (source, target), got {len(pair)} things."
            )
        source, target = pair
        check_measures(source=source, target=target)
        if source.batch_shape or target.batch_shape:
            raise ValueError("`pairs` must hold single measures, got a batch.")
        check_usable(source=source, target=target)
        found.append(_obstruction(source, target))
    return Obstructions(tuple(found))


@torch.no_grad()
def inspect(task: Task, model: nn.Module, generator: torch.Generator) -> Obstructions | None:
    """What keeps a model from learning a task; None if the model is no push-forward.

    Args:
        task: what is learned.
        model: the model.
        generator: draws measures of a simulation.
    """
    if isinstance(task, FromPairs):
        order = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(task.pairs), generator=order)[:INSPECTED]
        pairs = [tuple(task.example(int(k))) for k in chosen]
    elif isinstance(task, Simulation) and not task.in_context:
        pairs = []
        for index in range(BATCHES):  # each has measures of another size
            some = (m[: INSPECTED // BATCHES] for m in task.batch(generator, index))
            pairs += list(zip(*some, strict=True))
    else:
        return None
    source = Measure.stack([pairs[0][0]]).to(generator.device)  # models see batches in training
    image = pushed(model, source)
    if image.log_weights.shape != source.log_weights.shape:
        return None
    return obstructions(pairs) if torch.equal(image.log_weights, source.log_weights) else None


def _obstruction(source: Measure, target: Measure) -> Obstruction:
    """What keeps push-forwards from carrying one measure to another."""
    totals = [float(m.log_weights.double().logsumexp(-1).exp()) for m in (source, target)]
    mass = abs(totals[0] - totals[1]) / max(totals)
    source, target = (_canonical(m) for m in (source, target))
    sums = _Sums(source.weights)
    a, b = (m.weights.sort().values for m in (source, target))
    permuted = source.n == target.n and bool((a - b).abs().max() <= TOLERANCE)
    splits = target.n > source.n or bool(a[-1] > b[-1] + TOLERANCE)
    missed = float(sums.distance(b).max())
    reweights = missed > TOLERANCE or (source.n == target.n and not permuted)
    problems = {"mass": mass > TOLERANCE, "splits": splits, "re-weights": reweights}
    same = source.atoms.shape == target.atoms.shape and torch.equal(source.atoms, target.atoms)
    changed = float((source.weights - target.weights).abs().sum() / 2) if same else 0.0
    return Obstruction(
        tuple(name for name, broken in problems.items() if broken),
        mass if problems["mass"] else 0.0,
        0.0 if permuted else changed,
        _unreachable(target, sums),
        _displacement(source, target),
    )


def _canonical(mu: Measure) -> Measure:
    """The normalised measure in float64, equal points merged and sorted."""
    atoms, logs = mu.atoms.cpu().double(), mu.log_weights.cpu().double()
    return Measure.unchecked(atoms, logs.log_softmax(-1)).merge()


class _Sums:
    """The subset sums of masses, or a larger set if these are too many."""

    def __init__(self, masses: Tensor) -> None:
        ranked = masses.sort(descending=True).values
        sums = torch.zeros(1, dtype=masses.dtype)
        for heavy in ranked[:EXACT]:
            sums = torch.cat([sums, sums + heavy])
        self.sums = sums.sort().values
        self.dust = float(ranked[EXACT:].sum())
        parts = masses / masses.min()
        # Multiples of the smallest mass, if all masses are such multiples.
        self.unit = 0.0
        if bool(((parts - parts.round()).abs() <= TOLERANCE * parts).all()):
            self.unit = 1 / float(parts.round().sum())

    def distance(self, t: Tensor) -> Tensor:
        """How far numbers are from the set."""
        after = torch.searchsorted(self.sums, t.contiguous())
        above = self.sums[after.clamp_max(len(self.sums) - 1)] - t
        above = above.masked_fill(after == len(self.sums), torch.inf)
        below = t - self.sums[(after - 1).clamp_min(0)] - self.dust
        gap = torch.minimum(above, below.clamp_min(0)).clamp_min(0)
        if not self.unit:
            return gap
        return torch.maximum(gap, ((t / self.unit).round() * self.unit - t).abs())


def _projected(x: Tensor, nu: Measure) -> Tensor:
    """Values at points of functions that do not enlarge distances, one row for each.

    They are coordinates along principal directions of a measure, and distances to heavy atoms.
    """
    centred = (nu.atoms - nu.mean()) * nu.weights.sqrt()[:, None]
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:DIRECTIONS]
    along = directions @ x.mT
    if nu.dim == 1:
        return along
    heavy = nu.atoms[nu.weights.argsort(descending=True)[:DIRECTIONS]]
    return torch.cat([along, distance_matrix(heavy, x)])


def _unreachable(nu: Measure, sums: _Sums) -> float:
    r"""The largest $\int\operatorname{dist}(F(t),\Sigma)\,dt$ of the functions above."""
    values, order = _projected(nu.atoms, nu).sort(-1)
    levels = nu.weights[order].cumsum(-1)[:, :-1]
    return float((sums.distance(levels) * values.diff(dim=-1)).sum(-1).max())


def _displacement(source: Measure, target: Measure) -> float:
    """$W_1$ of source and target; between spaces, the mean distance of the target to its mean."""
    if source.dim != target.dim:
        return float(target.integrate((target.atoms - target.mean()).norm(dim=-1)))
    if source.n * target.n <= TRANSPORT or target.dim == 1:
        return float(wasserstein(source, target))
    lines = [
        Measure.unchecked(x[..., None], m.log_weights.expand(x.shape))
        for m in (source, target)
        for x in [_projected(m.atoms, target)]
    ]
    return float(wasserstein(*lines).max())
