"""How relations depend on the affinity, the temperature and the mask."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations
from typing import cast

import torch
from torch import Tensor

from ....affinities import Matrix, SquaredDistance
from ....distances import wasserstein
from ....measures import Measure
from ....pictures import Figure, series
from ....relations import Coupling, Exact, Sinkhorn, relate
from ....sinkhorn import doubly_stochastic
from ..._checks import Check, bounded, holds, max, min, rate, refuted
from ..._laws import box, simplex
from ..._statement import Setting, planted, statement


def temperature(eps: float) -> float:
    """The temperature of Sinkhorn."""
    return eps


@statement(
    "B.hard",
    "couplings as the temperature falls",
    "As the temperature tends to zero the coupling tends to exact transport.",
    r"0\le\int c\,d\pi_\varepsilon-\min_{\pi\in\Pi(\mu,\nu)}\int c\,d\pi\le\varepsilon\log n",
    defect=planted(__name__, "temperature", lambda eps: 1.0),
    seconds=(0.8, 0.2),
    api=("relations.Exact", "doubly_stochastic"),
)
def hard(s: Setting) -> Iterator[Check | Figure]:
    """Costs of couplings of 12 equal points each, for falling temperatures."""
    g, n, exact, ratios, least = s.generator(), 12, 0.0, [], math.inf
    eps = torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001])
    bound = eps * math.log(n)
    for _ in range(s.pick(3, 1)):
        mu, nu = (box(n, 2, g) for _ in range(2))
        plan = cast(Coupling, relate(mu, nu, affinity=SquaredDistance(1.0), normaliser=Exact()))
        best = float(plan.cost())
        exact = max(exact, abs(best - float(wasserstein(mu, nu, p=2)) ** 2))
        cost = torch.cdist(mu.atoms, nu.atoms).square()
        logits = torch.stack([-cost / temperature(e) for e in eps.tolist()])
        plans = doubly_stochastic(logits, tol=1e-12).scaled / n
        above = (plans * cost).sum((-1, -2)) - best
        ratios.append(float((above / bound).max()))
        least = min(least, float(above.min()))
    trials = len(ratios) * len(eps)
    yield holds(exact, 1e-12, "exact cost against the Wasserstein distance")
    yield bounded(max(ratios), trials, "cost above the least one")
    yield holds(max(0.0, -least), 1e-11, "no cost below it:", trials)
    yield Figure(
        "Cost above exact transport", "eps", "cost",
        (
            series("measured", eps, above.clamp_min(1e-16), "dots"),
            series("eps log n", eps, bound, "dashed"),
        ),
        log="xy",
    )  # fmt: skip


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Half the sum of the differences, along the last axis."""
    return (p - q).abs().sum(-1) / 2


def oscillation(x: Tensor) -> Tensor:
    """Largest minus least value, along the last axis."""
    return x.amax(-1) - x.amin(-1)


def half_oscillation(x: Tensor) -> Tensor:
    """Half of it."""
    return (x.amax(-1) - x.amin(-1)) / 2


def perturbed(count: int, s: Setting) -> Iterator[tuple[Measure, Measure, Tensor, Tensor]]:
    """Two clouds of unequal weights, and two matrices of scores of size 0.1 to 10."""
    g = s.generator()
    for k in range(count):
        mu, nu = (simplex(box(n, 2, g).atoms, g) for n in (5, 7))
        yield mu, nu, *(10.0 ** (k % 3 - 1) * torch.randn(2, 5, 7, generator=g))


