"""The two universal approximation theorems, their bounds, and what they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from ...affinities import Encoded, Matrix, Pairs, SquaredDistance
from ...approximation import (
    GaussianConditional,
    Hats,
    QuantileCoupling,
    SinkhornApproximation,
    SoftmaxApproximation,
    SoftNearest,
    realise,
    relation_distance,
)
from ...distances import wasserstein
from ...measures import Measure
from ...pictures import Figure, series
from ...relations import Conditional, Coupling, Exact, Hardmax, Relation, Sinkhorn, relate
from .._checks import Check, bounded, built, holds, max, min, rate, refuted
from .._laws import box, simplex
from .._statement import Setting, planted, replaced, statement

Rule = Callable[[Measure, Measure], Relation]

CELLS = (3, 5, 9, 17)
SOFT: Rule = SoftNearest(0.1)
MONOTONE = QuantileCoupling()
TIGHT = Sinkhorn(tol=1e-12)


def unit(n: int, g: torch.Generator) -> Measure:
    """Points of the unit interval with random weights."""
    return simplex((box(n, 1, g).atoms + 1) / 2, g)


def hats(cells: int) -> Hats:
    """Hats on the unit interval."""
    return Hats(torch.zeros(1), torch.ones(1), cells)


def entropic(mu: Measure, nu: Measure) -> Relation:
    """Entropic transport of the squared distance, as a rule."""
    return relate(mu, nu, affinity=SquaredDistance(0.1), normaliser=TIGHT)


def sup_error(first: Rule, second: Rule, pairs: Sequence[tuple[Measure, Measure]]) -> float:
    """The largest distance of two rules over pairs of measures."""
    return max(float(relation_distance(first(*p), second(*p), *p)) for p in pairs)


def exponent(errors: Sequence[float]) -> float:
    """The slope of log error against log cell width; 2 if densities are smooth."""
    x = -torch.tensor([math.log(cells - 1) for cells in CELLS[: len(errors)]])
    y = torch.tensor(errors).log()
    return float((x - x.mean()) @ (y - y.mean()) / (x - x.mean()).square().sum())


def decay(errors: dict[str, list[float]], bounds: Sequence[float]) -> Figure:
    """Errors against the number of cells."""
    cells = CELLS[: len(bounds)]
    measured = [series(name, cells, e, "dots") for name, e in errors.items()]
    return Figure(
        "Error of the construction", "cells", "sup W1",
        (*measured, series("bound", cells, bounds, "dashed")), log="xy",
    )  # fmt: skip


def no_partition(self: Hats, x: Tensor) -> Tensor:
    """Hats whose sum is 1 + 9x in place of 1."""
    return right_hats(self, x) * (1 + 9 * x)


right_hats = Hats.__call__


@statement(
    "B.thmS",
    "universal approximation by softmax",
    "Every weakly continuous conditional rule that lives on the support of the context is a limit "
    "of softmax relations, uniformly over contexts and queries.",
    r"\sup_{\nu,x}W_1\bigl(\kappa^{A}_\nu(x,\cdot),\kappa_\nu(x,\cdot)\bigr)\le\epsilon,\qquad"
    r" A=\log\Bigl(\delta+\sum_l\frac{\kappa_\nu(x,\chi_l)}{\nu(\chi_l)\vee\tau}\chi_l(y)\Bigr)",
    defect=lambda: replaced(Hats, "__call__", no_partition),
    seconds=(0.5, 0.1),
    api=("approximation.SoftmaxApproximation", "approximation.Hats"),
)
def softmax_theorem(s: Setting) -> Iterator[Check | Figure]:
    """Two rules, finer and finer cells, queries on a grid of the interval."""
    g, errors, cells = s.generator(), {}, CELLS[: s.pick(4, 3)]
    slope, shift, variance = (torch.tensor(c) for c in ([[-0.7]], [0.8], [[0.03]]))
    reflected = GaussianConditional(slope, shift, variance)
    queries = Measure.grid(0.0, 1.0, size=41)
    pairs = [(queries, unit(40, g)) for _ in range(3)]
    for name, rule in (("soft nearest", SOFT), ("Gaussian", reflected)):
        nears = [SoftmaxApproximation(rule, hats(c)) for c in cells]
        errors[name] = found = [sup_error(near, rule, pairs) for near in nears]
        bounds = [max(float(near.bound(*p)) for p in pairs) for near in nears]
        yield built(found[-1], bounds[-1], name)
        yield rate(exponent(found), 2.0, 0.75, f"{name}, exponent in the cell width")
    yield decay(errors, bounds)


LEVELS = (0.0, 0.003, 0.03, 0.1, 0.3)


def spread(n: int, g: torch.Generator) -> Measure:
    """Points of the unit interval with weights over several orders of magnitude."""
    return Measure(unit(n, g).atoms, (3 * torch.randn(n, generator=g)).softmax(-1))


@statement(
    "B.thmS.bound",
    "universal approximation by softmax, the error",
    "The error is at most the diameter of the cells and a share of the diameter of the box, for "
    "any conditional, continuous or not.",
    r"\sup_xW_1\le\rho+\operatorname{diam}\cdot\max(\sup_xe(x),\delta),\qquad"
    r" e(x)=\sum_l\kappa_\nu(x,\chi_l)\,(1-\nu(\chi_l)/\tau)_+",
    defect=lambda: replaced(Hats, "diameter", property(lambda self: 0.0)),
    seconds=(0.3, 0.1),
    api=("approximation.SoftmaxApproximation.bound",),
)
def softmax_bound(s: Setting) -> Iterator[Check]:
    """Random rows in contexts with very light atoms, at five levels of tau and delta."""
    g, worst, trials = s.generator(), 0.0, s.pick(100, 25)
    for k in range(trials):
        mu, nu = unit(6, g), spread(12, g)
        target = Conditional.from_matrix((5 * torch.randn(6, 12, generator=g)).softmax(-1), nu)
        tau, delta = LEVELS[k % 5], LEVELS[k // 5 % 5]
        rule = lambda mu, nu, target=target: target
        near = SoftmaxApproximation(rule, hats(7), tau=tau, delta=delta)
        worst = max(
            worst, float(relation_distance(near(mu, nu), target, mu, nu) / near.bound(mu, nu))
        )
    yield bounded(worst, trials)


def query_hats(cells: int) -> Hats:
    """The hats of the queries."""
    return hats(cells)


@statement(
    "B.thmK",
    "universal approximation by Sinkhorn",
    "Every weakly continuous system of couplings is a limit of couplings by Sinkhorn, uniformly "
    "over both measures.",
    r"\sup_{\mu,\nu}W_1\bigl(\pi^{A},\mathcal C(\mu,\nu)\bigr)\le\epsilon,\qquad A=\log\Bigl("
    r"\delta+(1-\delta)\sum_{kl}\frac{\pi(\varphi_k\otimes\chi_l)}{(\mu(\varphi_k)\vee\tau)"
    r"(\nu(\chi_l)\vee\tau)}\varphi_k(x)\chi_l(y)\Bigr)",
    defect=planted(__name__, "query_hats", lambda cells: hats(2)),
    seconds=(2.0, 0.2),
    api=("approximation.SinkhornApproximation", "approximation.QuantileCoupling"),
)
def sinkhorn_theorem(s: Setting) -> Iterator[Check | Figure]:
    """The monotone and the entropic coupling, finer and finer cells."""
    g, n, errors, cells = s.generator(), s.pick(40, 25), {}, CELLS[: s.pick(4, 3)]
    pairs = [(unit(n, g), unit(n, g)) for _ in range(s.pick(2, 1))]
    for name, rule in (("monotone", MONOTONE), ("entropic", entropic)):
        nears = [SinkhornApproximation(rule, hats(c), queries=query_hats(c)) for c in cells]
        errors[name] = found = [sup_error(near, rule, pairs) for near in nears]
        yield built(found[-1], hats(cells[-1]).diameter * math.sqrt(2), name)
    yield rate(exponent(errors["monotone"]), 1.0, 0.25, "monotone, exponent in the cell width")
    yield rate(exponent(errors["entropic"]), 2.0, 0.75, "entropic, exponent in the cell width")
    yield decay(errors, [near.uniform_bound for near in nears])


TAU = 0.0


@statement(
    "B.thmK.exact",
    "universal approximation by Sinkhorn, the density",
    "Without truncation the density has both marginals exactly, so that Sinkhorn does not change "
    "it.",
    r"\tau=0\ \Rightarrow\ k\,\mu\otimes\nu\in\Pi(\mu,\nu)",
    defect=planted(__name__, "TAU", 0.1),
    api=("approximation.SinkhornApproximation.affinity",),
)
def exact_density(s: Setting) -> Iterator[Check]:
    """Marginals of the density itself, and the coupling by Sinkhorn beside it."""
    g, marginals, unchanged, trials = s.generator(), 0.0, 0.0, s.pick(10, 4)
    for k in range(trials):
        mu, nu = unit(30, g), unit(25, g)
        delta = (0.0, 0.3)[k % 2]
        near = SinkhornApproximation(MONOTONE, hats(7), tau=TAU, delta=delta)
        density = near.affinity(mu, nu, mu.atoms[:, None], nu.atoms[None]).exp()
        plan = mu.weights[:, None] * nu.weights * density
        sums = plan.sum(-1) - mu.weights, plan.sum(-2) - nu.weights
        marginals = max(marginals, *(float(x.abs().sum()) for x in sums))
        unchanged = max(unchanged, float((near(mu, nu).matrix() - plan).abs().max()))
    yield holds(marginals, 1e-12, "marginals", trials)
    yield holds(unchanged, 1e-12, "Sinkhorn changes nothing: this", trials)


@statement(
    "B.thmK.bound",
    "universal approximation by Sinkhorn, the error",
    "The error is at most the diameter of the cells, delta, and a term of the light cells, for "
    "any system of couplings.",
    r"W_1\le\sqrt{\rho_X^2+\rho_Y^2}+\operatorname{diam}\cdot\bigl(\delta+\tfrac12\sqrt J\bigr),"
    r"\quad J\le\sum_k\mu(\varphi_k)\log^+\frac\tau{\mu(\varphi_k)}"
    r"+\sum_l\nu(\chi_l)\log^+\frac\tau{\nu(\chi_l)}",
    defect=lambda: replaced(Hats, "diameter", property(lambda self: 0.0)),
    seconds=(2.0, 0.5),
    api=("approximation.SinkhornApproximation.bound",),
)
def sinkhorn_bound(s: Setting) -> Iterator[Check]:
    """Random couplings of measures with very light atoms."""
    g, worst, trials = s.generator(), 0.0, s.pick(40, 10)
    for k in range(trials):
        mu, nu = spread(9, g), spread(11, g)
        scores = Matrix(3 * torch.randn(9, 11, generator=g))
        target = relate(mu, nu, affinity=scores, normaliser=TIGHT)
        rule = lambda mu, nu, target=target: target
        tau, delta = LEVELS[k % 5], LEVELS[k // 5 % 5]
        near = SinkhornApproximation(rule, hats(6), tau=tau, delta=delta)
        worst = max(
            worst, float(relation_distance(near(mu, nu), target, mu, nu) / near.bound(mu, nu))
        )
    yield bounded(worst, trials)


def encoders(target: Conditional | Coupling, dim: int) -> Encoded:
    """Queries and keys of a dimension whose dot product approximates the affinity."""
    head = realise(target, dim)
    return Encoded(head.q, head.k)


def without_the_first(target: Conditional | Coupling, dim: int) -> Encoded:
    """The same without the largest singular value."""
    head = realise(target, dim + 1)
    return Encoded(head.q[:, 1:], head.k[:, 1:])


def log_change(first: Relation, second: Relation) -> Tensor:
    """The change of the affinity, up to what the normaliser absorbs."""
    change = first.matrix().log() - second.matrix().log()
    change = change - change.mean(-1, keepdim=True)
    return (change - change.mean(-2)).flatten() if isinstance(first, Coupling) else change


@statement(
    "B.encoders",
    "universal approximation, finite head dimension",
    "The affinity of the construction may be replaced by the dot product of two encoders of "
    "finite dimension, one for each measure, and stability bounds the change.",
    r"\Bigl|\log k-\sum_{i\le r}q_i(\mu,x)\,k_i(\nu,y)\Bigr|\le\eta\ \Rightarrow\ "
    r"\mathrm{TV}\le\tfrac\eta2",
    defect=planted(__name__, "encoders", without_the_first),
    seconds=(0.6, 0.2),
    api=("realise", "Encoded"),
    note="The error need not fall with every dimension.",
)
def finite_dimension(s: Setting) -> Iterator[Check | Figure]:
    """Truncated singular value decompositions of the affinity, in both theorems."""
    g, n, dims, curves = s.generator(), s.pick(40, 25), (1, 2, 3, 5, 9), []
    pair = unit(n, g), unit(n, g)
    for name, rule, near in (
        ("softmax", SOFT, SoftmaxApproximation(SOFT, hats(9))),
        ("Sinkhorn", MONOTONE, SinkhornApproximation(MONOTONE, hats(9))),
    ):
        target, wanted = near(*pair), rule(*pair)
        full = float(relation_distance(target, wanted, *pair))
        ratios, errors = [], []
        for r in dims:
            head = encoders(cast(Conditional | Coupling, target), r)
            narrow = relate(*pair, affinity=head, normaliser=near.normaliser)
            change = log_change(narrow, target)
            tv = (narrow.matrix() - target.matrix()).abs().reshape(change.shape).sum(-1) / 2
            ratios.append(float((4 * tv / (change.amax(-1) - change.amin(-1))).max()))
            errors.append(float(relation_distance(narrow, wanted, *pair)))
        yield bounded(max(ratios), len(dims), f"{name}, total variation")
        yield built(errors[-1], 1.2 * full, f"{name}, dimension {dims[-1]}")
        curves.append(series(name, dims, errors))
    yield Figure("Error against the dimension", "r", "sup W1", tuple(curves), log="y")


def worst(errors: Tensor) -> float:
    """The supremum of the errors."""
    return float(errors.max())


@statement(
    "B.cont.nearest",
    "the hypothesis of continuity",
    "The nearest key is out of reach: it jumps, and every continuous relation is off by half of "
    "the jump.",
    r"\sup_xW_1\bigl(\kappa(x,\cdot),\delta_{\mathrm{sign}\,x}\bigr)\ge\tfrac12|1-(-1)|=1",
    defect=planted(__name__, "worst", lambda errors: float(errors.mean())),
    api=("approximation.SoftNearest",),
    note="'Arbitrary contextual relations' must be read as weakly continuous ones.",
)
def nearest_key(s: Setting) -> Iterator[Check | Figure]:
    """Two keys and queries that crowd around the middle; sharper and sharper relations."""
    keys, half = Measure(torch.tensor([[-1.0], [1.0]])), s.pick(2000, 200)
    x = torch.cat([-torch.logspace(0, -14, half), torch.logspace(-14, 0, half)])
    queries, curves, sharp, others = Measure(x[:, None]), [], [], []
    # The nearest key is one point and the other one is 2 away, so W1 is twice its mass.
    error = lambda p: 2 * torch.where(x > 0, p[:, 0], p[:, 1])
    for eps in (1.0, 0.1, 0.01, 0.001):
        errors = error(SoftNearest(eps)(queries, keys).matrix())
        sharp.append(worst(errors))
        curves.append(series(f"eps = {eps:g}", x[x > 1e-5], errors[x > 1e-5]))
        for shift in (-0.1, 0.01):
            tilted = Encoded((queries.atoms + shift) / eps, keys.atoms)
            others.append(worst(error(relate(queries, keys, affinity=tilted).matrix())))
    off = max(abs(e - 1) for e in sharp)
    yield refuted(off <= 1e-9, "soft nearest keys stay 1 away, at every temperature", off)
    yield bounded(1 / min(others), len(others), "other relations are at least as far:")
    yield Figure("Error of soft nearest keys", "x", "W1", tuple(curves), log="x")


def law(relation: Relation, mu: Measure, nu: Measure) -> Measure:
    """The law of pairs."""
    pi = relation.joint(mu) if isinstance(relation, Conditional) else relation
    pairs = torch.cat(torch.broadcast_tensors(mu.atoms[:, None], nu.atoms), -1).flatten(0, 1)
    return Measure(pairs, pi.matrix().flatten().clamp_min(0)).normalise()


def optimal(mu: Measure, nu: Measure) -> Relation:
    """The plan of least squared distance."""
    return relate(mu, nu, affinity=SquaredDistance(1.0), normaliser=Exact())


@statement(
    "B.cont.plans",
    "the hypothesis of continuity",
    "Optimal plans in the plane are no continuous system of couplings.",
    r"W_1(\mu_h,\mu_{-h})=2h,\qquad W_1\bigl(\pi(\mu_h,\nu),\pi(\mu_{-h},\nu)\bigr)=2",
    defect=planted(__name__, "optimal", entropic),
    api=("relations.Exact",),
)
def plans_jump(s: Setting) -> Iterator[Check]:
    """Two points that turn past the horizontal, coupled with two points on the vertical."""
    nu = Measure(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    for h in (1e-2, 1e-4):
        up, down = (Measure(torch.tensor([[1.0, t], [-1.0, -t]])) for t in (h, -h))
        before = float(wasserstein(up, down))
        after = float(wasserstein(*(law(optimal(mu, nu), mu, nu) for mu in (up, down))))
        seen = abs(after - 2) <= 1e-12 and abs(before - 2 * h) <= 1e-12
        yield refuted(seen, f"plans {after:.3g} apart at distance {before:.1g}", after)


def apart_by(h: float) -> Measure:
    """The atom at 0, in two halves."""
    return Measure(torch.tensor([[-h], [h]]))


@statement(
    "B.cont.quantile",
    "the choice of the normalisation",
    "A system of couplings may be continuous while its conditionals are not: when an atom comes "
    "apart, the conditionals of the monotone coupling jump.",
    r"W_1(\pi_h,\pi_0)=h,\qquad\mathrm{TV}\bigl(\pi_h(\cdot|\pm h),\pi_0(\cdot|0)\bigr)=\tfrac12",
    defect=planted(__name__, "apart_by", lambda h: Measure(torch.tensor([[h]]))),
    api=("approximation.QuantileCoupling", "Coupling.conditional"),
)
def quantile_jumps(s: Setting) -> Iterator[Check | Figure]:
    """Couplings and conditionals of an atom that is split, at falling distances."""
    nu, rule = Measure(torch.tensor([[0.0], [1.0]])), MONOTONE
    whole, sizes, joint, rows = Measure(torch.zeros(1, 1)), (1e-1, 1e-3, 1e-6), [], []
    for h in sizes:
        mu = apart_by(h)
        joint.append(
            float(wasserstein(law(rule(mu, nu), mu, nu), law(rule(whole, nu), whole, nu)))
        )
        kappa, before = (rule(m, nu).conditional().matrix() for m in (mu, whole))
        rows.append(float((kappa - before).abs().sum(-1).max()) / 2)
    error = max(abs(w - h) for w, h in zip(joint, sizes, strict=True))
    yield holds(error, 1e-14, "the coupling moves by h, which")
    yield refuted(abs(min(rows) - 0.5) <= 1e-14, f"conditionals jump by {rows[-1]:.3g}", rows[-1])
    curves = series("couplings", sizes, joint), series("conditionals", sizes, rows)
    yield Figure("An atom comes apart", "h", "distance", curves, log="xy")


ELSEWHERE = 0.8


@statement(
    "B.cont.support",
    "the hypothesis on the support",
    "A rule must live on the support of the context: softmax in the context of a single point is "
    "that point.",
    r"\kappa^A_{\delta_y}(x,\cdot)=\delta_y,\qquad W_1(\delta_y,\delta_z)=|y-z|",
    defect=planted(__name__, "ELSEWHERE", 0.2),
    api=("Softmax",),
)
def on_the_support(s: Setting) -> Iterator[Check]:
    """Random affinities in a context of one atom, against a rule that looks elsewhere."""
    g, context, errors = s.generator(), Measure(torch.tensor([[0.2]])), []
    target = Measure(torch.tensor([[ELSEWHERE]]))
    for _ in range(20):
        scores = Matrix(10 * torch.randn(3, 1, generator=g))
        kappa = relate(Measure(torch.rand(3, 1, generator=g)), context, affinity=scores)
        laws = (Measure(context.atoms, row) for row in kappa.matrix())
        errors += [float(wasserstein(one, target)) for one in laws]
    seen = max(abs(e - 0.6) for e in errors) <= 1e-14
    yield refuted(seen, f"all 20 affinities are off by {errors[0]:g}", errors[0])


def hardest(mu: Measure, nu: Measure) -> Relation:
    """The nearest key."""
    return relate(mu, nu, affinity=SquaredDistance(0.1), normaliser=Hardmax())


def moved_by(h: float, mu: Measure) -> Measure:
    """All atoms moved towards 1, and mass h moved to the last one."""
    weights = (1 - h) * mu.weights
    weights[-1] += h
    return Measure((1 - h) * mu.atoms + h, weights)


@statement(
    "B.weak",
    "the hypothesis of continuity",
    "The rules and their approximations are weakly continuous: small changes of both measures "
    "change the law of pairs little.",
    r"W_1(\mu,\mu')+W_1(\nu,\nu')\to0\ \Rightarrow\ "
    r"W_1\bigl(\pi(\mu,\nu),\pi(\mu',\nu')\bigr)\to0",
    defect=planted(__name__, "SOFT", hardest),
    api=("approximation.SoftNearest", "Pairs"),
)
def weakly_continuous(s: Setting) -> Iterator[Check]:
    """Queries move, keys lose mass; the first query has two nearest keys."""
    g, sizes = s.generator(), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    mu = simplex(torch.cat([torch.tensor([[0.5]]), unit(8, g).atoms]), g)
    nu = simplex(torch.cat([torch.tensor([[0.49], [0.51]]), unit(7, g).atoms]), g)
    near = SoftmaxApproximation(SOFT, hats(5), tau=0.01, delta=0.01)
    coupled = SinkhornApproximation(MONOTONE, hats(5), tau=0.01, delta=0.01).affinity
    rules: dict[str, Rule] = {
        "soft nearest": SOFT,
        "monotone": MONOTONE,
        "softmax": near,
        "Sinkhorn": lambda m, n: relate(m, n, affinity=Pairs(coupled), normaliser=TIGHT),
    }
    for name, rule in rules.items():
        before, apart = law(rule(mu, nu), mu, nu), []
        for h in sizes:
            there = moved_by(h, mu), moved_by(h / 2, nu)
            apart.append(float(wasserstein(before, law(rule(*there), *there))))
        slope = math.log(apart[0] / apart[-1]) / math.log(sizes[0] / sizes[-1])
        yield rate(slope, 1.0, 0.1, f"{name}, exponent")
