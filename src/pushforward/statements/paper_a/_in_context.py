"""In-context maps: push-forwards, composition, uniqueness."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ...distances import wasserstein
from ...maps import Attention, Compose, InContextMap
from ...measures import Measure
from ...representation import Decode, Excess, Weak, recover, zoo
from .._checks import Check, bounded, holds, max, min, refuted
from .._laws import ball, box, several, simplex
from .._statement import Setting, planted, statement


def largest(errors: Iterator[Tensor]) -> float:
    """The largest absolute value."""
    return max(float(error.abs().max()) for error in errors)


def context_seen(mu: Measure, x: Tensor) -> Measure:
    """What the map sees of context and queries: the context alone."""
    return mu


@statement(
    "A.def2",
    "Def. 2, (23)",
    "A context is pushed forward atom by atom. Queries need not be tokens, and they do not change "
    "the context.",
    r"f_G\bigl(\textstyle\sum_ia_i\delta_{x_i}\bigr)=\sum_ia_i\,\delta_{G(\mu,x_i)}",
    defect=planted(__name__, "context_seen", lambda mu, x: Measure(torch.cat([mu.atoms, x]))),
    seconds=(0.5, 0.2),
    api=("InContextMap.push", "InContextMap.at"),
)
def push_forward(s: Setting) -> Iterator[Check]:
    """Push, call and curried map agree to the bit, also where queries are asked beside."""
    g, errors, beside = s.generator(), [], []
    for gamma in several(s.pick(12, 4)):
        mu = box(7, 2, g)
        pushed = gamma.push(mu)
        errors += [pushed.atoms - gamma(mu, mu.atoms), pushed.atoms - gamma.at(mu)(mu.atoms)]
        errors.append(pushed.log_weights - mu.log_weights)
        queries = 3 * torch.rand(5, 2, generator=g)
        seen = context_seen(mu, queries)
        both = gamma(seen, torch.cat([mu.atoms, queries]))
        beside.append(both[: mu.n] - pushed.atoms)
    yield holds(largest(iter(errors)), 0.0, "push-forward")
    yield holds(largest(iter(beside)), 1e-15, "with queries beside")


def composed(second: InContextMap, first: InContextMap, mu: Measure, x: Tensor) -> Tensor:
    """Formula (8), written out."""
    return second(mu.push(first.at(mu)), first(mu, x))


def stale(second: InContextMap, first: InContextMap, mu: Measure, x: Tensor) -> Tensor:
    """Formula (8) with the old context."""
    return second(mu, first(mu, x))


@statement(
    "A.eq8",
    "(8)",
    "The composition of in-context maps moves the context too, and is the composition of the maps "
    "between measures.",
    r"(G_2\diamond G_1)(\mu,x)=G_2\bigl(G_1(\mu,\cdot)_\sharp\mu,\,G_1(\mu,x)\bigr),\qquad"
    r" f_{G_2\diamond G_1}=f_{G_2}\circ f_{G_1}",
    defect=planted(__name__, "composed", stale),
    seconds=(0.2, 0.1),
    api=("Compose",),
)
def composition(s: Setting) -> Iterator[Check]:
    """The library's composition against the formula, and against iterated push-forwards."""
    g, made = s.generator(), several(s.pick(21, 6))
    formula, pushes = [], []
    for first, second in pairwise(made):
        mu, x = box(6, 2, g), 2 * torch.rand(4, 2, generator=g) - 1
        whole = Compose(first, second)
        formula.append(whole(mu, x) - composed(second, first, mu, x))
        pushes.append(whole.push(mu).atoms - second.push(first.push(mu)).atoms)
    yield holds(largest(iter(formula)), 1e-14, "formula", len(formula))
    yield holds(largest(iter(pushes)), 1e-14, "push-forward", len(pushes))