@statement(
    "B.stab.softmax",
    "stability of softmax",
    "Softmax moves every row by at most the hyperbolic tangent of a quarter of the oscillation of "
    "the change, and two groups of equal mass attain it.",
    r"\mathrm{TV}\bigl(\kappa^A(x,\cdot),\kappa^{B}(x,\cdot)\bigr)\le"
    r"\tanh\bigl(\tfrac14\operatorname{osc}(A-B)(x,\cdot)\bigr)",
    defect=planted(__name__, "oscillation", half_oscillation),
    seconds=(0.2, 0.1),
    api=("Softmax",),
)
def softmax_stability(s: Setting) -> Iterator[Check | Figure]:
    """Random pairs of scores, and two groups of keys half way between both."""
    changes, moved, count = [], [], s.pick(60, 15)
    for mu, nu, a, b in perturbed(count, s):
        p, q = (relate(mu, nu, affinity=Matrix(x)).matrix() for x in (a, b))
        changes.append(oscillation(a - b))
        moved.append(total_variation(p, q))
    change, tv = torch.cat(changes), torch.cat(moved)
    yield bounded(float((tv / (change / 4).tanh()).max()), tv.numel(), "random changes")
    one, four = Measure(torch.zeros(1, 1)), Measure(torch.zeros(4, 1))
    attained = []
    for size in (0.01, 1.0, 10.0):
        side = torch.tensor([[1.0, 1.0, -1.0, -1.0]]) * size / 4
        p, q = (relate(one, four, affinity=Matrix(x)).matrix() for x in (side, -side))
        attained.append(float(total_variation(p, q) / (oscillation(2 * side) / 4).tanh()))
    yield holds(max(abs(r - 1) for r in attained), 1e-12, "two groups attain it:", 3)
    x = torch.linspace(0, 20, 50)
    curve = series("tanh(osc / 4)", x, (x / 4).tanh(), "dashed")
    shown = change <= 20
    dots = series("measured", change[shown], tv[shown], "dots")
    yield Figure("A change of the scores", "oscillation", "total variation", (dots, curve))


def least_oscillation(x: Tensor, rounds: int = 50) -> float:
    """The least oscillation up to functions of one point, by centring rows and columns in turn."""
    for _ in range(rounds):
        for axis in (0, 1):
            x = x - (x.amax(axis, keepdim=True) + x.amin(axis, keepdim=True)) / 2
    return float(x.max() - x.min())


QUARTER = 0.25


def checkered(size: float) -> Tensor:
    """Scores of two points and two points, plus and minus: no potentials can absorb them."""
    return size * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])


@statement(
    "B.stab.sinkhorn",
    "stability of Sinkhorn",
    "Sinkhorn moves the coupling by at most a quarter of the oscillation of the change, where "
    "functions of one point alone do not count.",
    r"\mathrm{TV}(\pi^A,\pi^{B})\le\tfrac14\inf_{a,b}\operatorname{osc}(A-B+a\oplus b)",
    defect=planted(__name__, "QUARTER", 0.125),
    seconds=(1.3, 0.4),
    api=("Sinkhorn",),
    note="A quarter is best possible for small changes; the bound of softmax is not claimed.",
)
def sinkhorn_stability(s: Setting) -> Iterator[Check | Figure]:
    """Random pairs of scores, and checkered ones, which come near the bound."""
    tight, change, moved = Sinkhorn(tol=1e-13), [], []
    plan = lambda mu, nu, x: relate(mu, nu, affinity=Matrix(x), normaliser=tight).matrix()
    for mu, nu, a, b in perturbed(s.pick(45, 15), s):
        p, q = (plan(mu, nu, x).flatten() for x in (a, b))
        moved.append(float(total_variation(p, q)))
        change.append(least_oscillation(a - b))
    ratios = [tv / (QUARTER * size) for tv, size in zip(moved, change, strict=True)]
    yield bounded(max(ratios), len(ratios), "random changes")
    two, size = Measure(torch.zeros(2, 1)), 0.1
    p, q = (plan(two, two, checkered(t)).flatten() for t in (size, -size))
    ratio = float(total_variation(p, q)) / (QUARTER * least_oscillation(checkered(2 * size)))
    yield bounded(ratio, 1, "checkered", least=0.99)
    yield holds(abs(ratio - math.tanh(size) / size), 1e-10, "its closed form tanh(s)/s")
    line = series("a quarter", (0.1, 4.0), (0.025, 1.0), "dashed")
    curves = series("measured", change, moved, "dots"), line
    yield Figure("A change of the scores", "oscillation", "total variation", curves, log="xy")


def after_a_step(mu: Measure, nu: Measure, scores: Tensor, g: Tensor) -> Tensor:
    """The potential on the keys after a step of Sinkhorn."""
    one = Sinkhorn(steps=1)
    pi = relate(mu, nu, affinity=Matrix(scores), normaliser=one, start=g)
    return cast(Tensor, pi.g)


