r"""Proposition 1: continuous and support preserving, without a continuous in-context map.

The formulas (62) to (66) of the paper are lost. Two maps have their properties, a rational and a
smooth one: $f(\mu)=(T_{s(\mu)})_\sharp\mu$, where $s(\mu)=\int\eta\,d\mu$ is the mass near 0 and
the slope of $T_s$ at 0 grows without bound as $s$ vanishes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._tools.fits import power
from ...distances import wasserstein
from ...measures import Measure, MeasureMap
from ...pictures import Figure, series
from ...representation import Verdict, characterise, decode, zoo
from .._checks import Check, bounded, holds, max, min, rate, refuted
from .._laws import beside_one, box, bump, dyadic, shuffled, stretched
from .._statement import Setting, planted, statement

LOWEST = 1 - 4 / (3 * math.sqrt(3))
"""The infimum of the slopes of the smooth form."""


def smooth_bump(x: Tensor) -> Tensor:
    r"""$\eta(x)=(1-4x^2)_+^2$."""
    return (1 - 4 * x.square()).clamp_min(0).square()


def smooth_stretched(s: Tensor, x: Tensor) -> Tensor:
    r"""$T_s(x)=x+\frac12\eta(x)\frac x{\sqrt{s^2+4x^2}}$."""
    return x + smooth_bump(x) / 2 * x / (s.square() + 4 * x.square()).sqrt()


def smooth_slope(s: Tensor, x: Tensor) -> Tensor:
    r"""$T_s'(x)=1-\frac{8(1-4x^2)x^2}{\sqrt{s^2+4x^2}}+\frac{(1-4x^2)^2s^2}{2(s^2+4x^2)^{3/2}}$."""
    inside, root = (1 - 4 * x.square()).clamp_min(0), (s.square() + 4 * x.square()).sqrt()
    return 1 - 8 * inside * x.square() / root + inside.square() * s.square() / (2 * root**3)


@dataclass(frozen=True)
class Form:
    r"""One of the two maps.

    Args:
        name: rational or smooth.
        f: the map between measures.
        eta: the function that weighs the mass near 0.
        T: the map of points, $T_s(x)$.
        image: the limit of the images of $\frac1n$ at the mass $\frac1n$.
        slope: the limit of $s\,T_s'(0)$.
    """

    name: str
    f: MeasureMap
    eta: Callable[[Tensor], Tensor]
    T: Callable[[Tensor, Tensor], Tensor]
    image: float
    slope: float


RATIONAL = Form("rational", zoo.counterexample, bump, stretched, 1 / 3, 1.0)
SMOOTH = Form(
    "smooth", zoo.smooth_counterexample, smooth_bump, smooth_stretched, 0.5 / math.sqrt(5), 0.5
)


def forms() -> tuple[Form, ...]:
    """Both maps."""
    return RATIONAL, SMOOTH


def light_clouds(count: int, atoms: int, g: torch.Generator) -> Measure:
    r"""A batch of $(1-m)\delta_1+m\cdot$ some atoms, masses over four decades, distances over six.

    The atoms of a cloud lie about 0, or about a point where $\eta$ has a kink.
    """
    masses = 10 ** (-4 * torch.rand(count, generator=g))
    sizes = 10 ** (-6 * torch.rand(count, generator=g))
    centres = torch.tensor([0.0, 0.0, 0.25, 0.5])[torch.randint(4, (count,), generator=g)]
    spread = sizes[:, None] * (2 * torch.rand(count, atoms, generator=g) - 1)
    return beside_one(masses, (centres[:, None] + spread).clamp(-1, 1))


