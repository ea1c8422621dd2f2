r"""What becomes of one token when the others change.

Pairs of contexts $\mu,\nu$ and one point $x$: $|G(\mu,x)-G(\nu,x)|$ against $W_1(\mu,\nu)$, from
small moves of all other tokens to replacing them all; then a search for the steepest change.
"""

from __future__ import annotations

import math
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
STARTS = 3
ROUNDS = 60
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
) -> Section:
    """Move and replace the other tokens.

    Args:
        subject: the model.
        population: what tokens are like.
        queries: where to ask, if that is apart from the context.
        generator: of all that is random.
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
    worst = _steepest(ask, population, queries, generator)
    for change in (*replaced, *moved):
        if worst is None or change.ratio > worst.ratio:
            worst = change
    small = [c for c in moved if c.response > floor]
    exponent, error = math.nan, math.nan
    if len({round(math.log(c.apart), 1) for c in small}) >= 3:
        logs = [(math.log(c.apart), math.log(c.response)) for c in small]
        exponent, error = line(*zip(*logs, strict=True))
    local = _local_exponent(ask, worst) if worst is not None and worst.ratio > 0 else _UNKNOWN
    status, verdict = _verdict((exponent, error), local, worst)
    lines = [
        f"{share:.0%} of the variance of outputs comes from the other tokens, the rest from the "
        "token itself"
    ]
    numbers: dict = {"share": share}
    if worst is not None and worst.ratio > 0:
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
        apart = float(wasserstein(mu, nu))
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
    """All others moved a little, in random directions."""
    scale = float(population.points(256, generator).std(0).mean())
    found = []
    for k, mu in enumerate(contexts):
        noise = torch.randn(mu.atoms.shape, generator=generator).to(mu.atoms)
        for step in MOVES.get(mu.dtype, MOVES[torch.float32]):
            nu = mu.moved(mu.atoms + step * scale * noise)
            found.append(ask.change(mu, nu, points[k % len(points)]))
    return found


def _share(subject: Subject, contexts: list[Measure], points: Tensor) -> float:
    """Of the variance of outputs, what is due to the context."""
    out = torch.stack([subject.answer(mu, points) for mu in contexts]).double()
    within = float(out.var(0, correction=0).sum(-1).mean())
    total = float(out.flatten(0, 1).var(0, correction=0).sum())
    return within / total if total > 0 else 0.0


def _steepest(
    ask: _Ask, population: Population, queries: Tensor | None, generator: torch.Generator
) -> Change | None:
    """Random moves of a context, a point and a direction, kept where one token matters more."""
    cloud = population.points(256, generator)
    box = Box(cloud.amin(0), cloud.amax(0))
    step = STEP.get(cloud.dtype, STEP[torch.float32]) * max(box.size, 1e-30)
    randn = lambda *shape: torch.randn(*shape, generator=generator).to(cloud)
    best = None
    for _ in range(STARTS):
        mu = population.context(generator)
        x = population.points(1, generator)[0]
        if queries is not None:
            x = queries[int(torch.randint(len(queries), (), generator=generator))]
        j = int(torch.randint(mu.n, (), generator=generator))
        u = randn(mu.dim)
        now = ask.change(mu, _pushed(mu, j, step * u / u.norm()), x)
        for k in range(ROUNDS):
            size = 10 ** (-0.5 - 2 * k / ROUNDS)
            other_j = int(torch.randint(mu.n, (), generator=generator)) if k % 4 == 0 else j
            other_u = u / u.norm() + 3 * size * randn(mu.dim)
            other = mu.moved(box.clamp(mu.atoms + size * box.size * randn(*mu.atoms.shape)))
            other = mu if k % 2 else other
            there = x if queries is not None or k % 3 else box.clamp(x + size * randn(mu.dim))
            nu = _pushed(other, other_j, step * other_u / other_u.norm())
            new = ask.change(other, nu, there)
            if new.ratio > now.ratio:
                now, mu, j, u, x = new, other, other_j, other_u, there
        if best is None or now.ratio > best.ratio:
            best = now
    return best


def _pushed(mu: Measure, j: int, step: Tensor) -> Measure:
    """One token moved."""
    atoms = mu.atoms.clone()
    atoms[j] += step
    return mu.moved(atoms)


def _local_exponent(ask: _Ask, worst: Change) -> tuple[float, float]:
    """How the response falls as the steepest pair comes together, and its standard error."""
    logs = []
    for k in range(6):
        share = 2.0**-k
        atoms = worst.mu.atoms + share * (worst.nu.atoms - worst.mu.atoms)
        change = ask.change(worst.mu, worst.mu.moved(atoms), worst.x)
        if change.response > 0 and change.apart > 0:
            logs.append((math.log(change.apart), math.log(change.response)))
    return line(*zip(*logs, strict=True)) if len(logs) >= 3 else _UNKNOWN


def _verdict(
    overall: tuple[float, float], local: tuple[float, float], worst: Change | None
) -> tuple[Status, str]:
    if worst is None or worst.ratio == 0:
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


def _picture(replaced: list[Change], moved: list[Change], worst: Change | None) -> dict:
    traces = []
    for name, changes in (("some replaced", replaced), ("all moved", moved)):
        seen = [c for c in changes if c.response > 0 and c.apart > 0]
        traces.append(dots([c.apart for c in seen], [c.response for c in seen], name, line=False))
    if worst is not None and worst.response > 0:
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