@statement(
    "A.eq8.assoc",
    "(8)",
    "Composition is associative.",
    r"(G_3\diamond G_2)\diamond G_1=G_3\diamond(G_2\diamond G_1)",
    defect=planted(__name__, "composed", stale),
    api=("Compose",),
)
def associative(s: Setting) -> Iterator[Check]:
    """Both bracketings, by the formula and by the library."""
    g, errors = s.generator(), []
    for k in range(s.pick(10, 3)):
        first, second, third = several(k + 3)[-3:]
        mu, x = box(6, 2, g), 2 * torch.rand(4, 2, generator=g) - 1
        left = Compose(first, Compose(second, third))(mu, x)
        inner = Compose(first, second)
        errors.append(left - composed(third, inner, mu, x))
    yield holds(largest(iter(errors)), 1e-13, trials=len(errors))


def mass_weights(mu: Measure) -> Measure:
    """The measure as attention reads it: normalised."""
    return mu


@statement(
    "A.hom",
    "Section 1.2, appendix A.1",
    "Both ways to extend a map to positive measures of any mass have the same in-context map.",
    r"G(c\mu,x)=G(\mu,x)",
    defect=planted(__name__, "mass_weights", lambda mu: Measure(mu.atoms * (1 + mu.mass / 1e6))),
    seconds=(0.2, 0.1),
    api=("Measure.mass",),
)
def homogeneous(s: Setting) -> Iterator[Check]:
    """Masses from 1e-6 to 1e6."""
    g, errors = s.generator(), []
    for gamma in several(s.pick(8, 4)):
        mu, x = simplex(box(6, 2, g).atoms, g), torch.rand(3, 2, generator=g)
        for exponent in (-6, -2, 3, 6):
            heavy = Measure(mu.atoms, mu.weights * 10.0**exponent)
            errors.append(gamma(mass_weights(heavy), x) - gamma(mu, x))
    yield holds(largest(iter(errors)), 1e-12, trials=len(errors))


def images(gamma: InContextMap, mu: Measure) -> Tensor:
    """The images of the atoms, in their order."""
    return gamma.push(mu).atoms


def positional(gamma: InContextMap, mu: Measure) -> Tensor:
    """The images with a bias by position."""
    return images_of(gamma, mu) + 1e-3 * torch.arange(mu.n)[:, None]


images_of = images


@statement(
    "A.eq43",
    "(43)",
    "The images of the atoms follow a permutation of the atoms, and agree at equal points.",
    r"h_{\sigma(i)}(a_\sigma,x_\sigma)=h_i(a,x),\qquad x_i=x_j\Rightarrow h_i=h_j",
    defect=planted(__name__, "images", positional),
    seconds=(0.2, 0.1),
    api=("InContextMap.push",),
)
def equivariant(s: Setting) -> Iterator[Check]:
    """Random permutations, and a point that occurs twice."""
    g, permuted, repeated = s.generator(), [], []
    for gamma in several(s.pick(20, 4)):
        mu = simplex(box(6, 2, g).atoms, g)
        order = torch.randperm(6, generator=g)
        other = Measure(mu.atoms[order], log_weights=mu.log_weights[order])
        permuted.append(images(gamma, other) - images(gamma, mu)[order])
        twice = Measure(torch.cat([mu.atoms, mu.atoms[:1]]))
        repeated.append(images(gamma, twice)[0] - images(gamma, twice)[-1])
    yield holds(largest(iter(permuted)), 1e-13, "permuted", len(permuted))
    yield holds(largest(iter(repeated)), 1e-13, "repeated", len(repeated))


def unequal() -> Tensor:
    """Generic weights of two atoms."""
    return torch.tensor([0.4, 0.6])


