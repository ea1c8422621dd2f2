"""Mean-field limits: Gaussians in closed form, and rates in the number of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...affinities import Dot, SquaredDistance
from ...distances import wasserstein
from ...flows import RK4, Euler, Flow, Midpoint, gaussian
from ...flows.fields import SelfAttention
from ...maps import InContextMap, Residual
from ...measures import Measure
from ...pictures import Figure, series
from ...relations import Sinkhorn, Softmax
from .._checks import Check, holds, max, rate
from .._laws import attention_field, box, gap, simplex
from .._statement import Setting, planted, statement

STEP, LAYERS = 0.1, 10


def nodes(mean: Tensor, cov: Tensor, order: int) -> Measure:
    """Gaussian nodes with their weights, as tokens."""
    return Measure.gaussian(mean, cov, order=order)


def unweighted(mean: Tensor, cov: Tensor, order: int) -> Measure:
    """The same nodes, all of one weight."""
    return Measure(nodes_of(mean, cov, order).atoms)


nodes_of = nodes


def softmax_recursion(field: SelfAttention, mean: Tensor, cov: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance after all layers, by the formula."""
    A = field.K.mT @ field.Q
    for _ in range(LAYERS):
        M = torch.eye(len(mean)) + STEP * field.V @ cov @ A
        mean, cov = M @ mean + STEP * field.V @ mean, M @ cov @ M.mT
    return mean, cov


def strength(Q: Tensor, K: Tensor, cov: Tensor) -> float:
    """The size of scores, which the nodes must resolve."""
    norm = max(float(torch.linalg.matrix_norm(K.mT @ P, 2)) for P in (Q, K))
    return norm * float(torch.linalg.eigvalsh(cov).max())


def gentle(
    kind: dict[str, Any], d: int, limit: float, generator: torch.Generator
) -> SelfAttention:
    """A field whose scores the nodes resolve, on all layers."""
    Q, K, V = torch.randn(3, d, d, generator=generator).unbind(0)
    V = V / torch.linalg.matrix_norm(V, 2)
    factor = (limit / strength(Q, K, start(d)[1])) ** 0.5
    Q, K = factor * Q, factor * K
    while True:
        field = SelfAttention(Q, K, V, **kind)
        path = gaussian(field, *start(d), t1=1.0, solver=Euler(steps=LAYERS), save=LAYERS)
        if strength(Q, K, path.covariances) <= limit:
            return field
        Q, K = 0.9 * Q, 0.9 * K


