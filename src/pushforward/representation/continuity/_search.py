r"""The search for the widest gap: near points whose images are far from each other.

A candidate is a context $\mu$, a point $x$, a direction $u$ and a small mass $\eta$; its gap at
distance $h$ is $|y_\eta(x)-y_\eta(x+hu)|$, where $y_\eta(x)$ is the image of the mass $\eta$ at
$x$ in the context $\mu$. The search maximises the gap, from the largest distance to the smallest:

1. Start from draws of the law and from 1, 2 or 4 of their atoms. (A discontinuity often needs a
   context with little mass in some region: large contexts hide it.) Points are near an atom,
   between two, near the origin, or anywhere in the box.
2. From one distance to the next, cut every segment into shorter ones that cover it and keep the
   one with the widest gap. By the triangle inequality that one has at least its share of the gap,
   so the quotient gap/h hardly falls: a steep place is not lost.
3. Add new candidates at the first distances, and keep the best of all, some of every number of
   atoms.
4. Improve each: random moves of atoms, point and direction, of all lengths between $h$ and the
   box; then steps of such lengths along the gradient of the gap, if there is one. A move is kept
   only if the gap grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ._candidates import ONE_BY_ONE, Candidates, ImageFinder, SearchBudget, WidestGap
from ._region import Law, Region

RATIO = math.sqrt(10)
"""The ratio of one distance to the next."""

NEAR = 10
"""In the zoom, moves are between h/NEAR and NEAR h long."""

SUBSETS = (1, 2, 4)
"""Numbers of atoms that are taken from a draw."""

TILES = 4
"""Parts of a segment that is cut; they overlap, and cover it."""


class Search:
    """A search for the widest gap, over candidates in a region.

    Args:
        images: where the map sends small masses.
        law: `law(n, generator)` draws a measure.
        size: `n`, the atoms of a draw.
        region: where points may be.
        generator: of all random numbers.
        tick: called after every distance.
        budget: how many candidates; by default fewer if images take a call each.
    """

    def __init__(
        self,
        images: ImageFinder,
        law: Law,
        size: int,
        region: Region,
        generator: torch.Generator,
        tick: Callable[[], None] = lambda: None,
        budget: SearchBudget | None = None,
    ) -> None:
        self.images, self.law, self.size = images, law, size
        self.region, self.generator, self.tick = region, generator, tick
        self.budget = budget or (SearchBudget() if images.batched else ONE_BY_ONE)

    def ends(self, candidates: Candidates, h: float) -> tuple[Tensor, Tensor]:
        """The two points of each candidate, both in the region."""
        return candidates.x, self.region.clamp(candidates.x + h * candidates.u)

    def gaps(self, candidates: Candidates, h: float) -> Tensor:
        r"""$|y_\eta(x)-y_\eta(x+hu)|$; 0 where an image is not known."""
        twice = lambda t: torch.cat([t, t])
        ends = torch.cat(self.ends(candidates, h))
        y = self.images.find(
            twice(candidates.atoms), twice(candidates.log_weights), ends, twice(candidates.eta)
        )
        a, b = y.chunk(2)
        return (a - b).norm(dim=-1).nan_to_num(0, 0, 0)

    def widest_gaps(self, hs: list[float], least_eta: float) -> list[WidestGap]:
        r"""The widest gap at each distance, from the largest distance to the smallest.

        The mass is $\eta=(h/\text{size})^3$, much smaller than $h$: the image $y_\eta$ is taken in
        a context that contains the mass itself. With $\eta\approx h$, a slow modulus of
        continuity in $\mu$ would look like a jump in $x$.

        Args:
            hs: the distances, falling.
            least_eta: the smallest mass that can be resolved.
        """
        batches: list[Candidates] = []
        found, before = [], None
        for k, h in enumerate(hs):
            eta = max(min(0.3, (h / self.region.size) ** 3), least_eta)
            if before is not None:
                batches = [self.cut(batch.with_eta(eta), before, h) for batch in batches]
            new = self.budget.starts if k == 0 else self.budget.fresh if k < 4 else 0
            batches = self.select(batches + self.starts(new, h, eta))
            batches = [self.improve(batch, h) for batch in batches]
            best = max(batches, key=lambda batch: float(batch.gap.max()))
            at = best.gap.argmax()[None]
            found.append(WidestGap(h, eta, float(best.gap[at]), best.pick(at)))
            before = h
            self.tick()
        return found

    def starts(self, count: int, h: float, eta: float) -> list[Candidates]:
        """New candidates, one batch for every number of atoms."""
        groups: dict[int, list] = {}
        for k in range(count):
            mu = self.law(self.size, self.generator).strip().normalise()
            part = (None, *SUBSETS)[k % (1 + len(SUBSETS))]
            atoms, log_weights = mu.atoms, mu.log_weights
            if part is not None and part < mu.n:
                some = torch.randperm(mu.n, generator=self.generator)[:part]
                atoms, log_weights = atoms[some], log_weights[some].log_softmax(-1)
            whole = len(atoms) == mu.n
            member = atoms, log_weights, self._point(atoms, h), whole
            groups.setdefault(len(atoms), []).append(member)
        batches = []
        for members in groups.values():
            contexts, weights, x, drawn = zip(*members, strict=True)
            u = self._randn(len(members), contexts[0].shape[-1])
            batch = Candidates(
                torch.stack(contexts), torch.stack(weights), torch.stack(x),
                u / u.norm(dim=-1, keepdim=True), torch.full((len(members),), eta).to(u),
                torch.zeros(len(members)).to(u),
                torch.tensor(drawn, device=u.device),
            )  # fmt: skip
            batch.gap = self.gaps(batch, h)
            batches.append(batch)
        return batches

    def select(self, batches: list[Candidates]) -> list[Candidates]:
        """The best of all candidates, and some of every number of atoms."""
        sizes: dict[int, Candidates] = {}
        for batch in batches:
            m = batch.atoms.shape[1]
            sizes[m] = sizes[m].joined(batch) if m in sizes else batch
        gaps = torch.cat([batch.gap for batch in sizes.values()])
        most = self.budget.kept
        least = gaps.sort(descending=True).values[min(most, len(gaps)) - 1]
        kept = []
        for batch in sizes.values():
            order = batch.gap.argsort(descending=True)
            count = max(self.budget.each, int((batch.gap >= least).sum()))
            kept.append(batch.pick(order[: min(count, most)]))
        return kept

    def cut(self, batch: Candidates, before: float, h: float) -> Candidates:
        """Of each segment the part with the widest gap, at least as steep as the whole."""
        # TILES segments of length h cover one of length `before` = RATIO h, with overlaps.
        shift = (before - h) * torch.arange(TILES).to(batch.x) / (TILES - 1)
        parts = batch.repeated(TILES)
        parts.x = self.region.clamp(
            parts.x + shift.repeat_interleave(len(batch.x))[:, None] * parts.u
        )
        return self._best(parts, TILES, h)

    def improve(self, batch: Candidates, h: float) -> Candidates:
        """Several rounds of moves of all lengths between the distance and the box."""
        for _ in range(self.budget.rounds):
            batch = self._improved(batch, h, (h, self.region.size))
        return batch

    def refine(self, batch: Candidates, h: float) -> Candidates:
        """One round of moves about as long as the distance itself."""
        return self._improved(batch, h, (h / NEAR, min(NEAR * h, self.region.size)))

    def _improved(self, batch: Candidates, h: float, span: tuple[float, float]) -> Candidates:
        batch = batch.better(self._best(self._moved(batch, span), self.budget.tries, h))
        if self.images.differentiable:
            batch = batch.better(self._ascended(batch, h, span))
        return batch

    def _best(self, many: Candidates, copies: int, h: float) -> Candidates:
        """Of several variants of each candidate the one with the widest gap."""
        many.gap = self.gaps(many, h)
        count = len(many.gap) // copies
        winner = many.gap.reshape(copies, count).argmax(0)
        return many.pick(winner * count + torch.arange(count, device=winner.device))

    def _lengths(self, batch: Candidates, span: tuple[float, float]) -> Tensor:
        """Lengths of moves, one for each variant, evenly spread in the logarithm."""
        share = (torch.arange(self.budget.tries).to(batch.x) + self._rand(1)) / self.budget.tries
        least, most = span
        lengths = most * torch.exp(share * math.log(least / most))
        return lengths.repeat_interleave(len(batch.x))[:, None]

    def _moved(self, batch: Candidates, span: tuple[float, float]) -> Candidates:
        """Random moves of point and direction, and of the atoms in half of the variants.

        Half of the variants keep their context, so that a witness can be a draw of the law.
        """
        length, many = self._lengths(batch, span), batch.repeated(self.budget.tries)
        moves = self._rand(len(many.x), 1, 1) < 0.5
        shaken = self.region.clamp(many.atoms + length[..., None] * self._randn(*many.atoms.shape))
        many.atoms = torch.where(moves, shaken, many.atoms)
        many.drawn = many.drawn & ~moves[:, 0, 0]
        many.x = self.region.clamp(many.x + length * self._randn(*many.x.shape))
        turned = many.u + self._rand(len(many.u), 1) * self._randn(*many.u.shape)
        many.u = turned / turned.norm(dim=-1, keepdim=True)
        return many

    def _ascended(self, batch: Candidates, h: float, span: tuple[float, float]) -> Candidates:
        """The best of several steps along the gradient of the gap."""
        atoms, x, u = (
            t.detach().clone().requires_grad_() for t in (batch.atoms, batch.x, batch.u)
        )
        free = replace(batch, atoms=atoms, x=x, u=u)
        try:
            with torch.enable_grad():
                total = self.gaps(free, h).sum()
                gradients = torch.autograd.grad(total, (atoms, x, u), allow_unused=True)
        except Exception:  # a backward pass of the map itself may raise anything
            self.images.differentiable = False
            return batch
        up = [
            torch.zeros_like(t) if s is None else _unit(s)
            for t, s in zip((atoms, x, u), gradients, strict=True)
        ]
        length, many = self._lengths(batch, span), batch.repeated(self.budget.tries)
        repeated = lambda t: torch.cat([t.detach()] * self.budget.tries)
        many.atoms = self.region.clamp(many.atoms + length[..., None] * repeated(up[0]))
        many.x = self.region.clamp(many.x + length * repeated(up[1]))
        turned = many.u + length / self.region.size * repeated(up[2])
        many.u = turned / turned.norm(dim=-1, keepdim=True)
        many.drawn = torch.zeros_like(many.drawn)
        return self._best(many, self.budget.tries, h)

    def _point(self, atoms: Tensor, h: float) -> Tensor:
        """Near an atom, at a midpoint, near the origin, or anywhere."""
        d = atoms.shape[-1]
        kind = int(torch.randint(4, (), generator=self.generator))
        i, j = torch.randint(len(atoms), (2,), generator=self.generator).tolist()
        if kind == 0:
            x = atoms[i] + h * self._randn(d)
        elif kind == 1:
            x = (atoms[i] + atoms[j]) / 2
        elif kind == 2:
            x = h * self._randn(d)
        else:
            x = self.region.low + self._rand(d) * (self.region.high - self.region.low)
        return self.region.clamp(x)

    # Numbers are drawn on the device of the generator and moved to that of the points.

    def _randn(self, *shape: int) -> Tensor:
        like = self.region.low
        return torch.randn(*shape, generator=self.generator, dtype=like.dtype).to(like.device)

    def _rand(self, *shape: int) -> Tensor:
        like = self.region.low
        return torch.rand(*shape, generator=self.generator, dtype=like.dtype).to(like.device)


def _unit(gradient: Tensor) -> Tensor:
    """The gradient of each candidate scaled to length one; zero where it vanishes."""
    gradient = gradient.nan_to_num(0, 0, 0)
    size = gradient.flatten(1).norm(dim=-1).reshape(-1, *[1] * (gradient.ndim - 1))
    return gradient / torch.where(size > 0, size, 1)