@statement(
    "A.eq62",
    "(62)-(63), as we replace them",
    "The map of points is continuously differentiable and increasing, with slopes above 0.23.",
    r"T_s(x)=x+\tfrac12\eta(x)\frac x{\sqrt{s^2+4x^2}},\qquad"
    r" T_s'\ge1-\tfrac4{3\sqrt3}\approx0.2302,\qquad\eta=(1-4x^2)_+^2",
    defect=planted(__name__, "smooth_bump", lambda x: (1 - 4 * x.square()).clamp_min(0)),
    api=("representation.zoo.smooth_counterexample",),
    note="The paper's own formulas are lost.",
)
def increasing(s: Setting) -> Iterator[Check | Figure]:
    """The formula of the slope against automatic differentiation, its minimum, and at a half."""
    masses = torch.logspace(0, -3, s.pick(31, 7))
    grid = torch.linspace(-1, 1, 2001)
    slopes, errors = [], []
    for mass in masses:
        x = grid.clone().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(smooth_stretched(mass, x).sum(), x)
        slopes.append(smooth_slope(mass, grid))
        errors.append(((found - slopes[-1]) / slopes[-1]).abs().max())
    trials = len(masses) * len(grid)
    yield holds(float(max(errors)), 1e-13, "the slope", trials)
    yield bounded(LOWEST / float(torch.stack(slopes).min()), trials, "smallest slope:", least=0.99)
    h = 1e-6
    inner = (smooth_stretched(masses, torch.tensor(0.5 - h)) - 0.5 + h) / h
    yield holds(float(inner.abs().max()), 10 * h, "the slope 1 on both sides of one half")
    x = torch.linspace(-1, 1, 101)
    shown = [
        series(f"s = {mass:g}", x, smooth_stretched(torch.tensor(mass), x))
        for mass in (1.0, 0.1, 0.01, 0.001)
    ]
    yield Figure("The map of points", "x", "T_s(x)", tuple(shown))


def halved_at_zero(mu: Measure) -> Measure:
    """The rational form, but an atom at 0 goes half to each side."""
    two = zoo.counterexample(mu).split(2)
    sides = torch.tensor([[-0.1], [0.1]]).repeat(mu.n, 1)
    return two.moved(torch.where(two.atoms == 0, sides, two.atoms))


@statement(
    "A.prop1.b1",
    "(64)-(66), (69)",
    "The counterexample is the push-forward by one map of points for every measure: it preserves "
    "supports.",
    r"f(\mu)=(T_{s(\mu)})_\sharp\,\mu,\qquad s(\mu)=\int\eta\,d\mu",
    defect=planted(
        __name__, "RATIONAL", Form("rational", halved_at_zero, bump, stretched, 1 / 3, 1.0)
    ),
    api=("representation.zoo.counterexample", "representation.decode"),
)
def supports(s: Setting) -> Iterator[Check]:
    """Shuffled images are labelled by their masses, and compared with the map of points."""
    g, trials = s.generator(), s.pick(20, 5)
    for form in forms():
        masses, places = [], []
        for _ in range(trials):
            atoms = box(10, 1, g).atoms
            atoms[0] = 0.0
            mu = dyadic(atoms)
            out = shuffled(form.f(mu), g)
            decoding = decode(mu.weights.numpy(), out.weights.numpy(), 1e-9)
            masses.append(decoding.residual)
            if decoding.owner is None:
                places.append(math.inf)
                continue
            expected = form.T(mu.integrate(form.eta(atoms[:, 0])), atoms)
            places.append(float((out.atoms[decoding.owner] - expected).abs().max()))
        yield holds(max(masses), 1e-12, f"{form.name}: mass", trials)
        yield holds(max(places), 1e-13, "image", trials)


def mass_near_zero(mu: Measure, form: Form) -> Tensor:
    r"""$s(\mu)=\int\eta\,d\mu$."""
    return mu.integrate(form.eta(mu.atoms[..., 0]))


@statement(
    "A.eq68",
    "(68)",
    "The counterexample moves a measure by at most half of the mass near 0.",
    r"W_1(f(\mu),\mu)\le\tfrac12\,s(\mu)",
    defect=planted(
        __name__, "mass_near_zero", lambda mu, form: mu.integrate(form.eta(mu.atoms[..., 0])) ** 2
    ),
    seconds=(0.3, 0.2),
    api=("representation.zoo.counterexample", "wasserstein"),
)
def moves_little(s: Setting) -> Iterator[Check | Figure]:
    """Clouds of one to five atoms, of any mass near 0."""
    count = s.pick(200, 40)
    for form in forms():
        sides = []
        for atoms in range(1, 6):
            mu = light_clouds(count, atoms, s.generator(atoms))
            sides.append(torch.stack([mass_near_zero(mu, form) / 2, wasserstein(form.f(mu), mu)]))
        right, left = torch.cat(sides, -1)
        worst = float((left / right.clamp_min(1e-300)).max())
        yield bounded(worst, right.numel(), f"{form.name}:", least=0.4)
        if form is RATIONAL:
            yield Figure(
                "How far the counterexample moves a measure", "half of the mass near 0",
                "W1(f(mu), mu)", (
                    series("clouds", right, left, "dots"),
                    series("the bound", (1e-5, 0.5), (1e-5, 0.5), "dashed"),
                ), log="xy",
            )  # fmt: skip


