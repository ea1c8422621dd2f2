"""The derivative of a map between measures, and its regular part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..._tools.fits import power
from ...distances import wasserstein
from ...flows.fields import SelfAttention
from ...maps import InContextMap
from ...measures import Measure
from ...pictures import Figure, series
from ...representation import MassPreserving, ProbabilityValued, derivative, flattened, zoo
from .._checks import Check, bounded, holds, max, min, rate, refuted
from .._laws import ball, cloud, point, several, unit, wave
from .._probing import added, approaches, first, flat, quotient, safe_radius, shift, soft
from .._statement import Setting, planted, replaced, statement

ETA = 1e-6
"""The small mass of quotients: rounding leaves 1e-10, the extrapolated limit 1e-12."""


PARTS, EXTENSIONS = ("regular", "irregular"), (MassPreserving(), ProbabilityValued())
ORIGIN, ONE = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
LINE = torch.linspace(-1, 1, 2001, dtype=torch.float64)


def smooth(n: float) -> Tensor:
    r"""$\psi_n(y)=\sqrt{y^2+n^{-2}}$ on a grid."""
    return (LINE.square() + n**-2).sqrt()


def apart(n: float, m: float) -> float:
    r"""$\|\psi_n-\psi_m\|_\infty$."""
    return float((smooth(n) - smooth(m)).abs().max())


@statement(
    "A.def3",
    "Def. 3, (5)",
    "The space of measures, points and test functions is not complete: test functions are "
    "differentiable, and their distance is uniform.",
    r"\psi_n(y)=\sqrt{y^2+n^{-2}}\to|y|,\qquad\|\psi_n-\psi_m\|_\infty=\bigl|\tfrac1n-\tfrac1m"
    r"\bigr|,\quad\|\psi_n\|_{C^1}\le\sqrt2",
    defect=planted(
        __name__, "apart", lambda n, m: float((LINE / smooth(n) - LINE / smooth(m)).abs().max())
    ),
)
def incomplete(s: Setting) -> Iterator[Check | Figure]:
    """Smooth functions that tend to the absolute value."""
    sizes = (1.0, 10.0, 100.0, 1000.0)
    error = max(abs(apart(n, 10 * n) * n - 0.9) for n in sizes)
    yield holds(error, 1e-9, "distance 0.9/n", len(sizes))
    norms = [max(float(smooth(n).max()), float((LINE / smooth(n)).abs().max())) for n in sizes]
    yield bounded(max(norms) / 2**0.5, len(norms), "norms")
    left, middle, right = smooth(1e9)[[950, 1000, 1050]]
    slopes = [float((middle - left) / 0.05), float((right - middle) / 0.05)]
    said = f"the limit has slopes {slopes[0]:.6f} and {slopes[1]:.6f} beside 0"
    yield refuted(slopes[1] - slopes[0] > 2 - 1e-6, said, slopes[1] - slopes[0])
    drawn = tuple(series(f"n = {n:g}", LINE, smooth(n)) for n in (2, 5, 20))
    yield Figure("Smooth functions with a limit that is not", "y", "value", drawn)


def steep(k: int) -> Callable[[Tensor], Tensor]:
    r"""$\psi_k(y)=\sin ky$."""
    return lambda y: (k * y[:, 0]).sin()


def bounded_steep(k: int) -> Callable[[Tensor], Tensor]:
    r"""$\frac1k\sin ky$, of slope at most 1."""
    return lambda y: (k * y[:, 0]).sin() / k


@statement(
    "A.def3.bound",
    "Def. 3",
    "Without a bound on the slope of test functions the regular part of the identity is not "
    "uniformly continuous.",
    r"\psi_k(y)=\sin ky:\quad\overline Df(\mu,\tfrac\pi{2k},\psi_k)-\overline Df(\mu,0,\psi_k)=1",
    defect=planted(__name__, "steep", bounded_steep),
    api=("representation.derivative",),
    note="The definition needs a bound on the norm of test functions in C^1; any one will do.",
)
def unbounded(s: Setting) -> Iterator[Check | Figure]:
    """Two points that come together, and test functions that get steeper."""
    mu, sizes, seen = Measure(-torch.ones(1, 1)), (10, 100, 1000), []
    for k in sizes:
        ends = torch.tensor([[torch.pi / (2 * k)], [0.0]])
        a, b = (derivative(lambda nu: nu, mu, x, steep(k), eta=ETA).regular for x in ends)
        seen.append(float(a - b))
    error = max(abs(value - 1) for value in seen)
    said = f"the regular part changes by {seen[-1]:.6f} at distance {torch.pi / 2000:.1e}"
    yield refuted(error < 1e-6, said, seen[-1])
    steps = [torch.pi / (2 * k) for k in sizes]
    drawn = (series("any slope", steps, seen), series("slope at most 1", steps, steps, "dashed"))
    yield Figure("Changes of the regular part", "distance of the points", "change", drawn, "xy")


def centres(near: Measure, limit: Measure) -> Tensor:
    r"""The points near which $\psi_n$ is constant: $\operatorname{supp}f(\mu_n)$."""
    return near.atoms


@statement(
    "A.def4",
    "Def. 4, (6)-(7)",
    "The regular part of the derivative of attention exists: its limit is the same for all "
    "sequences.",
    r"\overline Df(\mu,x,\psi)=\lim_{n\to\infty}\lim_{\varepsilon\downarrow0}\tfrac1\varepsilon"
    r"\bigl\langle f(\mu_n+\varepsilon\delta_{x_n})-f(\mu_n),\psi_n\bigr\rangle,\qquad"
    r"\nabla\psi_n=0\ \text{near }\operatorname{supp}f(\mu_n)",
    defect=planted(__name__, "centres", lambda near, limit: limit.atoms),
    seconds=(0.5, 0.2),
    api=("representation.flattened",),
)
def limits(s: Setting) -> Iterator[Check | Figure]:
    """Five sequences at distances from 0.1 to 0.0001, against the bound of the formulas."""
    g, gamma = s.generator(), zoo.attention(2, 0.3, s.seed)
    mu, x, psi = cloud(5, g), point(g), wave(2.0, g)
    truth, bound = float(psi(gamma(mu, x[None]))), gamma.lipschitz(1.2)
    distances, errors, allowed = [], [], []
    for e in (1e-1, 1e-2, 1e-3, 1e-4):
        radius, eps = 1e-2 * e, 1e-5 * e
        for near, place in approaches(mu, x, e, g):
            test = flat(psi, centres(gamma.push(near), gamma.push(mu)), radius)
            errors.append(abs(quotient(gamma.push, near, place, test, eps) - truth))
            moved, far = float(wasserstein(near, mu)) + 2 * eps, float((place - x).norm())
            allowed.append(2 * (bound.x * far + bound.mu * moved + radius))
            distances.append(e)
    yield bounded(max(a / b for a, b in zip(errors, allowed, strict=True)), len(errors))
    dots = series("five sequences", distances, errors, "dots")
    yield Figure("One limit", "distance of the sequence", "error", (dots,), "xy")


RATES = ((3, 1), (1, 2))
r"""Exponents of $\varepsilon=n^{-p}$ and of the radius of flatness $r=n^{-q}$."""


@statement(
    "A.def4.order",
    "(6)",
    "The limits in the definition may not be exchanged: the mass tends to zero first.",
    r"G(\mu,x)=x+\bar\mu,\ \mu=\delta_0,\ x=1:\qquad\varepsilon\ll r\Rightarrow1,\quad"
    r" r\ll\varepsilon\Rightarrow2",
    defect=planted(__name__, "RATES", ((3, 1), (3, 1))),
    api=("representation.flattened",),
)
def order_of_limits(s: Setting) -> Iterator[Check | Figure]:
    """Test functions that become flat faster, and slower, than the mass vanishes."""
    mu = Measure(ORIGIN)
    value = lambda eps, r: quotient(shift, mu, ONE, flat(first, ORIGIN, r), eps)
    inner, outer = [], []
    for n in (10.0, 100.0, 1000.0, 10000.0):
        small, large = ((n**-p, n**-q) for p, q in RATES)
        inner.append(abs(value(*small) - 1 - n**-3 / (1 + n**-3)))
        outer.append(value(*large))
    yield holds(max(inner), 1e-12, "1 plus the moved mean")
    error = max(abs(v - 2) for v in outer)
    yield refuted(error < 1e-12, f"the joint limit is {outer[-1]:.12f}, and G is 1", outer[-1])
    masses = torch.logspace(-6, -1, 60).tolist()
    curve = series("r = 0.001", masses, [value(eps, 1e-3) for eps in masses])
    yield Figure("The quotient at a fixed radius", "mass", "quotient", (curve,), "x")


def attended(pi: Tensor, mu: Measure) -> Tensor:
    r"""The mean $m(\xi)$ of the context with the weights of attention."""
    return pi @ mu.atoms


def influence(head: SelfAttention, mu: Measure, x: Tensor) -> Tensor:
    r"""$\partial_\mu\Gamma(\mu,\xi)[\delta_x]$ at all atoms $\xi$."""
    scores = (mu.atoms @ head.Q.mT) @ (torch.cat([mu.atoms, x[None]]) @ head.K.mT).mT
    masses = mu.weights * scores[:, :-1].exp()
    Z = masses.sum(-1, keepdim=True)
    return (x - attended(masses / Z, mu)) @ head.V.mT * scores[:, -1:].exp() / Z


@statement(
    "A.sec221",
    "Section 2.2.1",
    "The derivative has a regular part, from the new mass, and an irregular part, from the motion "
    "of the images of the context. For a softmax head both are known.",
    r"\psi(G(\mu,x))+\int\nabla\psi(G(\mu,y))\cdot\partial_\mu G(\mu,y)[\delta_x]\,d\mu(y),\qquad"
    r"\partial_\mu\Gamma(\mu,\xi)[\delta_x]=V\,(x-m(\xi))\frac{e^{s(\xi,x)}}{Z(\xi)}",
    defect=planted(__name__, "attended", lambda pi, mu: 0.0),
    seconds=(0.2, 0.1),
    api=("representation.derivative", "fields.SelfAttention"),
)
def two_parts(s: Setting) -> Iterator[Check | Figure]:
    """Quotients against the formulas, while the point moves along a line."""
    g = s.generator()
    head, mu = SelfAttention(*torch.randn(3, 2, 2, generator=g).unbind(0)), cloud(6, g)
    psi, images = lambda y: (2 * y[:, 0]).sin(), head(mu, mu.atoms)
    slopes = 2 * (2 * images[:, 0]).cos()
    place, parts, formula = torch.linspace(-0.7, 0.7, s.pick(29, 9)), [], []
    for t in place:
        x = torch.stack([t, t / 3])
        found = derivative(head, mu, x, psi, eta=ETA)
        parts.append(torch.stack([found.regular, found.irregular]))
        irregular = (mu.weights * slopes * influence(head, mu, x)[:, 0]).sum()
        formula.append(torch.stack([psi(head(mu, x[None]))[0], irregular]))
    a, b = torch.stack(parts), torch.stack(formula)
    errors = (a - b).abs().amax(0)
    yield holds(float(errors[0]), 1e-7, "regular part", len(a))
    yield holds(float(errors[1]), 1e-7, "irregular part", len(a))
    drawn = [series(n, place, a[:, k], "dots") for k, n in enumerate(("regular", "irregular"))]
    theory = [series("formula", place, b[:, k], "dashed") for k in (0, 1)]
    yield Figure("Two parts of a derivative", "first coordinate of x", "", (*drawn, *theory))


@statement(
    "A.sec221.c0",
    "Section 2.2.1",
    "The irregular part is not continuous in the test function for the uniform distance. The "
    "regular part is.",
    r"\psi_k(y)=\tfrac1k\sin ky\to0:\qquad\psi_k(G(\mu,x))\to0,\quad\int\nabla\psi_k\cdot"
    r"\partial_\mu G\,d\mu=1",
    defect=planted(__name__, "PARTS", PARTS[::-1]),
    api=("representation.derivative",),
)
def not_uniform(s: Setting) -> Iterator[Check]:
    """Small test functions of slope 1, with the map that adds the mean."""
    sizes, mu = (1, 10, 100), Measure(ORIGIN)
    found = [derivative(shift, mu, ONE, bounded_steep(k), eta=ETA) for k in sizes]
    regular, irregular = ([float(getattr(d, part)) for d in found] for part in PARTS)
    exact = [float(bounded_steep(k)(ONE[None])) for k in sizes]
    error = max(abs(a - b) for a, b in zip(regular, exact, strict=True))
    yield holds(error, 1e-6, "regular part sin(k)/k", len(sizes))
    error = max(abs(a - 1) for a in irregular)
    yield refuted(error < 1e-6, f"the irregular part stays at {irregular[-1]:.9f}", irregular[-1])


@statement(
    "A.lem3",
    "Lemma 3, (41)-(42)",
    "The regular part of the derivative of an in-context map is the test function at the image.",
    r"\overline Df(\mu,x,\psi)=\psi(G(\mu,x))",
    defect=lambda: replaced(
        MassPreserving, "quotient", lambda self, after, before, eta: (after - before) / eta
    ),
    seconds=(0.3, 0.1),
    api=("representation.derivative",),
)
def regular_part(s: Setting) -> Iterator[Check | Figure]:
    """Several maps and test functions, at points off and on the support."""
    g, errors, count = s.generator(), [], s.pick(10, 3)
    for gamma in several(s.pick(6, 4)):
        mu = cloud(5, g)
        for k in range(count):
            x, psi = (point(g) if k % 2 else mu.atoms[0]), wave(2.0, g)
            found = derivative(gamma, mu, x, psi, eta=ETA).regular
            errors.append(abs(float(found - psi(gamma(mu, x[None])))))
    yield holds(max(errors), 1e-8, trials=len(errors))
    gamma, x = zoo.attention(2), point(g)
    masses, truth = [10.0**-k for k in range(3, 13)], float(psi(gamma(mu, x[None])))
    test = flat(psi, gamma.push(mu).atoms, 1e-3)
    seen = [abs(quotient(gamma.push, mu, x, test, eps) - truth) for eps in masses]
    drawn = (series("one quotient", masses, seen),)
    caption = "To the right the mass is too large, to the left digits are lost."
    yield Figure("The error of a quotient", "mass", "error", drawn, "xy", caption)


def modulus(gamma: InContextMap) -> tuple[float, float]:
    r"""$L_x$ and $L_\mu$ on the unit disc."""
    bound = gamma.lipschitz(1.0)
    return bound.x, bound.mu


@statement(
    "A.lem3.uniform",
    "Lemma 3",
    "The regular part is uniformly continuous, and Lipschitz if the in-context map is.",
    r"|\overline Df(\mu,x,\psi)-\overline Df(\mu',x',\psi')|\le\|\psi-\psi'\|_\infty+R\,\bigl("
    r"L_x|x-x'|+L_\mu W_1(\mu,\mu')\bigr)",
    defect=planted(__name__, "modulus", lambda gamma: (gamma.lipschitz(1.0).x, 0.0)),
    seconds=(0.3, 0.1),
    api=("representation.derivative", "InContextMap.lipschitz"),
)
def uniform(s: Setting) -> Iterator[Check | Figure]:
    """Pairs at distances from 1 to 0.001 under attention; a quarter move the context alone."""
    g, lefts, rights = s.generator(), [], []
    value = lambda gamma, mu, x, u: derivative(gamma, mu, x, lambda y: y @ u, eta=ETA).regular
    for k in range(s.pick(60, 16)):
        gamma, e = zoo.attention(2, 0.3, 100 * s.seed + k), 10.0 ** -(k // 4 % 4)
        mu, x, u = cloud(5, g), point(g), unit(g)
        nu = mu.moved(mu.atoms + e * (cloud(5, g).atoms - mu.atoms))
        z, v = (x, u) if k % 4 == 0 else (x + e * (point(g) - x), u + e * (unit(g) - u))
        lefts.append(abs(float(value(gamma, mu, x, u) - value(gamma, nu, z, v))))
        L_x, L_mu = modulus(gamma)
        tests = float((u - v).norm()) * gamma.lipschitz(1.0).reach
        rights.append(tests + L_x * float((x - z).norm()) + L_mu * float(wasserstein(mu, nu)))
    ratios = [a / max(b, 1e-12) for a, b in zip(lefts, rights, strict=True)]
    yield bounded(max(ratios), len(ratios))
    ends = [min(rights), max(rights)]
    drawn = (series("pairs", rights, lefts, "dots"), series("equal", ends, ends, "dashed"))
    yield Figure("Changes of the regular part", "bound", "change", drawn, "xy")


def probed(mu: Measure, x: Tensor, eps: float) -> Measure:
    r"""$\mu+\varepsilon\delta_x$, normalised."""
    return added(mu, x, eps).normalise()


@statement(
    "A.eq40",
    "(40)",
    "A small mass at a point moves all images by at most a multiple of the mass.",
    r"\sup_y|G(\mu+\varepsilon\delta_x,y)-G(\mu,y)|\le L_\mu\,\tfrac\varepsilon{1+\varepsilon}\,"
    r"W_1(\mu,\delta_x)",
    defect=planted(__name__, "probed", added),
    seconds=(0.2, 0.1),
    api=("InContextMap.lipschitz", "wasserstein"),
)
def small_mass(s: Setting) -> Iterator[Check]:
    """Attention at 200 points, with masses of 0.1 and 0.001."""
    g, errors, ratios = s.generator(), [], []
    for k in range(s.pick(40, 10)):
        gamma, mu, x = zoo.attention(2, 0.3, 100 * s.seed + k), cloud(5, g), point(g)
        y = ball(200, 2, g).atoms
        far = float(wasserstein(mu, Measure(x[None])))
        for eps in (0.1, 1e-3):
            near, share = probed(mu, x, eps), eps / (1 + eps)
            errors.append(abs(float(wasserstein(near, mu)) - share * far))
            moved = float((gamma(near, y) - gamma(mu, y)).norm(dim=-1).max())
            ratios.append(moved / (gamma.lipschitz(1.0).mu * share * far))
    yield holds(max(errors), 1e-12, "distance of the contexts", len(errors))
    yield bounded(max(ratios), len(ratios), "images")


@statement(
    "A.eq42.P",
    "appendix A.1",
    "If a map is extended to positive measures with values of mass one, the limit has the mean of "
    "the test function taken off.",
    r"f(c\mu)=c\,f(\mu):\ \psi(G(\mu,x)),\qquad f(c\mu)=f(\mu):\ \psi(G(\mu,x))-\langle f(\mu),"
    r"\psi\rangle",
    defect=planted(__name__, "EXTENSIONS", (MassPreserving(), MassPreserving())),
    api=("representation.MassPreserving", "representation.ProbabilityValued"),
    note="(42) and (44) hold for the first of the two only.",
)
def two_extensions(s: Setting) -> Iterator[Check]:
    """Both limits of attention, with curved test functions."""
    g, kept, taken, means = s.generator(), [], [], []
    for k in range(s.pick(10, 4)):
        gamma, mu, x, psi = zoo.attention(2, 1.0, k), cloud(5, g), point(g), wave(2.0, g)
        value, mean = float(psi(gamma(mu, x[None]))), float(gamma.push(mu).integrate(psi))
        found = [derivative(gamma, mu, x, psi, extension=e, eta=ETA) for e in EXTENSIONS]
        one, other = (float(d.regular) for d in found)
        kept.append(abs(one - value))
        taken.append(abs(other - (value - mean)))
        means.append(abs(other - value))
    yield holds(max(kept), 1e-8, "mass carried along", len(kept))
    yield holds(max(taken), 1e-8, "values of mass one", len(taken))
    yield refuted(max(means) > 0.01, f"without the mean it is off by {max(means):.2g}", max(means))


def root(mean: Tensor) -> Tensor:
    r"""$|\bar\mu|^{1/2}$."""
    return mean.abs().sqrt()


@statement(
    "A.rem1",
    "Remark 1",
    "The regular part may exist where the derivative does not.",
    r"G(\mu,x)=x+|\bar\mu|^{1/2},\ \bar\mu=0:\qquad\tfrac1\varepsilon\langle f(\mu_\varepsilon)"
    r"-f(\mu),\psi\rangle\sim\varepsilon^{-1/2},\quad\overline Df=\psi(x)",
    defect=planted(__name__, "root", torch.abs),
    api=("representation.flattened",),
)
def only_regular(s: Setting) -> Iterator[Check | Figure]:
    """A map that adds the root of the mean, at mean zero, with and without flat coordinates."""
    f = lambda nu: nu.push(lambda y: y + root(nu.mean()))
    mu, x = Measure(torch.tensor([[-1.0], [1.0]])), torch.tensor([0.5])
    masses = [10.0**-k for k in range(3, 10)]
    test = flat(first, f(mu).atoms, 0.1)  # images move by less than 0.03
    total = [abs(quotient(f, mu, x, first, eps)) for eps in masses]
    error = [abs(quotient(f, mu, x, test, eps) - 0.5) for eps in masses]
    for name, values, theory in (("quotient", total, -0.5), ("regular error", error, 0.5)):
        exponent, _ = power(list(zip(masses, values, strict=True)))
        yield rate(exponent, theory, 0.02, f"exponent of the {name}")
    drawn = (series("quotient", masses, total), series("error of the regular part", masses, error))
    yield Figure("A derivative that does not exist", "mass", "value", drawn, "xy")


@statement(
    "A.rem2",
    "Remark 2",
    "Every test function is a uniform limit of test functions that are constant near given "
    "points. Their slope need not be larger.",
    r"\psi_n=\psi\circ T_r,\qquad|T_r(y)-y|\le r,\quad T_r\ \text{constant near the points},\quad"
    r"\mathrm{Lip}(T_r)\le1",
    defect=planted(__name__, "safe_radius", lambda points: 0.8 * float(torch.pdist(points).min())),
    api=("representation.flattened",),
    note="The coordinates of the library have Lipschitz constant 2; soft thresholds have 1.",
)
def flattening(s: Setting) -> Iterator[Check | Figure]:
    """Nine points: flat coordinates of the library, and a composition of soft thresholds."""
    ways = (("flat coordinates", flattened, 2.0), ("soft thresholds", soft, 1.0))
    for name, T, constant in ways:
        g, moved, changes, slopes = s.generator(), [], [], []
        for _ in range(s.pick(20, 5)):
            points = ball(9, 2, g).atoms
            r, i, j = safe_radius(points), *torch.triu_indices(9, 9, 1)
            noise = torch.nn.functional.normalize(torch.randn(2000, 2, generator=g))
            steps = 1e-4 * torch.cat([noise, points[i] - points[j]])  # and across the middles
            y = torch.cat([ball(2000, 2, g).atoms, (points[i] + points[j]) / 2 - steps[2000:] / 2])
            images, others = T(y, points, r), T(y + steps, points, r)
            moved.append(float((images - y).norm(dim=-1).max()) / r)
            slopes.append(float(((others - images).norm(dim=-1) / steps.norm(dim=-1)).max()))
            near = points + 0.5 * r / 9 * noise[:9]
            changes.append(float((T(near, points, r) - T(points, points, r)).abs().max()))
        yield bounded(max(moved), len(moved), f"{name}: motion")
        yield holds(max(changes), 1e-15, f"{name}: constant near the points, which", len(changes))
        yield bounded(max(slopes) / constant, 2036 * len(slopes), f"{name}: slope")
    points = torch.tensor([[-0.6], [0.0], [0.5]])
    drawn = [series(name, LINE, T(LINE[:, None], points, 0.1)[:, 0]) for name, T, _ in ways]
    drawn.append(series("identity", LINE[[0, -1]], LINE[[0, -1]], "dashed"))
    yield Figure("Coordinates constant near three points", "y", "T(y)", tuple(drawn))


def on_support(psi: Callable[[Tensor], Tensor], images: Tensor) -> Callable[[Tensor], Tensor]:
    """A test function made constant near the images of the context."""
    return flat(psi, images, safe_radius(images))


@statement(
    "A.rem3",
    "Remark 3, (54)",
    "For test functions that are constant near the images of the context, the derivative is its "
    "regular part.",
    r"\nabla\psi=0\ \text{near }\operatorname{supp}f(\mu):\qquad\tfrac1\varepsilon\langle f(\mu_"
    r"\varepsilon)-f(\mu),\psi\rangle\to\psi(G(\mu,x))",
    defect=planted(__name__, "on_support", lambda psi, images: psi),
    api=("representation.derivative",),
)
def constant_nearby(s: Setting) -> Iterator[Check]:
    """Attention with steep test functions, made constant near the images."""
    g, rest, errors = s.generator(), [], []
    for k in range(s.pick(20, 6)):
        gamma, mu, x = zoo.attention(2, 1.0, 100 * s.seed + k), cloud(5, g), point(g)
        psi = on_support(wave(3.0, g), gamma.push(mu).atoms)
        found = derivative(gamma, mu, x, psi, eta=ETA)
        rest.append(abs(float(found.irregular)))
        errors.append(abs(float(found.total - psi(gamma(mu, x[None])))))
    yield holds(max(rest), 1e-9, "irregular part 0", len(rest))
    yield holds(max(errors), 1e-8, "derivative", len(errors))
