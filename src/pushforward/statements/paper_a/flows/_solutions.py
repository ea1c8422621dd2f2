"""Vlasov equations and Proposition 2: their solution maps are in-context maps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from ....distances import wasserstein
from ....flows import RK4, Flow, FlowError, gaussian
from ....flows.fields import Linear, SelfAttention
from ....maps import InContextMap, Pointwise, norm
from ....measures import Measure, MeasureMap
from ....pictures import Figure, series
from ....relations import Exponential, Normaliser, Softmax
from ....representation import Decode, recover
from ..._checks import Check, bounded, holds, max, rate, refuted
from ..._laws import attention_field, box, gap, shuffled, simplex
from ..._statement import Setting, planted, statement


def moved(field: InContextMap, mu: Measure, t: float, steps: int = 100) -> Measure:
    r"""$\mu_t$."""
    return Flow(field, t1=t, solver=RK4(steps=steps)).push(mu)


def velocity(field: InContextMap, now: Measure, before: Measure) -> Tensor:
    """The velocities of the atoms of the present measure."""
    return field(now, now.atoms)


def phi(x: Tensor) -> Tensor:
    r"""$\varphi(x)=\sin(x_1)x_2+x_2^2$."""
    return x[:, 0].sin() * x[:, 1] + x[:, 1].square()


def gradient(x: Tensor) -> Tensor:
    r"""$\nabla\varphi$."""
    return torch.stack([x[:, 0].cos() * x[:, 1], x[:, 0].sin() + 2 * x[:, 1]], -1)


@statement(
    "A.eq10",
    "(10)-(12)",
    "The moving measure solves the continuity equation, in its weak form.",
    r"\frac d{dt}\int\varphi\,d\mu_t=\int\nabla\varphi\cdot V[\mu_t]\,d\mu_t",
    defect=planted(__name__, "velocity", lambda field, now, before: field(before, now.atoms)),
    api=("flow", "Measure.integrate"),
)
def continuity_equation(s: Setting) -> Iterator[Check | Figure]:
    """Difference quotients of integrals, extrapolated, against the right side."""
    g, h, errors, rows = s.generator(), 1e-3, [], []
    field, mu = attention_field(2, 0.7, g), simplex(box(12, 2, g).atoms, g)
    for t in (0.1, 0.3, 0.6):
        now = moved(field, mu, t, s.pick(100, 20))
        integral = lambda h, now=now: moved(field, now, h, 1).integrate(phi)
        near, far = ((integral(k * h) - integral(-k * h)) / (2 * k * h) for k in (1, 2))
        slope = (4 * near - far) / 3
        speed = velocity(field, now, mu)
        right = now.integrate((gradient(now.atoms) * speed).sum(-1))
        errors.append(abs(float(slope - right)))
        rows.append((t, float(slope), float(right)))
    yield holds(max(errors), 1e-8, trials=len(errors))
    times, left, rights = zip(*rows, strict=True)
    yield Figure(
        "The continuity equation",
        "time",
        "rate of change of the integral",
        (series("difference quotient", times, left, "dots"), series("right side", times, rights)),
    )


def solution(field: InContextMap, mu: Measure, x: Tensor, t: float, steps: int) -> Tensor:
    r"""$\Phi_t(\mu,x)$: where points are that move with a context."""
    return Flow(field, t1=t, solver=RK4(steps=steps))(mu, x)


def frozen(field: InContextMap, mu: Measure, x: Tensor, t: float, steps: int) -> Tensor:
    """Where they would be if the context did not move."""
    return solution_of(Pointwise(lambda y: field(mu, y)), mu, x, t, steps)


solution_of = solution


@statement(
    "A.evolve",
    "end of Section 4.1, (39)",
    "Queries follow the characteristics of the moving context, and do not change it.",
    r"\partial_tG_t(\mu,x)=V\bigl(G_t(\mu,\cdot)_\sharp\mu,\,G_t(\mu,x)\bigr)",
    defect=planted(__name__, "solution", frozen),
    api=("Flow.path", "Flow"),
)
def queries_follow(s: Setting) -> Iterator[Check | Figure]:
    """Queries against tokens of mass 1e-12 at the same places."""
    g, errors = s.generator(), []
    for _ in range(s.pick(5, 2)):
        field, mu, x = attention_field(2, 0.7, g), box(9, 2, g), box(3, 2, g).atoms
        light = torch.full((3,), 1e-12)
        together = Measure(torch.cat([mu.atoms, x]), torch.cat([mu.weights, light]))
        flow = Flow(field, t1=1.0, solver=RK4(steps=20))
        errors.append(gap(solution(field, mu, x, 1.0, 20), flow.push(together).atoms[9:]))
    yield holds(max(errors), 1e-10, trials=len(errors))
    positions = flow.path(together, save=20).map(lambda now: now.atoms)
    tokens, ways = positions[:, :9].flatten(0, 1), positions[:, 9:]
    yield Figure(
        "Queries among tokens",
        "first coordinate",
        "second coordinate",
        (
            series("tokens", tokens[:, 0], tokens[:, 1], "dots"),
            *(series(f"query {i + 1}", ways[:, i, 0], ways[:, i, 1]) for i in range(3)),
        ),
    )


def both(A: Tensor, B: Tensor) -> Tensor:
    r"""$e^{A+B}$."""
    return torch.linalg.matrix_exp(A + B)


@statement(
    "A.eq14",
    "(13)-(14)",
    "The Vlasov equation of a linear field has its solution map in closed form.",
    r"V[\mu](x)=Ax+B\bar\mu:\qquad G_t(\mu,x)=e^{At}(x-\bar\mu)+e^{(A+B)t}\bar\mu",
    defect=planted(
        __name__, "both", lambda A, B: torch.linalg.matrix_exp(A) @ torch.linalg.matrix_exp(B)
    ),
    seconds=(0.5, 0.2),
    api=("fields.Linear", "Flow"),
)
def linear_vlasov(s: Setting) -> Iterator[Check]:
    """Flows of weighted contexts, atoms and other points."""
    g, errors = s.generator(), []
    for _ in range(s.pick(10, 3)):
        A, B = (torch.randn(2, 2, 2, generator=g) / 2).unbind(0)
        mu = simplex(box(8, 2, g).atoms, g)
        x, mean = torch.cat([mu.atoms, box(3, 2, g).atoms]), mu.mean()
        exact = (x - mean) @ torch.linalg.matrix_exp(A).mT + both(A, B) @ mean
        flow = Flow(Linear(A, B), t1=1.0, solver=RK4(steps=200))
        errors.append(gap(flow(mu, x), exact))
    yield holds(max(errors), 1e-8, trials=len(errors))


def continued(first: Flow, second: Flow, mu: Measure) -> Measure:
    """On from where the first flow ends."""
    return second.push(first.push(mu))


def with_the_old_context(first: Flow, second: Flow, mu: Measure) -> Measure:
    """The same points, in the context of the beginning."""
    end = first.push(mu)
    return end.moved(second(mu, end.atoms))


@statement(
    "A.eq14.group",
    "(14)",
    "Solution maps compose, and run backwards.",
    r"f_{t+s}=f_t\circ f_s,\qquad f_{-t}\circ f_t=\mathrm{id}",
    defect=planted(__name__, "continued", with_the_old_context),
    seconds=(0.2, 0.1),
    api=("Flow",),
)
def flows_compose(s: Setting) -> Iterator[Check]:
    """Flows to 1/2 and on to 1 against one flow to 1; there and back."""
    g, whole, back = s.generator(), [], []
    for _ in range(s.pick(3, 1)):
        field, mu = attention_field(2, 0.5, g), box(9, 2, g)
        first = Flow(field, t1=0.5, solver=RK4(steps=32))
        second = Flow(field, t0=0.5, t1=1.0, solver=RK4(steps=32))
        there = moved(field, mu, 1.0, 64)
        whole.append(gap(continued(first, second, mu).atoms, there.atoms))
        backwards = Flow(field, t0=1.0, t1=0.0, solver=RK4(steps=64))
        back.append(gap(backwards.push(there).atoms, mu.atoms))
    yield holds(max(whole), 1e-13, "on a common grid")
    yield holds(max(back), 1e-8, "there and back")


def black_box(flow: Flow, generator: torch.Generator) -> MeasureMap:
    """The solution map alone, with atoms in any order."""
    return lambda mu: shuffled(flow.push(mu), generator)


def resampled(flow: Flow, generator: torch.Generator) -> MeasureMap:
    """The solution map with particles drawn anew."""
    return lambda mu: flow.push(mu).sample(mu.n, generator=generator)


def mass_defect(before: Measure, after: Measure) -> float:
    """The largest distance of a mass after from the sums of masses before."""
    subsets = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * before.n)
    sums = subsets @ before.weights
    return float((after.weights[:, None] - sums).abs().amin(-1).max())


def recovery_orders(f: MeasureMap, flow: Flow, mu: Measure, x: Tensor) -> Iterator[Check]:
    """The in-context map, recovered from the map of measures alone: errors for two masses."""
    exact, masses = flow(mu, x), (1e-3, 2.5e-4)
    for extrapolate, order in ((False, 1), (True, 2)):
        found = (recover(f, by=Decode(), eta=eta, extrapolate=extrapolate) for eta in masses)
        a, b = (gap(G(mu, x), exact) for G in found)
        yield rate(math.log(a / b, 4), order, 0.15, f"order {order} of recovery:")


@statement(
    "A.prop2.b1",
    "Proposition 2",
    "Solution maps of Vlasov equations preserve supports, and their in-context maps can be "
    "recovered from them.",
    r"f(\mu)=\mu_T\ \text{satisfies (B1), and}\quad f=G(\mu,\cdot)_\sharp\mu",
    defect=planted(__name__, "black_box", resampled),
    api=("Flow", "recover"),
)
def solution_maps(s: Setting) -> Iterator[Check]:
    """Masses are sums of masses; recovery of an attention flow and of a linear flow."""
    g = s.generator()
    mu, x = simplex(box(6, 2, g).atoms, g), box(2, 2, g).atoms
    linear = Linear(*(torch.randn(2, 2, 2, generator=g) / 2).unbind(0))
    flow, affine = (
        Flow(field, t1=1.0, solver=RK4(steps=10)) for field in (attention_field(2, 0.7, g), linear)
    )
    maps = [black_box(each, g) for each in (flow, affine)]
    yield holds(max(mass_defect(mu, f(mu)) for f in maps), 1e-12, "masses:")
    yield from recovery_orders(maps[0], flow, mu, x)
    found = recover(maps[1], by=Decode(), eta=1e-2)(mu, x)
    yield holds(gap(found, affine(mu, x)), 1e-12, "linear flow, whatever the mass:")


@statement(
    "A.prop2.lip",
    "Proposition 2, appendix B.6",
    "Solution maps are Lipschitz, with constants that grow exponentially in time. Translates "
    "under a linear field on the line attain them.",
    r"|\Phi_t(\mu,x)-\Phi_t(\nu,y)|\le e^{Lt}|x-y|+(e^{(L+K)t}-e^{Lt})\,W_1(\mu,\nu),\qquad"
    r" W_1(\mu_t,\nu_t)\le e^{(L+K)t}\,W_1(\mu,\nu)",
    defect=planted(__name__, "solution", frozen),
    seconds=(1.4, 0.3),
    api=("Flow", "InContextMap.lipschitz"),
)
def solution_maps_are_lipschitz(s: Setting) -> Iterator[Check | Figure]:
    """Translates on the line; random linear fields, contexts and points in the plane."""
    g, L, K, c = s.generator(), 0.7, 0.4, 0.3
    line = Linear(torch.tensor([[L]]), torch.tensor([[K]]))
    mu, times = Measure.grid(-1.0, 1.0, size=5), [0.25, 0.5, 0.75, 1.0]
    nu = mu.push(lambda y: y + c)
    growth = [
        gap(solution(line, nu, nu.atoms, t, 100), solution(line, mu, mu.atoms, t, 100)) / c
        for t in times
    ]
    bounds = [math.exp((L + K) * t) for t in times]
    off = max(abs(a / b - 1) for a, b in zip(growth, bounds, strict=True))
    yield holds(off, 1e-8, "translates: equality")
    points, measures, trials = 0.0, 0.0, s.pick(200, 20)
    for _ in range(trials):
        field = Linear(*(torch.randn(2, 2, 2, generator=g) / 2).unbind(0))
        known = field.lipschitz(1.0)
        fast, whole = math.exp(known.x), math.exp(known.x + known.mu)
        mu, nu = (simplex(box(6, 2, g).atoms, g) for _ in range(2))
        x, y = (box(4, 2, g).atoms for _ in range(2))
        a, b = (
            solution(field, m, torch.cat([m.atoms, z]), 1.0, 10) for m, z in ((mu, x), (nu, y))
        )
        distance = float(wasserstein(mu, nu))
        allowed = fast * (x - y).norm(dim=-1) + (whole - fast) * distance
        points = max(points, float(((a - b)[6:].norm(dim=-1) / allowed).max()))
        after = float(wasserstein(mu.moved(a[:6]), nu.moved(b[:6])))
        measures = max(measures, after / (whole * distance))
    yield bounded(points, trials, "points:")
    yield bounded(measures, trials, "measures:")
    yield Figure(
        "Distance of two contexts under a flow",
        "time",
        "growth",
        (series("translates", times, growth, "dots"), series("bound", times, bounds, "dashed")),
        log="y",
    )


def constants(field: InContextMap, radius: float) -> tuple[float, float]:
    """The Lipschitz constants of a field on a ball, in the point and in the context."""
    known = field.lipschitz(radius)
    return known.x, known.mu


@statement(
    "A.prop2.dobrushin",
    "appendix B.6",
    "The same holds for attention, with its constants on a ball that contains both flows.",
    r"W_1(\mu_t,\nu_t)\le e^{(L+K)t}\,W_1(\mu,\nu),\qquad"
    r" L=vbR^2,\ K=v\,e^{2bR^2}(1+2bR^2)",
    defect=planted(__name__, "constants", lambda field, radius: (0.0, 0.0)),
    seconds=(0.2, 0.1),
    api=("InContextMap.lipschitz", "flow"),
    note="The constants grow like the exponential of the squared radius.",
)
def dobrushin(s: Setting) -> Iterator[Check | Figure]:
    """Attention fields, contexts that differ by small moves."""
    g, t1, worst = s.generator(), 0.5, (0.0, [0.0], [0.0])
    trials = s.pick(20, 8)
    for _ in range(trials):
        field = attention_field(2, 0.5, g)
        mu = Measure(box(12, 2, g).atoms / 2)
        nu = mu.moved(mu.atoms + 0.01 * torch.randn(12, 2, generator=g))
        flow = Flow(field, t1=t1, solver=RK4(steps=10))
        a, b = (flow.path(m, save=5) for m in (mu, nu))
        L, K = constants(field, float(torch.cat([a.radius(), b.radius()]).max()))
        start, times = float(wasserstein(mu, nu)), a.times.tolist()
        ratios = [
            float(wasserstein(m, n)) / (start * math.exp((L + K) * t))
            for m, n, t in zip(a, b, times, strict=True)
        ]
        worst = max((worst, (ratios[-1], times, ratios)), key=lambda found: found[0])
    yield bounded(worst[0], trials, least=0.05)
    yield Figure(
        "Distance of two contexts, as a share of the bound",
        "time",
        "share",
        (series("largest at the end", worst[1], worst[2]),),
    )


def normaliser() -> Normaliser:
    """What makes an average of the scores."""
    return Softmax()


@statement(
    "A.prop2.compact",
    "Section 4.2",
    "Contexts of compact support stay in balls that grow exponentially. Gaussians blow up: beyond "
    "that time finite clouds live on, but have no limit as their number of tokens grows.",
    r"R(t)\le R_0\,e^{vt},\qquad S(t)=\frac{S_0}{1-t/t^*},\quad t^*=\frac1{2vaS_0}",
    defect=planted(__name__, "normaliser", Exponential),
    seconds=(0.6, 0.4),
    api=("flows.gaussian", "flows.FlowError", "Measure.gaussian"),
    note="Proposition 2 for attention needs compact support.",
)
def compact_support(s: Setting) -> Iterator[Check | Figure]:
    """Radii of clouds; Gaussian nodes before and beyond the time of blow-up."""
    g, ratio, trials = s.generator(), 0.0, s.pick(20, 5)
    for _ in range(trials):
        plain, mu = attention_field(2, 2.0, g), box(8, 2, g)
        field = SelfAttention(plain.Q, plain.K, plain.V, normaliser=normaliser())
        path = Flow(field, t1=0.5, solver=RK4(steps=20)).path(mu, save=5)
        growth = (path.radius() / path.radius()[0]) / (norm(plain.V) * path.times).exp()
        ratio = max(ratio, float(growth[1:].max()))
    yield bounded(ratio, trials, "radius:")
    one, S0, blow_up = torch.eye(1), 0.5, 1.0
    field, curves = SelfAttention(one, one, one, normaliser=normaliser()), {}
    for order in (10, 20, 40):
        flow = Flow(field, t1=1.2 * blow_up, solver=RK4(steps=s.pick(240, 96)))
        path = flow.path(Measure.gaussian(0.0, S0, order=order), save=24)
        curves[order] = [float(now.covariance()) for now in path]
    yield holds(abs(curves[40][10] / (2 * S0) - 1), 1e-3, "variance at half the time:")
    ends = [curve[-1] for curve in curves.values()]
    said = "variances of 10, 20 and 40 nodes beyond it: " + ", ".join(f"{v:.3g}" for v in ends)
    yield refuted(all(b > 1.2 * a for a, b in pairwise(ends)), said, ends[-1])
    try:
        gaussian(field, torch.zeros(1), S0 * one, t1=1.2 * blow_up, solver=RK4(steps=1200))
        last = math.inf
    except FlowError as problem:
        last = problem.time
    yield refuted(abs(last / blow_up - 1) <= 0.01, f"the Gaussian ends at {last:.4g}", last)
    yield Figure(
        "Variance of Gaussian nodes through the blow-up",
        "time",
        "variance",
        tuple(series(f"{n} nodes", path.times, curve) for n, curve in curves.items()),
        log="y",
    )