def unsmoothed(mu: Measure) -> Measure:
    """The rational form with the mass of an interval, which jumps."""
    x = mu.atoms[..., 0]
    s = mu.integrate((x.abs() <= 0.25).to(x))[..., None]
    return mu.moved(torch.where(s > 0, stretched(s, x), x)[..., None])


@statement(
    "A.lem5",
    "Lemma 5, (70)-(72)",
    "The counterexample is continuous, with a Hölder exponent of one half.",
    r"W_1(f(\mu),f(\nu))\le9\,W_1(\mu,\nu)^{1/2}",
    defect=planted(
        __name__, "RATIONAL", Form("rational", unsmoothed, bump, stretched, 1 / 3, 1.0)
    ),
    seconds=(0.2, 0.2),
    api=("representation.zoo.counterexample", "wasserstein"),
    note="Less than 1.1 in place of 9 was seen so far.",
)
def continuous(s: Setting) -> Iterator[Check | Figure]:
    """Light clouds, moved by distances over six decades."""
    count = s.pick(1000, 500)
    for form in forms():
        sides = []
        for atoms in (1, 2, 3):
            g = s.generator(atoms)
            mu = light_clouds(count, atoms, g)
            size = 10 ** (-6 * torch.rand(count, 1, 1, generator=g))
            move = size * (2 * torch.rand(mu.atoms.shape, generator=g) - 1)
            nu = mu.moved((mu.atoms + move).clamp(-1, 1))
            sides.append(torch.stack([wasserstein(mu, nu), wasserstein(form.f(mu), form.f(nu))]))
        before, after = torch.cat(sides, -1)
        worst = float((after / before.sqrt().clamp_min(1e-300)).max())
        yield bounded(worst / 9, before.numel(), f"{form.name}:")
        if form is RATIONAL:
            shown = torch.tensor([1e-8, 1.0])
            yield Figure(
                "The modulus of continuity of the counterexample", "W1 before", "W1 after", (
                    series("pairs", before, after, "dots"),
                    series("the bound", shown, 9 * shown.sqrt(), "dashed"),
                    series("1.1 roots", shown, 1.1 * shown.sqrt(), "dashed"),
                ), log="xy",
            )  # fmt: skip


def small_step(m: float) -> float:
    """How far the atom at 0 moves, if its mass is m."""
    return m / 2


@statement(
    "A.prop1.half",
    "as we read Proposition 1",
    "The exponent one half is the best.",
    r"\frac{W_1(f(\mu_m),f(\nu_m))}{W_1(\mu_m,\nu_m)^{1/2}}=\frac{1+m}{2\sqrt2}\to0.35355,\qquad"
    r" \mu_m,\nu_m=(1-m)\delta_1+m\,\delta_{0,\,m/2}",
    defect=planted(__name__, "small_step", lambda m: m**2),
    api=("representation.zoo.counterexample", "wasserstein"),
)
def sharp(s: Setting) -> Iterator[Check | Figure]:
    """Masses from 1/16 to 1/2048, the atom at 0 moved by half of its mass."""
    pairs, errors = [], []
    for k in range(4, 12):
        m = 2.0**-k
        ends = (torch.tensor([0.0]), torch.tensor([small_step(m)]))
        mu, nu = (beside_one(torch.tensor(m), x) for x in ends)
        before = float(wasserstein(mu, nu))
        after = float(wasserstein(zoo.counterexample(mu), zoo.counterexample(nu)))
        pairs.append((before, after))
        errors.append(abs(after / math.sqrt(before) - (1 + m) / math.sqrt(8)))
    yield holds(max(errors), 1e-10, "the ratio", len(errors))
    yield rate(power(pairs)[0], 0.5, 0.05, "exponent")
    x, y = zip(*pairs, strict=True)
    root = [0.35355 * b**0.5 for b in x]
    yield Figure(
        "The exponent one half is reached", "W1 before", "W1 after",
        (series("measured", x, y, "dots"), series("0.3536 roots", x, root, "dashed")),
        log="xy",
    )  # fmt: skip


def light_atom(n: int, sign: int) -> Measure:
    r"""$\mu_n^\pm=(1-\frac1n)\delta_1+\frac1n\delta_{\pm1/n}$."""
    return beside_one(torch.tensor(1 / n), torch.tensor([sign / n]))