def after_half_a_step(mu: Measure, nu: Measure, scores: Tensor, g: Tensor) -> Tensor:
    """The potential on the queries, after half a step."""
    return -(scores + g + nu.log_weights).logsumexp(-1)


def projective_diameter(scores: Tensor) -> Tensor:
    r"""$\Delta=\max(A_{ik}+A_{jl}-A_{jk}-A_{il})$."""
    return oscillation(scores[:, None] - scores[None]).max()


@statement(
    "B.hilbert",
    "speed of Sinkhorn",
    "A step of Sinkhorn brings two potentials nearer by a factor, in the oscillation of their "
    "difference.",
    r"\operatorname{osc}(g'-h')\le\tanh(\Delta/4)^2\operatorname{osc}(g-h),\qquad"
    r" \Delta=\max_{ijkl}(A_{ik}+A_{jl}-A_{jk}-A_{il})",
    defect=planted(__name__, "after_a_step", after_half_a_step),
    seconds=(0.3, 0.1),
    api=("Sinkhorn", "relate"),
)
def contraction(s: Setting) -> Iterator[Check | Figure]:
    """Random potentials, and small ones on two points, where the factor is attained."""
    r, ratios = s.generator(1), []

    def ratio(mu: Measure, nu: Measure, scores: Tensor, g: Tensor, h: Tensor) -> float:
        moved = after_a_step(mu, nu, scores, g) - after_a_step(mu, nu, scores, h)
        factor = (projective_diameter(scores) / 4).tanh() ** 2
        return float(oscillation(moved) / (factor * oscillation(g - h)))

    for k, (mu, nu, a, _) in enumerate(perturbed(s.pick(60, 15), s)):
        scores = a / 10.0 ** (k % 3 - 1)  # of size one: for larger ones the factor is almost 1
        ratios.append(ratio(mu, nu, scores, *(10.0 ** (k % 2) * torch.randn(2, 7, generator=r))))
    yield bounded(max(ratios), len(ratios), "random potentials")
    two, small = Measure(torch.zeros(2, 1)), torch.tensor([1e-4, -1e-4])
    attained = ratio(two, two, checkered(0.7), small, torch.zeros(2))
    yield bounded(attained, 1, "two points", least=1 - 1e-6)
    distance, factor = [2.0], math.tanh(0.7) ** 2
    g = torch.tensor([1.0, -1.0])
    for _ in range(20):
        g = after_a_step(two, two, checkered(0.7), g)
        distance.append(float(oscillation(g)))
    steps = range(21)
    theory = [2.0 * factor**k for k in steps]
    curves = series("measured", steps, distance, "dots"), series("bound", steps, theory, "dashed")
    yield Figure("Distance to the solution", "step", "oscillation", curves, log="y")


def covered(allowed: Tensor) -> Tensor:
    """The allowed pairs that lie on a permutation of allowed pairs."""
    n, used = len(allowed), torch.zeros_like(allowed)
    for columns in permutations(range(n)):
        if allowed[range(n), columns].all():
            used[range(n), columns] = True
    return used


def total_support(allowed: Tensor) -> bool:
    """Whether every allowed pair lies on a permutation of allowed pairs, and there are some."""
    return bool(allowed.any() and (covered(allowed) == allowed).all())


def one_way(n: int) -> Tensor:
    """All queries but the last see the first key alone: without support for more than two."""
    return (torch.arange(n) == 0) | (torch.arange(n) == n - 1)[:, None]


def marginal_errors(patterns: Tensor, scores: Tensor, steps: int) -> Tensor:
    """Marginal errors after plain steps of Sinkhorn on some patterns."""
    mu = Measure(torch.zeros(patterns.shape[-1], 1))
    masked = Matrix(scores.masked_fill(~patterns, -torch.inf))
    pi = relate(mu, mu, affinity=masked, normaliser=Sinkhorn(steps=steps))
    return cast(Coupling, pi).residual


