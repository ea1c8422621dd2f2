"""The depth limit: residual networks of many layers are flows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from ....flows import RK4, Euler, Flow
from ....flows.fields import Linear, Sum
from ....maps import MLP, Attention, Compose, InContextMap, Residual
from ....measures import Measure
from ....pictures import Figure, series
from ..._checks import Check, bounded, holds, max, rate, refuted
from ..._laws import attention_field, box, gap
from ..._statement import Setting, planted, statement


def step(depth: int) -> float:
    """By how much a layer moves, if all of them together take a time of one."""
    return 1 / depth


def network(field: InContextMap, depth: int) -> InContextMap:
    """Residual layers with the same weights."""
    return Compose(*[Residual(field, step=step(depth))] * depth)


def errors_of(
    networks: Sequence[InContextMap], field: InContextMap, mu: Measure, steps: int = 200
) -> list[float]:
    """How far the images of a context are from where the flow takes it."""
    exact = Flow(field, t1=1.0, solver=RK4(steps=steps)).push(mu).atoms
    return [gap(net.push(mu).atoms, exact) for net in networks]


@statement(
    "A.eq9",
    "(9)",
    "Residual layers of step 1/L tend to a flow as their number L grows, with an error of order "
    "1/L.",
    r"x^{\ell+1}=x^\ell+\tfrac TL\,\mathcal A(\mu^\ell,x^\ell)\ \longrightarrow\ "
    r"\dot x=\mathcal A(\mu_t,x)",
    defect=planted(__name__, "step", lambda depth: 1.01 / depth),
    api=("Flow", "flows.depth_study"),
)
def depth_limit(s: Setting) -> Iterator[Check | Figure]:
    """Networks of doubled depth against the flow: errors are halved."""
    g, depths = s.generator(), (32, 64, 128)
    field, mu = attention_field(2, 0.7, g), box(9, 2, g)
    errors = errors_of([network(field, L) for L in depths], field, mu, s.pick(200, 50))
    for L, (a, b) in zip(depths, pairwise(errors), strict=False):
        yield rate(a / b, 2.0, 0.1, f"ratio of errors from {L} to {2 * L} layers")
    yield Figure(
        "Depth limit",
        "layers",
        "largest error",
        (
            series("network", depths, errors),
            series("1/L", depths, [errors[0] * depths[0] / L for L in depths], "dashed"),
        ),
        log="xy",
    )


def at_once(field: InContextMap, mu: Measure, depth: int) -> Measure:
    """A network in which all tokens move at once."""
    return network(field, depth).push(mu)


def in_turn(field: InContextMap, mu: Measure, depth: int) -> Measure:
    """A network in which each token sees where those before it have moved."""
    for _ in range(depth):
        for i in range(mu.n):
            atoms = mu.atoms.clone()
            atoms[i] += step(depth) * field(mu, atoms[i : i + 1])[0]
            mu = mu.moved(atoms)
    return mu


@statement(
    "A.eq9.tied",
    "(9)",
    "Euler's method with L steps is the residual network of L equal layers, to the bit.",
    r"x_i^{\ell+1}=x_i^\ell+\tfrac TL\,\mathcal A(\mu^\ell,x_i^\ell),\qquad"
    r" \mu^\ell=\textstyle\sum_ia_i\delta_{x_i^\ell}",
    defect=planted(__name__, "at_once", in_turn),
    api=("Euler", "Flow", "Residual"),
)
def euler_is_a_network(s: Setting) -> Iterator[Check]:
    """Networks of 1 to 10 layers against Euler's method."""
    g, errors = s.generator(), []
    for depth in (1, 3, 7, 10):
        field, mu = Attention(2, heads=2, head_dim=2), box(9, 2, g)
        flow = Flow(field, t1=1.0, solver=Euler(steps=depth))
        errors.append(gap(flow.push(mu).atoms, at_once(field, mu, depth).atoms))
    yield holds(max(errors), 0.0, trials=len(errors))


def largest_acceleration(field: Linear, mu: Measure) -> float:
    r"""The largest $|\ddot x|=|A\dot x+B\dot m|$ on the way."""
    accelerations = []
    for now in Flow(field, t1=1.0, solver=RK4(steps=50)).path(mu, save=50):
        velocity = field(now, now.atoms)
        mean = now.integrate(velocity)
        accelerations.append((velocity @ field.A.mT + mean @ field.B.mT).norm(dim=-1).max())
    return float(torch.stack(accelerations).max())