@statement(
    "A.lem6",
    "Lemma 6, (73)-(85)",
    "The counterexample has no continuous in-context map: two sequences tend to the same measure "
    "and point, and their images do not.",
    r"\mu_n^\pm=(1-\tfrac1n)\delta_1+\tfrac1n\delta_{\pm1/n}\to\delta_1,\qquad"
    r" G(\mu_n^\pm,\pm\tfrac1n)\to\pm\tfrac13\ \Bigl(\text{smooth: }\pm\tfrac1{2\sqrt5}\Bigr)",
    defect=planted(
        __name__, "light_atom", lambda n, sign: beside_one(torch.tensor(1 / n), torch.ones(1) / n)
    ),
    api=("representation.zoo.counterexample",),
)
def no_limit(s: Setting) -> Iterator[Check | Figure]:
    """The images of the light atoms as they tend to 0 from both sides."""
    sizes = [10**k for k in range(1, 7)]
    for form in forms():
        above, below = (
            [float(form.f(light_atom(n, sign)).atoms[1]) for n in sizes] for sign in (1, -1)
        )
        errors = [
            n * max(abs(up - form.image), abs(down + form.image))
            for n, up, down in zip(sizes, above, below, strict=True)
        ]
        yield bounded(max(errors) / 3, len(sizes), f"{form.name}: distance to the limits by 3/n:")
        apart = float(wasserstein(light_atom(sizes[-1], 1), light_atom(sizes[-1], -1)))
        gap = above[-1] - below[-1]
        seen = gap > form.image and apart < 1e-11
        yield refuted(seen, f"images {gap:.3g} apart at distance {apart:.0e}", gap)
        if form is RATIONAL:
            yield Figure(
                "Two sequences meet, their images do not", "n", "image of the light atom",
                (series("from above", sizes, above), series("from below", sizes, below)), log="x",
            )  # fmt: skip


def place(c: float, eps: float) -> float:
    """Where the small mass is put."""
    return c * eps


@statement(
    "A.prop1.b2",
    "as we read Proposition 1",
    "The regular part of the derivative does not exist at the Dirac measure in 1 and the point 0: "
    "the quotients tend to any value, as the point tends to 0.",
    r"x=c\,\varepsilon:\quad\tfrac1\varepsilon\langle f(\delta_1+\varepsilon\delta_x)-f(\delta_1),"
    r"\psi\rangle\to\psi\Bigl(\frac c{1+2|c|}\Bigr)",
    defect=planted(__name__, "place", lambda c, eps: c / 10),
    api=("representation.zoo.counterexample",),
)
def no_derivative(s: Setting) -> Iterator[Check | Figure]:
    """Seven ways to let the point tend to 0 with the mass."""
    psi = lambda y: y[..., 0].clamp_max(0.5) - 0.5  # constant, and 0, near the image of the atom
    ways, masses = (-30.0, -3.0, -1.0, 0.0, 1.0, 3.0, 30.0), (1e-4, 1e-6, 1e-8)
    start = zoo.counterexample(Measure(torch.ones(1, 1))).integrate(psi)

    def quotient(c: float, eps: float) -> float:
        atoms = torch.tensor([[1.0], [place(c, eps)]])
        moved = zoo.counterexample(Measure(atoms, torch.tensor([1.0, eps])))
        return float((moved.integrate(psi) - start) / eps) + 0.5

    error = lambda c, eps: abs(quotient(c, eps) - c / (1 + 2 * abs(c)))
    # the first terms of the error are c/(1+2|c|) + c/(1+2|c|)^2 <= 1/2 + 1/8, times eps
    worst = max(error(c, eps) / eps for eps in masses for c in ways)
    yield bounded(worst, len(ways) * len(masses), "the error, by the mass:")
    limits = [quotient(c, masses[-1]) for c in ways]
    width = max(limits) - min(limits)
    yield refuted(width > 0.9, f"limits from {min(limits):.3f} to {max(limits):.3f}", width)
    grid = torch.linspace(-30, 30, 121)
    theory = grid / (1 + 2 * grid.abs())
    yield Figure(
        "The limit of the quotients depends on the way", "c", "limit of the quotient",
        (series("measured", ways, limits, "dots"), series("c/(1+2|c|)", grid, theory, "dashed")),
    )  # fmt: skip


