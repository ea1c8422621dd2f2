"""Relations: conditionals by softmax, couplings by Sinkhorn, and the problems they solve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from ....affinities import Matrix, SquaredDistance
from ....approximation import QuantileCoupling
from ....maps import Attention
from ....measures import Measure
from ....pictures import Figure, series
from ....relations import (
    Bilinear,
    Conditional,
    Coupling,
    DualSoftmax,
    Exponential,
    Normaliser,
    Relation,
    Sigmoid,
    Sinkhorn,
    Softmax,
    relate,
)
from ..._checks import Check, bounded, holds, max, refuted
from ..._laws import box, simplex
from ..._statement import Setting, planted, statement

TIGHT = Sinkhorn(tol=1e-14)


def problems(count: int, s: Setting) -> Iterator[tuple[Measure, Measure, Tensor]]:
    """Two clouds of 5 and 7 atoms of unequal weights, and scores of size 0.3 to 10."""
    g = s.generator()
    for k in range(count):
        mu, nu = (simplex(box(n, 2, g).atoms, g) for n in (5, 7))
        yield mu, nu, (0.3, 1.0, 3.0, 10.0)[k % 4] * torch.randn(5, 7, generator=g)


def softmax(mu: Measure, nu: Measure, scores: Tensor) -> Conditional:
    """The conditional of scores."""
    return cast(Conditional, relate(mu, nu, affinity=Matrix(scores)))


softmax_of = softmax


def coupling(mu: Measure, nu: Measure, scores: Tensor) -> Coupling:
    """The coupling of scores, to rounding."""
    return cast(Coupling, relate(mu, nu, affinity=Matrix(scores), normaliser=TIGHT))


def three_steps(mu: Measure, nu: Measure, scores: Tensor) -> Coupling:
    """The coupling of scores, stopped early."""
    return cast(Coupling, relate(mu, nu, affinity=Matrix(scores), normaliser=Sinkhorn(steps=3)))


def apart(p: Tensor, q: Tensor) -> float:
    """The total variation of two matrices of masses, or of two vectors."""
    return float((p - q).abs().sum()) / 2


@statement(
    "B.cond",
    "definition of a conditional relation",
    "Softmax relates every query to a probability on the keys. The joint law has the first "
    "marginal of the queries, and any second one.",
    r"\kappa(x,dy)=\frac{e^{A(x,y)}\,\nu(dy)}{\int e^{A(x,z)}\,\nu(dz)},\qquad"
    r" (\mu\otimes\kappa)_1=\mu",
    defect=planted(__name__, "softmax", lambda mu, nu, A: three_steps(mu, nu, A).conditional()),
    seconds=(0.2, 0.1),
    api=("relate", "Softmax", "Conditional.joint"),
)
def conditional(s: Setting) -> Iterator[Check]:
    """The kernel against its formula, and both marginals of the joint law."""
    formula, rows, first, second = 0.0, 0.0, 0.0, []
    for mu, nu, A in problems(s.pick(20, 8), s):
        kappa = softmax(mu, nu, A)
        density = A.exp() * nu.weights
        written = density / density.sum(-1, keepdim=True)
        formula = max(formula, float((kappa.matrix() - written).abs().max()))
        rows = max(rows, float((kappa.matrix().sum(-1) - 1).abs().max()))
        joint = kappa.joint(mu).matrix()
        first = max(first, apart(joint.sum(-1), mu.weights))
        second.append(apart(joint.sum(-2), nu.weights))
    yield holds(formula, 1e-14, "formula", len(second))
    yield holds(rows, 1e-14, "row sums", len(second))
    yield holds(first, 1e-14, "first marginal", len(second))
    far = max(second)
    yield refuted(far > 1e-3, f"the second marginal is not nu, but up to {far:.2g} away", far)


@statement(
    "B.coup",
    "definition of a coupling relation",
    "Sinkhorn relates two measures by a coupling: both marginals are prescribed.",
    r"\pi=e^{A+f\oplus g}\,\mu\otimes\nu\in\Pi(\mu,\nu)",
    defect=planted(__name__, "coupling", three_steps),
    seconds=(0.3, 0.1),
    api=("Sinkhorn", "Coupling.residual", "Coupling.potentials"),
)
def coupled(s: Setting) -> Iterator[Check]:
    """Marginals, the residual that is stated, and the form of the density."""
    errors, said, form = [], 0.0, 0.0
    for mu, nu, A in problems(s.pick(20, 8), s):
        pi = coupling(mu, nu, A)
        p, (f, g) = pi.matrix(), pi.potentials
        rows, columns = (p.sum(-1) - mu.weights).abs().sum(), (p.sum(-2) - nu.weights).abs().sum()
        errors.append(float(torch.maximum(rows, columns)))
        said = max(said, abs(errors[-1] - float(pi.residual)))
        density = (A + f[:, None] + g).exp() * mu.weights[:, None] * nu.weights
        form = max(form, float((p - density).abs().max()))
    yield holds(max(errors), 1e-12, "both marginals", len(errors))
    yield holds(said, 1e-14, "the stated residual")
    yield holds(form, 1e-13, "the form of the density")


def related(mu: Measure, nu: Measure, normaliser: Normaliser) -> Tensor:
    r"""$\int x\,\sin(y)^\top d\pi$, for a relation by squared distances."""
    relation = relate(mu, nu, affinity=SquaredDistance(0.7), normaliser=normaliser)
    pi = relation.joint(mu) if isinstance(relation, Conditional) else relation
    return mu.atoms.mT @ pi.matrix() @ nu.atoms.sin()


def unweighted(mu: Measure, nu: Measure, normaliser: Normaliser) -> Tensor:
    """The same with weights forgotten."""
    return related_of(Measure(mu.atoms), Measure(nu.atoms), normaliser)


related_of = related


def written_otherwise(mu: Measure, g: torch.Generator) -> Iterator[Measure]:
    """The same measure: split, permuted, doubled, padded."""
    yield mu.split([0.2, 0.5, 0.3])
    order = torch.randperm(mu.n, generator=g)
    yield Measure(mu.atoms[order], mu.weights[order])
    yield Measure(mu.atoms.repeat(2, 1), mu.weights.repeat(2) / 2)
    yield Measure(torch.cat([mu.atoms, mu.atoms[:2]]), torch.cat([mu.weights, torch.zeros(2)]))


@statement(
    "B.measure",
    "texts as measures",
    "A relation depends on the two measures alone, not on the lists of atoms that they are "
    "written in.",
    r"\textstyle\sum_ia_i\delta_{x_i}=\sum_ka'_k\delta_{x'_k}\ \Rightarrow\ \pi=\pi'",
    defect=planted(__name__, "related", unweighted),
    seconds=(0.5, 0.2),
    api=("Measure.split", "relate"),
)
def measures_alone(s: Setting) -> Iterator[Check]:
    """An integral against the relation, with either measure written otherwise."""
    g, worst, trials = s.generator(1), 0.0, 0
    for mu, nu, _ in problems(s.pick(4, 1), s):
        for normaliser in (Softmax(), TIGHT, DualSoftmax()):
            before = related(mu, nu, normaliser)
            pairs = [(mu, other) for other in written_otherwise(nu, g)]
            pairs += [(other, nu) for other in written_otherwise(mu, g)]
            for pair in pairs:
                worst = max(worst, float((related(*pair, normaliser) - before).abs().max()))
            trials += len(pairs)
    yield holds(worst, 1e-12, trials=trials)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    r"""$\mathrm{KL}(p|q)$ of masses."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum()