@statement(
    "A.eq9.bound",
    "beside (9)",
    "The distance of a network of L layers from its flow is bounded by the acceleration and the "
    "Lipschitz constants of the field.",
    r"\max_i|x_i^L-x_i(T)|\le\frac T{2L}\,\sup|\ddot x|\,\frac{e^{(L_x+K)T}-1}{L_x+K}",
    defect=planted(__name__, "step", lambda depth: 2 / depth),
    seconds=(0.2, 0.1),
    api=("InContextMap.lipschitz", "Flow"),
)
def bound_of_the_depth_limit(s: Setting) -> Iterator[Check | Figure]:
    """Linear fields, networks of several depths."""
    g, depths, shares = s.generator(), (8, 32, 128), []
    for _ in range(s.pick(5, 2)):
        field = Linear(*(torch.randn(2, 2, 2, generator=g) / 2).unbind(0))
        mu, known = box(6, 2, g), field.lipschitz(1.0)
        steep = known.x + known.mu
        top = largest_acceleration(field, mu) * math.expm1(steep) / steep
        bounds = [top / (2 * L) for L in depths]
        exact = Flow(field, t1=1.0, solver=RK4(steps=100)).push(mu).atoms
        images = [network(field, L).push(mu).atoms for L in depths]
        errors = [float((y - exact).norm(dim=-1).max()) for y in images]
        shares += [e / b for e, b in zip(errors, bounds, strict=True)]
    yield bounded(max(shares), len(shares), least=0.05)
    yield Figure(
        "Depth limit of a linear field",
        "layers",
        "largest error",
        (series("error", depths, errors, "dots"), series("bound", depths, bounds, "dashed")),
        log="xy",
    )


def increment(A: InContextMap, H: MLP) -> InContextMap:
    r"""$\mathcal V=\mathcal A+H\circ(\mathrm{Id}+\mathcal A)$ [A, eq. 61]."""
    return Sum(A, Compose(Residual(A), H))


def limit_of_sublayers(A: InContextMap, H: MLP) -> InContextMap:
    r"""$\mathcal A+H$."""
    return Sum(A, H)


@statement(
    "A.eq61.limits",
    "Section 4.1, (61)",
    "A transformer has two depth limits: one if the increments of blocks are scaled by 1/L, and "
    "another if attention and MLP are scaled separately.",
    r"x+\tfrac1L\mathcal V\ \to\ \dot x=\mathcal V=\mathcal A+H\circ(\mathrm{Id}+\mathcal A),"
    r"\qquad(x+\tfrac1LH)\circ(x+\tfrac1L\mathcal A)\ \to\ \dot x=\mathcal A+H",
    defect=planted(__name__, "limit_of_sublayers", increment),
    seconds=(0.6, 0.3),
    api=("fields.Sum", "flows.LieSplit", "Transformer"),
    note="The paper scales blocks; programs, as a rule, scale each sub-layer.",
)
def two_limits(s: Setting) -> Iterator[Check | Figure]:
    """Both networks against both flows."""
    g, depths = s.generator(), (32, 64, 128)
    A, H, mu = attention_field(2, 0.7, g), MLP(2, 6), box(9, 2, g)
    V, split = increment(A, H), limit_of_sublayers(A, H)
    blocks = [network(V, L) for L in depths]
    layers = [Compose(*[Residual(A, step=step(L)), Residual(H, step=step(L))] * L) for L in depths]
    steps = s.pick(200, 50)
    own = {
        "blocks": errors_of(blocks, V, mu, steps),
        "layers": errors_of(layers, split, mu, steps),
    }
    cross = {
        "blocks": errors_of(blocks, split, mu, steps), "layers": errors_of(layers, V, mu, steps)
    }  # fmt: skip
    for name in own:
        yield rate(own[name][-2] / own[name][-1], 2.0, 0.1, f"{name} scaled: ratio of errors")
        before, last = cross[name][-2:]
        seen = before < 1.2 * last and last > 5 * own[name][-1]  # it does not fall
        yield refuted(seen, f"the other limit is off by {last:.3g}", last)
    yield Figure(
        "Two depth limits of one transformer",
        "blocks",
        "largest error",
        (
            *(series(f"{name} scaled", depths, e) for name, e in own.items()),
            *(
                series(f"{name} scaled, other limit", depths, e, "dots")
                for name, e in cross.items()
            ),
        ),
        log="xy",
    )
