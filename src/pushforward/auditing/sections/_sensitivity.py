r"""What becomes of one token when the others change.

Pairs of contexts $\mu,\nu$ and one point $x$: $|G(\mu,x)-G(\nu,x)|$ against $W_1(\mu,\nu)$, from
small moves of all other tokens to replacing them all; then a search for the steepest change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._tools.fits import power
from ...distances import wasserstein
from ...measures import Measure
from ...pictures import RED, dots, guide, log, plot
from ...representation import manifold_of
from ...representation.continuity import Box
from .._case import Case
from .._population import CLOUD
from .._section import Section, Status
from .._subjects import Subject

POINTS = 4
CONTEXTS = 4
STARTS = 2
ROUNDS = 40
HALVINGS = 12
HOLDER = 0.8
"""Exponents below this are those of a map that is not Lipschitz."""

MOVES = {torch.float64: (1e-5, 1e-4, 1e-3, 1e-2, 1e-1), torch.float32: (1e-3, 1e-2, 1e-1)}
"""How far tokens are moved, in units of the spread of the data."""

STEP = {torch.float64: 1e-5, torch.float32: 1e-2}
"""How far one token moves in the search for the steepest change."""


@dataclass(frozen=True, eq=False)
class Change:
    """Two contexts, a point, and what the change of one for the other does to it.

    Args:
        mu: a context.
        nu: another.
        x: the point.
        apart: their distance.
        response: the distance of its images.
    """

    mu: Measure
    nu: Measure
    x: Tensor
    apart: float
    response: float

    @property
    def ratio(self) -> float:
        """The response to a unit of change."""
        return self.response / self.apart if self.apart > 0 else 0.0

    def to_dict(self) -> dict:
        """As plain data, to be looked at again."""
        return {
            "ratio": self.ratio, "w1": self.apart, "response": self.response,
            "mu": self.mu.atoms.tolist(), "nu": self.nu.atoms.tolist(), "x": self.x.tolist(),
        }  # fmt: skip


def sensitivity(case: Case) -> Section:
    """Move and replace the other tokens."""
    case = case.of_one_law()
    mu = case.context()
    floor = 10 * case.baseline(mu).rounding
    ask = _Ask(case.subject, floor)
    points, contexts = case.points(POINTS), [case.context() for _ in range(CONTEXTS)]
    replaced = _replaced(ask, contexts, points, case.generator)
    moved = _moved(ask, case, contexts, points)
    share = _share(case.subject, contexts, points)
    worst, local = _halved(ask, [*replaced, *moved, *_steepest(ask, case)])
    overall = power([(c.apart, c.response) for c in moved if c.response > 0])
    status, verdict = _verdict(overall, local, worst, mu.n)
    lines = []
    if share is not None:
        whose = "the token itself" if case.queries is None else "the query"
        lines.append(
            f"{share:.0%} of the variance of outputs comes from the context, the rest from {whose}"
        )
    if worst.ratio > 0:
        lines.append(
            f"the steepest change found: contexts {worst.apart:.2g} apart in W1, images "
            f"{worst.response:.2g} apart, ratio {worst.ratio:.3g}, a lower bound of the Lipschitz "
            "constant in the context"
        )
    numbers = {
        "share": share, "tokens": mu.n, "exponent": overall[0], "exponent_error": overall[1],
        "worst_exponent": local[0], "worst": worst.to_dict(),
        "replaced": [{"w1": c.apart, "response": c.response} for c in replaced],
        "moved": [{"w1": c.apart, "response": c.response} for c in moved],
    }  # fmt: skip
    plots = [_picture(replaced, moved, worst)]
    return Section("sensitivity", status, verdict, lines, numbers, plots)


class _Ask:
    """The model, asked for the change at a point; what is below rounding counts as none."""

    def __init__(self, subject: Subject, floor: float):
        self.subject, self.floor = subject, floor
        self.manifold = manifold_of(subject.model)

    def change(self, mu: Measure, nu: Measure, x: Tensor) -> Change:
        """Of one context for another."""
        a, b = (self.subject.answer(m, x[None])[0] for m in (mu, nu))
        response = float((a - b).norm())
        share = mu.n / (
            mu.n + self.subject.tokens_per_query
        )  # of the others, where x is a token too
        apart = float(wasserstein(mu, nu)) * share
        return Change(mu, nu, x, apart, response if response > self.floor else 0.0)


def _replaced(
    ask: _Ask, contexts: list[Measure], points: Tensor, generator: torch.Generator
) -> list[Change]:
    """Some of the others exchanged for tokens of another context, from one to all."""
    found = []
    for k, mu in enumerate(contexts):
        other = contexts[(k + 1) % len(contexts)]
        count = 1
        while True:
            some = torch.randperm(mu.n, generator=generator)[:count].to(mu.device)
            atoms = mu.atoms.clone()
            atoms[some] = other.atoms[some]
            found.append(ask.change(mu, mu.moved(atoms), points[k % len(points)]))
            if count == mu.n:
                break
            count = min(2 * count, mu.n)
    return found


def _moved(ask: _Ask, case: Case, contexts: list[Measure], points: Tensor) -> list[Change]:
    """All others moved a little, in random directions in which the data vary."""
    cloud = case.population.points(CLOUD, case.generator)
    scale, found = cloud.std(0), []
    box = Box.around(torch.cat([cloud, *(mu.atoms for mu in contexts)]), ask.manifold)
    for k, mu in enumerate(contexts):
        noise = torch.randn(mu.atoms.shape, generator=case.generator).to(mu.atoms)
        for step in MOVES.get(mu.dtype, MOVES[torch.float32]):
            nu = mu.moved(box.clamp(mu.atoms + step * scale * noise))
            found.append(ask.change(mu, nu, points[k % len(points)]))
    return found


def _share(subject: Subject, contexts: list[Measure], points: Tensor) -> float | None:
    """Of the variance of outputs, what is due to the context; None where nothing else varies."""
    if subject.pooled or len(points) < 2:
        return None
    out = torch.stack([subject.answer(mu, points) for mu in contexts]).double()
    within = float(out.var(0, correction=0).sum(-1).mean())
    total = float(out.flatten(0, 1).var(0, correction=0).sum())
    return within / total if total > 0 else 0.0


def _steepest(ask: _Ask, case: Case) -> list[Change]:
    """Random moves of a context, a point and a direction, kept where one token matters more."""
    generator, starts = case.generator, [case.context() for _ in range(STARTS)]
    cloud = case.population.points(CLOUD, generator)
    box = Box.around(torch.cat([cloud, *(mu.atoms for mu in starts)]), ask.manifold)
    sides = box.high - box.low
    step = STEP.get(sides.dtype, STEP[torch.float32])
    # a random step in every direction in which the data vary
    rand = lambda *n: torch.randn(*n, len(sides), generator=generator).to(sides) * sides
    pick = lambda n: int(torch.randint(n, (), generator=generator))
    found = []
    for mu in starts:
        x = case.points(1)[0]
        if case.queries is not None:
            x = case.queries[pick(len(case.queries))]
        j, u = pick(mu.n), rand()
        now = ask.change(mu, _pushed(mu, j, u, step, box), x)
        for k in range(ROUNDS):
            size = 10 ** (-0.5 - 2 * k / ROUNDS)
            other_j = pick(mu.n) if k % 4 == 0 else j
            other_u = u + 3 * size * rand()
            other = mu if k % 2 else mu.moved(box.clamp(mu.atoms + size * rand(mu.n)))
            there = x if case.queries is not None or k % 3 else box.clamp(x + size * rand())
            new = ask.change(other, _pushed(other, other_j, other_u, step, box), there)
            if new.ratio > now.ratio:
                now, mu, j, u, x = new, other, other_j, other_u, there
        found.append(now)
        case.tick()
    return found


def _pushed(mu: Measure, j: int, u: Tensor, step: float, box: Box) -> Measure:
    """One token moved, within the box."""
    atoms = mu.atoms.clone()
    length = float(u.norm())
    atoms[j] = box.clamp(atoms[j] + step * box.size * u / (length if length > 0 else 1.0))
    return mu.moved(atoms)


def _halved(ask: _Ask, found: list[Change]) -> tuple[Change, tuple[float, float]]:
    """The steepest pair, and how the response falls as pairs come together, with its error.

    The steepest pair and the one that responds most are halved again and again, keeping the half
    that responds more: at a jump the response stays.
    """
    steepest, largest = (max(found, key=key) for key in (lambda c: c.ratio, lambda c: c.response))
    best, fits = steepest, []
    for pair in (steepest,) if steepest is largest else (steepest, largest):
        chain = [pair]
        box = Box.around(torch.cat([pair.mu.atoms, pair.nu.atoms]), ask.manifold)
        for _ in range(HALVINGS):
            mu, nu = chain[-1].mu, chain[-1].nu
            middle = mu.moved(box.clamp((mu.atoms + nu.atoms) / 2))
            halves = ask.change(mu, middle, pair.x), ask.change(middle, nu, pair.x)
            more = max(halves, key=lambda c: c.response)
            if not (more.response > 0 and more.apart > 0):
                break
            chain.append(more)
        best = max([best, *chain], key=lambda c: c.ratio)
        fits.append(power([(c.apart, c.response) for c in chain[len(chain) // 2 :]]))
    known = [fit for fit in fits if not math.isnan(fit[0])]
    return best, min(known, default=(math.nan, math.nan))


def _verdict(
    overall: tuple[float, float], local: tuple[float, float], worst: Change, n: int
) -> tuple[Status, str]:
    if worst.ratio == 0:
        return "good", "outputs do not respond to the other tokens"
    small = [e for e, error in (overall, local) if e + 2 * error < HOLDER]
    if small:
        return "noted", (
            f"responds to changes of the context like their distance to the power "
            f"{min(small):.2f}: small changes have large effects"
        )
    exponent, error = overall
    power = "" if math.isnan(exponent) else (
        f"in proportion to the change of the context (exponent {exponent:.2f}, standard error "
        f"{error:.2f}), "
    )  # fmt: skip
    return "good", (
        f"responds {power}at most {worst.ratio:.3g} times as much in contexts of {n} tokens, as "
        "far as seen"
    )


def _picture(replaced: list[Change], moved: list[Change], worst: Change) -> dict:
    traces, shown = [], [c for c in (*replaced, *moved, worst) if c.apart > 0]
    for name, changes in (("some replaced", replaced), ("all moved", moved)):
        seen = [c for c in changes if c.response > 0 and c.apart > 0]
        traces.append(dots([c.apart for c in seen], [c.response for c in seen], name, line=False))
    if worst.response > 0:
        star = {"symbol": "star", "size": 14, "color": RED}
        traces.append(dots([worst.apart], [worst.response], "steepest", line=False, marker=star))
        ends = [min(c.apart for c in shown), max(c.apart for c in shown)]
        name = f"ratio {worst.ratio:.3g}"
        traces.append(guide(ends, [worst.ratio * w for w in ends], name))
    return plot(
        "One point, two contexts", "W1 of the contexts", "distance of its images", traces,
        xaxis=log([c.apart for c in shown]), yaxis=log([c.response for c in shown]),
        caption="Below the dashed line, the steepest change found, one point's output changes by "
        "less than that many times the change of its context.",
    )  # fmt: skip