def objective(p: Tensor, mu: Measure, nu: Measure, scores: Tensor) -> Tensor:
    r"""$J(\pi)=-\int A\,d\pi+\mathrm{KL}(\pi|\mu\otimes\nu)$."""
    return divergence(p, mu.weights[:, None] * nu.weights) - (p * scores).sum()


def excess(p: Tensor, best: Tensor, mu: Measure, nu: Measure, scores: Tensor) -> float:
    r"""How far $J(\pi)-J(\pi^*)$ is from $\mathrm{KL}(\pi|\pi^*)$, relative to the terms."""
    high, low = (objective(x, mu, nu, scores) for x in (p, best))
    return float((high - low - divergence(p, best)).abs() / (1 + high.abs() + low.abs()))


def along(best: Tensor, other: Tensor, mu: Measure, nu: Measure, scores: Tensor) -> Figure:
    """The objective on the segment from the best plan to another one."""
    t = torch.linspace(0, 1, 21)
    plans = [(1 - u) * best + u * other for u in t]
    least = objective(best, mu, nu, scores)
    above = [float(objective(p, mu, nu, scores) - least) for p in plans]
    theory = [float(divergence(p, best)) for p in plans]
    curves = series("J above its least value", t, above, "dots"), series("KL", t, theory, "dashed")
    return Figure(
        "From the best plan to another", "share of the other", "J", curves,
        caption="The objective exceeds its minimum by the divergence from the best plan.",
    )  # fmt: skip