def start(d: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance at the beginning."""
    return torch.linspace(0.3, 0.8, d), 0.5 * torch.eye(d) + 0.2


@statement(
    "A.mf.gauss",
    "beside Section 4.1",
    "Attention keeps Gaussians Gaussian, with dot products, with squared distances and with "
    "Sinkhorn.",
    r"\alpha'=M\alpha+hV\alpha,\qquad\Sigma'=M\Sigma M^\top,\qquad M=I+hV\Sigma A,\ A=K^\top Q"
    r"\quad\text{(softmax)}",
    defect=planted(__name__, "nodes", unweighted),
    seconds=(0.2, 0.1),
    api=("Measure.gaussian", "flows.gaussian", "Sinkhorn"),
    note="The nodes resolve scores up to a half; beyond, digits are lost.",
)
def gaussians_stay(s: Setting) -> Iterator[Check | Figure]:
    """Ten layers on Gaussian nodes against the recursions of mean and covariance."""
    g = s.generator()
    kinds: dict[str, tuple[dict[str, Any], float]] = {
        "softmax": ({"affinity": Dot(1.0)}, 0.5),
        "squared distance": ({"affinity": SquaredDistance(2.0)}, 1.0),
        "Sinkhorn": ({"normaliser": Sinkhorn(tol=1e-14)}, 1.0),
    }
    for name, (kind, limit) in kinds.items():
        errors = []
        for d, order in s.pick(((1, 40), (2, 20)), ((1, 40),)):
            field, mu = gentle(kind, d, limit, g), nodes(*start(d), order)
            for _ in range(LAYERS):
                mu = Residual(field, step=STEP).push(mu)
            path = gaussian(field, *start(d), t1=1.0, solver=Euler(steps=LAYERS))
            mean, cov = path.means[-1], path.covariances[-1]
            if name == "softmax":
                mean, cov = softmax_recursion(field, *start(d))
            errors += [gap(mu.mean(), mean), gap(mu.covariance(), cov)]
        yield holds(max(errors), 1e-12, f"{name}:")
    yield picture(gentle({}, 2, 0.5, g))


def picture(field: SelfAttention) -> Figure:
    """Nodes and ellipses, before and after."""
    path = gaussian(field, *start(2), t1=1.0, solver=Euler(steps=LAYERS))
    moved = path(nodes(*start(2), 6).atoms)[-1]
    angles = torch.linspace(0, 2 * math.pi, 61)
    circle = torch.stack([angles.cos(), angles.sin()], -1)
    before, after = (
        m + 2 * circle @ torch.linalg.cholesky(c).mT
        for m, c in zip(path.means, path.covariances, strict=True)
    )
    return Figure(
        "A Gaussian through ten layers",
        "first coordinate",
        "second coordinate",
        (
            series("before", before[:, 0], before[:, 1], "dashed"),
            series("after", after[:, 0], after[:, 1]),
            series("nodes after", moved[:, 0], moved[:, 1], "dots"),
        ),
        caption="Ellipses of two standard deviations.",
    )


def symmetric(A: Tensor) -> Tensor:
    r"""$A+A^\top$."""
    return A + A.mT


symmetric_of = symmetric


@statement(
    "A.mf.closed",
    "beside Section 4.1",
    "If the value matrix is a multiple of the identity, the covariance of a Gaussian under "
    "softmax attention has a closed form, with a pole.",
    r"\Sigma(t)=\bigl(\Sigma_0^{-1}-vt\,(A+A^\top)\bigr)^{-1},\qquad V=vI",
    defect=planted(__name__, "symmetric", lambda A: A),
    seconds=(0.5, 0.1),
    api=("flows.gaussian",),
)
def closed_form(s: Setting) -> Iterator[Check | Figure]:
    """Flows of Gaussians up to a half of the time of their pole, or to time one."""
    g, v, errors = s.generator(), 0.8, []
    for d in (1, 2):
        for _ in range(s.pick(5, 1)):
            Q, K = torch.randn(2, d, d, generator=g).unbind(0)
            mean, cov = start(d)
            pole = torch.linalg.eigvals(v * cov @ symmetric_of(K.mT @ Q)).real.max()
            t = float(0.5 / pole.clamp_min(0.5))
            field = SelfAttention(Q, K, v * torch.eye(d))
            path = gaussian(field, mean, cov, t1=t, solver=RK4(steps=s.pick(200, 100)))
            exact = torch.linalg.inv(torch.linalg.inv(cov) - v * t * symmetric(K.mT @ Q))
            errors.append(gap(path.covariances[-1], exact))
    yield holds(max(errors), 1e-8, trials=len(errors))
    one = torch.eye(1)
    field = SelfAttention(one, one, one)
    line = gaussian(field, torch.zeros(1), 0.5 * one, t1=0.9, solver=RK4(steps=90), save=30)
    exact = [0.5 / (1 - t) for t in line.times.tolist()]
    yield Figure(
        "The variance of a Gaussian, with its pole at time one",
        "time",
        "variance",
        (
            series("flow", line.times, line.covariances[:, 0, 0], "dots"),
            series("closed form", line.times, exact, "dashed"),
        ),
    )


def fitted_rate(sizes: Sequence[int], samples: Sequence[Tensor]) -> tuple[float, float]:
    r"""The exponent of $N$ in the means of the samples, and its standard error."""
    logs = torch.tensor(sizes).log()
    centred = (logs - logs.mean()) / (logs - logs.mean()).square().sum()
    means = torch.stack([x.mean() for x in samples])
    spread = torch.stack([x.std() / len(x) ** 0.5 / x.mean() for x in samples])
    return float(centred @ means.log()), float((centred * spread).norm())


def squares(a: Tensor, b: Tensor) -> Tensor:
    """Half of the squared distances of pairs: on average the squared error of each."""
    return (a - b).square().flatten(1).sum(-1) / 2


def asked_at(mu: Measure, x: Tensor) -> Tensor:
    """The points at which clouds are compared: the same for all."""
    return x


def own_token(mu: Measure, x: Tensor) -> Tensor:
    """A token of every cloud."""
    return mu.atoms[..., :1, :]


@statement(
    "A.mf.field",
    "Section 4.1, (24)",
    "Attention to N random tokens, at a fixed point, differs from its limit by the order of the "
    "inverse root of N.",
    r"\bigl(\mathbb E|\Gamma(\mu_N,x)-\Gamma(\mu,x)|^2\bigr)^{1/2}\propto N^{-1/2}",
    defect=planted(__name__, "asked_at", own_token),
    seconds=(0.5, 0.1),
    api=("fields.SelfAttention",),
)
def random_tokens(s: Setting) -> Iterator[Check | Figure]:
    """Pairs of independent clouds of 100 to 10,000 tokens."""
    g, sizes, pairs = s.generator(), (100, 1000, 10000), s.pick(200, 60)
    field, x = attention_field(2, 0.7, g), torch.tensor([[0.5, -0.3]])
    samples, fan = [], []
    for n in sizes:
        clouds = [Measure(2 * torch.rand(pairs, n, 2, generator=g) - 1) for _ in range(2)]
        a, b = (field(mu, asked_at(mu, x)) for mu in clouds)
        samples.append(squares(a, b))
        fan.append(a[:50, 0, 0])
    exponent, error = fitted_rate(sizes, samples)
    yield rate(exponent / 2, -0.5, 3 * error / 2)
    many = torch.tensor(sizes).repeat_interleave(len(fan[0]))
    yield Figure(
        "Attention to random tokens",
        "tokens",
        "first coordinate of the image",
        (series("one cloud each", many, torch.cat(fan), "dots"),),
        log="x",
    )


def cloud(n: int, d: int, generator: torch.Generator) -> Measure:
    """Independent uniform draws."""
    return box(n, d, generator)


def from_few_points(n: int, d: int, generator: torch.Generator) -> Measure:
    """Draws from 50 fixed points."""
    points = box(50, d, torch.Generator().manual_seed(0)).atoms
    return Measure(points[torch.randint(50, (n,), generator=generator)])


@statement(
    "A.mf.w1",
    "beside (24)",
    "The distance of two independent clouds of N points falls more slowly in higher dimensions.",
    r"\mathbb E\,W_1(\mu_N,\nu_N)\propto N^{-1/2}\ (d=1),\qquad N^{-1/3}\ (d=3)",
    defect=planted(__name__, "cloud", from_few_points),
    seconds=(1.2, 0.4),
    api=("wasserstein",),
)
def distances_of_clouds(s: Setting) -> Iterator[Check | Figure]:
    """Pairs of clouds on the line and in space."""
    g, drawn = s.generator(), []
    plan = (
        (1, -1 / 2, (100, 400, 1600, 6400), s.pick(50, 20), 0.0),
        # in space the rate of some hundred points is not yet that of the limit
        (3, -1 / 3, s.pick((100, 400, 1600), (50, 200, 800)), s.pick(6, 10), 0.03),
    )
    for d, theory, sizes, pairs, bias in plan:
        samples = [
            torch.stack([wasserstein(cloud(n, d, g), cloud(n, d, g)) for _ in range(pairs)])
            for n in sizes
        ]
        exponent, error = fitted_rate(sizes, samples)
        yield rate(exponent, theory, bias + 3 * error, f"rate in dimension {d}")
        drawn.append(series(f"dimension {d}", sizes, [float(x.mean()) for x in samples]))
    yield Figure("Distance of two clouds", "points", "mean distance", tuple(drawn), log="xy")


@statement(
    "A.mf.flow",
    "Section 4.1",
    "The flow of N random particles, at fixed points, tends to its limit at the same rate.",
    r"\bigl(\mathbb E|G_T(\mu_N,x)-G_T(\mu,x)|^2\bigr)^{1/2}\propto N^{-1/2}",
    defect=planted(__name__, "asked_at", own_token),
    seconds=(3.3, 1.0),
    api=("Flow", "flows.token_study"),
)
def random_particles(s: Setting) -> Iterator[Check | Figure]:
    """Flows of pairs of independent clouds of 50 to 800 particles."""
    g, sizes, pairs = s.generator(), (50, 200, 800), s.pick(100, 30)
    flow = Flow(attention_field(2, 0.7, g), t1=1.0, solver=Midpoint(steps=3))
    x, samples = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), []
    for n in sizes:
        a, b = (
            torch.stack([flow(mu, asked_at(mu, x)) for mu in (box(n, 2, g) for _ in range(pairs))])
            for _ in range(2)
        )
        samples.append(squares(a, b))
    exponent, error = fitted_rate(sizes, samples)
    yield rate(exponent / 2, -0.5, 3 * error / 2)
    errors = [float(x.mean()) ** 0.5 for x in samples]
    expected = [errors[0] * (sizes[0] / n) ** 0.5 for n in sizes]
    yield Figure(
        "Flows of random particles",
        "particles",
        "root mean square error",
        (series("flow", sizes, errors), series("inverse root", sizes, expected, "dashed")),
        log="xy",
    )


def mover(field: SelfAttention) -> InContextMap:
    """The field that moves the measure."""
    return field


def by_softmax(field: SelfAttention) -> InContextMap:
    """The field of the same matrices with softmax."""
    return SelfAttention(field.Q, field.K, field.V, normaliser=Softmax())


@statement(
    "A.mf.energy",
    "Sander, Ablin, Blondel and Peyre, beside Section 4.1",
    "Sinkhorn attention whose value matrix is symmetric and equal to that of the scores is a "
    "gradient flow: it makes the entropic cost of transport fall, at a known rate.",
    r"\frac d{dt}OT(\mu_t,\mu_t)=-2\int|T[\mu_t]|^2\,d\mu_t,\qquad V=Q^\top K=V^\top",
    defect=planted(__name__, "mover", by_softmax),
    seconds=(0.2, 0.2),
    api=("fields.SelfAttention.energy", "fields.SelfAttention.dissipation", "Sinkhorn"),
)
def gradient_flow(s: Setting) -> Iterator[Check | Figure]:
    """The difference quotient of the energy against the integral of the squared velocity."""
    g, h = s.generator(), 1e-4
    B = torch.randn(2, 2, generator=g)
    B = 0.4 * (B + B.mT)
    field = SelfAttention(torch.eye(2), B, B, normaliser=Sinkhorn(tol=1e-13))
    mu = simplex(box(20, 2, g).atoms, g)
    short = lambda t: Flow(mover(field), t1=t, solver=RK4(steps=2)).push(mu)
    slope = float(field.energy(short(h)) - field.energy(short(-h))) / (2 * h)
    theory = -2 * float(mu.integrate(field(mu, mu.atoms).square().sum(-1)))
    yield holds(abs(slope / theory - 1), 1e-6, "rate of the energy:")
    yield holds(abs(float(field.dissipation(mu)) / theory - 1), 1e-12, "that of the library:")
    path = Flow(field, t1=1.0, solver=RK4(steps=10)).path(mu, save=10)
    yield Figure(
        "Entropic cost of transport along the flow",
        "time",
        "energy",
        (series("energy", path.times, path.energy()),),
    )