@statement(
    "B.mask.support",
    "Sinkhorn on a mask",
    "On a mask there are scalings if and only if it has total support. The iteration has a limit "
    "if and only if it has support.",
    r"\exists f,g:\ e^{A+f\oplus g}\mathbf 1_M\in\Pi\iff M\text{ is a union of permutations}",
    defect=planted(__name__, "total_support", lambda allowed: bool(covered(allowed).any())),
    seconds=(0.7, 0.6),
    api=("doubly_stochastic", "Sinkhorn"),
)
def support(s: Setting) -> Iterator[Check | Figure]:
    """Random patterns against all permutations; the error after many plain steps."""
    g, wrong, count = s.generator(), 0, s.pick(70, 20)
    worst, least, without = 0.0, math.inf, 0
    for n in (2, 3, 4):
        share = torch.rand(count, 1, 1, generator=g)
        allowed = torch.rand(count, n, n, generator=g) < share
        allowed[0] = one_way(n)
        scores = torch.randn(count, n, n, generator=g)
        scaled = doubly_stochastic(scores.masked_fill(~allowed, -torch.inf))
        total = torch.tensor([total_support(pattern) for pattern in allowed])
        wrong += int((scaled.converged != total).sum())
        some = allowed.any(-1).all(-1) & allowed.any(-2).all(-1)  # each point has a partner
        supported = torch.tensor([bool(covered(pattern).any()) for pattern in allowed])[some]
        errors = marginal_errors(allowed[some], scores[some], 300)
        worst = max([worst, *errors[supported].tolist()])
        least = min([least, *errors[~supported].tolist()])
        without += int((~supported).sum())
    yield holds(float(wrong), 0.0, "scalings exactly on total support", 3 * count)
    # Without support a mass of 1/n has no place, so that the error is at least 2/n = 0.5.
    yield holds(worst, 0.05, "with support the error after 300 steps vanishes: it")
    yield bounded(0.5 / least, without, "without support the error is at least 2/n:")
    lower = torch.ones(3, 3).tril() > 0
    alone = doubly_stochastic(torch.zeros(3, 3).masked_fill(~lower, -torch.inf))
    yield refuted(not bool(alone.converged), "a causal mask has support, and no scaling")
    patterns = {"all": lower | True, "causal": lower, "none": one_way(3)}
    ks, zero = [1, 3, 10, 30, 100, 300], torch.eye(3)
    yield Figure(
        "Marginal error", "step", "error",
        tuple(
            series(name, ks, [float(marginal_errors(m, zero, k).clamp_min(1e-16)) for k in ks])
            for name, m in patterns.items()
        ),
        log="xy",
        caption="Total support: linear convergence. Support: 1/k. No support: no limit.",
    )  # fmt: skip


def causal(n: int) -> Tensor:
    """Which pairs a causal mask allows."""
    return torch.ones(n, n).tril() > 0


@statement(
    "B.mask.causal",
    "Sinkhorn with a causal mask",
    "With a causal mask and equal marginals Sinkhorn tends to the identity, however the scores "
    "are, and the subdiagonal decays like 1/k.",
    r"n\,\pi^{(k)}_{i+1,i}\sim\frac{i\,(n-i)}{2k}",
    defect=planted(__name__, "causal", lambda n: torch.ones(n, n).tril(1) > 0),
    seconds=(1.6, 0.5),
    api=("Sinkhorn",),
    note="Use softmax with causal masks, or marginals that leave room.",
)
def causal_limit(s: Setting) -> Iterator[Check | Figure]:
    """The subdiagonal against its asymptotics, at growing numbers of steps."""
    g, steps = s.generator(), s.pick([400, 2400], [500, 2000])
    for n in s.pick([3, 4, 6], [4]):
        mu, i = Measure(torch.zeros(n, 1)), torch.arange(1.0, n)
        scores = (torch.randn(n, n, generator=g) / 2).masked_fill(~causal(n), -torch.inf)
        ratios = []
        for k in steps:
            pi = relate(mu, mu, affinity=Matrix(scores), normaliser=Sinkhorn(steps=k)).matrix()
            ratios.append(k * n * pi.diagonal(-1) / (i * (n - i) / 2))
        errors = [float((r - 1).abs().max()) for r in ratios]
        yield rate(1 + errors[-1], 1.0, 0.05, f"n = {n}, ratio to theory")
    yield Figure(
        "Ratio to i (n - i) / 2k", "i", "ratio",
        tuple(
            series(f"{k} steps", i, r, "dots") for k, r in zip(steps, ratios, strict=True)
        ),
    )  # fmt: skip