@statement(
    "B.softmax.kl",
    "the entropic problem of softmax",
    "Softmax solves an entropic problem with one prescribed marginal, and every other plan is "
    "worse by its divergence.",
    r"J(\pi)-J(\pi^*)=\mathrm{KL}(\pi|\pi^*)\ \ (\pi_1=\mu),\qquad"
    r" J(\pi^*)=-\int\log\int e^{A}d\nu\,d\mu",
    defect=planted(__name__, "softmax", lambda mu, nu, A: softmax_of(mu, Measure(nu.atoms), A)),
    seconds=(0.3, 0.1),
    api=("Softmax", "Conditional.joint"),
    note="An identity for every plan says more than that no plan is better.",
)
def softmax_problem(s: Setting) -> Iterator[Check | Figure]:
    """The identity at random plans with the first marginal, and the value."""
    g, worst, value, trials = s.generator(1), 0.0, 0.0, 0
    for mu, nu, A in problems(s.pick(40, 8), s):
        best = softmax(mu, nu, A).joint(mu).matrix()
        theory = -(mu.weights * (A + nu.log_weights).logsumexp(-1)).sum()
        wrong = (objective(best, mu, nu, A) - theory).abs() / (1 + theory.abs())
        value = max(value, float(wrong))
        for _ in range(20):
            rows = (2 * torch.randn(5, 7, generator=g)).softmax(-1)
            p = mu.weights[:, None] * rows
            worst, trials = max(worst, excess(p, best, mu, nu, A)), trials + 1
    yield holds(worst, 1e-12, "identity", trials)
    yield holds(value, 1e-12, "value")
    yield along(best, p, mu, nu, A)


def feasible(mu: Measure, nu: Measure, g: torch.Generator) -> Tensor:
    """A coupling of two measures: the mean of two monotone ones, in random orders of the atoms."""
    line = lambda m: Measure(torch.rand(m.n, 1, generator=g), m.weights)
    one, two = (QuantileCoupling()(line(mu), line(nu)).matrix() for _ in range(2))
    return (one + two) / 2


@statement(
    "B.sinkhorn.kl",
    "entropic optimal transport",
    "Sinkhorn solves the same problem with both marginals prescribed, and every other coupling is "
    "worse by its divergence.",
    r"J(\pi)-J(\pi^*)=\mathrm{KL}(\pi|\pi^*)\quad\text{for all }\pi\in\Pi(\mu,\nu)",
    defect=planted(__name__, "coupling", three_steps),
    seconds=(0.9, 0.3),
    api=("Sinkhorn",),
)
def sinkhorn_problem(s: Setting) -> Iterator[Check | Figure]:
    """The identity at random couplings, most entries of which are zero."""
    g, worst, trials = s.generator(1), 0.0, 0
    for mu, nu, A in problems(s.pick(30, 8), s):
        best = coupling(mu, nu, A).matrix()
        for _ in range(10):
            p = feasible(mu, nu, g)
            worst, trials = max(worst, excess(p, best, mu, nu, A)), trials + 1
    yield holds(worst, 1e-11, trials=trials)
    yield along(best, p, mu, nu, A)


def dual(f: Tensor, g: Tensor, mu: Measure, nu: Measure, scores: Tensor) -> Tensor:
    r"""$\int f\,d\mu+\int g\,d\nu-\int e^{A+f\oplus g}d\mu\otimes\nu+1$."""
    mass = (scores + f[:, None] + g + mu.log_weights[:, None] + nu.log_weights).exp().sum()
    return mu.weights @ f + nu.weights @ g - mass + 1


def dual_without_one(f: Tensor, g: Tensor, mu: Measure, nu: Measure, scores: Tensor) -> Tensor:
    """The same without the constant."""
    return dual_of(f, g, mu, nu, scores) - 1


dual_of = dual


