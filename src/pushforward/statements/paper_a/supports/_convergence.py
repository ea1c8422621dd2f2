"""Limits of measures: push-forwards of densities, weak convergence, prompts that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ...._tools.fits import power
from ....distances import wasserstein
from ....maps import InContextMap
from ....measures import Measure
from ....pictures import Figure, series
from ....representation import decode, zoo
from ..._checks import Check, bounded, holds, max, min, rate, refuted
from ..._laws import ball, box, cones, simplex
from ..._statement import Setting, planted, statement


def cumulative(mu: Measure, x: Tensor) -> Tensor:
    r"""$F_\mu(x)=\mu((-\infty,x])$."""
    return (mu.weights * (mu.atoms[:, 0] <= x[:, None])).sum(-1)


def left_limit(mu: Measure, x: Tensor) -> Tensor:
    r"""$\mu((-\infty,x))$."""
    return (mu.weights * (mu.atoms[:, 0] < x[:, None])).sum(-1)


@statement(
    "A.eq67",
    "(67)",
    "On the line the distance is the area between the distribution functions.",
    r"W_1(\mu,\nu)=\int|F_\mu(x)-F_\nu(x)|\,dx",
    defect=planted(__name__, "cumulative", left_limit),
    seconds=(0.2, 0.1),
    api=("wasserstein",),
)
def on_the_line(s: Setting) -> Iterator[Check | Figure]:
    """The area, the library's quantiles, and the solver for clouds in the plane; with ties."""
    g, lines, planes = s.generator(), [], []
    count = s.pick(50, 15)
    for k in range(count):
        sizes = (5 + 35 * k // count, 5 + 7 * k % 36)
        mu, nu = (simplex((10 * box(n, 1, g).atoms).round() / 10, g) for n in sizes)
        ends = torch.cat([mu.atoms, nu.atoms])[:, 0].sort().values
        F, G = cumulative(mu, ends), cumulative(nu, ends)
        area = ((F - G).abs()[:-1] * ends.diff()).sum()
        flat = [m.push(lambda x: torch.cat([x, 0 * x], -1)) for m in (mu, nu)]
        lines.append(abs(float(area - wasserstein(mu, nu))))
        planes.append(abs(float(area - wasserstein(*flat))))
    yield holds(max(lines), 1e-13, "against quantiles", count)
    yield holds(max(planes), 1e-13, "against the plane", count)
    x = torch.linspace(-1.1, 1.1, 111)
    F, G = cumulative(mu, x), cumulative(nu, x)
    drawn = (series("F", x, F), series("G", x, G), series("|F - G|", x, (F - G).abs(), "area"))
    yield Figure("Two distribution functions", "x", "mass up to x", drawn)


def image(gamma: InContextMap, tokens: Measure) -> Measure:
    """The image of a sequence of tokens."""
    return gamma.push(tokens)


def distinct_only(gamma: InContextMap, tokens: Measure) -> Measure:
    """The same if the map sees every different token once."""
    return tokens.push(gamma.at(Measure(tokens.merge().atoms)))


def repetitions(weights: Tensor, length: int) -> Tensor:
    """How often each token is repeated, so that shares of a sequence are near to weights."""
    ends = (weights.cumsum(0) * length).round().long()
    return ends.diff(prepend=ends.new_zeros(1))


@statement(
    "A.lem2",
    "Lemma 2, (26)-(36)",
    "A continuous map that preserves supports keeps any real masses: they are limits of sequences "
    "with repeated tokens.",
    r"\tfrac{k_i}N\to a_i:\qquad f\bigl(\textstyle\sum_i\tfrac{k_i}N\delta_{x_i}\bigr)\to"
    r" f\bigl(\sum_ia_i\delta_{x_i}\bigr)=\sum_ia_i\delta_{y_i}",
    defect=planted(__name__, "image", distinct_only),
    seconds=(1.6, 0.4),
    api=("representation.decode", "wasserstein"),
    note="Floating-point numbers are rational: irrational masses are seen as limits only.",
)
def real_weights(s: Setting) -> Iterator[Check | Figure]:
    """Sequences of growing length against the measure with random weights."""
    g, gamma = s.generator(), zoo.stack(2, 2)
    lengths = s.pick([20, 50, 100, 200, 500, 1000, 2000], [20, 60, 200, 600])
    residuals, pairs = [], []
    for _ in range(s.pick(4, 2)):
        mu = simplex(ball(5, 2, g).atoms, g)
        limit = gamma.push(mu)
        found = decode(mu.weights.numpy(), limit.merge().weights.numpy(), 1e-12)
        residuals.append(found.residual)
        for length in lengths:
            tokens = Measure(mu.atoms.repeat_interleave(repetitions(mu.weights, length), 0))
            moved = float(wasserstein(image(gamma, tokens), limit))
            pairs.append((float(wasserstein(tokens, mu)), moved))
    yield holds(max(residuals), 1e-12, "masses in the limit are sums of masses, which")
    # quotients differ by a factor of two, with the direction of the change; changes by a hundred
    exponent, _ = power(pairs)
    yield rate(exponent, 1.0, 0.2, "distance of images by that of contexts, exponent")
    x, y = zip(*sorted(pairs), strict=True)
    drawn = (series("images", x, y, "dots"), series("equal", x, x, "dashed"))
    yield Figure("Tokens repeated", "W1 of the contexts", "W1 of the images", drawn, "xy")


def pushed(mu: Measure, T: Callable[[Tensor], Tensor]) -> Measure:
    """The push-forward of a measure."""
    return mu.push(T)


def sorted_points(mu: Measure, T: Callable[[Tensor], Tensor]) -> Measure:
    """The same with points sorted and weights left where they were."""
    return Measure(T(mu.atoms).sort(0).values, mu.weights)


@statement(
    "A.A2.push",
    "appendix A.2",
    "A push-forward moves atoms and keeps their masses; integrals change variables.",
    r"\int\varphi\,d(T_\sharp\mu)=\int\varphi\circ T\,d\mu,\qquad T_\sharp\textstyle\sum_i"
    r"a_i\delta_{x_i}=\sum_ia_i\delta_{T(x_i)}",
    defect=planted(__name__, "pushed", sorted_points),
    api=("Measure.push", "Measure.integrate"),
    note="Push-forwards to a manifold are tested by this alone.",
)
def change_of_variables(s: Setting) -> Iterator[Check]:
    """Random maps of the plane, with smooth functions and with half-planes."""
    g, errors = s.generator(), []
    for _ in range(s.pick(20, 8)):
        mu = simplex(box(9, 2, g).atoms, g)
        A, u = torch.randn(2, 2, generator=g), torch.randn(2, generator=g)
        T = lambda x, A=A: (x @ A).sin() + x
        for phi in (lambda y, u=u: (y @ u).cos(), lambda y, u=u: (y @ u > 0).double()):
            direct = sum(a * phi(T(x[None]))[0] for a, x in zip(mu.weights, mu.atoms, strict=True))
            errors.append(abs(float(pushed(mu, T).integrate(phi) - direct)))
    yield holds(max(errors), 1e-14, trials=len(errors))


def stretch(x: Tensor) -> Tensor:
    r"""$T(x)=x+0.12\sin2\pi x$, which increases."""
    return x + 0.12 * (2 * torch.pi * x).sin()


def slope(x: Tensor) -> Tensor:
    r"""$T'(x)$."""
    return 1 + 0.24 * torch.pi * (2 * torch.pi * x).cos()


def inverse(y: Tensor) -> Tensor:
    r"""$T^{-1}(y)$ in the unit interval, by bisection."""
    low, high = torch.zeros_like(y), torch.ones_like(y)
    for _ in range(52):
        middle = (low + high) / 2
        below = stretch(middle) < y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def density(y: Tensor) -> Tensor:
    """The density of the push-forward of the uniform law on the unit interval."""
    return 1 / slope(inverse(y))


@statement(
    "A.A2.density",
    "appendix A.2",
    "The density of a push-forward is the density at the preimage times the Jacobian of the "
    "inverse.",
    r"(T_\sharp\rho)(y)=\rho(T^{-1}y)\,|\det DT^{-1}(y)|",
    defect=planted(__name__, "density", lambda y: slope(inverse(y))),
    api=("Measure.grid", "Measure.push"),
)
def densities(s: Setting) -> Iterator[Check | Figure]:
    """Midpoint grids pushed forward; a cell is a quarter of its length away from its centre."""
    cells = Measure.grid(0.0, 1.0, size=20_000).atoms
    limit = Measure(cells, density(cells[:, 0])).normalise()
    for n in s.pick((50, 200, 800), (50, 200)):
        near = Measure.grid(0.0, 1.0, size=n).push(stretch)
        yield rate(n * float(wasserstein(near, limit)), 0.25, 0.01, f"n W1 at n = {n}:")
    points, bins = Measure.grid(0.0, 1.0, size=4000).push(stretch).atoms[:, 0], 40
    heights = torch.histc(points, bins, 0.0, 1.0) * bins / len(points)
    centres = Measure.grid(0.0, 1.0, size=bins).atoms[:, 0]
    drawn = (
        series("push-forward", centres, heights, "dots"),
        series("formula", centres, density(centres), "dashed"),
    )
    yield Figure("The density of a push-forward", "y", "density", drawn)


def van_der_corput(n: int) -> Tensor:
    """The first points of the sequence 1/2, 1/4, 3/4, 1/8, ...: binary digits reversed."""
    k, x = torch.arange(1, n + 1), torch.zeros(n)
    for digit in range(n.bit_length()):
        x = x + (k >> digit & 1) * 0.5 ** (digit + 1)
    return x


def open_set(points: Tensor) -> Tensor:
    r"""Intervals $B(x_k,\frac{0.05}{k(k+1)})$, of total length below 0.1, around all points."""
    k = torch.arange(1, len(points) + 1)
    radius = 0.05 / (k * (k + 1))
    return torch.stack([points - radius, points + radius], -1)


def union(intervals: Tensor) -> Tensor:
    """The same set as disjoint intervals in order."""
    merged: list[list[float]] = []
    for low, high in sorted(intervals.tolist()):
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return torch.tensor(merged)


def length(intervals: Tensor) -> float:
    """The length of the part of disjoint intervals in the unit interval."""
    return float(intervals.clamp(0, 1).diff(dim=-1).sum())


def share(points: Tensor, intervals: Tensor) -> float:
    """The share of points in disjoint open intervals."""
    before = torch.searchsorted(intervals[:, 0].contiguous(), points)  # that begin before a point
    ends = torch.cat([torch.full((1,), -torch.inf), intervals[:, 1]])
    return float((points < ends[before]).double().mean())


@statement(
    "A.A3.16",
    "(16)",
    "If the masses of all open sets converged, no sequence of prompts would tend to a continuous "
    "measure. The masses of sets without mass on their boundary do converge.",
    r"\mu_n\rightharpoonup\lambda,\quad\mu_n(U)=1\ \text{for all }n,\quad\lambda(U)\le0.1",
    defect=planted(__name__, "open_set", lambda points: torch.tensor([[0.0, 0.1]])),
    api=("wasserstein",),
    note="(16) must be asked for continuity sets only, or with liminf.",
)
def open_sets(s: Setting) -> Iterator[Check | Figure]:
    """Tokens that fill the unit interval, with a small open set that holds all of them."""
    size = s.pick(4096, 1024)
    tokens = van_der_corput(size)
    U = union(open_set(tokens))
    sizes = [2**k for k in range(4, size.bit_length())]
    inside, errors, distances = [], [], []
    uniform = Measure.grid(0.0, 1.0, size=20_000)
    for n in sizes:
        x = tokens[:n]
        inside.append(share(x, U))
        steps = torch.arange(1, 98) / 98
        errors.append(float(((x < steps[:, None]).double().mean(-1) - steps).abs().max()))
        distances.append(float(wasserstein(Measure(x[:, None]), uniform)))
    size_of_U = length(U)
    seen = min(inside) == 1 and size_of_U <= 0.1
    yield refuted(
        seen, f"mass {min(inside):g} at every n, in the limit {size_of_U:.4f}", size_of_U
    )
    bounds = [(n - 1).bit_length() / n for n in sizes]
    worst = max(e / b for e, b in zip(errors, bounds, strict=True))
    yield bounded(worst, 97 * len(sizes), "intervals")
    yield bounded(max(n * w for n, w in zip(sizes, distances, strict=True)), len(sizes), "W1")
    diracs = [
        share(torch.tensor([(-1.0) ** n / n]), torch.tensor([[0.0, 2.0]])) for n in range(1, 5)
    ]
    said = "Dirac masses at (-1)^n/n give the positive numbers masses 0, 1, 0, 1"
    yield refuted(diracs == [0.0, 1.0, 0.0, 1.0], said)
    drawn = (
        series("open set, tokens", sizes, inside),
        series("open set, limit", sizes, [size_of_U] * len(sizes), "dashed"),
        series("intervals, largest error", sizes, errors),
    )
    yield Figure("A small open set around all tokens", "number of tokens", "mass", drawn, "x")


def deficit(limit: float, mass: float) -> float:
    """How much less mass an open set has than in the limit."""
    return limit - mass


@statement(
    "A.A3.17",
    "(17), (C1), (C2)",
    "Weak convergence is convergence in the Wasserstein distance, and open sets do not gain mass "
    "in the limit.",
    r"\Bigl|\int\varphi\,d(\mu_n-\mu)\Bigr|\le\mathrm{Lip}(\varphi)\,W_1(\mu_n,\mu),\qquad"
    r"\liminf\mu_n(U)\ge\mu(U)",
    defect=planted(__name__, "deficit", lambda limit, mass: mass - limit),
    seconds=(0.5, 0.2),
    api=("wasserstein", "Measure.integrate"),
)
def weak(s: Setting) -> Iterator[Check | Figure]:
    """Random functions of Lipschitz constant 1, and unions of intervals."""
    g, tokens, uniform = s.generator(), van_der_corput(256), Measure.grid(0.0, 1.0, size=20_000)
    dense, ratios, deficits = union(open_set(tokens)), [], []
    for n in (16, 256):
        mu = Measure(tokens[:n, None])
        distance = float(wasserstein(mu, uniform))
        for k in range(s.pick(100, 20)):
            phi = cones(1 + k % 4, 1, g)
            ratios.append(abs(float(mu.integrate(phi) - uniform.integrate(phi))) / distance)
        for k in range(s.pick(50, 20)):
            ends = torch.rand(1 + k % 4, 2, generator=g).sort().values
            U = union(ends)
            below = deficit(length(U), share(tokens[:n], U))
            deficits.append(below * n / ((n - 1).bit_length() * len(U)))
    yield bounded(max(ratios), len(ratios), "integrals")
    yield bounded(max(deficits), len(deficits), "mass that unions of intervals lack")
    below = deficit(length(dense), share(tokens, dense))
    yield holds(max(0.0, below), 0.0, "mass that the set around all tokens lacks: 0, which")
    lengths, x = torch.arange(1, 257), tokens
    features = (("x", x), ("x^2", x**2), ("cos 4x", (4 * x).cos()))
    drawn = (series(name, lengths, values.cumsum(0) / lengths) for name, values in features)
    yield Figure("Averages of features", "number of tokens", "average", tuple(drawn), "x")


def block(k: int) -> int:
    """The length of a block of equal tokens."""
    return 2**k


@statement(
    "A.A3.18",
    "(18)",
    "Averages over a growing prompt converge along subsequences. Along the whole they need not.",
    r"\mu_{n_k}\rightharpoonup\mu:\qquad\int\varphi\,d\mu_{n_k}\to\int\varphi\,d\mu",
    defect=planted(__name__, "block", lambda k: 4096),
    api=("representation.zoo.attention",),
    note="That a convergent subsequence exists is the theorem of Prokhorov, quoted.",
)
def subsequences(s: Setting) -> Iterator[Check | Figure]:
    """Tokens 0 and 1 in blocks of lengths 1, 2, 4, ...; attention at the ends of blocks."""
    blocks = [torch.full((block(k),), float(k % 2)) for k in range(16)]
    tokens, ends = torch.cat(blocks), torch.tensor([len(b) for b in blocks]).cumsum(0)
    means = tokens.cumsum(0) / torch.arange(1, len(tokens) + 1)
    gamma, ratios, values = zoo.attention(1), [], []
    bound, x = gamma.lipschitz(1.0).mu, torch.zeros(1, 1)
    for end, share_of_ones in ((int(ends[14]), 1 / 3), (int(ends[15]), 2 / 3)):
        error = abs(float(means[end - 1]) - share_of_ones)
        yield holds(error, 2.0**-14, f"mean of {end} tokens, near {share_of_ones:.3f},")
        limit = Measure(
            torch.tensor([[0.0], [1.0]]), torch.tensor([1 - share_of_ones, share_of_ones])
        )
        prompt = Measure(tokens[:end, None])
        values.append(float(gamma(prompt, x)))
        moved = abs(values[-1] - float(gamma(limit, x)))
        ratios.append(moved / (bound * float(wasserstein(prompt, limit)) + 1e-12))
    yield bounded(max(ratios), 2, "attention and its two limits")
    apart = abs(values[0] - values[1])
    yield refuted(apart > 0.1, f"attention tends to {values[0]:.3f} and {values[1]:.3f}", apart)
    marks = torch.logspace(0, 4.8, 150).long()
    drawn = (series("running mean", marks, means[marks - 1]),)
    yield Figure("A mean that does not converge", "number of tokens", "mean", drawn, "x")


RATIO = 1 / 3
"""The length of the two parts of an interval that a step of Cantor's construction keeps."""


def cantor(steps: int) -> Tensor:
    """The left ends of the intervals after some steps, in order."""
    points = torch.zeros(1)
    for k in range(steps):
        points = torch.cat([points, points + (1 - RATIO) * RATIO**k])
    return points.sort().values


@statement(
    "A.A3.19",
    "(19)",
    "A measure has a part of atoms, a part with a density and a singular continuous part. The "
    "last kind, too, is a limit of prompts.",
    r"\mu=\mu_{pp}+\mu_{ac}+\mu_{sc}",
    defect=planted(__name__, "RATIO", 1 / 2),
    api=("wasserstein", "representation.zoo.attention"),
)
def singular(s: Setting) -> Iterator[Check | Figure]:
    """Tokens that tend to the law of Cantor: no atoms, no density; attention along them."""
    steps = s.pick(12, 9)
    prompts = [cantor(k) for k in range(steps + 1)]
    covers = [length(union(torch.stack([x, x + RATIO**k], -1))) for k, x in enumerate(prompts)]
    error = max(abs(c * 1.5**k - 1) for k, c in enumerate(covers))
    yield holds(error, 1e-10, "length of the cover (2/3)^k, relative,", len(covers))
    laws = [Measure(x[:, None]) for x in prompts]
    error = max(abs(float(mu.merge().weights.max()) * 2**k - 1) for k, mu in enumerate(laws))
    yield holds(error, 1e-12, "largest atom 2^-k, relative,", len(laws))
    distances = [float(wasserstein(mu, nu)) for mu, nu in pairwise(laws)]
    error = max(abs(w * 3.0 ** (k + 1) - 1) for k, w in enumerate(distances))
    yield holds(error, 1e-10, "distance 3^-(k+1) of two steps, relative,", len(distances))
    gamma, x = zoo.attention(1), torch.linspace(0, 1, 5)[:, None]
    moves = [float((gamma(mu, x) - gamma(nu, x)).abs().max()) for mu, nu in pairwise(laws)]
    bound = gamma.lipschitz(1.0).mu
    worst = max(m / (bound * w) for m, w in zip(moves, distances, strict=True))
    yield bounded(worst, len(moves), "attention moves by")
    grid = torch.linspace(0, 1, 200)
    staircase = cumulative(laws[8], grid)
    yield Figure(
        "A law without atoms and density", "x", "mass up to x", (series("F", grid, staircase),)
    )
