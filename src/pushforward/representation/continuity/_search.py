r"""The search for a point where no continuous $G$ can be.

Two scales: points $x,x'$ at distance $h$, and probes of mass $\eta\ll h$. If
$|y_\eta(x)-y_\eta(x')|$ does not vanish with $h$, there is no continuous $G$. The gap is maximised
over measures on a box, points and directions, scale after scale, each beginning where the one
before ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...flows import Euclidean, Manifold
from ...measures import Measure
from ._calls import Caller

Law = Callable[[torch.Generator], Measure]
"""How to draw a measure of the kind a user cares about."""

RATIO = math.sqrt(10)
NEAR = 10
"""How much longer or shorter than the distance a move of a closer look is."""
SUBCLOUDS = (1, 2, 4)
TILES = 4
"""Parts of a segment that is cut to the next scale: they cover it."""


@dataclass(frozen=True)
class Effort:
    """How hard to look.

    Args:
        starts: candidates of the first scale.
        fresh: new ones of the next three.
        kept: how many go on.
        each: of every size of cloud at least so many of them.
        rounds: of improvement at every scale.
        tries: variants of a candidate that are tried at a time.
    """

    starts: int = 96
    fresh: int = 32
    kept: int = 32
    each: int = 2
    rounds: int = 3
    tries: int = 8


ONE_BY_ONE = Effort(starts=96, fresh=32, kept=8, rounds=2, tries=4)
"""Where every candidate is a call of its own."""


@dataclass(frozen=True)
class Box:
    """Where the draws of a law lie.

    Args:
        low: its lowest corner.
        high: its highest.
        manifold: on which they lie.
    """

    low: Tensor
    high: Tensor
    manifold: Manifold = Euclidean()

    @classmethod
    def around(cls, points: Tensor, manifold: Manifold = Euclidean()) -> Box:  # noqa: B008
        """The smallest box around points, on a manifold if they lie on it."""
        near = 1e3 * torch.finfo(points.dtype).eps * (1 + points.abs().max())
        on_it = bool((manifold.retract(points) - points).abs().max() <= near)
        return cls(points.amin(0), points.amax(0), manifold if on_it else Euclidean())

    @property
    def size(self) -> float:
        """Its largest side."""
        return float((self.high - self.low).max())

    @property
    def radius(self) -> float:
        """Of the smallest ball around the origin that holds it."""
        return float(torch.maximum(self.low.abs(), self.high.abs()).norm())

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest points of the box; of the manifold, where that is the bound."""
        if self.manifold != Euclidean():
            return self.manifold.retract(x)
        return torch.maximum(torch.minimum(x, self.high), self.low)


@dataclass(eq=False)
class Herd:
    """Candidates with as many atoms each: measures, points, directions and gaps.

    Args:
        atoms: `(c, m, d)`.
        logs: `(c, m)`, normalised.
        x: `(c, d)`.
        u: `(c, d)`, of length one.
        eta: `(c,)`, the mass of the probe.
        gap: `(c,)`.
        drawn: `(c,)`, whether the measure is a draw of the law.
    """

    atoms: Tensor
    logs: Tensor
    x: Tensor
    u: Tensor
    eta: Tensor
    gap: Tensor
    drawn: Tensor

    def pick(self, index: Tensor) -> Herd:
        """Some of them."""
        return Herd(*(getattr(self, k)[index] for k in self.__dataclass_fields__))

    def with_eta(self, eta: float) -> Herd:
        """With probes of another mass."""
        return replace(self, eta=torch.full_like(self.eta, eta))

    def repeated(self, copies: int) -> Herd:
        """Several of each, the whole herd in turn."""
        return Herd(*(torch.cat([getattr(self, k)] * copies) for k in self.__dataclass_fields__))

    def joined(self, other: Herd) -> Herd:
        """Both."""
        pairs = ((getattr(self, k), getattr(other, k)) for k in self.__dataclass_fields__)
        return Herd(*map(torch.cat, pairs))

    def better(self, other: Herd) -> Herd:
        """Others where their gap is larger."""
        better, chosen = other.gap > self.gap, []
        for k in self.__dataclass_fields__:
            mine, its = getattr(self, k), getattr(other, k)
            chosen.append(torch.where(better.reshape(-1, *[1] * (mine.ndim - 1)), its, mine))
        return Herd(*chosen)


@dataclass(frozen=True, eq=False)
class Scale:
    """What was found at one scale.

    Args:
        h: the distance.
        eta: the mass.
        gap: the largest gap.
        best: the candidate, a herd of one.
    """

    h: float
    eta: float
    gap: float
    best: Herd


