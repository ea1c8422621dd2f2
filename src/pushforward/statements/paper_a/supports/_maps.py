"""Support-preserving maps: masses are carried along, no atom splits; the distance of measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from ....distances import wasserstein
from ....measures import Measure, MeasureMap
from ....pictures import Figure, Series, series
from ....representation import decode, refinements, rewritings, zoo
from ..._checks import Check, bounded, built, holds, max, min, refuted
from ..._laws import box, cones, dyadic, maps, shuffled, simplex
from ..._statement import Setting, planted, statement

TOLERANCE = 1e-6
"""How far a mass may be from a sum of masses; rounding is 1e-16."""


def masses(mu: Measure) -> np.ndarray:
    """The weights as an array."""
    return mu.weights.numpy()


def owners(mu: Measure, out: Measure) -> np.ndarray | None:
    """For every atom the image that it is part of, by subset sums; None if masses do not say."""
    return decode(masses(mu), masses(out), 1e-12).owner


def single_owners(mu: Measure, out: Measure) -> np.ndarray | None:
    """The same if every image were one atom."""
    same = abs(masses(out)[:, None] - masses(mu)) < 1e-12
    return same.argmax(0) if same.any(0).all() else None


def stems(name: str, mu: Measure) -> Series:
    """The masses over the first coordinates."""
    return series(name, mu.atoms[:, 0], mu.weights, "stems")


def pushed(f: MeasureMap, mu: Measure) -> Measure:
    """The image of a measure."""
    return f(mu)


def reweighted(f: MeasureMap, mu: Measure) -> Measure:
    """The image with the masses that attention pays to its atoms."""
    columns = (mu.atoms @ mu.atoms.mT).softmax(-1).sum(0)
    return Measure(f(mu).atoms, mu.weights * columns).normalise()


@statement(
    "A.def1",
    "Def. 1, (1)-(3)",
    "Layers preserve supports: every atom goes to one point with its whole mass, and equal tokens "
    "go to equal points.",
    r"f\bigl(\tfrac1n\textstyle\sum_i\delta_{x_i}\bigr)=\tfrac1n\sum_i\delta_{y_i},\qquad"
    r" x_i=x_j\Rightarrow y_i=y_j",
    defect=planted(__name__, "pushed", reweighted),
    seconds=(1.5, 0.4),
    api=("Measure.merge", "representation.decode"),
)
def preserved(s: Setting) -> Iterator[Check | Figure]:
    """Images in any order are assigned to atoms by their masses; repeated tokens."""
    g, residuals, places, repeats = s.generator(), [], [], []
    layers = maps(s.pick(12, 4))
    for f in layers:
        mu = dyadic(box(10, 2, g).atoms)
        out = shuffled(pushed(f, mu), g)
        found = decode(masses(mu), masses(out), 1e-12)
        residuals.append(found.residual)
        if found.owner is not None:
            places.append(float((out.atoms[found.owner] - f(mu).atoms).abs().max()))
        tokens = box(s.pick(1000, 100), 2, g).atoms
        first, second = f(Measure(tokens.repeat(2, 1))).atoms.chunk(2)
        repeats.append(float((first - second).abs().max()))
    yield holds(max(residuals), 1e-12, "masses are sums of masses, which", len(layers))
    yield holds(max(places, default=math.inf), 1e-12, "the place of every atom", len(places))
    yield holds(max(repeats), 1e-12, "the image of a repeated token", len(repeats))
    before, after = (stems(name, nu) for name, nu in (("context", mu), ("image", pushed(f, mu))))
    caption = "Every mass of the image is a mass of the context."
    yield Figure(
        "Masses are carried along", "first coordinate", "mass", (before, after), "y", caption
    )


@statement(
    "A.def1.no",
    "Def. 1",
    "A Bayes update and a map that splits atoms do not preserve supports.",
    r"\tfrac1Z\textstyle\sum_ia_ie^{x_i}\delta_{x_i},\qquad\sum_i\tfrac{a_i}2"
    r"(\delta_{x_i-h}+\delta_{x_i+h})",
    defect=planted(__name__, "TOLERANCE", 0.1),
    api=("representation.zoo.bayes", "representation.zoo.splitting"),
)
def not_preserved(s: Setting) -> Iterator[Check | Figure]:
    """A mass of the image that is no sum of masses of the context."""
    mu = simplex(box(6, 2, s.generator()).atoms, s.generator(1))
    for name, f in (("a Bayes update", zoo.bayes), ("splitting", zoo.splitting)):
        out = f(mu).normalise()
        found = decode(masses(mu), masses(out), TOLERANCE)
        said = f"{name} makes a mass that is {found.residual:.2g} away from every sum of masses"
        yield refuted(found.problem == "no subset", said, found.residual)
    pair = (stems("context", mu), stems("image", out))
    yield Figure("A map that splits atoms", "first coordinate", "mass", pair)


@statement(
    "A.def1.collide",
    "abstract, Def. 1",
    "A support-preserving map may send different atoms to one point: the number of atoms may "
    "fall, while masses add up.",
    r"x\mapsto0:\quad f(\mu)=\delta_0,\qquad\#\operatorname{supp}f(\mu)\le"
    r"\#\operatorname{supp}\mu",
    defect=planted(__name__, "owners", single_owners),
    api=("Measure.merge",),
    note="The abstract says that the number of atoms is preserved.",
)
def collisions(s: Setting) -> Iterator[Check | Figure]:
    """A constant map, and the projection of six atoms to three points."""
    atoms = box(6, 2, s.generator()).atoms
    atoms[3:, 0] = atoms[:3, 0]
    mu = dyadic(atoms)
    flat = torch.tensor([1.0, 0.0])
    for name, T, count in (("x -> 0", torch.zeros_like, 1), ("x -> (x_1, 0)", flat.mul, 3)):
        out = mu.push(T).merge()
        owner = owners(mu, out)
        right = owner is not None and bool((out.atoms[owner] == T(atoms)).all())
        said = f"{name} sends {mu.n} atoms to {out.n}, and their masses tell which"
        yield refuted(out.n == count and right, said, out.n)
    pair = (stems("context", mu), stems("image", out))
    yield Figure("Atoms that collide", "first coordinate", "mass", pair)


def images(f: MeasureMap, mu: Measure) -> Measure:
    """The image of a measure, as it is written."""
    return f(mu)


def without_weights(f: MeasureMap, mu: Measure) -> Measure:
    """The same with all tokens counted alike in the scores."""
    return mu.moved(f(Measure(mu.atoms)).atoms)


def largest_change(f: MeasureMap, mu: Measure, generator: torch.Generator) -> float:
    """How far the image moves when the measure is written in another way."""
    same = [nu for nu, _ in rewritings(mu, generator).values()]
    same += [*refinements(mu, generator).values(), mu.split([0.3, 0.7])]
    return max(float(wasserstein(images(f, mu), images(f, nu))) for nu in same)


@statement(
    "A.eq4",
    "(4)",
    "A map of token sequences is a map of measures if it follows permutations and does not notice "
    "that tokens are repeated. Condition (3) alone is not enough.",
    r"f\circ\iota=\iota\circ F,\qquad F(X_\sigma)=F(X)_\sigma,\qquad F(X,X)=(F(X),F(X))",
    defect=planted(__name__, "images", without_weights),
    seconds=(0.3, 0.1),
    api=("representation.rewritings", "representation.refinements"),
    note="Attention of temperature 1/log n satisfies (3).",
)
def of_sequences(s: Setting) -> Iterator[Check | Figure]:
    """Atoms permuted, repeated and split, for layers and for maps that count tokens."""
    g, count = s.generator(), s.pick(8, 4)
    worst = max(largest_change(f, box(5, 2, g), g) for f in maps(count))
    yield holds(worst, 1e-12, trials=count)
    for name, f in (("temperature 1/log n", zoo.length_temperature), ("top-2", zoo.top_k)):
        change = max(largest_change(f, box(5, 2, g), g) for _ in range(count))
        said = f"attention with {name} moves by {change:.2g} when tokens are repeated or split"
        yield refuted(change > 1e-2, said, change)
    mu = box(5, 2, g)
    (a, b), (c, d) = (zoo.length_temperature(nu).atoms.mT for nu in (mu, mu.split(2)))
    pair = (series("F(X)", a, b, "dots"), series("F(X, X)", c, d, "dots"))
    caption = "Attention of temperature 1/log n: twice the same tokens, and other images."
    yield Figure("A map that counts tokens", "first coordinate", "second", pair, "", caption)


def matchings(x: Tensor, y: Tensor) -> Tensor:
    """The mean distances of all matchings, smallest first."""
    orders = torch.tensor(list(permutations(range(len(y)))))
    return (x - y[orders]).norm(dim=-1).mean(-1).sort().values


def greedy(x: Tensor, y: Tensor) -> Tensor:
    """The same of the matching that takes the nearest free point each time."""
    free, total = list(range(len(y))), 0.0
    for point in x:
        k = min(free, key=lambda j: float((point - y[j]).norm()))
        free.remove(k)
        total += float((point - y[k]).norm())
    return torch.tensor([total / len(x)])


@statement(
    "A.w1.seq",
    "Section 2.1",
    "The distance of two sequences of equally many tokens is that of their best matching.",
    r"W_1(\iota X,\iota Y)=\min_\sigma\tfrac1n\textstyle\sum_i|x_i-y_{\sigma(i)}|",
    defect=planted(__name__, "matchings", greedy),
    seconds=(0.5, 0.2),
    api=("wasserstein",),
)
def matched(s: Setting) -> Iterator[Check | Figure]:
    """All 720 matchings of six points."""
    g, errors = s.generator(), []
    for _ in range(s.pick(20, 8)):
        x, y = box(6, 2, g), box(6, 2, g)
        costs, distance = matchings(x.atoms, y.atoms), float(wasserstein(x, y))
        errors.append(abs(float(costs[0]) - distance))
    yield holds(max(errors), 1e-13, trials=len(errors))
    rank = range(1, len(costs) + 1)
    both = (
        series("matchings", rank, costs),
        series("W1", rank, [distance] * len(costs), "dashed"),
    )
    yield Figure("All matchings of six points", "rank", "mean distance", both, "x")


def distance(mu: Measure, nu: Measure) -> Tensor:
    r"""$W_1$."""
    return wasserstein(mu, nu)


def potential(mu: Measure, nu: Measure) -> Tensor:
    """The dual potential on the atoms of the second measure: the gradient in its weights."""
    weights = nu.weights.requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(distance(mu, Measure(nu.atoms, weights)), weights)[0]


@statement(
    "A.w1.kr",
    "appendix A.1",
    "Kantorovich and Rubinstein: the distance is the largest difference of integrals of functions "
    "of Lipschitz constant 1.",
    r"W_1(\mu,\nu)=\sup_{\mathrm{Lip}(\varphi)\le1}\int\varphi\,d(\mu-\nu)",
    defect=planted(__name__, "distance", partial(wasserstein, p=2)),
    seconds=(1.7, 0.5),
    api=("wasserstein",),
)
def duality(s: Setting) -> Iterator[Check | Figure]:
    """The optimal function from the dual potential, and random minima of cones."""
    g, errors, ratios = s.generator(), [], []
    for _ in range(s.pick(30, 8)):
        mu, nu = (simplex(box(n, 2, g).atoms, g) for n in (8, 11))
        v, w = potential(mu, nu), float(distance(mu, nu))
        phi = lambda x, nu=nu, v=v: (torch.cdist(x, nu.atoms) - v).amin(-1)
        errors.append(abs(float(mu.integrate(phi) - nu.integrate(phi)) - w))
        for k in range(20):
            test = cones(1 + k % 4, 2, g)
            ratios.append(abs(float(mu.integrate(test) - nu.integrate(test))) / w)
    yield holds(max(errors), 1e-12, "the optimal function", len(errors))
    yield bounded(max(ratios), len(ratios), "other functions")
    apart = torch.cdist(mu.atoms, nu.atoms).flatten()
    drops = (phi(mu.atoms)[:, None] - phi(nu.atoms)).flatten()
    top = [0.0, float(apart.max())]
    pair = (series("pairs", apart, drops, "dots"), series("slope 1", top, top, "dashed"))
    caption = "The optimal function falls with slope 1 along the pairs between which mass moves."
    yield Figure("The optimal function", "distance of x and y", "its drop", pair, "", caption)


@statement(
    "A.w1.ext",
    "Section 1.2",
    "The distance is extended to positive measures of any mass, and is a metric there.",
    r"W_1(c_1\mu_1,c_2\mu_2)=|c_1-c_2|+W_1(\mu_1,\mu_2)",
    defect=planted(
        __name__,
        "distance",
        lambda mu, nu: (
            (mu.mass - nu.mass).abs()
            + (mu.mass * nu.mass).sqrt() * wasserstein(mu.normalise(), nu.normalise())
        ),
    ),
    seconds=(0.2, 0.1),
    api=("wasserstein",),
)
def extended(s: Setting) -> Iterator[Check]:
    """All triangles of some clouds of very different masses, in a large box."""
    g, n = s.generator(), s.pick(20, 10)
    clouds = [simplex(10 * box(4, 2, g).atoms, g) for _ in range(n)]
    scales = torch.tensor([0.1, 1.0, 10.0]).repeat(n)[:n]
    heavy = [Measure(mu.atoms, mu.weights * c) for mu, c in zip(clouds, scales, strict=True)]
    d = torch.tensor([[float(distance(mu, nu)) for mu in heavy] for nu in heavy])
    w = torch.tensor([[float(wasserstein(mu, nu)) for mu in clouds] for nu in clouds])
    formula = (scales[:, None] - scales).abs() + w
    yield holds(float((d - formula).abs().max()), 1e-12, "formula", n * n)
    i, j, k = torch.tensor(list(permutations(range(n), 3))).unbind(-1)
    ratios = d[i, k] / (d[i, j] + d[j, k])
    yield bounded(float(ratios.max()), len(ratios), "triangles")
    yield holds(float(d.diagonal().max()), 0.0, "zero between equal measures")


def subset_sums(weights: Tensor) -> Tensor:
    """All sums of some of the weights, in order."""
    sums = torch.zeros(1)
    for weight in weights:
        sums = torch.cat([sums, sums + weight])
    return sums.sort().values


def gap(weights: Tensor) -> float:
    r"""$\min_{I\ne J}|\sum_Ia_i-\sum_Ja_i|$, over all pairs of sets."""
    return float(subset_sums(weights).diff().min())


def single_gap(weights: Tensor) -> float:
    """The same over sets of one atom each, which do not contain each other."""
    return float(weights.sort().values.diff().min())


def generic(weights: Tensor, delta: float, generator: torch.Generator) -> Tensor:
    """Weights mixed with a little of random ones."""
    other = torch.rand(len(weights), generator=generator) + 0.05
    return (1 - delta) * weights + delta * other / other.sum()


@statement(
    "A.lem1",
    "Lemma 1",
    "Measures with finitely many atoms whose subset sums all differ are dense.",
    r"\forall\mu\ \forall\delta>0\ \exists\mu'\in\mathcal P^*:\ W_1(\mu,\mu')\le\delta\,"
    r"\operatorname{diam}\Omega",
    defect=planted(__name__, "generic", lambda weights, delta, generator: weights),
    seconds=(0.6, 0.2),
    api=("wasserstein",),
)
def dense(s: Setting) -> Iterator[Check | Figure]:
    """Weights 1, 2 and 3 with many equal sums, mixed with a little of random weights."""
    g = s.generator()
    for delta in (1e-1, 1e-2, 1e-4):
        ratios, gaps = [], []
        for k in range(s.pick(40, 9)):
            n = 2 + k % 9
            atoms, weights = box(n, 2, g).atoms, torch.randint(1, 4, (n,), generator=g).double()
            weights = weights / weights.sum()
            near = generic(weights, delta, g)
            diameter = float(torch.pdist(atoms).max())
            moved = float(wasserstein(Measure(atoms, weights), Measure(atoms, near)))
            ratios.append(moved / (delta * diameter))
            gaps.append(gap(near))
        error = max(ratios) if min(gaps) > 1e-13 else math.inf
        yield built(error, 1.0, f"least gap {min(gaps):.1g}, in units of {delta:g} diam")
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0, 2.0]) / 9
    before, after = subset_sums(weights), subset_sums(generic(weights, 0.1, g))
    rows = (
        series("weights 1, 2, 1, 3, 2", before, torch.ones_like(before), "dots"),
        series("mixed", after, torch.zeros_like(after), "dots"),
    )
    yield Figure("All subset sums", "sum of weights", "", rows)


@statement(
    "A.eq15",
    "(15)",
    "The gap of the subset sums of weights, over all pairs of different sets. It is at most the "
    "least weight, and equal to it for weights that halve.",
    r"m(\mu)=\min_{I\ne J}\Bigl|\sum_Ia_i-\sum_Ja_i\Bigr|,\qquad a_i\propto2^{-i}\Rightarrow"
    r" m(\mu)=\frac{2^{-n}}{1-2^{-n}}",
    defect=planted(__name__, "gap", single_gap),
    note="Sets that contain each other count: over disjoint sets 0.99 and 0.01 would have gap "
    "0.98, although the light atom may jump.",
)
def gaps(s: Setting) -> Iterator[Check | Figure]:
    """Weights that halve, random weights, and 0.99 with 0.01."""
    g, sizes = s.generator(), range(2, s.pick(17, 13))
    halving, random, errors, ratios = [], [], [], []
    for n in sizes:
        weights = dyadic(torch.zeros(n, 1)).weights
        halving.append(gap(weights))
        errors.append(abs(halving[-1] * (2**n - 1) - 1))
        weights = simplex(torch.zeros(n, 1), g).weights
        random.append(gap(weights))
        ratios.append(random[-1] / float(weights.min()))
    # sums are rounded to some 1e-16, and the least gap is 2^-16
    yield holds(max(errors), 1e-11, "halving weights, relative,", len(errors))
    yield holds(abs(gap(torch.tensor([0.99, 0.01])) - 0.01), 1e-15, "the gap of 0.99 and 0.01")
    yield bounded(max(ratios), len(ratios), "gap against the least weight")
    both = (series("halving", sizes, halving), series("random", sizes, random))
    yield Figure("The least gap of subset sums", "number of atoms", "gap", both, "y")


def carried() -> Tensor:
    """The masses of the images of two atoms of equal mass."""
    return torch.tensor([0.5, 0.5])


@statement(
    "A.obstruct",
    "as we read Furuya, Nelsen and Cole",
    "No push-forward comes nearer than 1/3 to a map that moves mass between two atoms, nor than 1 "
    "to a map that splits an atom.",
    r"\min_{y_1,y_2}W_1\bigl(\tfrac12\delta_{y_1}+\tfrac12\delta_{y_2},\,\tfrac13\delta_{-1}"
    r"+\tfrac23\delta_1\bigr)=\tfrac13,\qquad"
    r"\min_yW_1\bigl(\delta_y,\,\tfrac12\delta_{-1}+\tfrac12\delta_1\bigr)=1",
    defect=planted(__name__, "carried", lambda: torch.tensor([1 / 3, 2 / 3])),
    seconds=(0.4, 0.2),
    api=("wasserstein",),
)
def obstruction(s: Setting) -> Iterator[Check | Figure]:
    """All images on a grid that holds the best ones."""
    ends = torch.tensor([[-1.0], [1.0]])
    grid = torch.linspace(-1.5, 1.5, s.pick(61, 31))
    n, pairs = len(grid), torch.cartesian_prod(grid, grid)[..., None]
    target = Measure(ends, torch.tensor([1 / 3, 2 / 3]))
    errors = wasserstein(Measure(pairs, carried().expand(len(pairs), 2)), target)
    yield bounded(float(1 / 3 / errors.min()), len(pairs), "two atoms", least=1 - 1e-12)
    single = wasserstein(Measure(grid[:, None, None]), Measure(ends))
    yield bounded(float(1 / single.min()), n, "one atom", least=1 - 1e-12)
    curves = [
        series(f"y2 = {float(grid[k]):g}", grid, errors.reshape(n, n)[:, k])
        for k in (n // 2, n // 2 + n // 6, n // 2 + n // 3)
    ]
    bound = series("1/3", grid[[0, -1]], [1 / 3, 1 / 3], "dashed")
    yield Figure("The error of two images", "y1", "W1", (*curves, bound))
