r"""What becomes of one token when the others change.

Pairs of contexts $\mu,\nu$ and one point $x$: $|G(\mu,x)-G(\nu,x)|$ against $W_1(\mu,\nu)$, from
small moves of all other tokens to replacing them all; then a search for the steepest change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..characterise.continuity import line
from ..characterise.search import Box
from ..distances import wasserstein
from ..measures import Measure
from .charts import LOG, RED, dots, guide, plot
from .population import Population
from .section import Section, Status
from .subjects import Subject
from .symmetries import Look

POINTS = 4
CONTEXTS = 4
STARTS = 2
ROUNDS = 40
HALVINGS = 12
HOLDER = 0.8
"""Exponents below this are those of a map that is not Lipschitz."""

MOVES = {torch.float64: (1e-5, 1e-4, 1e-3, 1e-2, 1e-1), torch.float32: (1e-3, 1e-2, 1e-1)}
"""How far tokens are moved, in units of the spread of the data."""

_UNKNOWN = (math.nan, math.nan)

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


def sensitivity(
    subject: Subject,
    population: Population,
    queries: Tensor | None,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> Section:
    """Move and replace the other tokens.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        generator: of all that is random.
        tick: told now and then.
    """
    population = population.one()
    mu = population.context(generator)
    floor = Look.of(subject, mu, queries, generator).allowed / 100
    ask = _Ask(subject, floor)
    draw = lambda m: population.points(m, generator) if queries is None else queries[:m]
    points = draw(POINTS)
    contexts = [population.context(generator) for _ in range(CONTEXTS)]
    replaced = _replaced(ask, contexts, points, generator)
    moved = _moved(ask, population, contexts, points, generator)
    share = _share(subject, contexts, points)
    found = [*replaced, *moved, *_steepest(ask, population, queries, generator, tick)]
    worst, local = _closest(ask, found)
    small = [c for c in moved if c.response > floor]
    exponent, error = math.nan, math.nan
    if len({round(math.log(c.apart), 1) for c in small}) >= 3:
        logs = [(math.log(c.apart), math.log(c.response)) for c in small]
        exponent, error = line(*zip(*logs, strict=True))
    status, verdict = _verdict((exponent, error), local, worst)
    lines = []
    numbers: dict = {"share": share}
    if share is not None:
        whose = "the query" if subject.separate else "the token itself"
        lines.append(
            f"{share:.0%} of the variance of outputs comes from the context, the rest from {whose}"
        )
    if worst.ratio > 0:
        lines.append(
            f"the steepest change found: contexts {worst.apart:.2g} apart in W1, images of one "
            f"point {worst.response:.2g} apart, ratio {worst.ratio:.3g}, a lower bound of the "
            "Lipschitz constant in the context"
        )
        numbers["worst"] = {
            "ratio": worst.ratio, "w1": worst.apart, "response": worst.response,
            "mu": worst.mu.atoms.tolist(), "nu": worst.nu.atoms.tolist(), "x": worst.x.tolist(),
        }  # fmt: skip
    numbers |= {"exponent": exponent, "exponent_error": error, "worst_exponent": local[0]}
    numbers["replaced"] = [{"w1": c.apart, "response": c.response} for c in replaced]
    numbers["moved"] = [{"w1": c.apart, "response": c.response} for c in moved]
    return Section(
        "sensitivity", status, verdict, lines, numbers, [_picture(replaced, moved, worst)],
        generator.initial_seed(),
    )  # fmt: skip


class _Ask:
    """The model, asked for the change at a point; what is below rounding counts as none."""

    def __init__(self, subject: Subject, floor: float):
        self.subject, self.floor = subject, floor

    def change(self, mu: Measure, nu: Measure, x: Tensor) -> Change:
        """Of one context for another."""
        a, b = (self.subject.answer(m, x[None])[0] for m in (mu, nu))
        response = float((a - b).norm())
        apart = float(wasserstein(mu, nu)) * self.subject.rest(mu)
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


def _moved(
    ask: _Ask,
    population: Population,
    contexts: list[Measure],
    points: Tensor,
    generator: torch.Generator,
) -> list[Change]:
    """All others moved a little, in random directions in which the data vary."""
    scale = population.points(256, generator).std(0)
    found = []
    for k, mu in enumerate(contexts):
        noise = torch.randn(mu.atoms.shape, generator=generator).to(mu.atoms)
        for step in MOVES.get(mu.dtype, MOVES[torch.float32]):
            nu = mu.moved(mu.atoms + step * scale * noise)
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


def _steepest(
    ask: _Ask,
    population: Population,
    queries: Tensor | None,
    generator: torch.Generator,
    tick: Callable[[], None],
) -> list[Change]:
    """Random moves of a context, a point and a direction, kept where one token matters more."""
    box = population.box(generator)
    sides = box.high - box.low
    step = STEP.get(sides.dtype, STEP[torch.float32])
    # a random step in every direction in which the data vary
    randn = lambda *shape: (
        torch.randn(*shape, sides.numel(), generator=generator).to(sides) * sides
    )
    found = []
    for _ in range(STARTS):
        mu = population.context(generator)
        x = population.points(1, generator)[0]
        if queries is not None:
            x = queries[int(torch.randint(len(queries), (), generator=generator))]
        j, u = int(torch.randint(mu.n, (), generator=generator)), randn()
        now = ask.change(mu, _pushed(mu, j, u, step, box), x)
        for k in range(ROUNDS):
            size = 10 ** (-0.5 - 2 * k / ROUNDS)
            other_j = int(torch.randint(mu.n, (), generator=generator)) if k % 4 == 0 else j
            other_u = u + 3 * size * randn()
            other = mu if k % 2 else mu.moved(box.clamp(mu.atoms + size * randn(mu.n)))
            there = x if queries is not None or k % 3 else box.clamp(x + size * randn())
            new = ask.change(other, _pushed(other, other_j, other_u, step, box), there)
            if new.ratio > now.ratio:
                now, mu, j, u, x = new, other, other_j, other_u, there
        found.append(now)
        tick()
    return found


def _pushed(mu: Measure, j: int, u: Tensor, step: float, box: Box) -> Measure:
    """One token moved, within the box."""
    atoms = mu.atoms.clone()
    length = float(u.norm())
    atoms[j] = box.clamp(atoms[j] + step * box.size * u / (length if length > 0 else 1.0))
    return mu.moved(atoms)


def _closest(ask: _Ask, found: list[Change]) -> tuple[Change, tuple[float, float]]:
    """The steepest pair, and how the response falls as pairs come together, with its error.

    The steepest pair and the one that responds most are halved again and again, keeping the half
    that responds more: at a jump the response stays.
    """
    steepest = max(found, key=lambda c: c.ratio)
    best, power = steepest, _UNKNOWN
    for pair in {id(c): c for c in (steepest, max(found, key=lambda c: c.response))}.values():
        chain = [pair]
        for _ in range(HALVINGS):
            mu, nu = chain[-1].mu, chain[-1].nu
            middle = mu.moved((mu.atoms + nu.atoms) / 2)
            halves = ask.change(mu, middle, pair.x), ask.change(middle, nu, pair.x)
            more = max(halves, key=lambda c: c.response)
            if not (more.response > 0 and more.apart > 0):
                break
            chain.append(more)
        best = max([best, *chain], key=lambda c: c.ratio)
        late = chain[len(chain) // 2 :]
        if len(late) >= 3:
            logs = [(math.log(c.apart), math.log(c.response)) for c in late]
            new = line(*zip(*logs, strict=True))
            power = new if math.isnan(power[0]) or new[0] < power[0] else power
    return best, power


def _verdict(
    overall: tuple[float, float], local: tuple[float, float], worst: Change
) -> tuple[Status, str]:
    if worst.ratio == 0:
        return "good", "a token's output does not respond to the other tokens"
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
    return "good", f"responds {power}at most {worst.ratio:.3g} times as much, as far as seen"


def _picture(replaced: list[Change], moved: list[Change], worst: Change) -> dict:
    traces = []
    for name, changes in (("some replaced", replaced), ("all moved", moved)):
        seen = [c for c in changes if c.response > 0 and c.apart > 0]
        traces.append(dots([c.apart for c in seen], [c.response for c in seen], name, line=False))
    if worst.response > 0:
        star = {"symbol": "star", "size": 14, "color": RED}
        traces.append(dots([worst.apart], [worst.response], "steepest", line=False, marker=star))
        ends = [c.apart for c in (*replaced, *moved, worst) if c.apart > 0]
        ends = [min(ends), max(ends)]
        name = f"ratio {worst.ratio:.3g}"
        traces.append(guide(ends, [worst.ratio * w for w in ends], name))
    return plot(
        "One point, two contexts", "W1 of the contexts", "distance of its images", traces,
        xaxis=LOG, yaxis=LOG,
    )  # fmt: skip
