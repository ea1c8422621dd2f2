r"""Theorem 1: which maps between measures are push-forwards by continuous in-context maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from ..._tools.fits import power
from ...distances import wasserstein
from ...maps import InContextMap
from ...measures import Measure, MeasureMap
from ...pictures import Figure, series
from ...representation import (
    Decode,
    Excess,
    MassPreserving,
    Probe,
    ProbedImage,
    RecoveredMap,
    Verdict,
    characterise,
    decode,
    derivative,
    recover,
    zoo,
)
from .._checks import Check, Kind, bounded, holds, max, min, rate, refuted
from .._laws import ball, beside_one, box, bump, dyadic, shuffled, simplex, stretched
from .._statement import Setting, planted, replaced, statement
from ._in_context import fold, two_points

GOLDEN = (1 + math.sqrt(5)) / 2
QUICK = ("attention", "Bayes update", "top-2 attention", "counterexample", "masked mean pooling")


def hidden(gamma: InContextMap, g: torch.Generator) -> MeasureMap:
    """A black box: its images do not show which atom they came from."""
    return lambda mu: shuffled(gamma.push(mu), g)


def gap(a: Tensor, b: Tensor) -> float:
    """The largest distance of two points of the same row."""
    return float((a - b).norm(dim=-1).max())


def tested(gamma: InContextMap) -> MeasureMap:
    """The map whose probes are compared with the bound."""
    return gamma.push


def left_of_zero(n: int, g: torch.Generator) -> Measure:
    """Points of the unit ball whose first coordinate is between -0.7 and -0.5."""
    return Measure(torch.tensor([0.1, 0.7]) * box(n, 2, g).atoms - torch.tensor([0.6, 0.0]))


@statement(
    "A.thm1.a-b",
    "Theorem 1, C.1",
    "If the in-context map is continuous, images of small masses depend on their points in a "
    "continuous way: for attention their slopes are bounded, whatever the mass.",
    r"\Lambda(\eta)=\sup\frac{|y_\eta(x)-y_\eta(x')|}{|x-x'|}\le"
    r" vbR^2+1+\eta\,v\,e^{2bR^2}(1+2bR^2)",
    defect=planted(__name__, "tested", lambda gamma: zoo.masked_pooling),
    seconds=(0.5, 0.2),
    api=("recover", "InContextMap.lipschitz"),
)
def slopes_of_probes(s: Setting) -> Iterator[Check | Figure]:
    """Close pairs of points, in the ball and across the line where the first coordinate is 0."""
    g, pairs, worst = s.generator(), s.pick(20, 4), 0.0
    gamma = zoo.attention(2, 0.5, s.seed)
    bound = gamma.lipschitz(1.0)
    masses, steepest, cliffs = [10.0**-k for k in range(1, 6)], [], []
    for eta in masses:
        G = recover(tested(gamma), eta=eta, extrapolate=False)
        slopes = []
        for mu, width in ((ball(6, 2, g), 0.9), (left_of_zero(6, g), 0.0)):
            middle = ball(pairs, 2, g).atoms * torch.tensor([width, 0.9])
            step = 0.1 * eta * torch.nn.functional.normalize(torch.randn(pairs, 2, generator=g))
            x, y = middle - step, middle + step
            slopes.append((G(mu, x) - G(mu, y)).norm(dim=-1) / (x - y).norm(dim=-1))
        steepest.append(float(torch.cat(slopes).max()))
        worst = max(worst, steepest[-1] / (bound.x + eta * bound.mu))
        ends = beside_one(torch.full((2,), eta), torch.tensor([[0.0], [1e-4 * eta]]))
        cliffs.append(float(zoo.counterexample(ends).atoms[:, 1].diff(dim=0)) / (1e-4 * eta))
    yield bounded(worst, 2 * pairs * len(masses))
    yield Figure(
        "Slopes of the images of small masses", "mass", "slope", (
            series("attention", masses, steepest), series("counterexample", masses, cliffs),
            series("bound", masses, [bound.x + eta * bound.mu for eta in masses], "dashed"),
        ), log="xy",
    )  # fmt: skip


def by_thirds(self: RecoveredMap, image: Callable[[float], ProbedImage], eta: float) -> Tensor:
    """A wrong extrapolation: a third of the mass in place of half of it."""
    return 2 * image(eta / 3).image - image(eta).image if self.extrapolate else image(eta).image


@statement(
    "A.thm1.b-a",
    "Theorem 1, (44)",
    "The in-context map is recovered from the map between measures alone: by where a small mass "
    "goes, with an error of first order in the mass, of second order if extrapolated.",
    r"G_j(\mu,x)=\overline Df(\mu,x,\chi\pi_j)=y_\eta+O(\eta)=2y_{\eta/2}-y_\eta+O(\eta^2)",
    defect=lambda: replaced(RecoveredMap, "_limit", by_thirds),
    seconds=(0.3, 0.1),
    api=("recover", "representation.Excess", "representation.Decode"),
)
def recovered(s: Setting) -> Iterator[Check | Figure]:
    """Attention and stacks as black boxes, two masses, two ways to find the image."""
    g, masses = s.generator(), (1e-3, 1e-4)
    orders: dict[bool, list[float]] = {False: [], True: []}
    curves: dict[bool, list[float]] = {}
    ways: tuple[Probe, ...] = (Excess(), Decode())
    for k in range(s.pick(8, 2)):
        gamma = (zoo.attention if k % 2 else zoo.stack)(2, seed=8 * s.seed + k)
        mu, x = simplex(box(6, 2, g).atoms, g), box(4, 2, g).atoms
        for extrapolate, by in product((False, True), ways):
            errors = []
            for eta in masses:
                G = recover(hidden(gamma, g), by=by, eta=eta, extrapolate=extrapolate)
                errors.append(float((G(mu, x) - gamma(mu, x)).norm()))
            curves[extrapolate] = errors
            orders[extrapolate].append(math.log10(errors[0] / errors[1]))
    for extrapolate, order in ((False, 1), (True, 2)):
        farthest = max(orders[extrapolate], key=lambda p: abs(p - order))
        yield rate(farthest, order, 0.15, "extrapolated" if extrapolate else "order")
    yield Figure(
        "The error of a recovered map", "mass", "error", (
            series("one mass", masses, curves[False]),
            series("extrapolated", masses, curves[True]),
        ), log="xy",
    )  # fmt: skip


@statement(
    "A.thm1.b-a.exact",
    "Theorem 1, (44)",
    "If the in-context map is affine in the measure, extrapolation leaves rounding, whatever the "
    "mass.",
    r"G\ \text{affine in}\ \mu\ \Rightarrow\ 2y_{\eta/2}-y_\eta=G(\mu,x)\quad\text{for all }\eta",
    defect=lambda: replaced(RecoveredMap, "_limit", by_thirds),
    seconds=(0.1, 0.1),
    api=("recover", "Flow"),
)
def exactly_recovered(s: Setting) -> Iterator[Check]:
    """The solution map of a linear Vlasov equation."""
    g, masses, errors = s.generator(), (0.3, 1e-2, 1e-5), []
    gamma = zoo.vlasov(2, s.seed)
    mu, x = simplex(box(8, 2, g).atoms, g), box(s.pick(4, 2), 2, g).atoms
    for eta in masses:
        errors.append(gap(recover(hidden(gamma, g), eta=eta)(mu, x), gamma(mu, x)))
    yield holds(max(errors), 1e-12, trials=len(masses))


def nearest_image(self: Probe, f: MeasureMap, mu: Measure, x: Tensor, eta: float) -> ProbedImage:
    """A wrong tag: the image that is nearest to the point."""
    out = f(mu).atoms
    return ProbedImage(out[(out - x).norm(dim=-1).argmin()], 0.0, 0.0)


@statement(
    "A.thm1.push",
    "Theorem 1, (A1)",
    "The push-forward by the recovered in-context map is the map between measures, also after "
    "composition.",
    r"f(\mu)=G(\mu,\cdot)_\sharp\,\mu",
    defect=lambda: replaced(Excess, "find", nearest_image),
    seconds=(0.6, 0.6),
    api=("recover", "InContextMap.push", "wasserstein"),
)
def pushed(s: Setting) -> Iterator[Check | Figure]:
    """Attention as a black box, at its atoms and elsewhere, once and twice."""
    g, gamma = s.generator(), zoo.attention(2, seed=s.seed)
    mu, x = simplex(box(7, 2, g).atoms, g), box(3, 2, g).atoms
    G = recover(hidden(gamma, g))
    truth, found = gamma.push(mu), G.push(mu)
    yield holds(float(wasserstein(found, truth)), 1e-9, "W1")
    yield holds(gap(G(mu, x), gamma(mu, x)), 1e-9, "off the support")
    twice = (G @ G)(mu, x[:1])
    yield holds(gap(twice, (gamma @ gamma)(mu, x[:1])), 1e-7, "composed")
    (x1, x2), (y1, y2) = truth.atoms.T, found.atoms.T
    yield Figure(
        "The image of a measure", "first coordinate", "second coordinate",
        (series("f(mu)", x1, x2, "stems"), series("recovered", y1, y2, "dots")),
    )  # fmt: skip


def labelled(mu: Measure, out: Measure) -> Tensor:
    """The images of the atoms, in their order, found by subset sums of the masses."""
    decoding = decode(mu.weights.numpy(), out.weights.numpy(), 1e-9)
    if decoding.owner is None:
        raise ValueError(f"The masses do not determine the images: {decoding.problem}.")
    return out.atoms[decoding.owner]


@statement(
    "A.lem4",
    "Lemma 4, (37)-(38)",
    "If all subset sums of the weights differ, and weights and atoms converge, then every image "
    "converges. For equal weights this is false.",
    r"\mu\in\mathcal P^*,\ a^{(k)}\to a,\ x^{(k)}\to x\ \Rightarrow\ y_i^{(k)}\to y_i",
    defect=planted(__name__, "labelled", lambda mu, out: out.atoms),
    seconds=(0.3, 0.1),
    api=("representation.decode",),
    note="The measure must have generic weights: on two points the fold is a counterexample.",
)
def images_converge(s: Setting) -> Iterator[Check | Figure]:
    """Small moves of atoms and weights of a dyadic measure under three layers; the fold."""
    g, f = s.generator(), hidden(zoo.stack(2, 3, 2.0, s.seed), s.generator(1))
    mu = dyadic(box(8, 2, g).atoms)
    least = float(mu.weights.min())  # also the smallest difference of two subset sums
    move, change = box(8, 2, g).atoms, 2 * torch.rand(8, generator=g) - 1
    start, sizes, changes = labelled(mu, f(mu)), [10.0**-k for k in range(3, 7)], []
    for e in sizes:
        nu = Measure(mu.atoms + e * move, mu.weights + e * least * change).normalise()
        changes.append(gap(labelled(nu, f(nu)), start))
    yield rate(power(list(zip(sizes, changes, strict=True)))[0], 1.0, 0.1, "order")
    jumps = [gap(*(labelled(two_points(a), fold(a)) for a in (0.5 + e, 0.5 - e))) for e in sizes]
    yield refuted(min(jumps) == 2, f"the fold jumps by {min(jumps):g} at equal weights", jumps[-1])
    yield Figure(
        "How far images move", "size of the move", "largest motion of an image",
        (series("generic weights", sizes, changes), series("the fold", sizes, jumps)), log="xy",
    )  # fmt: skip


@statement(
    "A.eq45",
    "(45)-(49)",
    "At an atom of a measure with generic weights the regular part of the derivative is the image "
    "of that atom.",
    r"\mu\in\mathcal P^*:\qquad\overline Df(\mu,x_k,\pi_j)=(y_k)_j,\quad\text{so } G(\mu,x_k)=y_k",
    defect=lambda: replaced(
        MassPreserving, "quotient", lambda self, after, before, eta: (after - before) / eta
    ),
    seconds=(0.2, 0.1),
    api=("representation.derivative", "representation.decode"),
)
def at_atoms(s: Setting) -> Iterator[Check]:
    """Derivatives at all atoms against the images that the masses show."""
    g, f = s.generator(), hidden(zoo.stack(2, 2, seed=s.seed), s.generator(1))
    mu = dyadic(box(7, 2, g).atoms)
    found = [derivative(f, mu, x, lambda y: y, eta=1e-6).regular for x in mu.atoms]
    yield holds(gap(torch.stack(found), labelled(mu, f(mu))), 1e-8, trials=mu.n)


def seen_context(mu: Measure) -> Measure:
    """The context of the recovered map."""
    return mu


@statement(
    "A.eq50",
    "(50)-(53)",
    "A measure without atoms is reached by density: push-forwards of generic measures that "
    "converge to it converge to its push-forward.",
    r"\mathcal P^*\ni\mu_n\to\mu\ \Rightarrow\ G(\mu_n)_\sharp\mu_n\to G(\mu)_\sharp\mu",
    defect=planted(__name__, "seen_context", lambda mu: mu.moved(mu.atoms / 2)),
    seconds=(0.5, 0.5),
    api=("recover", "representation.Decode", "wasserstein"),
)
def by_density(s: Setting) -> Iterator[Check | Figure]:
    """Nearly equal weights at midpoints of cells, up to the uniform law on the line."""
    g, gamma = s.generator(), zoo.attention(1, seed=s.seed)
    G = recover(hidden(gamma, g), by=Decode(), eta=1e-8)
    limit = gamma.push(Measure.grid(-1.0, 1.0, size=4000))
    sizes, errors, distances = (4, 8, 16, 28), [], []
    for n in sizes:
        weights = 1 + 1e-3 * (2 * torch.rand(n, generator=g) - 1)
        mu = Measure(Measure.grid(-1.0, 1.0, size=n).atoms, weights).normalise()
        pushed = mu.moved(G(seen_context(mu), mu.atoms))
        errors.append(gap(pushed.atoms, gamma(mu, mu.atoms)))
        distances.append(float(wasserstein(pushed, limit)))
    yield holds(max(errors), 1e-12, "recovered", len(sizes))
    yield rate(power(list(zip(sizes, distances, strict=True)))[0], -1.0, 0.05, "rate")
    first = [distances[0] * sizes[0] / n for n in sizes]
    yield Figure(
        "Push-forwards of generic measures", "atoms", "W1 to the limit",
        (series("measured", sizes, distances, "dots"), series("1/n", sizes, first, "dashed")),
        log="xy",
    )  # fmt: skip


def context_distance(mu: Measure, nu: Measure) -> float:
    """The first part of the distance of two triples."""
    return float(wasserstein(mu, nu))


@statement(
    "A.thm1.lip.a-b",
    "Theorem 1, last sentence",
    "If the in-context map is Lipschitz, so is the regular part of the derivative.",
    r"\mathrm{Lip}(\overline Df)\le\max(1,\,R\max(L_x,L_\mu)),\qquad"
    r" d=W_1(\mu,\mu')+|x-x'|+\|\psi-\psi'\|_\infty",
    defect=planted(__name__, "context_distance", lambda mu, nu: 0.0),
    seconds=(0.4, 0.1),
    api=("representation.derivative", "InContextMap.lipschitz"),
)
def lipschitz_derivative(s: Setting) -> Iterator[Check | Figure]:
    """Pairs of measures, points and linear test functions; some move the context alone."""
    g, sides, pairs = s.generator(), [], s.pick(60, 16)
    unit = lambda: torch.nn.functional.normalize(torch.randn(2, generator=g), dim=0)
    for k in range(pairs):
        gamma = zoo.attention(2, 0.1, 100 * s.seed + k)
        bound = gamma.lipschitz(1.0)
        scale, rest = 10.0 ** -(k // 2 % 4), float(k % 2)
        mu, x, u = Measure(ball(5, 2, g).atoms / 2), unit() / 2, unit()
        nu, y, v = mu.moved(mu.atoms + scale / 2 * unit()), x + rest * scale / 2 * unit(), unit()
        v = u + rest * scale * (v - u)
        a = derivative(gamma, mu, x, lambda z: z).regular @ u
        b = derivative(gamma, nu, y, lambda z: z).regular @ v
        farthest = bound.reach * float((u - v).norm())
        distance = context_distance(mu, nu) + float((x - y).norm()) + farthest
        sides.append((max(1.0, bound.x, bound.mu) * distance, float((a - b).abs())))
    right, left = zip(*sides, strict=True)
    yield bounded(max(b / max(a, 1e-300) for a, b in sides), pairs)
    ends = min(right), max(right)
    yield Figure(
        "Differences of the derivative", "Lipschitz constant times distance", "difference",
        (series("pairs", right, left, "dots"), series("the bound", ends, ends, "dashed")),
        log="xy",
    )  # fmt: skip


def coordinates(y: Tensor) -> Tensor:
    """The test functions whose derivative is the in-context map."""
    return y


@statement(
    "A.thm1.lip.b-a",
    "Theorem 1, last sentence",
    "If the regular part of the derivative is Lipschitz, so is the in-context map. A map that is "
    "only Hölder has no Lipschitz derivative.",
    r"|G(\mu,x)-G(\mu',x')|=\sup_{|u|=1}\bigl|\overline Df(\mu,x,\langle u,\cdot\rangle)"
    r"-\overline Df(\mu',x',\langle u,\cdot\rangle)\bigr|",
    defect=planted(__name__, "coordinates", lambda y: y / 2),
    seconds=(0.2, 0.1),
    api=("representation.derivative",),
)
def lipschitz_map(s: Setting) -> Iterator[Check]:
    """Both sides for attention; a map with the root of the mean."""
    g, errors, others = s.generator(), [], []
    at = lambda f, mu, x: derivative(f, mu, x, coordinates, eta=1e-6).regular
    for k in range(s.pick(20, 5)):
        gamma = zoo.attention(2, seed=100 * s.seed + k)
        mu, nu, (x, y) = ball(5, 2, g), ball(5, 2, g), ball(2, 2, g).atoms
        apart = gamma(mu, x[None])[0] - gamma(nu, y[None])[0]
        difference, best = at(gamma, mu, x) - at(gamma, nu, y), apart / apart.norm()
        errors.append(abs(float(difference @ best - apart.norm())))
        turned = torch.linspace(0, math.pi, 100)
        along = torch.stack([turned.cos(), turned.sin()], -1) @ difference
        others.append(float(along.abs().max() / (apart.norm() + 1e-8)))
    yield holds(max(errors), 1e-8, "at the best direction", len(errors))
    yield bounded(max(others), 100 * len(others), "at other directions:")
    root = lambda mu: mu.push(lambda x: x + mu.mean().abs().sqrt())
    dirac, zero, steps = lambda h: Measure(torch.tensor([[h]])), torch.zeros(1), (1e-2, 1e-4, 1e-6)
    quotients = [float(at(root, dirac(h), zero) - at(root, dirac(0.0), zero)) / h for h in steps]
    yield rate(power(list(zip(steps, quotients, strict=True)))[0], -0.5, 0.01, "root: exponent")


specimens = zoo.specimens


def mislabelled(dim: int, seed: int) -> list[zoo.Specimen]:
    """The counterexample under the name of attention."""
    rename = lambda s: replace(s, f=zoo.counterexample) if s.name == "attention" else s
    return [rename(specimen) for specimen in zoo.specimens(dim, seed)]


@statement(
    "A.thm1.verdicts",
    "Theorem 1",
    "Maps of known kind get their verdicts from calls alone: those that depend on more than the "
    "measure, jump, split atoms (B1) or have no continuous in-context map (B2) are refuted, and "
    "in-context maps are not.",
    r"f=f_G,\ G\ \text{continuous}\iff(\text{B1})\ \text{and}\ (\text{B2})",
    defect=planted(__name__, "specimens", mislabelled),
    seconds=(18.0, 3.0),
    api=("characterise", "representation.zoo.specimens"),
)
def verdicts(s: Setting) -> Iterator[Check]:
    """All maps of the zoo as black boxes, and what is said of each."""
    law = lambda n, g: box(n, 2, g)
    chosen = [m for m in specimens(2, s.seed) if not s.quick or m.name in QUICK]
    right: dict[Verdict, list[bool]] = {m.verdict: [] for m in chosen}
    for m in chosen:
        f = m.f.push if isinstance(m.f, InContextMap) else m.f
        right[m.verdict].append(characterise(f, law, size=6, seed=s.seed).verdict is m.verdict)
    for verdict, found in right.items():
        said = f"{sum(found)} of {len(found)}: {verdict}"
        if verdict.refuted:
            yield refuted(all(found), said)
        else:
            wanted = "The verdict is the expected one."
            yield Check(Kind.FOR_ALL, all(found), said, trials=len(found), criterion=wanted)


def floor(s: Tensor, k: int) -> Tensor:
    """The parameter of the continuous in-context map: never below 1/k."""
    return s.clamp_min(1 / k)


def near(k: int, mu: Measure, x: Tensor) -> Tensor:
    r"""The continuous in-context map $G_k(\mu,x)=T_{s(\mu)\vee1/k}(x)$."""
    s = mu.integrate(bump(mu.atoms[..., 0]))
    return stretched(floor(s, k)[..., None, None], x)


@statement(
    "A.thm1.closure",
    "as we read the conclusion",
    "The conditions of the theorem do not describe what can be approximated: the counterexample, "
    "which has no continuous in-context map, is a uniform limit of maps that have one.",
    r"G_k(\mu,x)=T_{s(\mu)\vee1/k}(x),\qquad\sup_\mu W_1(f_{G_k}(\mu),f(\mu))\le"
    r"\frac{\varphi^{-5}}{2k}\approx\frac{0.0451}k",
    defect=planted(__name__, "floor", lambda s, k: s + 1),
    seconds=(0.3, 0.1),
    api=("representation.zoo.counterexample", "wasserstein"),
    note="Theorem 1 characterises exact representation. The constant is sharp as k grows.",
)
def closure(s: Setting) -> Iterator[Check | Figure]:
    """A search over light clouds, and the worst one of the proof."""
    g, sizes, furthest, slopes = s.generator(), (10, 100, 1000), [], []
    count = s.pick(400, 100)
    for k in sizes:
        masses = 10 ** (-5 * torch.rand(count, generator=g))
        points = 10 ** (-5 * torch.rand(count, 3, generator=g)) / 2
        worst = torch.tensor([GOLDEN**-2 / k]), torch.tensor([[GOLDEN**-1 / (2 * k)]])
        found = [
            wasserstein(mu.moved(near(k, mu, mu.atoms)), zoo.counterexample(mu)).max()
            for mu in (beside_one(masses, points), beside_one(*worst))
        ]
        furthest.append(float(max(found)))
        h = torch.tensor([[1e-9 / k]])
        slopes.append(float(near(k, Measure(torch.ones(1, 1)), h) / h))
    ratios = [2 * GOLDEN**5 * k * w for k, w in zip(sizes, furthest, strict=True)]
    yield bounded(max(ratios), (count + 1) * len(sizes), least=0.99)
    error = max(abs(slope / (k + 1) - 1) for slope, k in zip(slopes, sizes, strict=True))
    yield holds(error, 1e-8, "the slope k+1 of each at 0", len(sizes))
    x = torch.linspace(-0.6, 0.6, 121)
    yield Figure(
        "In-context maps at the Dirac measure in 1", "x", "G_k",
        tuple(series(f"k = {k}", x, stretched(torch.tensor(1 / k), x)) for k in sizes),
    )  # fmt: skip