class Ticker:
    """Counts what is done, and tells somebody.

    Args:
        tell: is told the count.
    """

    def __init__(self, tell: Callable[[int], None]):
        self.tell, self.done = tell, 0

    def __call__(self) -> None:
        """One more."""
        self.done += 1
        self.tell(self.done)


class Search:
    """Candidates on a box, and how they are made better.

    Args:
        caller: the black box.
        law: what measures are like.
        box: where they lie.
        generator: of all that is random.
        tick: told after every scale.
        effort: how hard to look; less by default where every candidate is a call of its own.
    """

    def __init__(
        self,
        caller: Caller,
        law: Law,
        box: Box,
        generator: torch.Generator,
        tick: Callable[[], None],
        effort: Effort | None = None,
    ):
        self.caller, self.law, self.box, self.generator = caller, law, box, generator
        self.tick = tick
        self.effort = effort or (Effort() if caller.batched else ONE_BY_ONE)

    def ends(self, herd: Herd, h: float) -> tuple[Tensor, Tensor]:
        """The two points of each candidate, both where points may be."""
        return herd.x, self.box.clamp(herd.x + h * herd.u)

    def gaps(self, herd: Herd, h: float) -> Tensor:
        r"""$|y_\eta(x)-y_\eta(x+hu)|$; 0 where nobody can tell."""
        twice = lambda t: torch.cat([t, t])
        ends = torch.cat(self.ends(herd, h))
        y = self.caller.images(twice(herd.atoms), twice(herd.logs), ends, twice(herd.eta))
        a, b = y.chunk(2)
        return (a - b).norm(dim=-1).nan_to_num(0, 0, 0)

    def scales(self, hs: list[float], least_eta: float) -> list[Scale]:
        """From the widest scale to the narrowest."""
        herds: list[Herd] = []
        found, before = [], None
        for k, h in enumerate(hs):
            eta = max(min(0.3, (h / self.box.size) ** 3), least_eta)
            if before is not None:
                herds = [self.cut(herd.with_eta(eta), before, h) for herd in herds]
            fresh = self.effort.starts if k == 0 else self.effort.fresh if k < 4 else 0
            herds = self.select(herds + self.starts(fresh, h, eta))
            herds = [self.improve(herd, h) for herd in herds]
            best = max(herds, key=lambda herd: float(herd.gap.max()))
            at = best.gap.argmax()[None]
            found.append(Scale(h, eta, float(best.gap[at]), best.pick(at)))
            before = h
            self.tick()
        return found

    def starts(self, count: int, h: float, eta: float) -> list[Herd]:
        """Draws of the law and small parts of them, with points near what may matter."""
        groups: dict[int, list] = {}
        for k in range(count):
            mu = self.law(self.generator).strip().normalise()
            part = (None, *SUBCLOUDS)[k % (1 + len(SUBCLOUDS))]
            atoms, logs = mu.atoms, mu.log_weights
            if part is not None and part < mu.n:
                some = torch.randperm(mu.n, generator=self.generator)[:part]
                atoms, logs = atoms[some], logs[some].log_softmax(-1)
            whole = len(atoms) == mu.n
            groups.setdefault(len(atoms), []).append((atoms, logs, self._point(atoms, h), whole))
        herds = []
        for members in groups.values():
            clouds, masses, x, drawn = zip(*members, strict=True)
            u = self._randn(len(members), clouds[0].shape[-1])
            herd = Herd(
                torch.stack(clouds), torch.stack(masses), torch.stack(x),
                u / u.norm(dim=-1, keepdim=True), torch.full((len(members),), eta).to(u),
                torch.zeros(len(members)).to(u),
                torch.tensor(drawn, device=u.device),
            )  # fmt: skip
            herd.gap = self.gaps(herd, h)
            herds.append(herd)
        return herds

    def select(self, herds: list[Herd]) -> list[Herd]:
        """The best of all, with some of every size."""
        sizes: dict[int, Herd] = {}
        for herd in herds:
            m = herd.atoms.shape[1]
            sizes[m] = sizes[m].joined(herd) if m in sizes else herd
        gaps = torch.cat([herd.gap for herd in sizes.values()])
        most = self.effort.kept
        least = gaps.sort(descending=True).values[min(most, len(gaps)) - 1]
        kept = []
        for herd in sizes.values():
            order = herd.gap.argsort(descending=True)
            count = max(self.effort.each, int((herd.gap >= least).sum()))
            kept.append(herd.pick(order[: min(count, most)]))
        return kept

    def cut(self, herd: Herd, before: float, h: float) -> Herd:
        """The best part of each segment, which cannot be much flatter than the whole."""
        shift = (before - h) * torch.arange(TILES).to(herd.x) / (TILES - 1)
        parts = herd.repeated(TILES)
        parts.x = self.box.clamp(parts.x + shift.repeat_interleave(len(herd.x))[:, None] * parts.u)
        return self._best(parts, TILES, h)

    def improve(self, herd: Herd, h: float) -> Herd:
        """Random moves always, along gradients where there are any, up to the size of the box."""
        for _ in range(self.effort.rounds):
            herd = self._improved(herd, h, (h, self.box.size))
        return herd

    def refine(self, herd: Herd, h: float) -> Herd:
        """The same once, with moves of about the distance itself."""
        return self._improved(herd, h, (h / NEAR, min(NEAR * h, self.box.size)))

    def _improved(self, herd: Herd, h: float, steps: tuple[float, float]) -> Herd:
        herd = herd.better(self._best(self._moved(herd, steps), self.effort.tries, h))
        if self.caller.differentiable:
            herd = herd.better(self._ascended(herd, h, steps))
        return herd

    def _best(self, many: Herd, copies: int, h: float) -> Herd:
        """Of several variants of each candidate, the one with the largest gap."""
        many.gap = self.gaps(many, h)
        count = len(many.gap) // copies
        winner = many.gap.reshape(copies, count).argmax(0)
        return many.pick(winner * count + torch.arange(count, device=winner.device))

    def _sizes(self, herd: Herd, steps: tuple[float, float]) -> Tensor:
        """Steps of all sizes between two, one for each variant."""
        share = (torch.arange(self.effort.tries).to(herd.x) + self._rand(1)) / self.effort.tries
        least, most = steps
        sizes = most * torch.exp(share * math.log(least / most))
        return sizes.repeat_interleave(len(herd.x))[:, None]

    def _moved(self, herd: Herd, steps: tuple[float, float]) -> Herd:
        """Random steps in all that may move."""
        size, many = self._sizes(herd, steps), herd.repeated(self.effort.tries)
        moves = self._rand(len(many.x), 1, 1) < 0.5
        shaken = self.box.clamp(many.atoms + size[..., None] * self._randn(*many.atoms.shape))
        many.atoms = torch.where(moves, shaken, many.atoms)
        many.drawn = many.drawn & ~moves[:, 0, 0]
        many.x = self.box.clamp(many.x + size * self._randn(*many.x.shape))
        turned = many.u + self._rand(len(many.u), 1) * self._randn(*many.u.shape)
        many.u = turned / turned.norm(dim=-1, keepdim=True)
        return many

    def _ascended(self, herd: Herd, h: float, steps: tuple[float, float]) -> Herd:
        """The best of several steps along the gradient of the gap."""
        atoms, x, u = (t.detach().clone().requires_grad_() for t in (herd.atoms, herd.x, herd.u))
        free = replace(herd, atoms=atoms, x=x, u=u)
        try:
            with torch.enable_grad():
                total = self.gaps(free, h).sum()
                slopes = torch.autograd.grad(total, (atoms, x, u), allow_unused=True)
        except Exception:  # whatever a backward of somebody's own raises
            self.caller.differentiable = False
            return herd
        up = [
            torch.zeros_like(t) if s is None else _unit(s)
            for t, s in zip((atoms, x, u), slopes, strict=True)
        ]
        size, many = self._sizes(herd, steps), herd.repeated(self.effort.tries)
        again = lambda t: torch.cat([t.detach()] * self.effort.tries)
        many.atoms = self.box.clamp(many.atoms + size[..., None] * again(up[0]))
        many.x = self.box.clamp(many.x + size * again(up[1]))
        turned = many.u + size / self.box.size * again(up[2])
        many.u = turned / turned.norm(dim=-1, keepdim=True)
        many.drawn = torch.zeros_like(many.drawn)
        return self._best(many, self.effort.tries, h)

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
            x = self.box.low + self._rand(d) * (self.box.high - self.box.low)
        return self.box.clamp(x)

    def _randn(self, *shape: int) -> Tensor:
        return self._put(torch.randn(*shape, generator=self.generator, dtype=self.box.low.dtype))

    def _rand(self, *shape: int) -> Tensor:
        return self._put(torch.rand(*shape, generator=self.generator, dtype=self.box.low.dtype))

    def _put(self, numbers: Tensor) -> Tensor:
        """Drawn by the generator's device, wherever the points are."""
        return numbers.to(self.box.low.device)


def _unit(slope: Tensor) -> Tensor:
    """Of length one for each candidate, zero where there is no direction."""
    slope = slope.nan_to_num(0, 0, 0)
    size = slope.flatten(1).norm(dim=-1).reshape(-1, *[1] * (slope.ndim - 1))
    return slope / torch.where(size > 0, size, 1)