@statement(
    "A.unique",
    "as we read Theorem 1",
    "A continuous in-context map is determined by its map between measures. One value at equal "
    "weights does not determine it.",
    r"f_G=f_H\ \text{with } G,H \text{ continuous}\ \Rightarrow\ G=H",
    defect=planted(__name__, "unequal", lambda: torch.tensor([0.5, 0.5])),
    api=("recover",),
)
def unique(s: Setting) -> Iterator[Check]:
    """The identity and the reflection on two atoms; three ways to recover one map."""
    ends = torch.tensor([[-1.0], [1.0]])
    reflect = lambda mu: mu.moved(-mu.atoms)
    equal, other = Measure(ends), Measure(ends, unequal())
    same = float(wasserstein(equal, reflect(equal)))
    yield refuted(same <= 1e-15, f"x and -x agree on equal weights, W1 = {same:g}", same)
    apart = float(wasserstein(other, reflect(other)))
    yield holds(abs(apart - 0.4), 1e-14, "on weights 0.4 and 0.6 they differ by 0.4, which")
    mu = simplex(box(5, 2, s.generator()).atoms, s.generator(1))
    x = torch.tensor([[0.3, -0.2]])
    f = zoo.attention(2).push
    ways = [recover(f, by=by, eta=1e-6)(mu, x) for by in (Decode(), Excess(), Weak())]
    yield holds(largest(a - b for a, b in pairwise(ways)), 1e-8, "recovery in three ways")


def two_points(a: float) -> Measure:
    r"""$a\delta_1+(1-a)\delta_{-1}$."""
    return Measure(torch.tensor([[1.0], [-1.0]]), torch.tensor([a, 1 - a]))


def fold(a: float) -> Measure:
    r"""The fold of $a\delta_1+(1-a)\delta_{-1}$: the larger mass goes to 1."""
    return two_points(max(a, 1 - a))


def image_of_one(a: float) -> float:
    """Where the fold sends the atom in 1, which its mass shows."""
    image = fold(a)
    return float(image.atoms[(image.weights - a).abs().argmin()])


def split_fold(a: float) -> Measure:
    """The same with masses that are not carried along."""
    return two_points(0.9 if a > 0.5 else 0.6)


@statement(
    "A.fact.lip",
    "as we read Lavenant and Savare",
    "On a convex set, a Lipschitz map that preserves supports has a Lipschitz in-context map. On "
    "two points this is false: the fold is 1-Lipschitz, and its in-context map jumps.",
    r"|G(\mu,x_i)-G(\mu,x_k)|\le L\,(1+\tfrac{a_i}{a_k})\,|x_i-x_k|,\quad a_i\le a_k",
    defect=planted(__name__, "fold", split_fold),
    seconds=(0.5, 0.2),
    note="Some connectedness of the set is needed.",
)
def lipschitz_suffices(s: Setting) -> Iterator[Check]:
    """Close pairs of atoms under attention; the fold beside one half."""
    g, worst, trials = s.generator(), 0.0, s.pick(200, 40)
    for k in range(trials):
        torch.manual_seed(k)
        gamma = Attention(2)
        mu = simplex(ball(5, 2, g).atoms, g)
        atoms = mu.atoms.clone()
        atoms[1] = atoms[0] + 10.0 ** -(1 + k % 4) * torch.randn(2, generator=g)
        mu = Measure(atoms, mu.weights)
        i, j = (0, 1) if mu.weights[0] <= mu.weights[1] else (1, 0)
        y = gamma(mu, mu.atoms)
        radius = float(atoms.norm(dim=-1).max())
        bound = gamma.lipschitz(radius).measure * (1 + float(mu.weights[i] / mu.weights[j]))
        gap = float((y[i] - y[j]).norm())
        worst = max(worst, gap / (bound * float((atoms[i] - atoms[j]).norm())))
    yield bounded(worst, trials)
    quotients, same, jumps = [], [], []
    for e in (1e-2, 1e-6, 1e-10):
        up, down, middle = (fold(0.5 + h) for h in (e, -e, 0.0))
        before = float(wasserstein(two_points(0.5 + e), two_points(0.5)))
        quotients.append(float(wasserstein(up, middle)) / before)
        same.append(float(wasserstein(up, down)))
        jumps.append(abs(image_of_one(0.5 + e) - image_of_one(0.5 - e)))
    worst, jump = max(quotients), min(jumps)
    seen = worst <= 1 + 1e-5 and max(same) <= 1e-15 and jump == 2
    said = f"the fold has W1 quotient {worst:.6g}, and the image of 1 jumps by {jump:g}"
    yield refuted(seen, said, jump)