@statement(
    "B.dual",
    "entropic optimal transport, dual",
    "The potentials of Sinkhorn solve the dual problem, and no other potentials are better.",
    r"J(\pi^*)=\max_{f,g}\int f\,d\mu+\int g\,d\nu-\int e^{A+f\oplus g}\,d\mu\otimes\nu+1",
    defect=planted(__name__, "dual", dual_without_one),
    seconds=(0.5, 0.2),
    api=("Coupling.potentials",),
)
def dual_problem(s: Setting) -> Iterator[Check]:
    """The gap at the potentials of the library, and values at others around them."""
    r, gap, best, trials = s.generator(1), 0.0, -math.inf, 0
    for mu, nu, A in problems(s.pick(20, 8), s):
        pi = coupling(mu, nu, A)
        f, g = pi.potentials
        value = objective(pi.matrix(), mu, nu, A)
        gap = max(gap, float((dual(f, g, mu, nu, A) - value).abs() / (1 + value.abs())))
        for k in range(15):
            size, u, v = 10.0 ** -(k % 4), *(torch.randn(n, generator=r) for n in (5, 7))
            other = dual(f + size * u, g + size * v, mu, nu, A)
            best, trials = max(best, float(other - value)), trials + 1
    yield holds(gap, 1e-12, "no duality gap:")
    # The values may be of any sign: their exponentials are compared.
    yield bounded(math.exp(best), trials, "other potentials")


def alternated(p: Tensor, mu: Measure, nu: Measure) -> Tensor:
    """Columns scaled to their weights, then rows."""
    p = p * (nu.weights / p.sum(-2))
    return p * (mu.weights / p.sum(-1))[:, None]


def columns_last(p: Tensor, mu: Measure, nu: Measure) -> Tensor:
    """Rows scaled first, then columns."""
    p = p * (mu.weights / p.sum(-1))[:, None]
    return p * (nu.weights / p.sum(-2))


@statement(
    "B.half",
    "softmax and Sinkhorn",
    "Softmax is half a step of Sinkhorn, from the potential zero. A whole step normalises rows, "
    "columns and rows.",
    r"f=-\log\int e^{A+g}d\nu,\quad g=0;\qquad g\leftarrow-\log\int e^{A+f}d\mu",
    defect=planted(__name__, "alternated", columns_last),
    seconds=(0.2, 0.1),
    api=("Sinkhorn", "Softmax"),
)
def half_a_step(s: Setting) -> Iterator[Check | Figure]:
    """No step and one step of the library against matrices scaled by hand."""
    none, one = 0.0, 0.0
    for mu, nu, A in problems(s.pick(20, 8), s):
        plan = mu.weights[:, None] * softmax(mu, nu, A).matrix()
        steps = [
            relate(mu, nu, affinity=Matrix(A), normaliser=Sinkhorn(steps=k)).matrix()
            for k in (0, 1)
        ]
        none = max(none, float((steps[0] - plan).abs().max()))
        one = max(one, float((steps[1] - alternated(plan, mu, nu)).abs().max()))
    yield holds(none, 1e-14, "no step is softmax:")
    yield holds(one, 1e-14, "one step")
    keys = range(1, nu.n + 1)
    yield Figure(
        "Masses of the keys", "key", "mass",
        (
            series("prescribed", keys, nu.weights, "stems"),
            series("softmax", keys, steps[0].sum(-2), "dots"),
            series("after one step", keys, steps[1].sum(-2), "line"),
        ),
    )  # fmt: skip


def nearest_coupling(joint: Tensor, nu: Measure) -> Tensor:
    """The joint law with the excess of its columns moved to where mass is missing."""
    columns = joint.sum(-2)
    kept = joint * torch.minimum(nu.weights / columns, torch.ones_like(columns))
    rows, missing = (joint - kept).sum(-1), nu.weights - kept.sum(-2)
    return kept + rows[:, None] * missing / missing.sum()


def rows_apart(p: Tensor, q: Tensor) -> float:
    """The total variation of the conditionals, in the worst row."""
    rows = [x / x.sum(-1, keepdim=True) for x in (p, q)]
    return float((rows[0] - rows[1]).abs().sum(-1).max()) / 2


@statement(
    "B.joint.iff",
    "conditionals and couplings",
    "A kernel is a coupling by Sinkhorn if and only if it carries one measure to the other. If it "
    "does not, every coupling is as far from it as the second marginals are.",
    r"\mu\kappa=\nu\iff\mu\otimes\kappa\in\Pi(\mu,\nu),\qquad"
    r" \min_{\pi\in\Pi(\mu,\nu)}\mathrm{TV}(\mu\otimes\kappa,\pi)=\mathrm{TV}(\mu\kappa,\nu)",
    defect=planted(__name__, "apart", rows_apart),
    seconds=(0.2, 0.1),
    api=("Conditional.project", "Coupling"),
)
def kernel_or_coupling(s: Setting) -> Iterator[Check]:
    """Kernels projected on the couplings with their own second marginal, and with another one."""
    g, same, ratios = s.generator(1), 0.0, []
    for mu, nu, A in problems(s.pick(10, 4), s):
        kappa = softmax(mu, nu, A)
        joint = kappa.joint(mu).matrix()
        carried = Measure(nu.atoms, joint.sum(-2))
        same = max(same, apart(kappa.project(mu, carried, normaliser=TIGHT).matrix(), joint))
        away = float((joint.sum(-2) - nu.weights).abs().sum()) / 2
        plans = [kappa.project(mu, nu, normaliser=TIGHT).matrix(), feasible(mu, nu, g)]
        plans.append(nearest_coupling(joint, nu))
        ratios += [away / apart(joint, plan) for plan in plans]
    yield holds(same, 1e-12, "with its own second marginal a kernel is a coupling:")
    yield bounded(max(ratios), len(ratios), "with another one", least=1 - 1e-9)


