"""Narrow heads: which keys they can select, and what many of them represent together."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ....affinities import Encoded, Matrix
from ....approximation import Heads, birkhoff, realise_heads
from ....measures import Measure
from ....pictures import Figure, series
from ....relations import Sinkhorn, relate
from ....sinkhorn import doubly_stochastic
from ..._checks import Check, bounded, built, holds, max, min, refuted
from ..._laws import box, simplex
from ..._statement import Setting, planted, statement


def circle(n: int) -> Tensor:
    """Keys on the circle."""
    angles = 2 * math.pi * torch.arange(n) / n
    return torch.stack([angles.cos(), angles.sin()], -1)


@statement(
    "B.peaked",
    "the answer to the referee, peaked relations",
    "A head of dimension two selects any key for every query, as sharply as one likes.",
    r"k_j=(\cos\theta_j,\sin\theta_j),\ q_i=\lambda k_{j(i)}\ \Rightarrow\ "
    r"\mathrm{TV}\le(n-1)\,e^{-\lambda(1-\cos(2\pi/n))}",
    defect=planted(__name__, "circle", lambda n: (math.pi * torch.arange(n) / n).cos()[:, None]),
    api=("Encoded", "approximation.realise_heads"),
)
def peaked(s: Setting) -> Iterator[Check | Figure]:
    """All keys of a circle selected in turn; one relation in the picture."""
    g, ratios, smallest, n = s.generator(), [], 1.0, 7
    keys, mu = circle(n), Measure(torch.zeros(n, 1))
    for sharpness in (10.0, 20.0, 50.0):
        chosen = torch.randint(n, (n,), generator=g)
        p = relate(mu, mu, affinity=Encoded(sharpness * keys[chosen], keys)).matrix()
        apart = float((1 - p[torch.arange(n), chosen]).max())
        ratios.append(apart / ((n - 1) * math.exp(-sharpness * (1 - math.cos(2 * math.pi / n)))))
        smallest = min(smallest, apart)
    yield bounded(max(ratios), 3 * n, "total variation")
    yield built(smallest, 1e-7, "a relation that selects")
    points = relate(mu, mu, affinity=Encoded(10.0 * keys[:1].expand(n, -1), keys)).matrix()[0]
    curve = series("mass at sharpness 10", range(n), points, "stems")
    yield Figure("The first key is selected", "key", "mass", (curve,))


def scores_on_a_line(q: Tensor, keys: Tensor) -> Tensor:
    """Scores of a head of dimension one."""
    return q[:, None] * keys


def scores_on_a_parabola(q: Tensor, keys: Tensor) -> Tensor:
    """Scores of a head of dimension two."""
    return q[:, None] * keys - 30 * keys.square()


@statement(
    "B.peaked.line",
    "the answer to the referee, dimension one",
    "A head of dimension one selects extreme keys only: every other key has at most half of the "
    "mass.",
    r"d=1,\ k_1<k_j<k_m\ \Rightarrow\ \mathrm{TV}(P(x,\cdot),\delta_{k_j})\ge\tfrac12",
    defect=planted(__name__, "scores_on_a_line", scores_on_a_parabola),
    api=("Matrix", "relate"),
    note="For keys of equal weight.",
)
def on_a_line(s: Setting) -> Iterator[Check | Figure]:
    """Six keys on a line and all queries in an interval."""
    g, q = s.generator(), torch.linspace(-60, 60, 4001)
    queries, context = Measure(q[:, None]), Measure(torch.zeros(6, 1))
    best, chosen, trials = 0.0, set(), s.pick(20, 5)
    for _ in range(trials):
        keys = (2 * torch.rand(6, generator=g) - 1).sort().values
        p = relate(queries, context, affinity=Matrix(scores_on_a_line(q, keys))).matrix()
        best = max(best, float(p[:, 1:-1].max()))
        chosen |= set(p[q.abs() > 1e-9].argmax(-1).tolist())
    yield refuted(chosen == {0, 5}, f"only the keys {sorted(chosen)} of 0 to 5 have most mass")
    yield bounded(0.5 / (1 - best), trials, "distance to a middle key")
    curves = tuple(
        series(f"key {j + 1}", q[1500:2501:10], p[1500:2501:10, j]) for j in (0, 2, 3, 5)
    )
    yield Figure("Masses of the keys", "q", "mass", curves)


def stochastic(n: int, m: int, g: torch.Generator) -> Tensor:
    """Random rows, a third of the entries of which are zero."""
    p = -torch.rand(n, m, generator=g).log() * (torch.rand(n, m, generator=g) > 0.3)
    p[:, 0] += 1e-3
    return p / p.sum(-1, keepdim=True)


def average(heads: Heads, nu: Measure) -> Tensor:
    """The weighted average of softmax heads."""
    mu = Measure(torch.zeros(heads.q.shape[1], 1))
    each = relate(mu, nu, affinity=Encoded(heads.q, heads.k)).matrix()
    return torch.einsum("h,hij->ij", heads.weights, each)


def unweighted(heads: Heads, nu: Measure) -> Tensor:
    """The plain average of softmax heads."""
    mu = Measure(torch.zeros(heads.q.shape[1], 1))
    return relate(mu, nu, affinity=Encoded(heads.q, heads.k)).matrix().mean(0)


def equal_heads(p: Tensor, count: int, nu: Measure) -> Tensor:
    """The average of equal heads, rounded by largest remainders."""
    return average(realise_heads(p, count, weights=nu.weights), nu)


def rounded_down(p: Tensor, count: int, nu: Measure) -> Tensor:
    """Rows rounded down, and the rest for the first key."""
    low = (count * p).floor() / count
    low[:, 0] += 1 - low.sum(-1)
    return low


@statement(
    "B.heads.average",
    "the answer to the referee, many heads",
    "The average of H heads of dimension two approximates every conditional on m keys.",
    r"\max_i\mathrm{TV}\Bigl(P_i,\tfrac1H\sum_hP^h_i\Bigr)\le\frac m{4H}+e^{-40}",
    defect=planted(__name__, "equal_heads", rounded_down),
    seconds=(0.3, 0.1),
    api=("approximation.realise_heads",),
)
def equal(s: Setting) -> Iterator[Check | Figure]:
    """Random conditionals of 9 queries and 7 keys, with zeros."""
    g, numbers, worst = s.generator(), (4, 16, 64), {}
    for h in numbers:
        errors = []
        for _ in range(s.pick(30, 8)):
            p, nu = stochastic(9, 7, g), simplex(box(7, 1, g).atoms, g)
            errors.append(float((p - equal_heads(p, h, nu)).abs().sum(-1).max()) / 2)
        worst[h] = max(errors)
    bounds = [7 / (4 * h) + math.exp(-40) for h in numbers]
    ratio = max(worst[h] / bound for h, bound in zip(numbers, bounds, strict=True))
    yield bounded(ratio, len(numbers) * len(errors))
    measured = series("measured", numbers, [worst[h] for h in numbers], "dots")
    curves = measured, series("m / 4H", numbers, bounds, "dashed")
    yield Figure("Error of equal heads", "heads", "total variation", curves, log="xy")


@statement(
    "B.heads.exact",
    "the answer to the referee, many heads",
    "Finitely many weighted heads of dimension two represent every conditional.",
    r"P=\sum_{h\le H}w_h\,P^h,\qquad H\le n(m-1)+1",
    defect=planted(__name__, "average", unweighted),
    seconds=(0.2, 0.1),
    api=("approximation.realise_heads",),
)
def weighted(s: Setting) -> Iterator[Check]:
    """Random conditionals of 9 queries and 7 keys, with zeros."""
    g, error, most, count = s.generator(), 0.0, 0, s.pick(20, 6)
    for _ in range(count):
        p, nu = stochastic(9, 7, g), simplex(box(7, 1, g).atoms, g)
        heads = realise_heads(p, weights=nu.weights)
        error = max(error, float((p - average(heads, nu)).abs().sum(-1).max()) / 2)
        most = max(most, len(heads.weights))
    yield built(error, 1e-12, "heads")
    yield bounded(most / (9 * 6 + 1), count, "their number")


def couplings(heads: Heads) -> Tensor:
    """The Sinkhorn relations of heads, as doubly stochastic matrices."""
    mu = Measure(torch.zeros(len(heads.k), 1))
    scores = Encoded(heads.q, heads.k)
    return len(heads.k) * relate(mu, mu, affinity=scores, normaliser=Sinkhorn(steps=2)).matrix()


right_couplings = couplings


@statement(
    "B.birkhoff",
    "the answer to the referee, doubly stochastic relations",
    "Every doubly stochastic matrix is a weighted average of permutations, each of which is a "
    "Sinkhorn head of dimension two.",
    r"P=\sum_{h\le H}w_h\,\Pi_{\sigma_h},\qquad H\le(n-1)^2+1",
    defect=planted(__name__, "couplings", lambda heads: right_couplings(heads)[:-1]),
    seconds=(0.6, 0.2),
    api=("approximation.birkhoff", "doubly_stochastic"),
)
def permutations(s: Setting) -> Iterator[Check | Figure]:
    """Random doubly stochastic matrices, and the couplings of their heads."""
    g, n, count = s.generator(), 6, s.pick(30, 8)
    matrices = doubly_stochastic(2 * torch.randn(count, n, n, generator=g), tol=1e-14).scaled
    error, sharp, most = 0.0, 0.0, 0
    for p in matrices:
        heads = birkhoff(p)
        each = couplings(heads)
        found = torch.einsum("h,hij->ij", heads.weights[: len(each)], each)
        error = max(error, float((p - found).abs().max()))
        exact = torch.eye(n)[heads.choices[: len(each)]]
        sharp = max(sharp, float((each - exact).abs().max()))
        most = max(most, len(heads.weights))
    yield built(error, 1e-10, "the average")
    yield holds(sharp, 1e-12, "every head is a permutation:", count)
    yield bounded(most / ((n - 1) ** 2 + 1), count, "their number")
    shares = heads.weights.sort(descending=True).values
    curve = series("weights", range(1, len(shares) + 1), shares, "stems")
    yield Figure("Permutations of a matrix", "permutation", "weight", (curve,))