@statement(
    "A.prop1.verdict",
    "Proposition 1",
    "Seen from outside, by calls alone: the image of a small mass jumps, and its slope at 0 grows "
    "like one over the mass.",
    r"\Lambda(\eta)\,\eta\to1\ (\text{smooth: }\tfrac12),\qquad"
    r" \Lambda(\eta)=\sup|y_\eta(x)-y_\eta(x')|/|x-x'|",
    defect=planted(__name__, "RATIONAL", Form("rational", zoo.root, bump, stretched, 1 / 3, 1.0)),
    seconds=(2.6, 0.1),
    api=("characterise", "representation.zoo.counterexample"),
)
def seen_from_outside(s: Setting) -> Iterator[Check | Figure]:
    """Slopes at 0 for three masses, and the verdict on the line."""
    for form in forms():
        masses, slopes = (1e-2, 1e-4, 1e-6), []
        for eta in masses:
            h = 1e-4 * eta
            x = torch.tensor([[0.0], [h]])
            ends = form.f(beside_one(torch.tensor([eta, eta]), x)).atoms[:, 1, 0]
            slopes.append(float(ends[1] - ends[0]) / h)
        errors = [abs(k * eta - form.slope) for k, eta in zip(slopes, masses, strict=True)]
        allowed = [2 * eta + 1e-3 for eta in masses]
        worst = max(e / a for e, a in zip(errors, allowed, strict=True))
        yield bounded(worst, len(masses), f"{form.name}: slope times mass:")
        if not s.quick:
            found = characterise(form.f, lambda n, g: box(n, 1, g), size=6, seed=s.seed).verdict
            yield refuted(found is Verdict.NOT_CONTINUOUS, f"the verdict is {found}")
        if form is RATIONAL:
            inverse = [1 / eta for eta in masses]
            yield Figure(
                "The slope at 0 of the image of a small mass", "mass", "slope",
                (series("measured", masses, slopes, "dots"),
                 series("1/mass", masses, inverse, "dashed")), log="xy",
            )  # fmt: skip


def prompts(n: int) -> tuple[Measure, Measure]:
    """The two prompts: three tokens near 0, one of them the name."""
    return zoo.alice_elise(n)


def four_near_zero(n: int) -> tuple[Measure, Measure]:
    """The two prompts with one more token near 0."""
    both = [mu.atoms.clone() for mu in zoo.alice_elise(n)]
    for atoms in both:
        atoms[-1] = 0.05
    return Measure(both[0]), Measure(both[1])


@statement(
    "A.prop1.alice",
    "Appendix F, last part",
    "Of two long prompts that differ in one token, which lies near 0, the images of that token "
    "tend to one half and minus one half, while the prompts tend to the same measure.",
    r"y=\frac{(1+3/n)\,x}{3/n+2|x|}\to\pm\tfrac12,\qquad x=\pm0.002,\qquad W_1=\frac{0.004}n\to0",
    defect=planted(__name__, "prompts", four_near_zero),
    seconds=(0.4, 0.1),
    api=("representation.zoo.alice_elise", "wasserstein"),
)
def alice(s: Setting) -> Iterator[Check | Figure]:
    """Prompts of up to a million tokens against the formula."""
    sizes, images, errors, apart = [10**k for k in range(1, s.pick(7, 6))], [], [], []
    after = 0.0
    for n in sizes:
        mu, nu = prompts(n)
        ends = [zoo.counterexample(m) for m in (mu, nu)]
        y, z = (float(m.atoms[0]) for m in ends)
        after = max(after, abs(n * float(wasserstein(*ends)) / (2 * y) - 1))
        exact = (1 + 3 / n) * 0.002 / (3 / n + 0.004)
        errors += [abs(y - exact), abs(z + exact)]
        apart.append(float(wasserstein(mu, nu)))
        images.append(y)
    yield holds(max(errors), 1e-12, "the image", len(errors))
    far = max(abs(n * w / 0.004 - 1) for n, w in zip(sizes, apart, strict=True))
    yield holds(far, 1e-9, "the distance of the prompts", len(sizes))
    yield holds(after, 1e-9, "the distance of their images", len(sizes))
    seen = images[-1] > 0.49 and apart[-1] < 1e-7
    said = f"images {2 * images[-1]:.4f} apart at distance {apart[-1]:.0e}"
    yield refuted(seen, said, images[-1])
    yield Figure(
        "One token of a long prompt", "tokens", "image of the name",
        (series("Alice", sizes, images), series("Elise", sizes, [-y for y in images])), log="x",
    )  # fmt: skip