def correlation(eps: float, sigma: float) -> float:
    """The correlation of the entropic plan of two normal laws."""
    return (math.sqrt(eps**2 + 16 * sigma**2) - eps) / (4 * sigma)


right_correlation = correlation


@statement(
    "B.gauss",
    "entropic optimal transport of normal laws",
    "The coupling of two normal laws is normal, with a covariance and a value in closed form.",
    r"\rho=\frac{\sqrt{\varepsilon^2+16\sigma^2}-\varepsilon}{4\sigma},\quad\sigma=\sigma_1"
    r"\sigma_2,\qquad\mathrm{value}=(m_1-m_2)^2+\sigma_1^2+\sigma_2^2-2\sigma\rho"
    r"-\tfrac\varepsilon2\log(1-\rho^2)",
    defect=planted(__name__, "correlation", lambda eps, sigma: right_correlation(2 * eps, sigma)),
    seconds=(0.5, 0.2),
    api=("Measure.gaussian", "Coupling.mutual_information"),
)
def gaussians(s: Setting) -> Iterator[Check]:
    """Value and covariance on Gauss-Hermite nodes."""
    value, covariance = 0.0, 0.0
    variance = 0.4 + 0.2 * torch.rand(2, generator=s.generator())
    for eps, order in s.pick([(2.0, 20), (1.0, 20), (0.5, 40)], [(1.0, 20)]):
        mu = Measure.gaussian(0.3, float(variance[0]), order=order)
        nu = Measure.gaussian(-0.2, float(variance[1]), order=order)
        near = SquaredDistance(eps)
        pi = cast(Coupling, relate(mu, nu, affinity=near, normaliser=Sinkhorn(tol=1e-12)))
        sigma = float(variance.prod().sqrt())
        rho = correlation(eps, sigma)
        theory = 0.25 + float(variance.sum()) - 2 * sigma * rho - eps / 2 * math.log(1 - rho**2)
        value = max(value, abs(float(pi.cost() + eps * pi.mutual_information()) - theory))
        cross = (mu.atoms[:, 0] - 0.3) @ pi.matrix() @ (nu.atoms[:, 0] + 0.2)
        covariance = max(covariance, abs(float(cross) - sigma * rho))
    yield holds(value, 1e-9, "value")
    yield holds(covariance, 1e-9, "covariance")


def masses(relation: Relation) -> Tensor:
    """The matrix of a relation."""
    return relation.matrix()


@statement(
    "B.layer",
    "attention as a normalised affinity",
    "An attention layer integrates its values against its relation.",
    r"\Gamma(\mu,x)=W\int V y\;\pi(dy\,|\,x)",
    defect=planted(__name__, "masses", lambda relation: relation.matrix().mT),
    seconds=(0.2, 0.1),
    api=("Attention.relation", "Relation.apply"),
)
def layer(s: Setting) -> Iterator[Check]:
    """Layers of six normalisers against the matrices of their relations."""
    g, worst, trials = s.generator(), 0.0, 0
    for normaliser in (Softmax(), TIGHT, DualSoftmax(), Sigmoid(), Exponential(), Bilinear()):
        for _ in range(s.pick(4, 1)):
            gamma, mu = Attention(2, normaliser=normaliser), simplex(box(6, 2, g).atoms, g)
            relation = gamma.relation(mu)
            density = masses(relation[0])
            if not isinstance(relation, Conditional):
                density = density / mu.weights[:, None]
            out = gamma.W(density @ gamma.V(mu.atoms))
            worst, trials = max(worst, float((gamma(mu, mu.atoms) - out).abs().max())), trials + 1
    yield holds(worst, 1e-13, trials=trials)
